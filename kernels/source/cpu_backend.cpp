// The CPU as 1 to 16 virtual devices of this process, perhaps with more of them in other processes.
#include <chrono>
#include <fstream>

#include "backend.hpp"
#include "process_memory.hpp"
#include "scaling_contrasts.hpp"
#include "scaling_contrasts/cpu/concurrent.hpp"
#include "scaling_contrasts/rails/cpu_box.hpp"
#include "scaling_contrasts/rails/step.hpp"

namespace scaling_contrasts::bench {
namespace {

/// Whether virtual devices are threads that run at the same time and meet at barriers, as GPUs do, or take turns.
bool concurrent(run_options_t const& options) { return options.option("devices", "turns") == "threads"; }

class cpu_backend_t final : public backend_t {
  public:
    cpu_backend_t(problem_t const& problem, run_options_t const& options)
        : problem_(problem), options_(options), own_(devices_of(options.box, options.boxes, problem.world_size)) {
        memory_counter().reset_peak();
    }

    void build() override {
        int const sets = sets_of(problem_.loss);
        auto const elements = static_cast<std::size_t>(problem_.rows * problem_.dims);
        bool const wide = problem_.gradient_type == gradient_type_t::float32_k;
        std::vector<set_t> views;
        for (int slot = 0; slot < own_.count * sets; ++slot) {
            embeddings_.emplace_back(elements);
            gradients_.emplace_back(elements * (wide ? sizeof(float) : sizeof(bf16_t)));
            labels_.emplace_back(static_cast<std::size_t>(problem_.rows));
        }
        pool_t pool(options_.threads);
        for (int device = 0; device < own_.count; ++device)
            for (int set = 0; set < sets; ++set) {
                auto const slot = static_cast<std::size_t>(device * sets + set);
                pool.run(static_cast<int>(problem_.rows), [&](int i) {
                    std::int64_t const row = (own_.first + device) * problem_.rows + i;
                    auto const group = label_of(sets == 1 ? problem_.labels : label_layout_t::distinct_k, row);
                    labels_[slot][static_cast<std::size_t>(i)] = group;
                    fill_row(problem_.seed, set, row, group, problem_.dims,
                             embeddings_[slot].data() + std::int64_t{i} * problem_.dims);
                });
                views.push_back({embeddings_[slot].data(), labels_[slot].data(), gradients_[slot].data()});
            }
        if (options_.mesh) {
            local_ =
                std::make_unique<rails::cpu_box_t>(problem_, own_, std::move(views), options_.threads, options_.engine);
            boxes_step_ = std::make_unique<rails::boxes_step_t>(*options_.mesh, options_.rails, problem_, *local_);
        } else if (concurrent(options_)) {
            concurrent_step_ =
                std::make_unique<concurrent_step_t>(problem_, std::move(views), options_.threads, options_.engine,
                                                    std::atof(options_.option("deadline_ms", "600000").c_str()) / 1e3);
        } else {
            step_ = std::make_unique<step_t>(problem_, std::move(views), options_.threads, options_.engine);
        }
    }

    void step() override {
        if (boxes_step_) boxes_step_->run();
        else if (concurrent_step_) scalars_ = concurrent_step_->run();
        else scalars_ = step_->run();
    }
    void synchronize() override {
        if (boxes_step_) scalars_ = boxes_step_->scalars();
    }
    scalars_t scalars() override {
        synchronize();
        return scalars_;
    }
    std::vector<stage_seconds_t> stages(int steps) override {
        if (!step_) return {};
        using clock_t = std::chrono::steady_clock;
        std::vector<stage_seconds_t> seconds;
        for (int i = 0; i < steps; ++i) {
            std::size_t at = 0;
            auto last = clock_t::now();
            scalars_ = step_->run([&](char const* name) {
                auto const now = clock_t::now();
                if (at == seconds.size()) seconds.emplace_back(name, 0.0);
                seconds[at++].second += std::chrono::duration<double>(now - last).count() / steps;
                last = now;
            });
        }
        return seconds;
    }

    void gradient_rows(int set, std::span<std::int64_t const> rows, float* out) override {
        for (std::int64_t const row : rows) {
            auto const slot =
                static_cast<std::size_t>((row / problem_.rows - own_.first) * sets_of(problem_.loss) + set);
            std::int64_t const first = row % problem_.rows * problem_.dims;
            auto const* const data = gradients_[slot].data();
            if (problem_.gradient_type == gradient_type_t::float32_k)
                std::memcpy(out, data + first * 4, static_cast<std::size_t>(problem_.dims) * 4);
            else
                for (int c = 0; c < problem_.dims; ++c)
                    out[c] = static_cast<float>(reinterpret_cast<bf16_t const*>(data)[first + c]);
            out += problem_.dims;
        }
    }

