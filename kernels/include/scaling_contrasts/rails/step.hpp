// A training step of the loss over several boxes, whatever their devices are (local_box.hpp). Each box's embeddings are
// posted first; its own blocks are scored while they fly, then its rows against what has arrived, box after box in ring
// order, so that results do not depend on who is fast. The softmax losses send their log-sums the same way. Loss, dt
// and db follow as one small message a box, and are awaited only when somebody asks for them, or two steps later.
//
// The thread that drives a box never waits while there is something to queue: while it waits for one box, it posts what
// has become ready to be sent and takes in whatever else has arrived.
#pragma once
#include <algorithm>
#include <exception>

#include "scaling_contrasts/rails/local_box.hpp"
#include "scaling_contrasts/rails/transport.hpp"

namespace scaling_contrasts::rails {

class boxes_step_t {
  public:
    /// Collective. `problem` is of all boxes; `local` drives this one's devices and must outlive the step. Throws
    /// failure_t for a lost box, and what `local` throws.
    boxes_step_t(mesh_t& mesh, options_t const& options, problem_t const& problem, local_box_t& local)
        : mesh_(mesh),
          loss_(problem.loss),
          gathers_only_(problem.forward_only && problem.loss == loss_t::info_nce_k),
          overlap_(options.overlap),
          local_(local) {
        bool const verbs = agree_on_verbs(mesh, options, problem.world_size / mesh.boxes(), local.gpus());
        rails_ = make_rails(mesh, local.plan(mesh.boxes(), mesh.box(), verbs), options, verbs);
        taken_.resize(static_cast<std::size_t>(mesh.boxes() * rails_->plan().rails()));
        if (rails_->plan().lane(0, kind_t::labels_k).bytes > 0) {
            send(kind_t::labels_k, 1);
            take_all(kind_t::labels_k, 1);
        }
        local_.build();
    }
    ~boxes_step_t() {
        if (std::uncaught_exceptions() > 0) return;  // this box ends early: the others must not be waited for
        try {                                        // what was posted last is still on its way
            scalars();
            mesh_.exchange("", "waited to close its rails");
        } catch (std::exception const&) {
            // recorded in the monitor; whoever waits next hears of it
        }
    }
    boxes_step_t(boxes_step_t const&) = delete;
    boxes_step_t& operator=(boxes_step_t const&) = delete;

    std::uint64_t steps() const { return round_; }
    rails_t const& rails() const { return *rails_; }
    /// Of a device, to one counterpart.
    std::size_t embedding_bytes() const { return rails_->plan().lane(0, kind_t::embeddings_k).bytes; }

    /// Queues forward and backward. The embeddings must not change before `scalars()` has returned.
    void run();
    /// Loss, dt and db of the last step over all boxes, the same bits on each. Waits for the other boxes.
    scalars_t scalars() {
        if (round_ == 0) return {};
        while (post_staged()) keep_on("waited for its own devices to end step " + std::to_string(round_));
        for_others([&](int box) { await(box, 0, kind_t::scalars_k, round_); });
        return sum_of_boxes(*rails_, mesh_, round_);
    }

  private:
    struct message_at_t {
        int rail;
        kind_t kind;
        std::uint64_t step;
    };

    /// The other boxes, nearest number first.
    template <class visit_t>
    void for_others(visit_t&& visit) {
        for (int shift = 1; shift < mesh_.boxes(); ++shift) visit((mesh_.box() + shift) % mesh_.boxes());
    }
    bool has(int rail, kind_t kind) const { return rails_->plan().lane(rail, kind).bytes > 0; }

    /// Has every rail's message of that kind made ready; those that are leave at once.
    void send(kind_t kind, std::uint64_t step) {
        for (int rail = 0; rail < rails_->plan().rails(); ++rail) {
            if (!has(rail, kind)) continue;
            local_.stage(rail, kind, step, rails_->plan().lane(rail, kind).sources[step % 2]);
            staging_.push_back({rail, kind, step});
        }
        post_staged();
    }
    /// Posts what has become ready, a rail's messages of a kind in their order. Whether something has not.
    bool post_staged() {
        std::erase_if(staging_, [&](message_at_t const& each) {
            if (!local_.staged(each.rail, each.kind, each.step)) return false;
            rails_->post(each.rail, each.kind, each.step);
            return true;
        });
        bool const some = !staging_.empty();
        if (!some) patience_ends_.reset();
        return some;
    }
    /// Between two looks at the own devices. Throws failure_t when the run has failed, or they take too long.
    void keep_on(std::string const& phase) {
        if (!patience_ends_) patience_ends_ = in_seconds(mesh_.wait_seconds());
        if (steady_t::now() > *patience_ends_) mesh_.monitor().fail("this box: its own devices did not end their work");
        mesh_.monitor().require(phase);
        std::this_thread::yield();
    }

