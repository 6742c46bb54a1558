#include "ptx.hpp"

#include <cctype>
#include <cstring>

#include "frame.hpp"

namespace emulation {
namespace {

table_t const& table() {
    static table_t const all = [] {
        table_t t;
        for (auto* add : {add_scalars, add_memory, add_barriers, add_copies, add_warp_products, add_warpgroup_products,
                          add_tensor_memory})
            add(t);
        return t;
    }();
    return all;
}

std::string trimmed(std::string text) {
    auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    while (!text.empty() && space(text.back())) text.pop_back();
    std::size_t at = 0;
    while (at < text.size() && space(text[at])) ++at;
    return text.substr(at);
}

/// The registers that a program has declared, by name.
struct names_t {
    std::map<std::string, int> number;

    int of(std::string const& name) {
        auto const found = number.find(name);
        if (found == number.end()) fail("PTX register " + name + " was not declared");
        return found->second;
    }
    void declare(std::string const& text) {  // .reg .pred p, q
        std::size_t at = text.find(' ', text.find('.', 1));
        for (std::string rest = text.substr(at); !rest.empty();) {
            std::size_t const comma = rest.find(',');
            int const next = static_cast<int>(number.size());
            if (next == registers_k) fail("too many PTX registers");
            number[trimmed(rest.substr(0, comma))] = next;
            rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        }
    }
};

reference_t reference(std::string const& word, names_t& names) {
    auto digits = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    if (word == "_") return {reference_t::sink_k, 0, "", false};
    if (word.rfind("%%", 0) == 0) return {reference_t::special_k, 0, word.substr(2), false};
    if (word[0] == '%') return {reference_t::operand_k, std::stoull(word.substr(1)), "", false};
    if (word.rfind("0f", 0) == 0)
        return {reference_t::immediate_k, std::stoull(word.substr(2), nullptr, 16), "", false};
    if (digits(word[0]) || word[0] == '-')
        return {reference_t::immediate_k, static_cast<std::uint64_t>(std::stoll(word, nullptr, 0)), "", false};
    return {reference_t::register_k, static_cast<std::uint64_t>(names.of(word)), "", false};
}

}  // namespace

program_t::program_t(char const* text) {
    names_t names;
    std::string rest = text;
    while (true) {
        std::size_t const end = rest.find(';');
        std::string one = trimmed(rest.substr(0, end));
        rest = end == std::string::npos ? "" : rest.substr(end + 1);
        while (!one.empty() && (one[0] == '{' || one[0] == '}')) one = trimmed(one.substr(1));
        if (one.empty() && rest.empty()) return;
        if (one.empty()) continue;
        if (one.rfind(".reg", 0) == 0) {
            names.declare(one);
            continue;
        }
        statement_t statement;
        if (one[0] == '@') {
            statement.negated = one[1] == '!';
            std::size_t const space = one.find(' ');
            statement.predicate = names.of(one.substr(statement.negated ? 2 : 1, space - (statement.negated ? 2 : 1)));
            one = trimmed(one.substr(space));
        }
        std::size_t const space = std::min(one.find_first_of(" \t\n"), one.size());
        statement.name = one.substr(0, space);
        auto const found = table().find(statement.name);
        if (found == table().end()) fail("PTX that the emulator does not know: " + one);
        statement.handler = found->second;
        statement.acquires = statement.name.rfind("ld.acquire", 0) == 0;
        std::string word;
        bool address = false;
        for (char c : one.substr(space) + " ") {
            if (std::string(" \t\n,|[]{}").find(c) == std::string::npos) {
                word += c;
                continue;
            }
            if (!word.empty()) {
                statement.references.push_back(reference(word, names));
                statement.references.back().address = address;
                word.clear();
            }
            if (c == '[' || c == ']') address = c == '[';
        }
        statements.push_back(std::move(statement));
    }
}

void run_ptx(program_t const& program, std::initializer_list<operand_t> operands) {
    frame_t frame{operands.begin()};
    for (auto const& statement : program.statements) {
        if (statement.predicate >= 0 && (frame.registers[statement.predicate] != 0) == statement.negated) continue;
        frame.statement = &statement;
        if (!statement.acquires) self().polls = 0;
        statement.handler(frame);
    }
}

std::uint64_t frame_t::u64(std::size_t i) const {
    reference_t const& r = at(i);
    switch (r.kind) {
    case reference_t::operand_k: {
        operand_t const& operand = operands[r.value];
        std::uint64_t bits = operand.bits;
        if (operand.target) bits = 0, std::memcpy(&bits, operand.target, operand.size);  // little endian
        return bits;
    }
    case reference_t::register_k: return registers[r.value];
    case reference_t::immediate_k: return r.value;
    case reference_t::special_k: {
        thread_t const& thread = self();
        if (r.name == "cluster_ctarank") return static_cast<std::uint64_t>(thread.block->rank);
        if (r.name == "cluster_nctarank") return thread.block->cluster->blocks.size();
        if (r.name == "laneid") return static_cast<std::uint64_t>(thread.lane);
        if (r.name == "warpid") return static_cast<std::uint64_t>(thread.warp->index);
        if (r.name == "clock" || r.name == "globaltimer") return 0;
        fail("PTX register %" + r.name + " is not known to the emulator");
    }
    case reference_t::sink_k: break;
    }
    fail(statement->name + " reads its sink");
}

void frame_t::set(std::size_t i, std::uint64_t value) {
    reference_t const& r = at(i);
    if (r.kind == reference_t::sink_k) return;
    if (r.kind == reference_t::register_k) registers[r.value] = value;
    else if (r.kind == reference_t::operand_k && operands[r.value].target)
        std::memcpy(operands[r.value].target, &value, operands[r.value].size);  // little endian
    else fail(statement->name + " writes an input");
}

void* frame_t::target_of(std::size_t i, std::size_t bytes) const {
    reference_t const& r = at(i);
    if (r.kind != reference_t::operand_k || !operands[r.value].target || operands[r.value].size != bytes)
        fail(statement->name + " writes what is no output of its size");
    return operands[r.value].target;
}

std::uint32_t* frame_t::array(std::size_t first, std::size_t n) const {
    auto* const begin = static_cast<std::uint32_t*>(target_of(first, 4));
    for (std::size_t i = 1; i < n; ++i)
        if (target_of(first + i, 4) != begin + i) fail(statement->name + ": outputs that are not one array");
    return begin;
}

}  // namespace emulation
