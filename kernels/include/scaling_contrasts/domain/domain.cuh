// The GPUs of one box as a domain: memory that all may write, barriers between their kernels, sums over them. One host
// thread queues every rank's calls, the same ones in the same order, and never waits for a GPU. A rank's calls are in
// one stream.
//
// Kernels that wait for each other must all be running. Ranks of different GPUs are; ranks that share a GPU are for the
// halves of small sums alone (half_t), which wait for nothing.
#pragma once
#include <memory>
#include <vector>

#include "scaling_contrasts/domain/multimem.cuh"
#include "scaling_contrasts/domain/schedule.hpp"
#include "scaling_contrasts/domain/symmetric.cuh"
#include "scaling_contrasts/gpu/memory.cuh"
#include "scaling_contrasts/gpu/stream.cuh"

namespace scaling_contrasts::domain {

template <class value_t>
struct buffers_t {
    value_t* of[max_devices_k];
};

static __global__ void meet_kernel(__grid_constant__ member_t const m, phase_t phase) { meet(gpu_place_t(), m, phase); }

template <class value_t>
__global__ void one_shot_kernel(__grid_constant__ member_t const m, value_t const* in, value_t* out, std::size_t count,
                                half_t half) {
    one_shot(gpu_place_t(), m, in, out, count, half);
}
template <int world_, class value_t>
__global__ void __launch_bounds__(512)
    two_shot_kernel(__grid_constant__ member_t const m, __grid_constant__ buffers_t<value_t> const data,
                    std::size_t count) {
    two_shot<world_>(gpu_place_t(), m, data.of, count);
}
template <class value_t>
__global__ void __launch_bounds__(512)
    in_switch_kernel(__grid_constant__ member_t const m, value_t* data, std::size_t count) {
    in_switch(gpu_place_t(), multimem_t(), m, data, count);
}
static __global__ void in_switch_small_kernel(__grid_constant__ member_t const m, four_t const* in, four_t* slots,
                                              four_t* own, four_t* out, std::size_t count, std::size_t capacity) {
    in_switch_small(gpu_place_t(), multimem_t(), m, in, slots, own, out, count, capacity);
}

struct domain_settings_t {
    fabric_t fabric = fabric_t::auto_k;
    std::size_t data_bytes = 0;           ///< of the large buffer that every rank has, for two_shot
    std::size_t inbox_bytes = 256 << 10;  ///< the largest payload of one_shot
    double deadline_seconds = 10;         ///< of one barrier
    int blocks = 0;                       ///< thread blocks of two_shot; 0: chosen by size
};

class domain_t {
  public:
    /// `ordinals`: the GPU of each rank.
    domain_t(
        std::vector<int> ordinals, domain_settings_t const& settings, gpu::driver_t const& driver = gpu::driver(),
        environment_t const& variable = [](char const* name) { return static_cast<char const*>(std::getenv(name)); })
        : ordinals_(std::move(ordinals)), settings_(settings) {
        int const world = static_cast<int>(ordinals_.size());
        inbox_bytes_ = (settings.inbox_bytes + 15) / 16 * 16;
        data_bytes_ = (settings.data_bytes + 15) / 16 * 16;
        std::size_t const inboxes = 2 * ordinals_.size() * inbox_bytes_, slots = small_slots_k * small_bytes_k;
        std::size_t const head = flag_bytes_k + slots + inboxes;
        memory_ = std::make_unique<symmetric_t>(driver, ordinals_, head + data_bytes_, settings.fabric, variable);
        gpu::check(cudaHostAlloc(reinterpret_cast<void**>(&missing_), ordinals_.size() * sizeof(missing_t),
                                 cudaHostAllocPortable | cudaHostAllocMapped),
                   "allocating the record of missing peers");
        members_.resize(ordinals_.size());
        for (int rank = 0; rank < world; ++rank) {
            missing_[rank] = {};
            gpu::use_device(ordinals_[rank]);
            states_.emplace_back(ledger_, 1);
            state_t state;
            state.deadline_ns = static_cast<std::uint64_t>(settings.deadline_seconds * 1e9);
            gpu::check(cudaMemcpy(states_.back().data(), &state, sizeof state, cudaMemcpyHostToDevice),
                       "setting up a rank");
            gpu::check(cudaMemset(memory_->of(rank), 0, flag_bytes_k + slots), "clearing flags");
            gpu::check(cudaDeviceSynchronize(), "clearing flags");
            member_t& m = members_[rank];
            m.rank = rank, m.world = world, m.inbox_bytes = inbox_bytes_;
            m.state = states_.back().data(), m.missing = missing_ + rank;
            for (int peer = 0; peer < world; ++peer) {
                m.flags[peer] = reinterpret_cast<std::uint32_t*>(memory_->of(peer));
                m.inbox[peer] = memory_->of(peer) + flag_bytes_k + slots;
            }
        }
        data_offset_ = head;
        load();
    }
    domain_t(domain_t const&) = delete;
    domain_t& operator=(domain_t const&) = delete;
    ~domain_t() {
        memory_.reset();
        cudaFreeHost(missing_);
    }

