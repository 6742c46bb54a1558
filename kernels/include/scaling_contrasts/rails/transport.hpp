// Which transport carries a plan: asked for by name, or the best one that every box has.
#pragma once
#include "scaling_contrasts/rails/tcp.hpp"
#include "scaling_contrasts/rails/verbs.hpp"

namespace scaling_contrasts::rails {

/// Collective: whether verbs carry the rails, of which this box has so many. `gpus`: as plan_t::gpus. Throws failure_t:
/// unsupported, with the reason, where verbs are asked for and this box has none.
inline bool agree_on_verbs(mesh_t& mesh, options_t const& options, int rails, std::vector<std::string> const& gpus) {
    if (options.transport == "tcp") return false;
    std::string const problem = verbs_problem(mesh, options, rails, gpus);
    if (options.transport == "verbs" && !problem.empty())
        throw failure_t(status_t::unsupported_k, "no verbs on box " + std::to_string(mesh.box()) + ": " + problem);
    return mesh.maximum(problem.empty() ? 0 : 1, "waited to agree on the transport") == 0;
}

/// Collective. Throws failure_t.
inline std::unique_ptr<rails_t> make_rails(mesh_t& mesh, plan_t plan, options_t const& options, bool verbs) {
    if (verbs) return std::make_unique<verbs_rails_t>(mesh, std::move(plan), options);
    return std::make_unique<tcp_rails_t>(mesh, std::move(plan), options, mesh.next_epoch());
}

}  // namespace scaling_contrasts::rails
