// The sm90 engine's kernels for few rows, in three launches and in one, run by the emulator.
#include "cuda_sm90.cuh"
#include "engines.hpp"
#include "scaling_contrasts/sm90/engine.cuh"
#include "scaling_contrasts/sm90/two_set_ladder_engine.cuh"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

/// One device's step with a tuning, in scratch that can be spoilt between steps.
class tuned_step_t final : public gpu::device_step_t {
  public:
    tuned_step_t(bench::step_inputs_t const& in, sm90_tuning_t const& tuning)
        : in_(in),
          problem_(in.problem),
          scratch_(in.ledger, std::int64_t(sm90_engine_t::scratch_bytes(given(), tuning))) {
        bench::require(engine_.construct(given(), scratch_.data(), tuning));
    }
    void begin(cudaStream_t stream) override {
        bench::require(engine_.begin(in_.sets[0].embeddings, in_.sets[0].labels, in_.device * problem_.rows, in_.scale,
                                     in_.bias, stream));
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        auto const live = static_cast<std::uint32_t>(gpu::live_of(problem_, block));
        bench::require(engine_.score(block.embeddings[0], block.labels, live, live, block.device * problem_.rows,
                                     block.device == in_.device, stream, block.stays));
    }
    void finish(cudaStream_t stream) override {
        bench::require(engine_.finish(in_.sets[0].gradient, nullptr, stream, in_.out));
    }
    std::int64_t launches() const override { return 4; }
    bool one_launch() const override { return engine_.one_launch(); }
    bool takes_groups() const override { return true; }

    void spoil_scratch() {
        auto const kept = engine_.kept_bytes();
        std::memset(scratch_.data() + kept, 0xff, static_cast<std::size_t>(scratch_.bytes()) - kept);
    }

  private:
    gpu_problem_t given() const { return bench::gpu_problem(problem_, in_.device); }

    bench::step_inputs_t in_;
    problem_t problem_;
    gpu::buffer_t<std::byte> scratch_;
    sm90_engine_t engine_;
};

struct variant_t {
    char const* name;
    sm90_tuning_t tuning;
    emulated::make_step_t make() const {
        return [tuning = tuning](bench::step_inputs_t const& in) { return std::make_unique<tuned_step_t>(in, tuning); };
    }
};

void check(problem_t const& problem, variant_t const& variant, std::vector<std::int64_t> const& zero_rows = {}) {
    emulated::check(3e-3, problem, variant.make(), std::string("sm90 ") + variant.name, 0, zero_rows);
}

/// The same bits in whatever order threads run and copies land, and in the next step on what memory holds then.
void check_bits(problem_t const& problem, variant_t const& variant) {
    auto const data = fixture::make_data(problem);
    auto const bytes = static_cast<std::size_t>(problem.rows * problem.dims) *
                       (problem.gradient_type == gradient_type_t::float32_k ? 4 : 2);
    std::vector<std::byte> first;
    double first_out[3];
    for (auto timing : {emulation::timing_t::eager_k, emulation::timing_t::late_k, emulation::timing_t::shuffled_k}) {
        emulation::options().timing = timing;
        emulated::device_t device(problem, data, 0, variant.make(), 0);
        for (int step = 0; step < 3; ++step) {
            device.step->begin({});
            device.step->score(device.block(0), {});
            device.step->finish({});
            auto& gradient = device.gradients[0];
            if (first.empty()) {
                first.assign(gradient.data(), gradient.data() + bytes);
                std::copy_n(device.out.data(), 3, first_out);
            }
            testing::expect(!std::memcmp(first.data(), gradient.data(), bytes) &&
                                std::equal(first_out, first_out + 3, device.out.data()),
                            fixture::describe(problem, variant.name) + ": bits repeat in " + emulated::name_of(timing) +
                                " step " + std::to_string(step));
            static_cast<tuned_step_t&>(*device.step).spoil_scratch();
            std::memset(gradient.data(), 0xff, bytes);
            std::memset(device.out.data(), 0xff, 3 * sizeof(double));
        }
    }
}

