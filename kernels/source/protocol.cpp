#include "protocol.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "boxes.hpp"
#include "json.hpp"
#include "npy.hpp"
#include "process_memory.hpp"
#include "scaling_contrasts/inputs.hpp"
#include "scaling_contrasts/rails/sha256.hpp"
#include "sensors.hpp"
#include "sleep_backend.hpp"

namespace scaling_contrasts::bench {
namespace {

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

backend_factory_t const& factory_of(arguments_t const& arguments) {
    static backend_factory_t const sleeper = {
        .device = "cpu",
        .engines_built = {"sleep"},
        .engines_usable = {"sleep"},
        .device_names = {"sleep"},
        .bus_ids = {},
        .versions = {},
        .unsupported = [](problem_t const&, run_options_t const&) { return std::string(); },
        .make = [](problem_t const& problem, run_options_t const& options) -> std::unique_ptr<backend_t> {
            return std::make_unique<sleep_backend_t>(problem, options);
        }};
    if (arguments.system == "sleep") return sleeper;
    if (arguments.all_reduce) return collectives_factory();
    return arguments.device == "cuda" ? cuda_factory() : cpu_factory();
}

/// JSON lines to a file or stdout, or, for people, what the last line needs.
class reporter_t {
  public:
    explicit reporter_t(arguments_t const& arguments) : arguments_(arguments) {
        if (!arguments.events) return;
        stream_ = stdout;
        if (arguments.folder.empty()) return;
        name_ = arguments.folder + "/events." + std::to_string(arguments.meeting.box) + ".jsonl";
        stream_ = std::fopen(name_.c_str(), "w");
        if (!stream_)
            throw usage_error_t("cannot write " + name_ +
                                "; --folder must name a folder that exists and can be written");
    }
    ~reporter_t() {
        if (stream_ && stream_ != stdout) std::fclose(stream_);
    }
    reporter_t(reporter_t const&) = delete;
    reporter_t& operator=(reporter_t const&) = delete;

    /// Throws std::runtime_error where it cannot be written: a run that nobody can read must not end as one that was.
    void event(char const* name, json_t const& fields) {
        if (!stream_) return;
        json_t line;
        line.text("event", name);
        std::string const rest = fields.line();
        std::fprintf(stream_, "%s, %s\n", line.line().substr(0, line.line().size() - 1).c_str(),
                     rest.substr(1).c_str());
        if (std::fflush(stream_) != 0 || std::ferror(stream_))
            throw std::runtime_error("cannot write events to " + name_ + ": " + std::strerror(errno));
    }
    std::string path(std::string const& file) const {
        return (arguments_.folder.empty() ? "." : arguments_.folder) + "/" + file;
    }

  private:
    arguments_t const& arguments_;
    std::string name_ = "stdout";
    std::FILE* stream_ = nullptr;
};

/// Where a step's time goes.
struct profile_t {
    double step_seconds = 0;
    std::vector<backend_t::stage_seconds_t> stages;
    std::optional<double> forward_seconds;
    std::string no_forward;  ///< why it is not known
};

/// What a readable line tells of a run.
struct summary_t {
    std::vector<double> step_seconds;
    memory_t memory;
    scalars_t scalars;
    std::string engine;
    std::map<std::string, double> figures;
    std::optional<profile_t> profile;
};

class run_t {
  public:
    run_t(arguments_t const& arguments, reporter_t& reporter, company_t& company)
        : arguments_(arguments),
          reporter_(reporter),
          company_(company),
          factory_(factory_of(arguments)),
          start_(seconds_now()) {}

