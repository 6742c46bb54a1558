// The worker contract (docs/contracts.md, section 3): runs the actions of one case and reports them as JSON lines.
#pragma once
#include "arguments.hpp"

namespace scaling_contrasts::bench {

/// Runs a case; returns the exit status: 0 for `ok`, else 1 with the status in the last line.
int run_case(arguments_t const& arguments);
/// One JSON object: version, losses, engines built and usable, devices.
std::string capabilities();
/// SHA-256 of the case's inputs, as hex.
std::string inputs_digest(problem_t const& problem);

}  // namespace scaling_contrasts::bench
