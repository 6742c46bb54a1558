// A system whose step sleeps a known time and holds a known number of bytes: proof that the protocol reads both right.
// `--system sleep --options sleep_seconds=0.01,allocate_bytes=1048576`; with queued=1 steps return at once, as a GPU's
// do, and are waited for. Its bias gradient is the number of steps.
#pragma once
#include <chrono>
#include <cstdlib>
#include <thread>

#include "backend.hpp"
#include "process_memory.hpp"
#include "scaling_contrasts/memory.hpp"

namespace scaling_contrasts::bench {

class sleep_backend_t final : public backend_t {
  public:
    sleep_backend_t(problem_t const& problem, run_options_t const& options)
        : dims_(static_cast<std::size_t>(problem.dims)),
          seconds_(option(options, "sleep_seconds")),
          bytes_(static_cast<std::size_t>(option(options, "allocate_bytes"))),
          queued_(option(options, "queued") > 0) {
        memory_counter().reset_peak();
    }
    void build() override {}
    void step() override {
        ++steps_;
        if (queued_) ++waiting_;
        else sleep();
    }
    void synchronize() override {
        for (; waiting_ > 0; --waiting_) sleep();
    }
    scalars_t scalars() override { return {0, 0, static_cast<double>(steps_)}; }
    void gradient_rows(int, std::span<std::int64_t const> rows, float* out) override {
        std::fill(out, out + rows.size() * dims_, 0.0f);
    }
    void memory_reset() override {
        memory_counter().reset_peak();
        trim();
        reset_peak_resident();
    }
    memory_t memory() override { return {memory_counter().peak.load(), 0, 0, used_bytes()}; }
    std::string engine() const override { return "sleep"; }

  private:
    void sleep() const {
        auto const begin = std::chrono::steady_clock::now();
        buffer_t<std::byte> const held(bytes_);  // touching it takes part of the time
        std::this_thread::sleep_until(begin + std::chrono::duration<double>(seconds_));
    }
    static double option(run_options_t const& options, char const* name) {
        auto const found = options.options.find(name);
        return found == options.options.end() ? 0 : std::atof(found->second.c_str());
    }

    std::size_t dims_;
    double seconds_;
    std::size_t bytes_;
    bool queued_;
    std::int64_t steps_ = 0, waiting_ = 0;
};

}  // namespace scaling_contrasts::bench
