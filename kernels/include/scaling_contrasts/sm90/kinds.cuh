// The kinds of step kernel, as types that its parts are templates of.
#pragma once
#include <type_traits>

#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

/// `fp16_`: rows and weights are fp16, rows scaled by powers of two (prepare.cuh).
template <bool fp16_>
using pair_of = std::conditional_t<fp16_, ptx::fp16_pair_t, ptx::bf16_pair_t>;

/// CTAs that form a cluster, `high` x `broad` of them, and the items in which they share operands: each loads a part and
/// copies it to all that need it. Two above each other score the two halves of a tile, or multiply two row blocks'
/// weights by the same columns of X, and so share the candidates' rows. Two side by side score neighbouring tiles, or
/// multiply one row block's weights by neighbouring columns, and so share the rows, or the weights.
struct cluster_t {
    char const* name;
    int high, broad;
    bool scores, gradients;
    __host__ __device__ constexpr int ctas() const { return high * broad; }
    /// CTAs that a CTA's copies reach, itself among them.
    __host__ __device__ constexpr int peers() const { return high + broad - 1; }
};
constexpr cluster_t clusters_k[] = {
    {"none", 1, 1, false, false},       {"pairs", 2, 1, true, true},   {"gradient_pairs", 2, 1, false, true},
    {"score_pairs", 2, 1, true, false}, {"squares", 2, 2, true, true}, {"gradient_squares", 2, 2, false, true},
};
constexpr int cluster_count_k = sizeof(clusters_k) / sizeof(clusters_k[0]);

/// Kernels that no measurement has shown to pay yet (clusters, corrected_t and what builds on it) are compiled for their
/// tests and timings alone: they would double what users compile.
#ifdef SCALING_CONTRASTS_SM90_VARIANTS
constexpr bool variants_k = true;
#else
constexpr bool variants_k = false;
#endif

/// Any ladder: weights wait in memory, band by band.
template <bool fp16_>
struct general_t {
    using pair = pair_of<fp16_>;
    static constexpr cluster_t cluster = clusters_k[0];
    static constexpr bool fast = false, fp16 = fp16_, gives_back = false, both = false, corrected = false,
                          one_launch = false, small_items = false;
};

/// The article's ladder. `gives_back`: what rounding takes off positives' weights is kept for the end of the step.
template <bool fp16_>
struct article_t {
    using pair = pair_of<fp16_>;
    static constexpr cluster_t cluster = clusters_k[0];
    static constexpr bool fast = true, fp16 = fp16_, gives_back = true, both = false, corrected = false,
                          one_launch = false, small_items = false;
};

/// Where positives, self pairs and absent cells are among cells far below zero, straight code is corrected for them.
template <class kind_>
struct corrected_t : kind_ {
    static constexpr bool corrected = true;
};

/// Score items of 64 x 64 cells, so that few rows make items for more CTAs.
template <class kind_>
struct small_items_t : kind_ {
    static constexpr bool small_items = true;
};

/// The step is this kernel alone: see one_launch.cuh.
template <class kind_>
struct one_launch_t : kind_ {
    static constexpr bool one_launch = true;
};

template <class kind_>
using params_of = std::conditional_t<kind_::one_launch, one_launch_params_t, params_t>;

/// The same for a block of another device's rows that is scored for both devices: the candidates get gradients, too.
template <class kind_>
struct both_sides_t : kind_ {
    static constexpr bool gives_back = false, both = true;
    static_assert(kind_::cluster.ctas() == 1);
};

/// The article's ladder, run by clusters of CTAs.
template <int index_>
struct clustered_t : article_t<false> {
    static constexpr cluster_t cluster = clusters_k[index_];
};

/// A CTA's place in its cluster, and masks of those that it shares with, a bit a rank.
template <class kind_>
struct place_t {
    static constexpr cluster_t cluster = kind_::cluster;
    uint32_t rank = 0, row = 0, column = 0;
    __device__ __forceinline__ explicit place_t(uint32_t rank)
        : rank(rank), row(rank % cluster.high), column(rank / cluster.high) {}
    /// The CTAs of the same row, which share rows and weights; and of the same column, which share candidates.
    __device__ __forceinline__ uint16_t row_mask() const { return (cluster.broad > 1 ? 0b101 : 0b1) << row; }
    __device__ __forceinline__ uint16_t column_mask() const {
        return ((1 << cluster.high) - 1) << (column * cluster.high);
    }
    /// Peer 0 is the CTA itself, then that of the other row, then that of the other column.
    __device__ __forceinline__ uint32_t peer(uint32_t i) const { return rank ^ i; }
};

}  // namespace scaling_contrasts::sm90
