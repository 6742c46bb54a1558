// In the place of the domain (found before it): a meeting is work that can run once all ranks' streams have come to it.
#pragma once
#include <cuda_runtime.h>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::domain {

enum class phase_t { embeddings_k, log_sums_k, pair_scored_k, pair_taken_k };
enum class half_t { both_k, write_k, add_k };

class domain_t {
  public:
    explicit domain_t(int world)
        : arrived_(static_cast<std::size_t>(world)),
          queued_(arrived_.size()),
          inbox_{parts_t(arrived_.size()), parts_t(arrived_.size())},
          sums_(arrived_.size()),
          data_(arrived_.size()) {}

    void meet(int rank, phase_t, cudaStream_t stream) const {
        int const round = ++queued_[at(rank)];
        streams::launch(stream, [=, this] { arrived_[at(rank)] = round; });
        stream->queue.push_back({[=, this] { return std::ranges::min(arrived_) >= round; }, {}});
    }
    void one_shot(int rank, double const* in, double* out, std::size_t, cudaStream_t stream, half_t half) const {
        std::size_t const parity = sums_[at(rank)] % 2;
        if (half != half_t::add_k)
            streams::launch(stream, [=, this] { inbox_[parity][at(rank)] = {in[0], in[1], in[2]}; });
        if (half == half_t::both_k) meet(rank, phase_t::embeddings_k, stream);
        if (half == half_t::write_k) return;
        ++sums_[at(rank)];
        streams::launch(stream, [=, this] {
            for (std::size_t i = 0; i < 3; ++i) {
                out[i] = 0;
                for (auto const& part : inbox_[parity]) out[i] += part[i];
            }
        });
    }
    void require_all_met() const {}
    float* data(int rank) const { return data_[at(rank)].data(); }

  private:
    using parts_t = std::vector<std::array<double, 3>>;
    static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

    mutable std::vector<int> arrived_, queued_;
    mutable parts_t inbox_[2];
    mutable std::vector<std::size_t> sums_;
    mutable std::vector<std::array<float, 16>> data_;
};

}  // namespace scaling_contrasts::domain
