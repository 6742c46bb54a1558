// One device's part of the gradients of another's rows, on its way there: pairs.hpp.
#pragma once
#include "scaling_contrasts/cpu/layout.hpp"
#include "scaling_contrasts/threads.hpp"

namespace scaling_contrasts::cpu {

class partial_t {
  public:
    /// For up to `rows` rows: as many floats as their gradients have, and a sum for each prefix.
    partial_t(packed_ladder_t const& ladder, std::int64_t rows) : prefixes_(ladder.count) {
        side_.padded = round_up(rows, block_k);
        auto const statistics = static_cast<std::size_t>(ladder.count * side_.padded);
        side_.labels = buffer_t<std::int32_t>(static_cast<std::size_t>(side_.padded));
        side_.inverse_norms = buffer_t<float>(statistics);
        side_.sums = buffer_t<float>(statistics);
        side_.accumulator_stride = ladder.panels() * panel_k;
        side_.own_accumulator = buffer_t<float>(static_cast<std::size_t>(rows * side_.accumulator_stride));
        side_.accumulator = side_.own_accumulator.data();
    }

    /// The first `rows` rows of `from` as candidates whose gradients and sums begin at zero.
    side_t& open(side_t const& from, std::int64_t rows) {
        side_.x = {from.x.data, rows, from.x.stride};
        std::copy_n(from.labels.data(), rows, side_.labels.data());
        for (int p = 0; p < prefixes_; ++p)
            std::copy_n(from.inverse_norms.data() + p * from.padded, rows,
                        side_.inverse_norms.data() + p * side_.padded);
        side_.sums.zero();
        std::fill_n(side_.accumulator, rows * side_.accumulator_stride, 0.0f);
        return side_;
    }

    /// Adds to the side that it was opened from.
    void add_to(side_t& to, pool_t& pool) const {
        for (int p = 0; p < prefixes_; ++p)
            for (std::int64_t row = 0; row < side_.x.rows; ++row)
                to.sums[static_cast<std::size_t>(p * to.padded + row)] +=
                    side_.sums[static_cast<std::size_t>(p * side_.padded + row)];
        pool.run(static_cast<int>((side_.x.rows + task_k - 1) / task_k), [&](int part) {
            std::int64_t const end = std::min<std::int64_t>(side_.x.rows, (part + 1) * task_k);
            for (std::int64_t row = part * task_k; row < end; ++row) {
                float const* const from = side_.accumulator + row * side_.accumulator_stride;
                float* const out = to.accumulator + row * to.accumulator_stride;
                for (std::int64_t c = 0; c < side_.accumulator_stride; ++c) out[c] += from[c];
            }
        });
    }

  private:
    int prefixes_;
    side_t side_;
};

}  // namespace scaling_contrasts::cpu