    summary_t run() {
        json_t start;
        start.integer("rank", std::int64_t{arguments_.meeting.box})
            .integer("pid", ::getpid())
            .text("system", arguments_.system);
        auto versions = factory_.versions;
        versions["scaling_contrasts"] = SCALING_CONTRASTS_VERSION;
        start.texts("versions", versions);
        start.text("device_name", factory_.device_names.empty() ? "" : factory_.device_names[0]);
        json_t declares;
        declares.integer("sets", std::int64_t{sets_of(arguments_.problem.loss)}).text("negatives", "global");
        declares.text("normalisation", "in the step; a prefix of norm below 1e-12 has cosine 0");
        declares.number("gradient_scale", 1).number("scalar_scale", 1).text("scale_parameter", "scale");
        declares.text("notes", "one process drives all devices").text("mirrors", "");
        reporter_.event("start", start.raw("declares", declares.line()));
        reporter_.event("ready",
                        json_t().integer("rss_bytes", empty_process_bytes()).integer("input_bytes", input_bytes()));

        company_.meet();
        require_supported(arguments_.problem);
        std::unique_ptr<backend_t> backend;
        auto built = [&]() -> backend_t& {
            if (!backend) {
                backend = make(arguments_.problem);
                timed_first_step(*backend);
            }
            return *backend;
        };
        for (auto const& action : arguments_.actions) {
            if (action == "check") {
                backend.reset();  // a check's memory must not stand beside the case's
                for (auto const& check : arguments_.checks) run_check(check);
            }
            if (action == "time") time(built());
            if (action == "memory") measure_memory(built());
            if (action == "step") {
                backend.reset();
                backend = make(arguments_.problem);
                single_step(*backend);
            }
            if (action == "profile") profile(built(), backend);
        }
        if (backend) {
            summary_.scalars = backend->scalars();
            summary_.engine = backend->engine();
            require_finite(summary_.scalars);
        }
        return summary_;
    }

  private:
    std::int64_t input_bytes() const {
        auto const& problem = arguments_.problem;
        return sets_of(problem.loss) * problem.rows * (problem.dims * std::int64_t{2} + 4);
    }
    run_options_t options() const {
        run_options_t out = arguments_.run;
        out.rails = arguments_.rails;
        out.mesh = company_.mesh();
        out.boxes = arguments_.meeting.boxes;
        out.box = arguments_.meeting.box;
        return out;
    }
    void require_supported(problem_t const& problem) const {
        std::string reason = factory_.unsupported(problem, options());
        if (arguments_.dtype != "bfloat16") reason = "embeddings are bfloat16 only";
        if (arguments_.all_reduce && arguments_.meeting.boxes > 1) reason = "an all-reduce takes one box; give nodes 1";
        if (!reason.empty()) throw failure_t(status_t::unsupported_k, reason);
    }
    std::unique_ptr<backend_t> make(problem_t const& problem) const {
        require_supported(problem);
        auto backend = factory_.make(problem, options());
        backend->build();
        backend->synchronize();
        return backend;
    }
    void require_time() const {
        if (arguments_.deadline_seconds > 0 && seconds_now() - start_ > arguments_.deadline_seconds)
            throw failure_t(status_t::timeout_k, "the deadline passed");
    }
    static void require_finite(scalars_t const& scalars) {
        if (!std::isfinite(scalars.loss) || !std::isfinite(scalars.scale_gradient) ||
            !std::isfinite(scalars.bias_gradient))
            throw failure_t(status_t::nonfinite_k, "the loss or a gradient is not finite");
    }

    void run_check(check_t const& check) {
        require_time();
        auto const backend = make(check.problem);
        backend->step();
        backend->synchronize();
        std::vector<std::int64_t> rows = check.sample_rows;
        if (rows.empty()) {
            rows.resize(static_cast<std::size_t>(check.problem.rows * check.problem.world_size));
            std::iota(rows.begin(), rows.end(), 0);
        }
        std::erase_if(rows, [&](std::int64_t row) { return !company_.owns(check.problem, row); });
        bool const two = sets_of(check.problem.loss) == 2;
        json_t files;
        std::vector<float> values(rows.size() * static_cast<std::size_t>(check.problem.dims));
        bool const forward = check.problem.forward_only;
        for (int set = 0; set < (forward ? 0 : two ? 2 : 1); ++set) {
            std::string const name = !two ? "rows" : set == 0 ? "images" : "captions";
            std::string const file = check.name + "." + name + "." + std::to_string(arguments_.meeting.box) + ".npy";
            files.text(name, file);
            backend->gradient_rows(set, rows, values.data());
            write_npy(reporter_.path(file), values.data(), static_cast<std::int64_t>(rows.size()), check.problem.dims);
        }
        scalars_t const scalars = backend->scalars();
        json_t event;
        event.text("name", check.name).number("loss_value", scalars.loss);
        if (forward) event.raw("scale_gradient", "null");
        else event.number("scale_gradient", scalars.scale_gradient);
        if (forward || is_softmax(check.problem.loss)) event.raw("bias_gradient", "null");
        else event.number("bias_gradient", scalars.bias_gradient);
        reporter_.event("check", event.raw("gradients", files.line()).integers("rows", rows));
        require_finite(scalars);
    }

