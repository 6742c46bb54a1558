// A problem of the checks on the GPU: inputs and outputs between zones of NaN, an engine's step, and the oracle's
// answer.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../source/cuda_sm80.cuh"
#include "cuda_reference.cuh"
#include "scaling_contrasts/box/box.cuh"
#include "scaling_contrasts/gpu/inputs.cuh"

namespace checks {

using namespace scaling_contrasts;

inline constexpr std::int64_t guard_k = 4096;  // elements of NaN before and after each buffer
/// An array between two zones of bytes 0xff, which are NaNs of every type.
template <class element_t>
struct guarded_t {
    gpu::buffer_t<element_t> buffer;
    std::int64_t count;

    guarded_t(gpu::ledger_t& ledger, std::int64_t count) : buffer(ledger, count + 2 * guard_k), count(count) {
        gpu::check(cudaMemset(buffer.data(), 0xff, buffer.bytes()), "filling with NaN");
    }
    element_t* data() const { return buffer.data() + guard_k; }
    bool guards_intact() const {
        std::vector<unsigned char> bytes(guard_k * sizeof(element_t));
        for (element_t* zone : {buffer.data(), data() + count}) {
            gpu::check(cudaMemcpy(bytes.data(), zone, bytes.size(), cudaMemcpyDeviceToHost), "reading guards");
            for (unsigned char byte : bytes)
                if (byte != 0xff) return false;
        }
        return true;
    }
};

struct case_t {
    problem_t problem;
    bool sm90 = false;       // by that engine, else by sm80
    int side_limit = 0;      // of superblocks
    bool zero_rows = false;  // some rows, and some prefixes of rows, are zero
    std::string name;
};

/// A problem on the GPU: embeddings of all devices in one array per set, so that the oracle sees them whole.
class bench_t {
  public:
    explicit bench_t(case_t const& c) : case_(c), ledgers_(c.problem.world_size) {
        auto const& p = c.problem;
        rows_ = p.rows * p.world_size;
        int const sets = sets_of(p.loss);
        std::size_t const size = p.gradient_type == gradient_type_t::float32_k ? 4 : 2;
        std::vector<std::vector<gpu::set_t>> inputs(p.world_size);
        labels_ = std::make_unique<guarded_t<std::int32_t>>(own_, rows_);
        for (int set = 0; set < sets; ++set) {
            x_.push_back(std::make_unique<guarded_t<bf16_t>>(own_, rows_ * p.dims));
            gradient_.push_back(
                std::make_unique<guarded_t<std::uint16_t>>(own_, rows_ * p.dims * std::int64_t(size / 2)));
        }
        fill(p.seed);
        for (int device = 0; device < p.world_size; ++device)
            for (int set = 0; set < sets; ++set) {
                std::int64_t const first = device * p.rows;
                inputs[device].push_back(
                    {x_[set]->data() + first * p.dims, sets == 1 ? labels_->data() + first : nullptr,
                     reinterpret_cast<std::byte*>(gradient_[set]->data()) + first * p.dims * std::int64_t(size)});
            }
        parameters_ = gpu::buffer_t<float>(own_, 2);
        out_ = gpu::buffer_t<double>(own_, 3 * p.world_size);
        set_parameters(p.scale, p.bias);
        totals_ = gpu::buffer_t<double>(own_, 3 * p.world_size);
        std::vector<gpu::box_t::device_t> devices(p.world_size);
        for (int device = 0; device < p.world_size; ++device) {
            devices[device].sets = inputs[device];
            devices[device].part = out_.data() + 3 * device;
            devices[device].total = totals_.data() + 3 * device;
            devices[device].ledger = &ledgers_[device];
            bench::step_inputs_t const in = {case_.problem,          device,
                                             inputs[device],         parameters_.data(),
                                             parameters_.data() + 1, out_.data() + 3 * device,
                                             ledgers_[device],       c.side_limit};
            devices[device].step = c.sm90 ? bench::make_sm90_step(in) : bench::make_tiles_step<sm80::engine_t>(in);
        }
        if (p.world_size > 1) {
            domain::domain_settings_t settings;
            settings.inbox_bytes = 64;
            domain_ = std::make_unique<domain::domain_t>(std::vector<int>(p.world_size, 0), settings);
        }
        box_ = std::make_unique<gpu::box_t>(case_.problem, std::move(devices), domain_.get(), gpu::meeting_t::events_k,
                                            devices_t{});
    }

