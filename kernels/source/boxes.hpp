// What a run over several boxes adds to the protocol: what all of them must have been given alike, how long one may be
// silent, and the few things they agree on while they run.
#pragma once
#include <memory>

#include "arguments.hpp"
#include "scaling_contrasts/rails/mesh.hpp"

namespace scaling_contrasts::bench {

/// Lines `field=value` of everything that must be equal on all boxes.
std::string agreement_of(arguments_t const& arguments);

/// Seconds of a step on a slow machine of the kind: for deadlines, not for reports.
double predicted_seconds(arguments_t const& arguments);

/// This box among the others; of one box alone every member does nothing, or returns what it was given.
class company_t {
  public:
    explicit company_t(arguments_t const& arguments) : arguments_(arguments) {}

    /// Meets the other boxes. Throws rails::setup_error_t and failure_t.
    void meet() {
        if (arguments_.meeting.boxes == 1) return;
        mesh_ = std::make_unique<rails::mesh_t>(arguments_.meeting, agreement_of(arguments_));
        double const given = arguments_.meeting.rails_seconds;
        mesh_->set_wait_seconds(given > 0 ? given : std::max(30.0, 5 * predicted_seconds(arguments_)));
    }
    rails::mesh_t* mesh() const { return mesh_.get(); }
    void barrier(std::string const& phase) { maximum(0, phase); }
    /// The largest over all boxes.
    double maximum(double value, std::string const& phase) { return mesh_ ? mesh_->maximum(value, phase) : value; }
    void abort(std::string const& reason) {
        if (mesh_) mesh_->abort(reason);
    }
    bool owns(problem_t const& problem, std::int64_t row) const {
        std::int64_t const rows = problem.rows * problem.world_size / arguments_.meeting.boxes;
        return row / rows == arguments_.meeting.box;
    }

  private:
    arguments_t const& arguments_;
    std::unique_ptr<rails::mesh_t> mesh_;
};

}  // namespace scaling_contrasts::bench
