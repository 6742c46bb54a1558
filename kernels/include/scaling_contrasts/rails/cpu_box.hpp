// The CPU devices of one box in a step over several (step.hpp). Embeddings travel from where they lie; all of a call's
// work is done when it returns.
#pragma once
#include "scaling_contrasts/rails/local_box.hpp"
#include "scaling_contrasts/step.hpp"

namespace scaling_contrasts::rails {

class cpu_box_t final : public local_box_t {
  public:
    /// `problem` is of all boxes; `sets[i * sets_of(loss) + set]` of this box's device i, and must outlive the box.
    cpu_box_t(problem_t const& problem, devices_t own, std::vector<set_t> const& sets, int threads,
              std::string const& engine)
        : problem_(problem), own_(own), threads_(threads), engine_(engine) {
        sets_.resize(static_cast<std::size_t>(problem.world_size * sets_of(problem.loss)));
        std::copy(sets.begin(), sets.end(), sets_.begin() + std::ptrdiff_t{own.first} * sets_of(problem.loss));
    }

    plan_t plan(int boxes, int box, bool) override {
        auto const rows = static_cast<std::size_t>(problem_.rows);
        plan_t plan;
        for (int rail = 0; rail < own_.count; ++rail) {
            auto& lanes = plan.lanes.emplace_back();
            auto add = [&](kind_t kind, std::vector<piece_t> const& pieces) {
                lanes[static_cast<std::size_t>(kind)] = make_lane(pieces, boxes, box, [this](std::size_t bytes) {
                    buffers_.emplace_back(bytes);
                    return buffers_.back().data();
                });
            };
            set_t const* const from = &sets_of_device(own_.first + rail);
            std::vector<piece_t> embeddings;
            for (int set = 0; set < sets_of(problem_.loss); ++set)
                embeddings.push_back({reinterpret_cast<std::byte*>(const_cast<bf16_t*>(from[set].embeddings)),
                                      rows * static_cast<std::size_t>(problem_.dims) * sizeof(bf16_t)});
            add(kind_t::embeddings_k, embeddings);
            if (sets_of(problem_.loss) == 1 && from->labels)
                add(kind_t::labels_k,
                    {{reinterpret_cast<std::byte*>(const_cast<std::int32_t*>(from->labels)), rows * 4}});
            // as step_t::statistics_size(): two arrays of two sets, or four of one
            if (is_softmax(problem_.loss))
                add(kind_t::statistics_k, {{nullptr, 4 * problem_.prefixes.size() * rows * sizeof(float)}});
            if (rail == 0) add(kind_t::scalars_k, {{nullptr, sizeof(scalars_t)}});
        }
        return plan;
    }
    void build() override { step_ = std::make_unique<step_t>(problem_, sets_, threads_, engine_, own_); }

    void begin() override {
        for_own([&](int device) { step_->begin(device); });
    }
    void own_blocks(pass_t pass) override {
        for (int shift = 0; shift < own_.count; ++shift)
            for_own([&](int device) { visit(pass, device, own_.first + (device - own_.first + shift) % own_.count); });
    }
    void blocks_of(int box, pass_t pass) override {
        for (int rail = 0; rail < own_.count; ++rail)
            for_own([&](int device) { visit(pass, device, box * own_.count + rail); });
    }
    void close(pass_t pass) override {
        for_own([&](int device) {
            if (pass == pass_t::gather_k) step_->close_gather(device);
            if (pass == pass_t::positives_k) step_->close_positives(device);
        });
    }
    void finish() override {
        for_own([&](int device) { step_->finish(device); });
    }

    void stage(int rail, kind_t kind, std::uint64_t, std::vector<piece_t> const& source) override {
        if (kind == kind_t::statistics_k)
            step_->write_statistics(own_.first + rail, reinterpret_cast<float*>(source[0].data));
        if (kind == kind_t::scalars_k) *reinterpret_cast<scalars_t*>(source[0].data) = step_->all_reduce();
    }
    bool staged(int, kind_t, std::uint64_t) override { return true; }
    void take(int peer, kind_t kind, std::byte const* landing) override {
        if (kind == kind_t::labels_k) sets_of_device(peer).labels = reinterpret_cast<std::int32_t const*>(landing);
        if (kind == kind_t::statistics_k) step_->read_statistics(peer, reinterpret_cast<float const*>(landing));
        if (kind != kind_t::embeddings_k) return;
        auto const* const first = reinterpret_cast<bf16_t const*>(landing);
        std::array<bf16_t const*, 2> const sets = {first, first + problem_.rows * problem_.dims};
        step_->arrive(peer, sets);
    }

  private:
    set_t& sets_of_device(int device) { return sets_[static_cast<std::size_t>(device * sets_of(problem_.loss))]; }
    template <class visit_t>
    void for_own(visit_t&& visit) {
        for (int device = own_.first; device < own_.first + own_.count; ++device) visit(device);
    }
    void visit(pass_t pass, int device, int peer) {
        if (pass == pass_t::gather_k) step_->gather(device, peer);
        if (pass == pass_t::positives_k) step_->gather_positives(device, peer);
        if (pass == pass_t::score_k) step_->score(device, peer);
    }

    problem_t problem_;
    devices_t own_;
    int threads_;
    std::string engine_;
    std::vector<set_t> sets_;  // of all devices; of those elsewhere labels alone
    std::vector<buffer_t<std::byte>> buffers_;
    std::unique_ptr<step_t> step_;
};

}  // namespace scaling_contrasts::rails
