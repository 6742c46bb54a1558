#include "boxes.hpp"

#include <sstream>

namespace scaling_contrasts::bench {
namespace {

template <class list_t>
std::string joined(list_t const& values) {
    std::ostringstream out;
    out.precision(17);
    for (auto const& value : values) out << (&value == &values.front() ? "" : ",") << value;
    return values.empty() ? "none" : out.str();
}

}  // namespace

std::string agreement_of(arguments_t const& arguments) {
    problem_t const& problem = arguments.problem;
    std::ostringstream out;
    out.precision(17);
    auto add_problem = [&out](std::string const& prefix, problem_t const& each) {
        out << prefix << "rows=" << each.rows << "\n" << prefix << "live=" << joined(each.live) << "\n";
        out << prefix << "scale=" << each.scale << "\n" << prefix << "bias=" << each.bias << "\n";
        out << prefix << "labels=" << static_cast<int>(each.labels) << "\n";
    };
    out << "version=" << SCALING_CONTRASTS_VERSION << "\nsystem=" << arguments.system << "\n";
    out << "nodes=" << arguments.meeting.boxes << "\nworld_size=" << problem.world_size << "\n";
    out << "loss=" << name_of(problem.loss) << "\ndims=" << problem.dims << "\n";
    out << "prefixes=" << joined(problem.prefixes) << "\nprefix_weights=" << joined(problem.prefix_weights) << "\n";
    out << "gradient_dtype=" << static_cast<int>(problem.gradient_type) << "\nself_pairs=" << problem.self_pairs
        << "\n";
    out << "seed=" << problem.seed << "\ndevice=" << arguments.device << "\ndtype=" << arguments.dtype << "\n";
    add_problem("", problem);
    out << "actions=" << joined(arguments.actions) << "\n";
    for (auto const& check : arguments.checks) {
        add_problem("check " + check.name + " ", check.problem);
        out << "check " << check.name << " sample_rows=" << joined(check.sample_rows) << "\n";
    }
    auto const& timing = arguments.timing;
    out << "warmup=" << timing.warmup_steps << "," << timing.warmup_seconds << "\n";
    out << "blocks=" << timing.blocks << "," << timing.steps_per_block << "," << timing.max_block_seconds << ","
        << timing.cold << "\n";
    out << "form=" << name_of(problem.form) << "\nfabric=" << arguments.run.fabric << "\n";
    out << "rails=" << arguments.rails.transport << "\nsockets=" << arguments.rails.sockets << "\n";
    return out.str();
}

double predicted_seconds(arguments_t const& arguments) {
    problem_t const& problem = arguments.problem;
    double const here = static_cast<double>(problem.rows * problem.world_size / arguments.meeting.boxes);
    double const all = static_cast<double>(problem.rows * problem.world_size);
    double const products = is_softmax(problem.loss) ? 8 : 6;  // scores, both gradients, scores again
    double const speed = arguments.device == "cuda" ? 5e13 : 2e9 * arguments.run.threads;
    return products * here * all * problem.dims / speed;
}

}  // namespace scaling_contrasts::bench
