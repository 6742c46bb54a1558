// The benchmark binary: parse, run one case, say how it ended. Exit 0: ok; 1: the case failed; 2: bad input.
#include <cstdio>
#include <exception>

#include "protocol.hpp"

int main(int count, char** words) {
    using namespace scaling_contrasts::bench;
    try {
        arguments_t const arguments = parse_arguments(count, words);
        if (count == 1 || arguments.help) return std::fputs(help_text_k, stdout), 0;
        if (arguments.capabilities) return std::printf("%s\n", capabilities().c_str()), 0;
        if (arguments.inputs_digest) return std::printf("%s\n", inputs_digest(arguments.problem).c_str()), 0;
        return run_case(arguments);
    } catch (usage_error_t const& problem) {
        std::fprintf(stderr, "scaling_contrasts: %s\n", problem.what());
        return 2;
    } catch (std::exception const& problem) {
        std::fprintf(stderr, "scaling_contrasts: %s\n", problem.what());
        return 1;
    }
}
