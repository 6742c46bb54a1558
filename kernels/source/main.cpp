// The benchmark binary: parse, run one case or those of a file, say how it ended. Exit 0: ok; 1: a case failed; 2: bad
// input.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>

#include "protocol.hpp"

namespace {

using namespace scaling_contrasts::bench;

/// One case a line, its flags as on the command line, without quotes; all lines are read before the first case runs.
/// Returns the worst exit status. Throws usage_error_t.
int run_batch(std::string const& path) {
    std::ifstream file(path);
    auto const at = [&](int line) { return path + ", line " + std::to_string(line) + ": "; };
    std::vector<std::pair<int, arguments_t>> cases;  // and where each stands
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        std::istringstream stream(line);
        std::vector<std::string> const words(std::istream_iterator<std::string>(stream), {});
        if (words.empty()) continue;
        std::vector<char const*> pointers = {"scaling_contrasts"};
        for (auto const& word : words) pointers.push_back(word.c_str());
        try {
            auto const arguments = parse_arguments(static_cast<int>(pointers.size()), pointers.data());
            if (arguments.help || arguments.capabilities || arguments.inputs_digest)
                throw usage_error_t("--help, --capabilities and --inputs-digest are no case; give each a command");
            cases.emplace_back(number, arguments);
        } catch (usage_error_t const& problem) {
            throw usage_error_t(at(number) + problem.what());
        }
    }
    if (!file.eof())  // absent, or a folder
        throw usage_error_t("cannot read " + path + "; --batch takes a file with the flags of one case a line");
    if (cases.empty()) throw usage_error_t(path + " has no case; --batch takes the flags of one case a line");
    int worst = 0;
    for (auto const& [line, arguments] : cases) try {
            worst = std::max(worst, run_case(arguments));
        } catch (usage_error_t const& problem) {  // its folder: the other cases have theirs
            std::fprintf(stderr, "scaling_contrasts: %s%s\n", at(line).c_str(), problem.what());
            worst = 2;
        }
    return worst;
}

int run(int count, char** words) {
    if (count == 3 && std::string(words[1]) == "--batch") return run_batch(words[2]);
    arguments_t const arguments = parse_arguments(count, words);
    if (count == 1 || arguments.help) return std::fputs(help_text_k, stdout), 0;
    if (arguments.capabilities) return std::printf("%s\n", capabilities().c_str()), 0;
    if (arguments.inputs_digest) return std::printf("%s\n", inputs_digest(arguments.problem).c_str()), 0;
    return run_case(arguments);
}

}  // namespace

int main(int count, char** words) {
    std::signal(SIGXFSZ, SIG_IGN);  // a write past the limit of file sizes fails, and is told of
    try {
        int const status = run(count, words);
        if (std::fflush(stdout) != 0 || std::ferror(stdout))
            throw std::runtime_error(std::string("cannot write to stdout: ") + std::strerror(errno));
        return status;
    } catch (usage_error_t const& problem) {
        std::fprintf(stderr, "scaling_contrasts: %s\n", problem.what());
        return 2;
    } catch (std::exception const& problem) {
        std::fprintf(stderr, "scaling_contrasts: %s\n", problem.what());
        return 1;
    }
}
