// A box's own devices, as the schedule over boxes (step.hpp) drives them: CPU devices (cpu_box.hpp) or GPUs
// (box/boxes.cuh). Work on GPUs is queued, and still runs when a call returns; that on the CPU is done by then.
#pragma once
#include "scaling_contrasts/devices.hpp"
#include "scaling_contrasts/rails/rails.hpp"

namespace scaling_contrasts::rails {

class local_box_t {
  public:
    virtual ~local_box_t() = default;

    /// PCI bus id of each rail's GPU; empty: CPU devices.
    virtual std::vector<std::string> gpus() const { return {}; }
    /// The memory of what travels. Called once, before anything else; it lives as long as the box. `verbs`: what
    /// carries it.
    virtual plan_t plan(int boxes, int box, bool verbs) = 0;
    /// Called once the labels of the other boxes' devices have been taken in, where there are labels.
    virtual void build() {}

    /// A step begins: the devices meet, and what staging and taking in overwrite is free from here on.
    virtual void start() {}
    /// Norms of the own rows.
    virtual void begin() = 0;
    /// The devices' rows against each other's.
    virtual void own_blocks(pass_t pass) = 0;
    /// The same against the rows of that box, all of which have been taken in.
    virtual void blocks_of(int box, pass_t pass) = 0;
    /// The pass is over, for all boxes.
    virtual void close(pass_t pass) = 0;
    /// Gradients, and the box's part of loss, dt and db.
    virtual void finish() = 0;

    /// Makes the rail's message of that step ready in its source.
    virtual void stage(int rail, kind_t kind, std::uint64_t step, std::vector<piece_t> const& source) = 0;
    /// Whether it is. Never waits.
    virtual bool staged(int rail, kind_t kind, std::uint64_t step) = 0;
    /// Takes in the message of device `peer` of another box, which lies in `landing`.
    virtual void take(int peer, kind_t kind, std::byte const* landing) = 0;
};

/// The lane of messages of `pieces`, which are sent from where they lie; those of null and all landings are set aside
/// by `allocate(bytes)`.
template <class allocate_t>
lane_t make_lane(std::vector<piece_t> const& pieces, int boxes, int box, allocate_t&& allocate) {
    lane_t lane;
    for (auto const& piece : pieces) {
        lane.bytes += piece.size;
        for (auto& source : lane.sources)
            source.push_back({piece.data ? piece.data : allocate(piece.size), piece.size});
    }
    lane.landings.resize(static_cast<std::size_t>(boxes));
    for (int other = 0; other < boxes; ++other)
        if (other != box) lane.landings[static_cast<std::size_t>(other)] = {allocate(lane.bytes), allocate(lane.bytes)};
    return lane;
}

}  // namespace scaling_contrasts::rails