    double timed_first_step(backend_t& backend) {
        double const begin = seconds_now();
        backend.step();
        backend.synchronize();
        double const seconds = seconds_now() - begin;
        json_t event;
        event.number("seconds", seconds);
        if (std::string const note = backend.note(); !note.empty()) event.text("note", note);
        reporter_.event("first_step", event);
        return seconds;
    }

    sensors_t sensors() const {
        auto ids = factory_.bus_ids;
        ids.resize(std::min(ids.size(), static_cast<std::size_t>(arguments_.problem.world_size)));
        return sensors_t(ids);
    }

    /// Of steps that last minutes: one, both its time, as a block of one step, and its memory.
    void single_step(backend_t& backend) {
        require_time();
        auto const watched = sensors();
        backend.memory_reset();
        company_.barrier("waited for it to start its step");
        auto const before = watched.read();
        double const seconds = timed_first_step(backend);
        summary_.step_seconds.push_back(seconds);
        auto event = json_t().integer("block", std::int64_t{0}).integer("steps", std::int64_t{1});
        reporter_.event("block", sensors_t::add(event.number("seconds", seconds), before, watched.read()));
        report_memory(backend);
    }

    void time(backend_t& backend) {
        auto const& timing = arguments_.timing;
        auto const watched = sensors();
        auto before = watched.read();
        double const begin = seconds_now();
        double elapsed = 0;
        int steps = 0;
        for (; steps < timing.warmup_steps || elapsed < timing.warmup_seconds; ++steps) {
            require_time();
            backend.step();
            backend.synchronize();
            elapsed = company_.maximum(seconds_now() - begin, "waited for it to warm up");
        }
        json_t warm_up;
        warm_up.integer("steps", std::int64_t{steps}).number("seconds", elapsed);
        reporter_.event("warm_up", sensors_t::add(warm_up, before, watched.read()));
        double const estimate = steps > 0 ? elapsed / steps : 0;
        int per_block = timing.steps_per_block;
        if (estimate * per_block > timing.max_block_seconds)
            per_block = std::max(2, static_cast<int>(timing.max_block_seconds / estimate));
        per_block = std::min(per_block, std::max(2, timing.steps_per_block));
        backend.watch();
        for (int block = 0; block < timing.blocks; ++block) {
            require_time();
            company_.barrier("waited for it to start a block");
            before = watched.read();
            backend.synchronize();
            double const seconds = timing.cold ? cold_block(backend, per_block) : warm_block(backend, per_block);
            summary_.step_seconds.push_back(seconds / per_block);
            json_t event;
            event.integer("block", std::int64_t{block})
                .integer("steps", std::int64_t{per_block})
                .number("seconds", seconds);
            reporter_.event("block", sensors_t::add(event, before, watched.read()));
        }
        if (auto const rails = backend.rails())
            reporter_.event("rails",
                            json_t()
                                .text("transport", rails->transport)
                                .integer("steps", static_cast<std::int64_t>(rails->steps))
                                .integer("bytes_sent", static_cast<std::int64_t>(rails->bytes_sent))
                                .integer("bytes_received", static_cast<std::int64_t>(rails->bytes_received))
                                .integer("embedding_bytes", static_cast<std::int64_t>(rails->embedding_bytes)));
        summary_.figures = backend.figures();
        json_t figures;
        for (auto const& [name, value] : summary_.figures) figures.number(name.c_str(), value);
        if (!summary_.figures.empty()) reporter_.event("figures", figures);
    }
    static double warm_block(backend_t& backend, int steps) {
        double const begin = seconds_now();
        for (int i = 0; i < steps; ++i) backend.step();
        backend.synchronize();
        return seconds_now() - begin;
    }
    /// Seconds of the steps alone: each begins with empty caches and ends with the devices done.
    static double cold_block(backend_t& backend, int steps) {
        double seconds = 0;
        for (int i = 0; i < steps; ++i) {
            backend.flush_caches();
            double const begin = seconds_now();
            backend.step();
            backend.synchronize();
            seconds += seconds_now() - begin;
        }
        return seconds;
    }

    /// Best of a few blocks of about 50 ms, after a short warm-up: enough to see shares. A GPU's step returns once it
    /// is queued, so that how many steps a block has must come from the one before.
    double step_seconds(backend_t& backend) const {
        double best = 1e300;
        int steps = 2;
        for (int block = 0; block < 6; ++block) {  // the first warms up
            double const seconds = warm_block(backend, steps) / steps;
            if (block > 0) best = std::min(best, seconds);
            steps = static_cast<int>(std::clamp(0.05 / seconds, 5.0, 100.0));
        }
        return best;
    }

