// The command line: the fields of a case (docs/contracts.md, sections 1 and 3) as flags.
#pragma once
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend.hpp"
#include "scaling_contrasts/rails/options.hpp"

namespace scaling_contrasts::bench {

/// Bad input from a user: one line that says what is wrong and what to do. Exit code 2.
struct usage_error_t : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// One correctness check: the case's problem with some fields replaced.
struct check_t {
    std::string name;
    problem_t problem;
    std::vector<std::int64_t> sample_rows;  ///< global row numbers; empty: all
};

struct timing_t {
    int warmup_steps = 10;
    double warmup_seconds = 1.0;
    int blocks = 3;
    int steps_per_block = 100;
    double max_block_seconds = 10.0;
    bool cold = false;  ///< caches are flushed before each step of a block
};

struct arguments_t {
    std::string system = "native", variant, state, device = "cpu", dtype = "bfloat16";
    problem_t problem;        ///< of all boxes
    bool all_reduce = false;  ///< --loss one_set_all_reduce: a sum over devices in the place of a loss
    rails::meeting_t meeting;
    rails::options_t rails;
    run_options_t run;
    std::vector<std::string> actions;
    std::vector<check_t> checks;
    timing_t timing;
    double deadline_seconds = 0;  ///< 0: none
    std::string folder;           ///< empty: events go to stdout
    bool events = false;          ///< JSON lines rather than a line for people
    bool profile = false;         ///< where a step's time goes, for people
    bool help = false, capabilities = false, inputs_digest = false;
};

/// Throws usage_error_t.
arguments_t parse_arguments(int count, char const* const* words);

extern char const* const help_text_k;

}  // namespace scaling_contrasts::bench
