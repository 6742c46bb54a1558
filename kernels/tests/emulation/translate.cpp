// Turns CUDA sources into C++ that the emulator runs. Three things are rewritten, in .cuh and .cu files alone; lines
// stay where they are, so that messages name the original:
//   kernel<<<grid, block, shared, stream>>>(arguments)   a call of emulation::launch()
//   asm volatile("text" : outputs : inputs : clobbers)   a call of emulation::run_ptx(), which interprets the text
//   extern __shared__ type name[];                       a pointer to the block's dynamic shared memory
// Everything else of the dialect is macros and functions of cuda/cuda_runtime.h.
//   emulation_translate FROM_FOLDER TO_FOLDER   (or two files)
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

struct problem_t : std::runtime_error {
    using std::runtime_error::runtime_error;
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

/// Past what begins at `at`, if that is a comment or a literal; else `at`.
std::size_t skip_opaque(std::string const& text, std::size_t at) {
    if (text.compare(at, 2, "//") == 0) return std::min(text.find('\n', at), text.size());
    if (text.compare(at, 2, "/*") == 0) return text.find("*/", at) + 2;
    bool const separator = text[at] == '\'' && at > 0 && is_word(text[at - 1]);  // 1'000
    if (text[at] != '"' && (text[at] != '\'' || separator)) return at;
    char const quote = text[at];
    for (++at; text.at(at) != quote; ++at)
        if (text[at] == '\\') ++at;
    return at + 1;
}

/// The bracket that closes the one at `open`.
std::size_t closing(std::string const& text, std::size_t open) {
    int depth = 0;
    for (std::size_t at = open; at < text.size();) {
        if (std::size_t const past = skip_opaque(text, at); past != at) {
            at = past;
            continue;
        }
        if (std::string("([{").find(text[at]) != std::string::npos) ++depth;
        if (std::string(")]}").find(text[at]) != std::string::npos && --depth == 0) return at;
        ++at;
    }
    throw problem_t("a bracket is never closed");
}

/// `text` cut at the separators that lie outside of brackets and literals.
std::vector<std::string> cut(std::string const& text, char separator) {
    std::vector<std::string> parts(1);
    for (std::size_t at = 0; at < text.size();) {
        std::size_t past = skip_opaque(text, at);
        if (past == at && std::string("([{").find(text[at]) != std::string::npos) past = closing(text, at) + 1;
        if (past != at) {
            parts.back() += text.substr(at, past - at);
            at = past;
        } else if (text[at] == separator) {
            parts.emplace_back();
            ++at;
        } else parts.back() += text[at++];
    }
    return parts;
}

/// `"=r"(x)` as an operand: what it is called by the emulator.
std::string operand(std::string const& text, bool output) {
    std::size_t const from = text.find('"'), to = text.find('"', from + 1), open = text.find('(', to);
    if (from == std::string::npos || open == std::string::npos) throw problem_t("no operand: " + text);
    return text.substr(0, from) + (output ? "emulation::output" : "emulation::input") + "(" +
           text.substr(from, to + 1 - from) + ", " + text.substr(open + 1, closing(text, open) - open - 1) + ")";
}

/// What stands for `asm volatile(inside)`.
std::string assembly(std::string const& inside) {
    auto const parts = cut(inside, ':');
    std::string operands;
    for (std::size_t part = 1; part < parts.size() && part < 3; ++part)
        for (auto const& one : cut(parts[part], ','))
            if (one.find('"') != std::string::npos)
                operands += (operands.empty() ? "" : ", ") + operand(one, part == 1);
            else operands += one;
    return "([](auto const&... operands) { static emulation::program_t const program(" + parts[0] +
           "); emulation::run_ptx(program, {operands...}); })(" + operands + ")";
}

/// Where the expression that ends before `end` begins: a name with scopes and template arguments, or a call of one.
std::size_t expression(std::string const& text, std::size_t end) {
    std::size_t at = end;
    auto back_over = [&](char open, char close) {
        int depth = 0;
        do {
            --at;
            depth += text[at] == close ? 1 : text[at] == open ? -1 : 0;
        } while (depth);
    };
    while (at > 0) {
        if (text[at - 1] == ')') back_over('(', ')');
        else if (text[at - 1] == '>') back_over('<', '>');
        else if (is_word(text[at - 1]) || text[at - 1] == ':') --at;
        else break;
    }
    return at;
}

std::string translate(std::string const& text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        if (std::size_t const past = skip_opaque(text, at); past != at) {
            out += text.substr(at, past - at);
            at = past;
            continue;
        }
        bool const begins_word = at == 0 || !is_word(text[at - 1]);
        if (begins_word && text.compare(at, 3, "asm") == 0 && !is_word(text[at + 3])) {
            std::size_t const open = text.find('(', at), close = closing(text, open);
            out += assembly(text.substr(open + 1, close - open - 1));
            at = close + 1;
        } else if (begins_word && text.compare(at, 17, "extern __shared__") == 0) {
            std::size_t const end = text.find(';', at), bracket = text.rfind('[', end),
                              name = expression(text, bracket);
            std::string type = text.substr(at + 17, name - at - 17);
            for (char const* alignment : {"__align__", "alignas"})  // the emulator's memory is aligned to 128 bytes
                if (auto const from = type.find(alignment); from != std::string::npos)
                    type.erase(from, closing(type, type.find('(', from)) + 1 - from);
            out += "auto* const " + text.substr(name, bracket - name) + " = emulation::dynamic_shared<" + type + ">()";
            at = end;
        } else if (text.compare(at, 3, "<<<") == 0) {
            std::size_t const kernel = expression(out, out.size());
            std::string const name = out.substr(kernel);
            out.resize(kernel);
            out += "emulation::launch([&](auto const&... arguments) { " + name + "(arguments...); }, ";
            at += 3;
        } else if (text.compare(at, 4, ">>>(") == 0) {
            out += ")";
            at += 3;
        } else out += text[at++];
    }
    return out;
}

void translate_file(fs::path const& from, fs::path const& to) {
    std::stringstream before;
    before << std::ifstream(from).rdbuf();
    bool const cuda = from.extension() == ".cuh" || from.extension() == ".cu";
    std::string const after = "#line 1 \"" + fs::absolute(from).lexically_normal().string() + "\"\n" +
                              (cuda ? translate(before.str()) : before.str());
    std::stringstream present;
    present << std::ifstream(to).rdbuf();
    if (present.str() == after) return;  // what depends on it stays as it is
    fs::create_directories(to.parent_path());
    std::ofstream(to) << after;
}

}  // namespace

int main(int count, char** arguments) try {
    if (count != 3) throw problem_t("usage: emulation_translate FROM TO");
    fs::path const from = arguments[1], to = arguments[2];
    if (!fs::is_directory(from)) {
        translate_file(from, to);
        return 0;
    }
    for (auto const& entry : fs::recursive_directory_iterator(from))
        if (entry.is_regular_file()) translate_file(entry.path(), to / fs::relative(entry.path(), from));
} catch (std::exception const& problem) {
    std::cerr << "emulation_translate: " << problem.what() << "\n";
    return 1;
}