    /// Starts to take in the messages of a kind and step.
    void expect(kind_t kind, std::uint64_t step) {
        expected_ = kind, expected_step_ = step;
        std::fill(taken_.begin(), taken_.end(), false);
    }
    auto taken(int box, int rail) { return taken_.begin() + (box * rails_->plan().rails() + rail); }
    template <class visit_t>
    void for_arrived(visit_t&& visit) {
        for_others([&](int box) {
            for (int rail = 0; rail < rails_->plan().rails(); ++rail)
                if (!*taken(box, rail) && has(rail, expected_) && rails_->arrived(box, rail, expected_, expected_step_))
                    visit(box, rail);
        });
    }
    void take_arrived() {
        for_arrived([&](int box, int rail) {
            local_.take(box * rails_->plan().rails() + rail, expected_,
                        rails_->landing(box, rail, expected_, expected_step_));
            *taken(box, rail) = true;
        });
    }
    bool something_arrived() {
        bool found = false;
        for_arrived([&](int, int) { found = true; });
        return found;
    }
    /// Returns once that message has arrived; posts and takes in meanwhile whatever can be.
    void await(int box, int rail, kind_t kind, std::uint64_t step) {
        while (true) {
            bool const some_left = post_staged();
            take_arrived();
            if (rails_->arrived(box, rail, kind, step)) return;
            if (some_left) keep_on(rails_t::phase_of(kind, step));
            else rails_->wait(box, rail, kind, step, [this] { return something_arrived(); });
        }
    }
    /// The same for all rails of a box, of what is expected.
    void take_box(int box) {
        for (int rail = 0; rail < rails_->plan().rails(); ++rail)
            if (has(rail, expected_)) await(box, rail, expected_, expected_step_);
        take_arrived();
    }
    void take_all(kind_t kind, std::uint64_t step) {
        expect(kind, step);
        for_others([&](int box) { take_box(box); });
    }
    void over_all_blocks(pass_t pass) {
        local_.own_blocks(pass);
        for_others([&](int box) {
            take_box(box);
            local_.blocks_of(box, pass);
        });
        local_.close(pass);
    }

    mesh_t& mesh_;
    loss_t loss_;
    bool gathers_only_, overlap_;  // gathers_only_: the loss follows from the log-sums
    local_box_t& local_;
    std::unique_ptr<rails_t> rails_;
    std::vector<message_at_t> staging_;        // staged and not yet posted
    std::optional<deadline_t> patience_ends_;  // of the own devices
    kind_t expected_ = kind_t::labels_k;       // what is taken in when it arrives
    std::uint64_t expected_step_ = 0;          //
    std::vector<bool> taken_;                  // of that, [box][rail]
    std::uint64_t round_ = 0;
};

inline void boxes_step_t::run() {
    // This step's scalars use the landing and the source of the last but one's.
    if (round_ >= 2) for_others([&](int box) { await(box, 0, kind_t::scalars_k, round_ - 1); });
    ++round_;
    local_.start();
    expect(kind_t::embeddings_k, round_);
    send(kind_t::embeddings_k, round_);
    if (!overlap_) for_others([&](int box) { take_box(box); });
    local_.begin();
    if (is_softmax(loss_)) over_all_blocks(pass_t::gather_k);
    if (loss_ == loss_t::one_set_info_nce_k) over_all_blocks(pass_t::positives_k);
    if (is_softmax(loss_) && !gathers_only_) {
        expect(kind_t::statistics_k, round_);
        send(kind_t::statistics_k, round_);
    }
    if (!gathers_only_) over_all_blocks(pass_t::score_k);
    local_.finish();
    send(kind_t::scalars_k, round_);
}

}  // namespace scaling_contrasts::rails