    /// New embeddings; dead rows become NaN, and must not be read.
    void fill(std::uint32_t seed) {
        auto p = case_.problem;
        p.seed = seed;
        for (std::size_t set = 0; set < x_.size(); ++set) {
            gpu::fill_rows(p, static_cast<int>(set), 0, rows_, x_[set]->data(), labels_->data(), nullptr);
            auto const row = [&](std::int64_t i) { return x_[set]->data() + i * p.dims; };
            for (int device = 0; device < p.world_size; ++device)
                if (std::int64_t const dead = p.rows - p.live_of(device))
                    gpu::check(cudaMemset(row(device * p.rows + p.live_of(device)), 0xff, dead * p.dims * 2),
                               "dead rows");
            if (case_.zero_rows)
                for (std::int64_t i = 1; i < rows_; i += 7)
                    gpu::check(cudaMemset(row(i), 0, (i % 2 ? p.prefixes[0] : p.dims) * 2), "zero rows");
        }
        gpu::check(cudaDeviceSynchronize(), "making inputs");
    }
    void set_parameters(double t, double b) {
        float const values[2] = {float(t), float(b)};
        gpu::check(cudaMemcpy(parameters_.data(), values, sizeof values, cudaMemcpyHostToDevice), "scale and bias");
    }
    void queue() { box_->queue(); }
    void run() {
        queue();
        wait();
    }
    void wait() { box_->synchronize(); }
    cudaStream_t stream() const { return box_->stream(0); }

    std::vector<double> scalars() const {
        std::vector<double> sum(3);
        auto const* from = domain_ ? totals_.data() + 3 * (case_.problem.world_size - 1) : out_.data();
        gpu::check(cudaMemcpy(sum.data(), from, 3 * sizeof(double), cudaMemcpyDeviceToHost), "scalars");
        return sum;
    }
    std::vector<std::uint16_t> gradient_bits(std::size_t set) const {
        std::vector<std::uint16_t> bits(gradient_[set]->count);
        gpu::check(cudaMemcpy(bits.data(), gradient_[set]->data(), bits.size() * 2, cudaMemcpyDeviceToHost),
                   "gradients");
        return bits;
    }
    std::vector<float> gradient(std::size_t set) const {
        auto const bits = gradient_bits(set);
        std::vector<float> values(rows_ * case_.problem.dims);
        if (bits.size() == 2 * values.size()) std::memcpy(values.data(), bits.data(), bits.size() * 2);
        else
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = __builtin_bit_cast(float, std::uint32_t(bits[i]) << 16);
        return values;
    }
    bool guards_intact() const {
        bool intact = labels_->guards_intact();
        for (auto const& x : x_) intact &= x->guards_intact();
        for (auto const& g : gradient_) intact &= g->guards_intact();
        return intact;
    }
    std::vector<int> live() const {
        std::vector<int> live(rows_);
        for (std::int64_t i = 0; i < rows_; ++i)
            live[i] = i % case_.problem.rows < case_.problem.live_of(int(i / case_.problem.rows));
        return live;
    }
    reference::result_t reference(double t, double b) const {
        std::vector<int> labels(rows_);
        for (std::int64_t i = 0; i < rows_; ++i) labels[i] = label_of(case_.problem.labels, i);
        return reference::evaluate(case_.problem, t, b, {x_[0]->data(), x_.back()->data()}, labels, live());
    }
    case_t const& description() const { return case_; }

  private:
    case_t case_;
    std::int64_t rows_ = 0;
    gpu::ledger_t own_;
    std::vector<gpu::ledger_t> ledgers_;
    std::unique_ptr<guarded_t<std::int32_t>> labels_;
    std::vector<std::unique_ptr<guarded_t<bf16_t>>> x_;
    std::vector<std::unique_ptr<guarded_t<std::uint16_t>>> gradient_;
    gpu::buffer_t<float> parameters_;
    gpu::buffer_t<double> out_;
    gpu::buffer_t<double> totals_;
    std::unique_ptr<domain::domain_t> domain_;
    std::unique_ptr<gpu::box_t> box_;
};

}  // namespace checks