    /// The whole step, its stages, and the forward pass alone, in an instance of its own once the whole one is gone.
    void profile(backend_t& backend, std::unique_ptr<backend_t>& owner) {
        require_time();
        auto& out = summary_.profile.emplace();
        out.step_seconds = step_seconds(backend);
        summary_.scalars = backend.scalars();
        out.stages = backend.stages(10);  // stages alone, over and over, add to what they should find cleared
        summary_.engine = backend.engine();
        owner.reset();
        if (arguments_.meeting.boxes > 1) {
            out.no_forward = "not measured over several boxes";
        } else if (!arguments_.problem.forward_only) {
            problem_t problem = arguments_.problem;
            problem.forward_only = true;
            auto same = options();
            same.engine = summary_.engine;
            out.no_forward = factory_.unsupported(problem, same);
            if (out.no_forward.empty()) {
                auto const forward = factory_.make(problem, same);
                forward->build();
                out.forward_seconds = step_seconds(*forward);
            }
        }
        json_t event, stages;
        for (auto const& [name, seconds] : out.stages) stages.number(name.c_str(), seconds);
        event.number("step_seconds", out.step_seconds);
        if (out.forward_seconds)
            event.number("forward_seconds", *out.forward_seconds)
                .number("backward_seconds", out.step_seconds - *out.forward_seconds);
        reporter_.event("profile", event.raw("stages", stages.line()));
    }

    void measure_memory(backend_t& backend) {
        require_time();
        backend.memory_reset();
        backend.step();
        backend.step();
        backend.synchronize();
        report_memory(backend);
    }
    void report_memory(backend_t& backend) {
        memory_t const memory = backend.memory();
        summary_.memory = memory;
        reporter_.event("memory", json_t()
                                      .integer("allocated_peak_bytes", memory.allocated_peak_bytes)
                                      .integer("input_bytes", memory.input_bytes)
                                      .integer("gradient_bytes", memory.gradient_bytes)
                                      .integer("device_used_bytes", memory.device_used_bytes));
    }

