// wgmma. The four warps of a warpgroup issue the same products; a product runs once all have. Its accumulators are the
// host's variables: they are taken when a warp first names them, hold NaN while products on them are on their way, and
// come back with the wait.
#include <algorithm>
#include <limits>

#include "operand.hpp"

namespace emulation {
namespace {

/// One warp's 16 rows of an accumulator, [16][columns], and the registers that it is kept in.
struct accumulator_t {
    float* registers[32];
    int columns;
    std::vector<float> values;
    std::uint64_t last = 0;  ///< product that writes it last

    /// Row within the warp's 16, and column, of a lane's register: PTX 9.7.15.5.1, the fragment of D.
    static std::size_t place(int lane, int i, int columns) {
        int const row = lane / 4 + 8 * (i >> 1 & 1), column = 8 * (i >> 2) + 2 * (lane % 4) + (i & 1);
        return static_cast<std::size_t>(row * columns + column);
    }
    int count() const { return columns / 2; }
};

struct product_t {
    std::string name;
    std::uint64_t a = 0, b = 0;
    bool a_in_registers = false, a_k_major = true, b_k_major = true;
    float a_sign = 1, b_sign = 1;
    int columns = 0;
    number_t type = number_t::bf16_k;
    bool accumulate = true;
    std::shared_ptr<accumulator_t> accumulators[4];
    std::vector<float> a_rows[4];  ///< from registers: [16][16] of each warp
    int issued = 0;