    int world() const { return static_cast<int>(ordinals_.size()); }
    member_t const& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
    fabric_t fabric() const { return memory_->everywhere() ? fabric_t::multicast_k : fabric_t::peer_k; }
    /// Why fabric auto goes on with peer pointers where it tried multicast; empty: it did not, or it works.
    std::string const& refusal() const { return memory_->refusal(); }
    std::size_t bytes_per_rank() const { return memory_->bytes(); }
    std::size_t inbox_bytes() const { return inbox_bytes_; }
    /// The rank's large buffer, settings.data_bytes.
    float* data(int rank) const { return reinterpret_cast<float*>(memory_->of(rank) + data_offset_); }

    // The rank's GPU is current in the calls below.

    /// All ranks' kernels before are done, and what they wrote can be read, when kernels after begin.
    void meet(int rank, phase_t phase, cudaStream_t stream) const {
        meet_kernel<<<1, 32, 0, stream>>>(member(rank), phase);
        gpu::check_launch("meet_kernel");
    }
    /// out = sum over ranks of in, `count` values of the rank's own memory, the same bits everywhere.
    template <class value_t>
    void one_shot(int rank, value_t const* in, value_t* out, std::size_t count, cudaStream_t stream,
                  half_t half = half_t::both_k) const {
        if (count * sizeof(value_t) > inbox_bytes_)
            throw failure_t(status_t::unsupported_k, "a one-shot all-reduce of " +
                                                         std::to_string(count * sizeof(value_t)) +
                                                         " bytes exceeds the inbox of " + std::to_string(inbox_bytes_));
        unsigned const threads = count < 32 ? 32 : 256;
        auto const blocks = static_cast<unsigned>(std::clamp<std::size_t>((count + threads - 1) / threads, 1, 64));
        one_shot_kernel<value_t><<<blocks, threads, 0, stream>>>(member(rank), in, out, count, half);
        gpu::check_launch("one_shot_kernel");
    }
    /// data(r) of every rank becomes the sum over ranks; `count` floats.
    void all_reduce(int rank, std::size_t count, schedule_t schedule, cudaStream_t stream) const {
        std::size_t const fours = (count + 3) / 4, bytes = fours * 16;
        require_room(bytes);
        if (schedule == schedule_t::auto_k)
            schedule = schedule_for(bytes, world(), inbox_bytes_, memory_->everywhere() != nullptr);
        auto* const own = reinterpret_cast<four_t*>(data(rank));
        if (schedule == schedule_t::one_shot_k) return one_shot(rank, own, own, fours, stream);
        if (schedule == schedule_t::in_switch_small_k) return in_switch_small(rank, own, own, fours, stream);
        if (schedule == schedule_t::in_switch_k) return in_switch<four_t>(rank, fours, stream);
        auto const grid = static_cast<unsigned>(blocks_of(fours));
        buffers_t<four_t> buffers = {};
        for (int peer = 0; peer < world(); ++peer) buffers.of[peer] = reinterpret_cast<four_t*>(data(peer));
        auto* kernel = two_shot_kernel_of(world());
        kernel<<<grid, 512, 0, stream>>>(member(rank), buffers, fours);
        gpu::check_launch("two_shot_kernel");
    }
    /// The same of `count` bf16 numbers in data(r), each sum rounded once. The switch's alone.
    void all_reduce_bf16(int rank, std::size_t count, cudaStream_t stream) const {
        std::size_t const eights = (count + 7) / 8;
        require_room(eights * 16);
        in_switch<eight_bf16_t>(rank, eights, stream);
    }