    arguments_t const& arguments_;
    reporter_t& reporter_;
    company_t& company_;
    backend_factory_t const& factory_;
    double start_;
    summary_t summary_;
};

void print_summary(arguments_t const& arguments, summary_t const& summary) {
    auto seconds = summary.step_seconds;
    std::sort(seconds.begin(), seconds.end());
    if (arguments.meeting.boxes > 1) std::printf("box %d of %d: ", arguments.meeting.box, arguments.meeting.boxes);
    bool const grouped = arguments.problem.loss == loss_t::one_set_info_nce_k;
    std::printf("%s%s%s R=%lld x %d on %s, %d threads: loss %.6g", name_of(arguments.problem.loss), grouped ? " " : "",
                grouped ? name_of(arguments.problem.form) : "", static_cast<long long>(arguments.problem.rows),
                arguments.problem.world_size, summary.engine.c_str(), arguments.run.threads, summary.scalars.loss);
    if (arguments.problem.forward_only) std::printf(", forward only");
    else std::printf(", dt %.6g, db %.6g", summary.scalars.scale_gradient, summary.scalars.bias_gradient);
    if (!seconds.empty())
        std::printf("; step %.3f ms best, %.3f ms median", 1e3 * seconds.front(), 1e3 * seconds[seconds.size() / 2]);
    auto const& memory = summary.memory;
    if (memory.allocated_peak_bytes && memory.input_bytes && memory.gradient_bytes)
        std::printf("; %.1f MiB beside inputs and gradients",
                    static_cast<double>(*memory.allocated_peak_bytes - *memory.input_bytes - *memory.gradient_bytes) /
                        1048576.0);
    for (auto const& [name, value] : summary.figures)
        if (name.ends_with("_seconds")) std::printf("; %s %.2f us", name.c_str(), 1e6 * value);
        else std::printf("; %s %g", name.c_str(), value);
    std::printf("\n");
}

void print_profile(profile_t const& profile) {
    std::printf("%-28s %10.3f ms\n", "step", 1e3 * profile.step_seconds);
    if (profile.forward_seconds) {
        double const share = *profile.forward_seconds / profile.step_seconds;
        std::printf("  %-26s %10.3f ms  %5.1f %%  (a forward pass alone)\n", "forward", 1e3 * *profile.forward_seconds,
                    100 * share);
        std::printf("  %-26s %10.3f ms  %5.1f %%  (the rest of the step)\n", "backward",
                    1e3 * (profile.step_seconds - *profile.forward_seconds), 100 * (1 - share));
    } else if (!profile.no_forward.empty()) {
        std::printf("  forward pass alone: %s\n", profile.no_forward.c_str());
    }
    double sum = 0;
    for (auto const& [name, seconds] : profile.stages) sum += seconds;
    if (!profile.stages.empty()) std::printf("%-28s %10.3f ms\n", "stages, one after the other", 1e3 * sum);
    for (auto const& [name, seconds] : profile.stages)
        std::printf("  %-26s %10.3f ms  %5.1f %%\n", name.c_str(), 1e3 * seconds, 100 * seconds / sum);
}

}  // namespace

int run_case(arguments_t const& given) {
    arguments_t arguments = given;
    if (arguments.profile) arguments.actions = {"profile"};
    else if (!arguments.events) {  // for people: short and readable
        arguments.actions = {"time", "memory"};
        arguments.timing = {3, 0.2, 5, 20, 1.0, arguments.timing.cold};
    } else if (arguments.actions.empty()) {
        arguments.actions = {"time", "memory"};
    }
    reporter_t reporter(arguments);
    company_t company(arguments);
    status_t status = status_t::ok_k;
    std::string reason;
    bool usage = false;  // what the user gave is wrong
    try {
        auto const summary = run_t(arguments, reporter, company).run();
        if (!arguments.events) print_summary(arguments, summary);
        if (!arguments.events && summary.profile) print_profile(*summary.profile);
    } catch (rails::setup_error_t const& problem) {
        status = status_t::crashed_k, reason = problem.what(), usage = true;
    } catch (failure_t const& problem) {
        status = problem.status, reason = problem.what();
    } catch (std::bad_alloc const&) {
        status = status_t::out_of_memory_k, reason = "an allocation was refused";
    } catch (usage_error_t const&) {
        throw;
    } catch (std::exception const& problem) {
        status = status_t::crashed_k, reason = problem.what();
    }
    if (status != status_t::ok_k) company.abort(reason);
    reporter.event("end", json_t().text("status", name_of(status)).text("reason", reason));
    if (status != status_t::ok_k) std::fprintf(stderr, "scaling_contrasts: %s: %s\n", name_of(status), reason.c_str());
    return status == status_t::ok_k ? 0 : usage ? 2 : 1;
}

std::string capabilities() {
    std::vector<std::string> built, usable, devices;
    json_t names;
    for (auto const* factory : {&cpu_factory(), &cuda_factory()}) {
        built.insert(built.end(), factory->engines_built.begin(), factory->engines_built.end());
        usable.insert(usable.end(), factory->engines_usable.begin(), factory->engines_usable.end());
        if (!factory->engines_usable.empty()) devices.push_back(factory->device);
        names.texts(factory->device, factory->device_names);
    }
    json_t out;
    out.text("version", SCALING_CONTRASTS_VERSION).integer("contract", std::int64_t{1});
    out.texts("losses", std::vector<std::string>{"one_set_sigmoid", "two_set_sigmoid", "info_nce", "one_set_info_nce",
                                                 "one_set_all_reduce"});
    out.texts("engines_built", built).texts("engines_usable", usable).texts("devices", devices);
    std::vector<std::string> architectures;  // GPU models that the binary carries code for
    std::istringstream list(SCALING_CONTRASTS_ARCHITECTURES);
    for (std::string each; std::getline(list, each, ',');) architectures.push_back(each);
    out.texts("architectures", architectures);
    return out.raw("device_names", names.line()).line();
}

std::string inputs_digest(problem_t const& problem) {
    rails::sha256_t sha;
    std::vector<bf16_t> row(static_cast<std::size_t>(problem.dims));
    int const sets = sets_of(problem.loss);
    for (int set = 0; set < sets; ++set)
        for (std::int64_t i = 0; i < problem.rows * problem.world_size; ++i) {
            fill_row(problem.seed, set, i, label_of(sets == 1 ? problem.labels : label_layout_t::distinct_k, i),
                     problem.dims, row.data());
            sha.add(row.data(), row.size() * sizeof(bf16_t));
        }
    return sha.hex();
}

}  // namespace scaling_contrasts::bench
