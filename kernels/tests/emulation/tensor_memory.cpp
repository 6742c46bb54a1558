// tcgen05: tensor memory, the products into it, and loads out of it. One thread's products and commits take effect in
// order.
#include <cmath>
#include <cstring>
#include <limits>

#include "operand.hpp"

namespace emulation {
namespace {

constexpr int columns_k = 512;

void check_order(frame_t& f) {
    if (!self().tensor_ordered)
        fail(std::string(f.name()) + " after a barrier, without tcgen05.fence::after_thread_sync");
}

/// Columns from `address` on, of the running block's allocation. The address: lane in the upper half, column in the
/// lower.
void check_columns(frame_t& f, std::uint32_t address, int count) {
    block_t const& block = *self().block;
    int const first = static_cast<int>(address & 0xffff);
    for (int column = first; column < first + count; ++column)
        if (column >= columns_k || block.tensor->owner[column] != &block)
            fail(std::string(f.name()) + ": column " + std::to_string(column) + " of tensor memory is not the block's");
}

void allocate(frame_t& f) {
    struct part_t {
        std::uint32_t to;
        int count;
    } part = {f.u32(0), static_cast<int>(f.u32(1))};
    int const count = part.count;
    block_t& block = *self().block;
    tensor_memory_t& tensor = *block.tensor;
    if (count < 32 || count > columns_k || (count & (count - 1)))
        fail("tcgen05.alloc: " + std::to_string(count) + " columns");
    if (block.tensor_relinquished) fail("tcgen05.alloc after tcgen05.relinquish_alloc_permit");
    if (count > block.tensor_least) fail("tcgen05.alloc of more columns than before");
    auto const place = [&tensor, count] {  // the last one, so that address 0 is rare
        for (int first = columns_k - count; first >= 0; first -= 32) {
            bool free = true;
            for (int i = 0; i < count; ++i) free = free && !tensor.owner[first + i];
            if (free) return first;
        }
        return -1;
    };
    wait_until([place] { return place() >= 0; },
               [count] { return "tcgen05.alloc: " + std::to_string(count) + " free columns"; });
    meet(~0u, f.name(), &part, [&](void* const*) {
        int const first = place();
        if (first < 0) fail("tcgen05.alloc by two warps at once");
        for (int i = 0; i < count; ++i) {
            tensor.owner[first + i] = &block;
            for (auto& lane : tensor.cell) lane[first + i] = 0x7fffffff;  // NaN
        }
        block.tensor_columns += count, block.tensor_least = count;
        auto const address = static_cast<std::uint32_t>(first);
        std::memcpy(shared_at(part.to, 4, 4), &address, 4);
    });
}

void deallocate(frame_t& f) {
    check_order(f);
    std::uint32_t const address = f.u32(0);
    int const count = static_cast<int>(f.u32(1));
    check_columns(f, address, count);
    meet(~0u, f.name(), nullptr, [&](void* const*) {
        block_t& block = *self().block;
        for (int i = 0; i < count; ++i)
            block.tensor->owner[(address & 0xffff) + static_cast<std::uint32_t>(i)] = nullptr;
        block.tensor_columns -= count;
    });
}

/// The 32-bit instruction descriptor of kind::f16, PTX 9.7.16.4.2.
struct instruction_t {
    number_t a_type, b_type;
    float a_sign, b_sign;
    bool a_k_major, b_k_major;
    int rows, columns;

