// The kinds of step kernel, as types that its parts are templates of.
#pragma once
#include <type_traits>

#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

/// Any ladder: weights wait in memory, band by band.
struct general_t {
    using pair = ptx::bf16_pair_t;
    static constexpr bool fast = false, taker = false, fp16 = false;
    static constexpr int high = 1, broad = 1, ctas = 1, peers = 1;
};

/// The article's ladder. `high_` x `broad_` CTAs form a cluster and share operands by multicast: two CTAs above each
/// other score the two halves of a tile, or multiply two row blocks by the same columns, and so share the candidates'
/// rows; two side by side score neighbouring tiles, or multiply one row block by neighbouring columns, and so share the
/// rows, or the weights. `taker_`: a warp of its own takes items from the queue, else the one that loads operands does.
/// Clusters have one.
/// `fp16_`: rows and weights are fp16, rows scaled by powers of two (prepare.cuh).
template <int high_, int broad_, bool taker_, bool fp16_ = false>
struct article_t {
    static_assert((high_ == 1 && broad_ == 1) || (high_ == 2 && broad_ <= 2 && taker_));
    using pair = std::conditional_t<fp16_, ptx::fp16_pair_t, ptx::bf16_pair_t>;
    static constexpr bool fast = true, taker = taker_, fp16 = fp16_;
    static constexpr int high = high_, broad = broad_, ctas = high_ * broad_;
    static constexpr int peers = high_ + broad_ - 1;  // CTAs that a CTA's copies reach, itself among them
};

/// A CTA's place in its cluster, and the masks of those that share with it.
template <class kind_>
struct cluster_place_t {
    uint32_t rank, row, column;
    __device__ __forceinline__ explicit cluster_place_t(uint32_t cluster_rank)
        : rank(cluster_rank), row(cluster_rank % kind_::high), column(cluster_rank / kind_::high) {}
    /// The CTAs of the same row, which share rows and weights; and of the same column, which share candidates.
    __device__ __forceinline__ uint16_t row_mask() const { return (kind_::broad > 1 ? 0b101 : 0b1) << row; }
    __device__ __forceinline__ uint16_t column_mask() const {
        return ((1 << kind_::high) - 1) << (column * kind_::high);
    }
    /// Peer 0 is the CTA itself, then that of the other row, then that of the other column.
    __device__ __forceinline__ uint32_t peer(uint32_t i) const { return i == 0 ? rank : rank ^ i; }
};

}  // namespace scaling_contrasts::sm90