    bool same(product_t const& other) const {
        return name == other.name && a == other.a && b == other.b && a_k_major == other.a_k_major &&
               b_k_major == other.b_k_major && a_sign == other.a_sign && b_sign == other.b_sign &&
               accumulate == other.accumulate;
    }
};

}  // namespace

struct warpgroup_t {
    block_t* block;
    std::deque<std::shared_ptr<product_t>> products;  ///< issued by some warp and not yet run
    std::uint64_t ran = 0;                            ///< products run
    struct of_warp_t {
        std::uint64_t issued = 0;
        std::deque<std::uint64_t> groups;  ///< issued when each was closed
        std::vector<std::shared_ptr<accumulator_t>> accumulators;
        bool fenced = false;
    } warp[4];
};

namespace {

warpgroup_t& group_of(thread_t const& thread) {
    auto& groups = thread.block->warpgroups;
    auto const number = static_cast<std::size_t>(thread.warp->index / 4);
    while (groups.size() <= number) {
        groups.push_back(std::make_shared<warpgroup_t>());
        groups.back()->block = thread.block;
    }
    return *groups[number];
}

void run_product(warpgroup_t& group) {
    auto const product = group.products.front();
    group.products.pop_front();
    ++group.ran;
    std::vector<float> a;
    if (!product->a_in_registers)
        a = read_operand(*group.block, decode_warpgroup_descriptor(product->a), 64, product->a_k_major, product->type,
                         product->a_sign);
    auto const b = read_operand(*group.block, decode_warpgroup_descriptor(product->b), product->columns,
                                product->b_k_major, product->type, product->b_sign);
    for (int warp = 0; warp < 4; ++warp) {
        accumulator_t& d = *product->accumulators[warp];
        if (!product->accumulate) std::fill(d.values.begin(), d.values.end(), 0.0f);
        multiply_add(d.values.data(), product->a_in_registers ? product->a_rows[warp].data() : a.data() + warp * 256,
                     b.data(), 16, d.columns);
    }
}

/// The accumulator that the lanes' registers are, taken over if no product on its way has it.
std::shared_ptr<accumulator_t> take(warpgroup_t::of_warp_t& mine, float* const (&registers)[32], int columns) {
    for (auto const& one : mine.accumulators)
        if (one->registers[0] == registers[0]) {
            if (one->columns != columns || !std::equal(one->registers, one->registers + 32, registers))
                fail("wgmma: products of different shapes on one accumulator without a wait");
            return one;
        }
    if (!mine.fenced) fail("wgmma on registers that other instructions may have written, without wgmma.fence");
    auto one = std::make_shared<accumulator_t>();
    std::copy(registers, registers + 32, one->registers);
    one->columns = columns;
    one->values.resize(static_cast<std::size_t>(16 * columns));
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < one->count(); ++i) {
            one->values[accumulator_t::place(lane, i, columns)] = registers[lane][i];
            if (poisons()) registers[lane][i] = std::numeric_limits<float>::quiet_NaN();
        }
    mine.accumulators.push_back(one);
    return one;
}

struct part_t {
    float* registers;
    std::uint32_t a[4];
    product_t product;
};

void issue(frame_t& f, int columns, number_t type) {
    auto const count = static_cast<std::size_t>(columns / 2);
    part_t part = {reinterpret_cast<float*>(f.array(0, count)), {}, {}};
    product_t& p = part.product;
    p.name = f.name(), p.columns = columns, p.type = type;
    // d, a-desc, b-desc, scale-d, scale-a, scale-b, trans-a, trans-b; or d, 4 registers of a, b-desc, ..., trans-b
    p.a_in_registers = f.count() == count + 9;
    std::size_t next = count;
    if (p.a_in_registers)
        for (auto& word : part.a) word = f.u32(next++);
    else p.a = f.u64(next++);
    p.b = f.u64(next++);
    p.accumulate = f.u64(next++) != 0;
    p.a_sign = static_cast<float>(static_cast<std::int64_t>(f.u64(next++)));
    p.b_sign = static_cast<float>(static_cast<std::int64_t>(f.u64(next++)));
    if (!p.a_in_registers) p.a_k_major = f.u64(next++) == 0;
    p.b_k_major = f.u64(next++) == 0;
    if (next != f.count()) fail(std::string(f.name()) + ": operands that the emulator does not know");
    meet(~0u, f.name(), &part, [](void* const* brought) {
        thread_t const& thread = self();
        warpgroup_t& group = group_of(thread);
        int const number = thread.warp->index % 4;
        auto& mine = group.warp[number];
        part_t& first = *static_cast<part_t*>(brought[0]);
        float* registers[32];
        for (int lane = 0; lane < 32; ++lane) {
            part_t const& one = *static_cast<part_t*>(brought[lane]);
            registers[lane] = one.registers;
            if (!one.product.same(first.product)) fail("wgmma: lanes of a warp give different operands");
        }
        std::uint64_t const place = mine.issued++ - group.ran;
        if (place == group.products.size()) group.products.push_back(std::make_shared<product_t>(first.product));
        product_t& product = *group.products.at(place);
        if (!product.same(first.product)) fail("wgmma: warps of a warpgroup give different operands");
        auto accumulator = take(mine, registers, product.columns);
        accumulator->last = mine.issued;
        product.accumulators[number] = accumulator;
        if (product.a_in_registers) {
            auto& rows = product.a_rows[number];
            rows.resize(256);
            for (int lane = 0; lane < 32; ++lane)
                for (int r = 0; r < 4; ++r)
                    for (int half = 0; half < 2; ++half) {
                        std::uint32_t const bits = static_cast<part_t*>(brought[lane])->a[r] >> 16 * half & 0xffff;
                        int const row = lane / 4 + 8 * (r & 1), k = 2 * (lane % 4) + half + 8 * (r >> 1);
                        rows[static_cast<std::size_t>(row * 16 + k)] =
                            product.a_sign * (product.type == number_t::bf16_k ? from_bf16(bits) : from_fp16(bits));
                    }
        }
        if (++product.issued < 4) return;
        start(&group, [&group] { run_product(group); });
    });
}

void wait_group(frame_t& f) {
    auto const pending = f.u64(0);
    meet(~0u, f.name(), nullptr, [](void* const*) {});
    thread_t const& thread = self();
    warpgroup_t& group = group_of(thread);
    auto& mine = group.warp[thread.warp->index % 4];
    std::uint64_t needed = 0;
    if (mine.groups.size() > pending) needed = mine.groups[mine.groups.size() - 1 - pending];
    wait_until([&group, needed] { return group.ran >= needed; },
               [&group, needed] {
                   return "wgmma.wait_group: " + std::to_string(needed - group.ran) +
                          " products, which not all warps of the warpgroup have issued";
               });
    meet(~0u, "wgmma.wait_group", nullptr, [&](void* const*) {
        while (mine.groups.size() > pending) mine.groups.pop_front();
        std::erase_if(mine.accumulators, [&](auto const& one) {
            if (one->last > group.ran || one->last > needed) return false;
            for (int lane = 0; lane < 32; ++lane)
                for (int i = 0; i < one->count(); ++i)
                    one->registers[lane][i] = one->values[accumulator_t::place(lane, i, one->columns)];
            return true;
        });
        mine.fenced = false;
    });
}

template <int columns>
void add_shapes(table_t& table) {
    std::string const shape = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16.f32.";
    table[shape + "bf16.bf16"] = [](frame_t& f) { issue(f, columns, number_t::bf16_k); };
    table[shape + "f16.f16"] = [](frame_t& f) { issue(f, columns, number_t::fp16_k); };
    if constexpr (columns < 256) add_shapes<columns + 8>(table);
}

}  // namespace

void add_warpgroup_products(table_t& table) {
    add_shapes<8>(table);
    table["wgmma.fence.sync.aligned"] = [](frame_t& f) {
        meet(~0u, f.name(), nullptr, [](void* const*) { group_of(self()).warp[self().warp->index % 4].fenced = true; });
    };
    table["wgmma.commit_group.sync.aligned"] = [](frame_t& f) {
        meet(~0u, f.name(), nullptr, [](void* const*) {
            auto& mine = group_of(self()).warp[self().warp->index % 4];
            mine.groups.push_back(mine.issued);
        });
    };
    table["wgmma.wait_group.sync.aligned"] = wait_group;
}

}  // namespace emulation
