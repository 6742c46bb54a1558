// The plain data of the library: bf16 numbers, views of matrices, the names of losses and what a step is asked to do.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__CUDACC__)
#define SCALING_CONTRASTS_HD __host__ __device__
#else
#define SCALING_CONTRASTS_HD
#endif

namespace scaling_contrasts {

inline constexpr int max_prefixes_k = 16;      ///< longest ladder
inline constexpr int max_devices_k = 16;       ///< most devices one process drives
inline constexpr float least_norm_k = 1e-12f;  ///< a prefix shorter than this has cosine 0 and no gradient

enum class loss_t { one_set_sigmoid_k, two_set_sigmoid_k, info_nce_k, one_set_info_nce_k };
/// What one_set_info_nce normalises a positive pair by: itself and the negatives, or all other rows.
enum class form_t { nt_xent_k, sup_con_k };
enum class gradient_type_t { float32_k, bfloat16_k };
enum class label_layout_t { pairs_k, distinct_k, equal_k, mixed_k, fours_k, sixteens_k };

/// How a run or a step ended; the names are those of the result tables.
enum class status_t { ok_k, out_of_memory_k, nonfinite_k, unsupported_k, timeout_k, crashed_k };

constexpr char const* name_of(loss_t loss) {
    switch (loss) {
    case loss_t::one_set_sigmoid_k: return "one_set_sigmoid";
    case loss_t::two_set_sigmoid_k: return "two_set_sigmoid";
    case loss_t::info_nce_k: return "info_nce";
    case loss_t::one_set_info_nce_k: return "one_set_info_nce";
    }
    return "?";
}

constexpr char const* name_of(form_t form) { return form == form_t::nt_xent_k ? "nt_xent" : "sup_con"; }

constexpr char const* name_of(status_t status) {
    switch (status) {
    case status_t::ok_k: return "ok";
    case status_t::out_of_memory_k: return "out_of_memory";
    case status_t::nonfinite_k: return "nonfinite";
    case status_t::unsupported_k: return "unsupported";
    case status_t::timeout_k: return "timeout";
    case status_t::crashed_k: return "crashed";
    }
    return "?";
}

/// Embedding sets a loss takes: one (rows), or two (images, captions).
constexpr int sets_of(loss_t loss) {
    return loss == loss_t::one_set_sigmoid_k || loss == loss_t::one_set_info_nce_k ? 1 : 2;
}

/// Losses that normalise over candidates: their sums are found before any weight, and the bias is unused.
constexpr bool is_softmax(loss_t loss) { return loss == loss_t::info_nce_k || loss == loss_t::one_set_info_nce_k; }

/// A bf16 number: the upper half of a float. Rounds to nearest, ties to even; NaN stays NaN.
struct bf16_t {
    std::uint16_t bits = 0;

    bf16_t() = default;
    SCALING_CONTRASTS_HD explicit bf16_t(float value) {
        auto word = __builtin_bit_cast(std::uint32_t, value);
        bool const nan = (word & 0x7fffffffu) > 0x7f800000u;
        bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
    SCALING_CONTRASTS_HD explicit operator float() const {
        return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
    }
};
static_assert(sizeof(bf16_t) == 2);

/// Rows of bf16 embeddings, row-major; consecutive rows start `stride` elements apart.
struct matrix_view_t {
    bf16_t const* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t stride = 0;

    bf16_t const* row(std::int64_t i) const { return data + i * stride; }
};

/// What went wrong in a step, with the status that a result table shows.
struct failure_t : std::runtime_error {
    status_t status;
    failure_t(status_t status, std::string const& reason) : std::runtime_error(reason), status(status) {}
};

/// The same under its first name; glibc has an `error_t` of its own, so prefer failure_t.
using error_t = failure_t;

/// What a step computes. Shapes are of one device: `rows` rows of one set, or image-caption pairs of two.
struct problem_t {
    loss_t loss = loss_t::one_set_sigmoid_k;
    form_t form = form_t::nt_xent_k;  ///< of one_set_info_nce
    std::int64_t rows = 1024;         ///< R: rows (one set) or pairs (two sets) of each device
    std::vector<std::int64_t> live;   ///< live rows of each device; empty: all
    int dims = 1024;                  ///< D
    std::vector<int> prefixes = {64, 128, 256, 512, 1024};
    std::vector<double> prefix_weights;  ///< empty: 1 / prefixes.size() each
    gradient_type_t gradient_type = gradient_type_t::bfloat16_k;
    double scale = 10.0;                              ///< t, already exponentiated
    double bias = -10.0;                              ///< b
    bool self_pairs = false;                          ///< one_set_sigmoid only: whether (i, i) counts, as a positive
    int world_size = 1;                               ///< devices
    std::uint32_t seed = 42;                          ///< of the synthetic inputs
    label_layout_t labels = label_layout_t::pairs_k;  ///< of the synthetic inputs
    bool forward_only = false;                        ///< the loss alone: no gradient is written, no dL/dt, no dL/db
    std::int64_t group_rows =
        8192;                 ///< how, not what: small peers are scored together, up to so many rows (box/blocks.hpp)
    bool pairs_once = false;  ///< how, not what: a block of two devices' rows is scored by one of them (pairs.hpp)

    std::int64_t live_of(int device) const { return live.empty() ? rows : live[static_cast<std::size_t>(device)]; }
    std::int64_t live_rows() const {  ///< n: over all devices
        std::int64_t sum = 0;
        for (int device = 0; device < world_size; ++device) sum += live_of(device);
        return sum;
    }
    double weight_of(std::size_t prefix) const {
        return prefix_weights.empty() ? 1.0 / static_cast<double>(prefixes.size()) : prefix_weights[prefix];
    }
};

/// The scalar results of a step, all of the global mean loss. `bias_gradient` is 0 for the softmax losses.
struct scalars_t {
    double loss = 0;
    double scale_gradient = 0;
    double bias_gradient = 0;
};

}  // namespace scaling_contrasts
