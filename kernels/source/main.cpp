// The benchmark binary: parse, run one case or those of a file, say how it ended. Exit 0: ok; 1: a case failed; 2: bad
// input.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>

#include "protocol.hpp"

namespace {

using namespace scaling_contrasts::bench;

/// One case a line, its flags as on the command line, without quotes. Returns the worst exit status. Throws
/// usage_error_t.
int run_batch(std::string const& path) {
    std::ifstream file(path);
    if (!file) throw usage_error_t("cannot read " + path + "; --batch takes a file with the flags of one case a line");
    int worst = 0, number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        std::istringstream stream(line);
        std::vector<std::string> const words(std::istream_iterator<std::string>(stream), {});
        if (words.empty()) continue;
        std::vector<char const*> pointers = {"scaling_contrasts"};
        for (auto const& word : words) pointers.push_back(word.c_str());
        try {
            worst = std::max(worst, run_case(parse_arguments(static_cast<int>(pointers.size()), pointers.data())));
        } catch (usage_error_t const& problem) {
            throw usage_error_t(path + ", line " + std::to_string(number) + ": " + problem.what());
        }
    }
    return worst;
}

}  // namespace

int main(int count, char** words) {
    try {
        if (count == 3 && std::string(words[1]) == "--batch") return run_batch(words[2]);
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