    explicit instruction_t(std::uint32_t bits) {
        auto field = [bits](int from, int count) { return bits >> from & ((1u << count) - 1); };
        if (field(0, 4) || field(6, 1) || field(23, 1) || field(29, 3))
            fail("tcgen05.mma: bits of the instruction descriptor that the emulator does not know");
        if (field(4, 2) != 1) fail("tcgen05.mma: the emulator knows accumulators in fp32 alone");
        if (field(7, 3) > 1 || field(10, 3) > 1 || field(7, 3) != field(10, 3))
            fail("tcgen05.mma: kind::f16 takes two operands of bf16, or of fp16");
        a_type = field(7, 3) ? number_t::bf16_k : number_t::fp16_k, b_type = a_type;
        a_sign = field(13, 1) ? -1.0f : 1.0f, b_sign = field(14, 1) ? -1.0f : 1.0f;
        a_k_major = !field(15, 1), b_k_major = !field(16, 1);
        rows = static_cast<int>(field(24, 5) << 4), columns = static_cast<int>(field(17, 6) << 3);
        if (rows != 64 && rows != 128) fail("tcgen05.mma.cta_group::1 of " + std::to_string(rows) + " rows");
        if (columns < 8 || columns > 256 || (rows == 128 && columns % 16))
            fail("tcgen05.mma of " + std::to_string(columns) + " columns");
    }
};

void multiply(frame_t& f) {
    check_order(f);
    if (f.count() != 5 || f.statement->references[1].address)
        fail("tcgen05.mma: the emulator knows the form [d], a-desc, b-desc, idesc, p alone");
    std::uint32_t const to = f.u32(0);
    std::uint64_t const a_bits = f.u64(1), b_bits = f.u64(2);
    instruction_t const instruction(f.u32(3));
    matrix_t const a_place = decode_tensor_descriptor(a_bits), b_place = decode_tensor_descriptor(b_bits);
    bool const accumulate = f.u64(4) != 0;
    check_columns(f, to, instruction.columns);
    if (to >> 16) fail("tcgen05.mma: an accumulator that does not begin in lane 0");
    block_t& block = *self().block;
    start(&self(), [=, &block] {
        auto const a = read_operand(block, a_place, instruction.rows, instruction.a_k_major, instruction.a_type,
                                    instruction.a_sign);
        auto const b = read_operand(block, b_place, instruction.columns, instruction.b_k_major, instruction.b_type,
                                    instruction.b_sign);
        auto const width = static_cast<std::size_t>(instruction.columns);
        std::vector<float> d(static_cast<std::size_t>(instruction.rows) * width, 0.0f);
        auto lane_of = [&](std::size_t row) { return instruction.rows == 128 ? row : row / 16 * 32 + row % 16; };
        auto cells = [&](std::size_t row) { return block.tensor->cell[lane_of(row)] + (to & 0xffff); };
        if (accumulate)
            for (std::size_t row = 0; row < d.size() / width; ++row)
                std::memcpy(d.data() + row * width, cells(row), width * 4);
        multiply_add(d.data(), a.data(), b.data(), instruction.rows, instruction.columns);
        for (std::size_t row = 0; row < d.size() / width; ++row)
            std::memcpy(cells(row), d.data() + row * width, width * 4);
    });
    perhaps_yield();
}

void commit(frame_t& f) {
    mbarrier_t& barrier = mbarrier_at(f.u32(0));
    start(&self(), [&barrier] { arrive(barrier, 1, 0); });
    perhaps_yield();
}

/// The lanes that a warp reaches are its own quarter, and the address must say so.
void check_lanes(frame_t& f, std::uint32_t address) {
    auto const quarter = static_cast<std::uint32_t>(self().warp->index % 4) * 32;
    if (address >> 16 != quarter)
        fail(std::string(f.name()) + ": lane " + std::to_string(address >> 16) + ", but the warp reaches lanes from " +
             std::to_string(quarter) + " on");
}

template <int count>
void load(frame_t& f) {
    check_order(f);
    std::uint32_t address = f.u32(count);
    check_lanes(f, address);
    check_columns(f, address, count);
    meet(~0u, f.name(), &address, [&](void* const* brought) {
        for (int lane = 0; lane < 32; ++lane)
            if (*static_cast<std::uint32_t*>(brought[lane]) != address)
                fail(std::string(f.name()) + ": lanes give different addresses");
    });
    std::uint32_t* const to = f.array(0, count);
    std::uint32_t const* const from =
        self().block->tensor->cell[(address >> 16) + static_cast<std::uint32_t>(self().lane)] + (address & 0xffff);
    if (!poisons()) {
        std::memcpy(to, from, count * 4);
        return;
    }
    std::fill_n(to, count, 0x7fffffffu);
    self().tensor_loads.push_back([=] { std::memcpy(to, from, count * 4); });
}
template <int count>
void store(frame_t& f) {
    check_order(f);
    std::uint32_t address = f.u32(0);
    check_lanes(f, address);
    check_columns(f, address, count);
    meet(~0u, f.name(), nullptr, [](void* const*) {});
    std::uint32_t* const to =
        self().block->tensor->cell[(address >> 16) + static_cast<std::uint32_t>(self().lane)] + (address & 0xffff);
    for (int i = 0; i < count; ++i) to[i] = f.u32(1 + static_cast<std::size_t>(i));
}

template <int count>
void add_widths(table_t& table) {
    table["tcgen05.ld.sync.aligned.32x32b.x" + std::to_string(count) + ".b32"] = load<count>;
    table["tcgen05.st.sync.aligned.32x32b.x" + std::to_string(count) + ".b32"] = store<count>;
    if constexpr (count < 128) add_widths<count * 2>(table);
}

}  // namespace

void add_tensor_memory(table_t& table) {
    table["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"] = allocate;
    table["tcgen05.dealloc.cta_group::1.sync.aligned.b32"] = deallocate;
    table["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"] = [](frame_t& f) {
        meet(~0u, f.name(), nullptr, [](void* const*) { self().block->tensor_relinquished = true; });
    };
    table["tcgen05.mma.cta_group::1.kind::f16"] = multiply;
    table["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"] = commit;
    add_widths<1>(table);
    table["tcgen05.wait::ld.sync.aligned"] = [](frame_t& f) {
        meet(~0u, f.name(), nullptr, [](void* const*) {});
        for (auto const& one : self().tensor_loads) one();
        self().tensor_loads.clear();
    };
    table["tcgen05.wait::st.sync.aligned"] = [](frame_t& f) { meet(~0u, f.name(), nullptr, [](void* const*) {}); };
    table["tcgen05.fence::before_thread_sync"] = [](frame_t&) {};
    table["tcgen05.fence::after_thread_sync"] = [](frame_t&) { self().tensor_ordered = true; };
}

}  // namespace emulation
