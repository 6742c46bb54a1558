// The control connections between all boxes, and how they come to be. Box 0 listens at the rendezvous; the others join
// it, say what they are about to run and where they listen; box 0 compares, and hands out the table of addresses; every
// pair of boxes connects. One thread of each box then listens for callers, for parts of collectives, and for boxes that
// go away. Losing one is recorded in the monitor, which every wait looks at.
#pragma once
#include <sys/eventfd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <tuple>

#include "scaling_contrasts/rails/door.hpp"
#include "scaling_contrasts/rails/options.hpp"

namespace scaling_contrasts::rails {

/// The first of `mine`'s lines `field=value` that `theirs` has otherwise, as a sentence; empty: none.
inline std::string difference(std::string const& mine, std::string const& theirs, std::string const& me,
                              std::string const& them) {
    auto fields = [](std::string const& text) {
        std::map<std::string, std::string> out;
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);)
            out[line.substr(0, line.find('='))] = line.substr(std::min(line.size(), line.find('=') + 1));
        return out;
    };
    auto const ours = fields(mine), others = fields(theirs);
    for (auto const& [field, value] : ours) {
        auto const found = others.find(field);
        if (found == others.end()) return field + " is " + value + " on " + me + " and missing on " + them;
        if (found->second != value)
            return field + " is " + value + " on " + me + " and " + found->second + " on " + them;
    }
    return ours.size() == others.size() ? "" : "they are of different versions";
}

class mesh_t {
  public:
    /// Meets the other boxes. `agreement` is what must be equal on all, lines of `field=value`, under 16 KiB.
    /// Throws setup_error_t for what the user gave, failure_t (crashed) with the box and the phase otherwise.
    mesh_t(meeting_t const& meeting, std::string agreement)
        : meeting_(meeting),
          agreement_(std::move(agreement)),
          token_(read_token(meeting.token_file)),
          door_(token_, [this](caller_t& caller) { return admit(caller); }),
          peers_(static_cast<std::size_t>(meeting.boxes)),
          table_(static_cast<std::size_t>(meeting.boxes)),
          wait_seconds_(meeting.join_seconds),
          wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        try {
            if (meeting_.box == 0) lead();
            else follow();
            exchange("", "met the other boxes");
        } catch (std::exception const& problem) {
            abort(problem.what());
            stop();
            throw;
        }
    }
    ~mesh_t() {
        if (!monitor_.failed()) say_goodbye();
        stop();
    }
    mesh_t(mesh_t const&) = delete;
    mesh_t& operator=(mesh_t const&) = delete;

    int boxes() const { return meeting_.boxes; }
    int box() const { return meeting_.box; }
    monitor_t& monitor() { return monitor_; }
    /// `box 1 (10.0.0.2)`
    std::string name(int box) const {
        std::string const at = host(box);
        return "box " + std::to_string(box) + (at.empty() ? "" : " (" + at + ")");
    }
    /// The numeric address at which the box listens; empty before it is known.
    std::string host(int box) const {
        std::lock_guard const lock(mutex_);
        return table_[static_cast<std::size_t>(box)].host;
    }
    /// The interface that this box listens on.
    std::string const& interface() const { return interface_; }

    double wait_seconds() const { return wait_seconds_; }
    void set_wait_seconds(double seconds) { wait_seconds_ = seconds; }

    /// A collective of all boxes: everyone's parts by box, each under 64 KiB. `phase` is what this box does, in the
    /// past continuous of an error message: `waited for ...`.
    std::vector<std::string> exchange(std::string const& mine, std::string const& phase);
    double maximum(double value, std::string const& phase);

    /// A number for rails that are about to be made, the same on all boxes.
    std::uint32_t next_epoch() { return ++epoch_; }
    /// Connections for rails: the box of the higher number calls, the other one takes the call.
    descriptor_t call(int box, hello_t hello, std::string const& phase);
    descriptor_t take_call(int box, hello_t const& hello, std::string const& phase);

    /// Tells the others that this box ends, and why.
    void abort(std::string const& reason) {
        monitor_.fail(reason);
        for (auto const& peer : peers_)
            if (peer && !peer->left && !peer->closed)
                send_frame(peer->socket.get(), frame_kind_t::abort_k, reason.substr(0, 1024), in_seconds(0.5));
    }

  private:
    struct peer_t {
        descriptor_t socket;
        frame_reader_t reader;
        std::deque<std::string> parts;
        std::atomic<bool> left = false;  ///< it said goodbye
        std::atomic<bool> closed =
            false;  ///< the descriptor stays open until the end, so that its number is not reused
    };
    using rail_key_t = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;

    static rail_key_t key_of(hello_t const& hello) { return {hello.epoch, hello.box, hello.rail, hello.socket}; }

    void lead();
    void follow();
    void open_door(address_t address);
    void start() {
        thread_ = std::thread([this] { run(); });
    }
    void stop() {
        if (!thread_.joinable()) return;
        stopping_ = true;
        wake();
        thread_.join();
    }
    void wake() {
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const ignored = ::write(wake_.get(), &one, sizeof(one));
    }
    void say_goodbye();
    void send(int box, frame_kind_t kind, std::string const& payload);
    std::vector<std::string> collect(std::vector<int> const& boxes, std::string const& phase);
    std::string missing(std::function<bool(int)> const& there) const;
    void wait_for_peers(double seconds);

    // on the mesh's thread
    void run();
    std::string admit(caller_t& caller);
    std::string admit_joining(caller_t& caller);
    void listen_to(int box, peer_t& peer);
    void take_frame(int box, peer_t& peer, frame_t frame);
    void add_peer(int box, descriptor_t socket) {
        {
            std::lock_guard const lock(mutex_);
            auto peer = std::make_unique<peer_t>();
            peer->socket = std::move(socket);
            peers_[static_cast<std::size_t>(box)] = std::move(peer);
        }
        wake();
        monitor_.notify();
    }
    peer_t* peer(int box) const {
        std::lock_guard const lock(mutex_);
        return peers_[static_cast<std::size_t>(box)].get();
    }

    meeting_t meeting_;
    std::string agreement_, token_, interface_;
    monitor_t monitor_;
    door_t door_;
    mutable std::mutex mutex_;  // peers_, their parts, calls_, table_; never held while the monitor is called
    std::vector<std::unique_ptr<peer_t>> peers_;
    std::map<rail_key_t, descriptor_t> calls_;
    std::string heard_table_;
    std::vector<endpoint_t> table_;
    session_t session_{};
    std::uint32_t epoch_ = 0;
    std::atomic<double> wait_seconds_;
    std::atomic<bool> stopping_ = false;
    descriptor_t wake_;
    std::thread thread_;
};

}  // namespace scaling_contrasts::rails

#include "scaling_contrasts/rails/mesh.inl"
