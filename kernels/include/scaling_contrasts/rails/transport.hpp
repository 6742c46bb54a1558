// Which transport carries a plan: asked for by name, or the best one that every box has.
#pragma once
#include "scaling_contrasts/rails/tcp.hpp"
#include "scaling_contrasts/rails/verbs.hpp"

namespace scaling_contrasts::rails {

/// Collective. Throws failure_t: unsupported, with the reason, where verbs are asked for and this box has none.
inline std::unique_ptr<rails_t> make_rails(mesh_t& mesh, plan_t plan, options_t const& options, std::uint32_t epoch) {
    if (options.transport == "tcp") return std::make_unique<tcp_rails_t>(mesh, std::move(plan), options, epoch);
    std::string const problem = verbs_problem(mesh, options, plan);
    if (options.transport == "verbs" && !problem.empty())
        throw failure_t(status_t::unsupported_k, "no verbs on box " + std::to_string(mesh.box()) + ": " + problem);
    bool const everywhere = mesh.maximum(problem.empty() ? 0 : 1, "waited to agree on the transport") == 0;
    if (everywhere) return std::make_unique<verbs_rails_t>(mesh, std::move(plan), options);
    return std::make_unique<tcp_rails_t>(mesh, std::move(plan), options, epoch);
}

}  // namespace scaling_contrasts::rails