    /// Throws failure_t timeout_k, naming who was missing, where a barrier was in vain. Call it when the GPUs are done.
    void require_all_met() const {
        for (int rank = 0; rank < world(); ++rank)
            if (missing_[rank].set) throw failure_t(status_t::timeout_k, describe(missing_[rank]));
    }
    /// A copy of the rank's counters. The rank's stream must be idle.
    state_t state(int rank) const {
        state_t state;
        gpu::check(cudaMemcpy(&state, member(rank).state, sizeof state, cudaMemcpyDeviceToHost), "reading counters");
        return state;
    }
    void reset_waits(int rank) const {
        state_t state = this->state(rank);
        for (auto& ns : state.waited_ns) ns = 0;
        for (auto& count : state.waits) count = 0;
        gpu::check(cudaMemcpy(member(rank).state, &state, sizeof state, cudaMemcpyHostToDevice), "writing counters");
    }

  private:
    void require_room(std::size_t bytes) const {
        if (bytes > data_bytes_)
            throw failure_t(status_t::unsupported_k, "an all-reduce of " + std::to_string(bytes) +
                                                         " bytes exceeds the buffer of " + std::to_string(data_bytes_));
    }
    /// The address that stands for all ranks' memory.
    std::byte* everywhere() const {
        if (!memory_->everywhere())
            throw failure_t(status_t::unsupported_k, "the in-switch schedule needs --fabric multicast");
        return memory_->everywhere();
    }
    template <class value_t>
    void in_switch(int rank, std::size_t count, cudaStream_t stream) const {
        auto* const all = reinterpret_cast<value_t*>(everywhere() + data_offset_);
        in_switch_kernel<<<static_cast<unsigned>(blocks_of(count)), 512, 0, stream>>>(member(rank), all, count);
        gpu::check_launch("in_switch_kernel");
    }
    void in_switch_small(int rank, four_t const* in, four_t* out, std::size_t count, cudaStream_t stream) const {
        constexpr std::size_t capacity = small_bytes_k / sizeof(four_t);
        if (count > capacity)
            throw failure_t(status_t::unsupported_k, "an all-reduce of " + std::to_string(count * sizeof(four_t)) +
                                                         " bytes exceeds the switch's slot of " +
                                                         std::to_string(small_bytes_k));
        auto* const slots = reinterpret_cast<four_t*>(everywhere() + flag_bytes_k);
        auto* const own = reinterpret_cast<four_t*>(memory_->of(rank) + flag_bytes_k);
        in_switch_small_kernel<<<1, capacity, 0, stream>>>(member(rank), in, slots, own, out, count, capacity);
        gpu::check_launch("in_switch_small_kernel");
    }
    int blocks_of(std::size_t fours) const {
        if (settings_.blocks) return std::min(settings_.blocks, channels_k);
        std::size_t const share = (fours + std::size_t(world()) - 1) / std::size_t(world());
        return static_cast<int>(std::clamp<std::size_t>((share + 511) / 512, 1, 64));
    }
    static auto two_shot_kernel_of(int world) -> void (*)(member_t, buffers_t<four_t>, std::size_t) {
        switch (world) {
        case 2: return two_shot_kernel<2, four_t>;
        case 4: return two_shot_kernel<4, four_t>;
        case 8: return two_shot_kernel<8, four_t>;
        default: return two_shot_kernel<0, four_t>;
        }
    }
    /// Loads every kernel on every GPU: a kernel's first launch may wait for the GPU to be idle, which never is one
    /// whose kernels wait for a peer that this thread has not reached yet.
    void load() const {
        for (int const ordinal : ordinals_) {
            gpu::use_device(ordinal);
            auto one = [](auto* kernel) {
                cudaFuncAttributes attributes;
                gpu::check(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
            };
            one(meet_kernel);
            one(one_shot_kernel<float>);
            one(one_shot_kernel<double>);
            one(one_shot_kernel<four_t>);
            one(two_shot_kernel_of(world()));
            one(in_switch_kernel<four_t>);
            one(in_switch_kernel<eight_bf16_t>);
            one(in_switch_small_kernel);
        }
    }

    std::vector<int> ordinals_;
    domain_settings_t settings_;
    std::size_t inbox_bytes_ = 0, data_bytes_ = 0, data_offset_ = 0;
    gpu::ledger_t ledger_;
    std::unique_ptr<symmetric_t> memory_;
    std::vector<gpu::buffer_t<state_t>> states_;
    std::vector<member_t> members_;
    missing_t* missing_ = nullptr;
};

}  // namespace scaling_contrasts::domain