void all(variant_t const& variant) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 300, {270}, article_k, 1024);
    for (auto labels :
         {label_layout_t::pairs_k, label_layout_t::equal_k, label_layout_t::distinct_k, label_layout_t::mixed_k}) {
        problem.labels = labels, problem.scale = 10, problem.bias = -10;
        check(problem, variant);
    }
    problem.gradient_type = gradient_type_t::float32_k;
    for (auto [scale, bias] : {std::pair{10.0, -1.0}, {100.0, -10.0}, {100.0, -1.0}, {1.0, -12.0}}) {
        problem.labels = scale == 1 ? label_layout_t::pairs_k : label_layout_t::mixed_k;
        problem.scale = scale, problem.bias = bias;
        check(problem, variant, {0, 77});
    }
    problem = make_problem(loss_t::one_set_sigmoid_k, 256, {256}, article_k, 1024);
    problem.self_pairs = true, problem.scale = 2, problem.bias = -8;
    check(problem, variant);
    for (std::int64_t rows : {1, 2, 65, 129})
        check(make_problem(loss_t::one_set_sigmoid_k, rows, {rows}, article_k, 1024), variant);
    check(make_problem(loss_t::one_set_sigmoid_k, 300, {100}, article_k, 1024), variant);  // row blocks of no live rows
}

/// Blocks of other devices, also for a device with no live rows: three launches, whatever is asked for.
void foreign(variant_t const& variant) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 140, {130, 135}, article_k, 1024);
    problem.labels = label_layout_t::mixed_k, problem.scale = 5, problem.bias = -1;
    check(problem, variant);
    problem = make_problem(loss_t::one_set_sigmoid_k, 70, {0, 70}, article_k, 1024);
    check(problem, variant);
}

/// Nobody is alive: zeros.
void nobody(variant_t const& variant) {
    auto const problem = make_problem(loss_t::one_set_sigmoid_k, 70, {0}, article_k, 1024);
    auto const data = fixture::make_data(problem);
    emulated::device_t device(problem, data, 0, variant.make(), 0);
    for (int step = 0; step < 2; ++step) {
        device.step->begin({}), device.step->score(device.block(0), {}), device.step->finish({});
        auto const zero = [](auto const* bytes, std::size_t count) {
            return std::all_of(bytes, bytes + count, [](auto one) { return one == decltype(one){}; });
        };
        testing::expect(zero(device.gradients[0].data(), 70 * 1024 * 2) && zero(device.out.data(), 3),
                        std::string(variant.name) + ": no live rows, gradients and scalars of zero");
    }
}

/// A scale of 0: no gradients, though weights carry one that is never 0, and the scalars all the same.
void no_scale(variant_t const& variant) {
    for (auto type : {gradient_type_t::bfloat16_k, gradient_type_t::float32_k}) {
        auto problem = make_problem(loss_t::one_set_sigmoid_k, 130, {129}, article_k, 1024);
        problem.labels = label_layout_t::mixed_k, problem.scale = 0, problem.bias = -1, problem.gradient_type = type;
        auto const data = fixture::make_data(problem);
        auto const want = fixture::oracle(problem, data).scalars;
        auto const got = emulated::run(problem, data, variant.make(), 0);
        auto const near = [](double value, double other) { return std::abs(value - other) <= 1e-5 * std::abs(other); };
        auto const name = fixture::describe(problem, variant.name);
        testing::expect(std::ranges::all_of(got.gradients[0], [](double v) { return v == 0; }),
                        name + ": gradients are 0 where the scale is");
        testing::expect(near(got.scalars.loss, want.loss) && near(got.scalars.bias_gradient, want.bias_gradient) &&
                            near(got.scalars.scale_gradient, want.scale_gradient),
                        name + ": the scalars do not need a scale");
    }
}

/// Fewer blocks at a time than a launch has: nobody waits for one that has not started.
void half_at_a_time(variant_t const& variant) {
    auto const problem = make_problem(loss_t::one_set_sigmoid_k, 140, {140}, article_k, 1024);
    emulation::options().resident = 1;
    check(problem, variant);
    check_bits(problem, variant);
    emulation::options().resident = 2;
}

