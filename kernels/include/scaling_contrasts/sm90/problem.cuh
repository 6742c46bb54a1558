// What the sm90 engines are asked, and how they answer.
#pragma once
#include <cstdint>
#include <string>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts {

/// What one GPU is asked to compute.
struct gpu_problem_t {
    loss_t loss = loss_t::one_set_sigmoid_k;
    form_t form = form_t::nt_xent_k;        ///< of one_set_info_nce
    uint32_t rows = 0, live = 0, dims = 0;  ///< of this GPU: rows, those that count, columns
    uint32_t prefix_count = 0;
    uint32_t prefixes[max_prefixes_k] = {};
    float prefix_weights[max_prefixes_k] = {};
    bool self_pairs = false;
    bool fp32_gradients = false;
    uint64_t total_live = 0;      ///< n over all GPUs
    uint32_t candidate_rows = 0;  ///< most rows of a foreign block; 0: there are none
    bool pairs_once = false;      ///< one_set_sigmoid: foreign blocks come to score_pair()
};

/// A status and what to say about it; `message` is empty when all is well.
struct gpu_status_t {
    status_t status = status_t::ok_k;
    std::string message;
    explicit operator bool() const { return status == status_t::ok_k; }
};

}  // namespace scaling_contrasts