    void memory_reset() override {
        memory_counter().reset_peak();
        trim();
        reset_peak_resident();
    }

    /// Virtual devices share one process and one workspace; each is charged an equal part of everything.
    memory_t memory() override {
        std::int64_t const devices = own_.count;
        std::int64_t inputs = 0, gradients = 0;
        for (auto const& buffer : embeddings_) inputs += static_cast<std::int64_t>(buffer.size() * sizeof(bf16_t));
        for (auto const& buffer : labels_) inputs += static_cast<std::int64_t>(buffer.size() * sizeof(std::int32_t));
        for (auto const& buffer : gradients_) gradients += static_cast<std::int64_t>(buffer.size());
        memory_t memory;
        memory.allocated_peak_bytes = memory_counter().peak.load() / devices;
        memory.input_bytes = inputs / devices;
        memory.gradient_bytes = gradients / devices;
        if (auto const used = used_bytes()) memory.device_used_bytes = *used / devices;
        return memory;
    }

    std::string engine() const override { return cpu::pick(options_.engine).name; }
    std::string note() const override {
        std::string const pairs = problem_.pairs_once && problem_.world_size > 1 ? "pairs of devices scored once" : "";
        return !concurrent_step_ ? pairs : pairs + (pairs.empty() ? "" : "; ") + "devices run at once";
    }

    std::optional<rails_report_t> rails() const override {
        if (!boxes_step_) return {};
        return report_of(*boxes_step_);
    }

  private:
    problem_t problem_;
    run_options_t options_;
    devices_t own_;
    std::vector<buffer_t<bf16_t>> embeddings_;
    std::vector<buffer_t<std::byte>> gradients_;
    std::vector<buffer_t<std::int32_t>> labels_;
    std::unique_ptr<step_t> step_;  // of one box, or
    std::unique_ptr<concurrent_step_t> concurrent_step_;
    std::unique_ptr<rails::cpu_box_t> local_;          // this one of several
    std::unique_ptr<rails::boxes_step_t> boxes_step_;  // of several
    scalars_t scalars_;
};

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "cpu";
}

std::string unsupported(problem_t const& problem, run_options_t const& options) {
    if (options.option("offload", "false") == "true") return "offload streams rows through a GPU; use device cuda";
    for (auto const& [name, value] : options.options)  // several_boxes: boxes of CPUs need no leave
        if (name != "devices" && name != "deadline_ms" && name != "offload" && name != "several_boxes")
            return "unknown option " + name + "; known on the CPU are devices, deadline_ms, pairs, forward_only, " +
                   "form and engine";
    if (auto const devices = options.option("devices", "turns"); devices != "turns" && devices != "threads")
        return "option devices is '" + devices + "'; known are turns and threads";
    if (concurrent(options) && options.boxes > 1) return "devices=threads runs one box; leave it out, or give nodes 1";
    if (problem.pairs_once && options.boxes > 1) return "pairs=once runs one box; leave it out, or give nodes 1";
    if (auto const reason = problem.pairs_once ? pairs_unsupported(problem) : ""; !reason.empty()) return reason;
    for (auto const* engine : {"sm80", "sm90", "sm100"})
        if (options.engine == engine) return "engine " + options.engine + " is of GPUs; give device cuda";
    try {
        cpu::pick(options.engine);
    } catch (failure_t const& reason) {
        return reason.what();
    }
    // Inputs, gradients and the fp32 accumulator; Linux would rather kill a process than refuse it memory.
    // What has arrived from other boxes is held twice.
    std::int64_t const here = problem.world_size / options.boxes;
    std::int64_t const cells = problem.rows * problem.dims;
    std::int64_t const bytes = sets_of(problem.loss) * cells * (here * 10 + (problem.world_size - here) * 4) +
                               (problem.pairs_once ? here * cells * 4 : 0);
    auto const available = available_bytes();
    if (available && bytes > *available)
        throw failure_t(status_t::out_of_memory_k, "needs about " + std::to_string(bytes >> 20) + " MiB, " +
                                                       std::to_string(*available >> 20) + " MiB are available");
    return "";
}

}  // namespace

backend_factory_t const& cpu_factory() {
    static backend_factory_t const factory = [] {
        backend_factory_t out;
        out.device = "cpu";
        for (auto const* engine : cpu::engines()) {
            out.engines_built.push_back(engine->name);
            if (engine->usable()) out.engines_usable.push_back(engine->name);
        }
        out.device_names = {processor_name()};
        out.versions = {{"compiler", __VERSION__}};
        out.unsupported = unsupported;
        out.make = [](problem_t const& problem, run_options_t const& options) -> std::unique_ptr<backend_t> {
            return std::make_unique<cpu_backend_t>(problem, options);
        };
        return out;
    }();
    return factory;
}

}  // namespace scaling_contrasts::bench