/// Which kernels a problem takes, and that others are refused.
void choices() {
    struct choice_t {
        std::int64_t rows;
        int devices, dims;
        std::vector<int> prefixes;
        bool fp32, once;
        sm90_tuning_t tuning;
        int small_items, one_launch;  // -1: refused
    };
    sm90_tuning_t const none;
    sm90_tuning_t bf16, small, apart, large;
    bf16.fp16 = false, small.small_items = true, large.small_items = false;
    apart.small_items = true, apart.one_launch = false;
    std::vector<int> const other = {64, 128, 256, 512};
    choice_t const all[] = {
        {1, 1, 1024, article_k, false, false, none, 1, 1},     {3072, 1, 1024, article_k, false, false, none, 1, 1},
        {3073, 1, 1024, article_k, false, false, none, 1, 0},  {5120, 1, 1024, article_k, false, false, none, 1, 0},
        {5121, 1, 1024, article_k, false, false, none, 0, 0},  {300, 2, 1024, article_k, false, false, none, 1, 0},
        {5120, 2, 1024, article_k, false, false, none, 1, 0},  {5121, 2, 1024, article_k, false, false, none, 0, 0},
        {300, 1, 1024, article_k, true, false, none, 0, 0},    {300, 1, 1024, article_k, true, false, bf16, 1, 1},
        {300, 2, 1024, article_k, false, true, none, 0, 0},    {300, 1, 1088, article_k, false, false, none, 1, 0},
        {300, 1, 512, other, false, false, none, 0, 0},        {300, 1, 1024, article_k, false, false, apart, 1, 0},
        {300, 1, 1024, article_k, false, false, large, 0, 0},  {5121, 1, 1024, article_k, false, false, small, 1, 0},
        {300, 1, 1024, article_k, true, false, small, -1, -1}, {300, 2, 1024, article_k, false, true, small, -1, -1},
        {300, 1, 512, other, false, false, small, -1, -1},
    };
    for (auto const& c : all) {
        auto problem = make_problem(loss_t::one_set_sigmoid_k, c.rows,
                                    std::vector<std::int64_t>(std::size_t(c.devices), c.rows), c.prefixes, c.dims);
        if (c.fp32) problem.gradient_type = gradient_type_t::float32_k;
        problem.pairs_once = c.once;
        auto const given = bench::gpu_problem(problem, 0);
        gpu::ledger_t ledger;
        gpu::buffer_t<std::byte> scratch(ledger, std::int64_t(sm90_engine_t::scratch_bytes(given, c.tuning)));
        sm90_engine_t engine;
        auto const status = engine.construct(given, scratch.data(), c.tuning);
        testing::expect(status
                            ? engine.small_items() == (c.small_items == 1) && engine.one_launch() == (c.one_launch == 1)
                            : c.small_items < 0,
                        fixture::describe(problem, "kernels by size"));
    }
}

/// Items have 32-bit numbers, also where memory would hold more rows.
void many_items() {
    auto const runs = [](loss_t loss, std::int64_t rows, bool narrow) {
        auto problem = make_problem(loss, rows, {rows}, article_k, 1024);
        auto const given = bench::gpu_problem(problem, 0);
        sm90_tuning_t tuning;
        if (narrow) tuning.small_items = tuning.one_launch = tuning.narrow_tiles = true;
        if (loss == loss_t::two_set_sigmoid_k) return sm90_two_set_ladder_engine_t::scratch_bytes(given, tuning) > 0;
        return sm90_engine_t::scratch_bytes(given, tuning) > 0;
    };
    testing::expect(runs(loss_t::two_set_sigmoid_k, 3973 * 1024, false), "two sets: items of 3973 x 3973 superblocks");
    testing::expect(!runs(loss_t::two_set_sigmoid_k, 3974 * 1024, false), "two sets: not of 3974 x 3974");
    testing::expect(runs(loss_t::one_set_sigmoid_k, 4096 * 1024, false), "one set: items of 4096 strips");
    testing::expect(runs(loss_t::one_set_sigmoid_k, 4095 * 1024, true), "narrow tiles: items of 4095 strips");
    testing::expect(!runs(loss_t::one_set_sigmoid_k, 4096 * 1024 - 1, true), "narrow tiles: not of 4096 strips");
}

/// Several superblocks: the last share of a tile finds earlier ones in memory.
void several(variant_t const& variant) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 1030, {1026}, article_k, 1024);
    problem.labels = label_layout_t::mixed_k;
    check(problem, variant);
}

void bits(variant_t const& variant) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 290, {290}, article_k, 1024);
    check(problem, variant);
    check_bits(problem, variant);
    problem.labels = label_layout_t::mixed_k, problem.scale = 100;
    check_bits(problem, variant);
}

}  // namespace

/// NAME: that variant alone, with all cases.
int main(int count, char** arguments) {
    emulation::options().major = 9;
    emulation::options().multiprocessors = 3;
    choices();
    many_items();
    sm90_tuning_t three, one, wide;
    three.fp16 = one.fp16 = false;
    three.small_items = one.small_items = true;
    three.one_launch = false, one.one_launch = true;
    wide = one, wide.narrow_tiles = false;
    for (auto const& variant :
         {variant_t{"small items", three}, variant_t{"one launch", one}, variant_t{"wide tiles", wide}})
        if (count < 2 || variant.name == std::string(arguments[1])) {
            bits(variant);
            nobody(variant);
            no_scale(variant);
            half_at_a_time(variant);
            if (variant.tuning.one_launch == false) foreign(variant);
            if (variant.tuning.one_launch == true || count > 1) several(variant);
            if ((variant.tuning.one_launch == true && !variant.tuning.narrow_tiles) || count > 1) all(variant);
        }
    return testing::report();
}
