// Rails over TCP, where there is no RDMA. A rail has several sockets to each counterpart; a message is cut into as many
// stripes, each led by a header that says what it is and where it goes. One thread moves all bytes, with vectored
// calls, straight between the sockets and the sources and landings. What does not fit the plan ends the run.
#pragma once
#include <sys/epoll.h>

#include "scaling_contrasts/rails/rails.hpp"

namespace scaling_contrasts::rails {

/// Leads each stripe.
struct stripe_t {
    static constexpr std::uint32_t magic_k = 0x4c494152;  ///< "RAIL"
    std::uint32_t magic = magic_k;
    std::uint32_t kind = 0;
    std::uint64_t step = 0;
    std::uint64_t offset = 0;  ///< in the message
    std::uint64_t bytes = 0;
};
static_assert(sizeof(stripe_t) == 32);

class tcp_rails_t final : public rails_t {
  public:
    /// Collective: connects every rail to every counterpart. Throws failure_t.
    tcp_rails_t(mesh_t& mesh, plan_t plan, options_t const& options, std::uint32_t epoch)
        : rails_t(mesh, std::move(plan)),
          sockets_(options.sockets),
          poll_(::epoll_create1(EPOLL_CLOEXEC)),
          wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        for (int box = 0; box < mesh.boxes(); ++box)
            for (int rail = 0; box != mesh.box() && rail < plan_.rails(); ++rail)
                for (int socket = 0; socket < sockets_; ++socket) {
                    hello_t hello;
                    hello.purpose = purpose_t::rail_k;
                    hello.epoch = epoch;
                    hello.rail = static_cast<std::uint32_t>(rail);
                    hello.socket = static_cast<std::uint32_t>(socket);
                    std::string const phase = "waited to connect its rails";
                    auto line = std::make_unique<line_t>();
                    line->socket = box < mesh.box() ? mesh.call(box, hello, phase) : mesh.take_call(box, hello, phase);
                    line->box = box, line->rail = rail;
                    lines_.push_back(std::move(line));
                }
        watch(wake_.get(), nullptr, EPOLLIN, EPOLL_CTL_ADD);
        for (auto& line : lines_) watch(line->socket.get(), line.get(), EPOLLIN, EPOLL_CTL_ADD);
        thread_ = std::thread([this] { run(); });
    }
    ~tcp_rails_t() override {
        stopping_ = true;
        wake();
        thread_.join();
    }

    char const* transport() const override { return "tcp"; }

    void post(int rail, kind_t kind, std::uint64_t step) override {
        lane_t const& lane = plan_.lane(rail, kind);
        int const stripes = lane.bytes >= least_striped_k ? sockets_ : 1;
        {
            std::lock_guard const lock(mutex_);
            int index = 0, last_box = -1;
            for (auto& line : lines_) {
                if (line->rail != rail) continue;
                index = line->box == last_box ? index + 1 : 0;
                last_box = line->box;
                if (index >= stripes) continue;
                auto const part = [&](int i) { return lane.bytes * static_cast<std::size_t>(i) / stripes_of(stripes); };
                outgoing_t out;
                out.header.kind = static_cast<std::uint32_t>(kind);
                out.header.step = step;
                out.header.offset = part(index);
                out.header.bytes = part(index + 1) - part(index);
                out.sources = &lane.sources[step % 2];
                line->posted.push_back(out);
                ++unsent_;
            }
        }
        wake();
    }

    /// What was posted is counted too, once it has left.
    traffic_t traffic() const override {
        for (deadline_t const deadline = in_seconds(1); unsent_ > 0 && steady_t::now() < deadline;)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        return {bytes_sent_.load(), bytes_received_.load(), messages_sent_.load(), messages_received_.load()};
    }

  private:
    static constexpr std::size_t least_striped_k = 64 << 10;
    static constexpr std::size_t most_pieces_k = 8;
    static constexpr int most_reads_k = 8;

    struct outgoing_t {
        stripe_t header;
        std::vector<piece_t> const* sources = nullptr;
        std::size_t sent = 0;  ///< of header and payload
    };
    /// One connection of a rail.
    struct line_t {
        descriptor_t socket;
        int box = 0, rail = 0;
        std::deque<outgoing_t> posted;   ///< by the driving thread, under the mutex
        std::deque<outgoing_t> sending;  ///< the mover's own
        bool blocked = false;            ///< waits for room in the socket
        stripe_t header;
        std::size_t received = 0;  ///< of header and payload
        bool closed = false;
    };

    static std::size_t stripes_of(int stripes) { return static_cast<std::size_t>(stripes); }
    void watch(int descriptor, line_t* line, std::uint32_t events, int operation) {
        epoll_event event{};
        event.events = events;
        event.data.ptr = line;
        if (::epoll_ctl(poll_.get(), operation, descriptor, &event) != 0)
            throw lost("cannot watch a connection: " + error_text(errno));
    }
    void wake() {
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const ignored = ::write(wake_.get(), &one, sizeof(one));
    }
    /// Between messages a rail may close: that of a box which is done. One that was lost is seen by the mesh.
    void close(line_t& line) {
        line.closed = true;
        ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, line.socket.get(), nullptr);
    }
    void fail(line_t& line, std::string const& what) {
        close(line);
        if (!stopping_) mesh_.monitor().fail(mesh_.name(line.box) + ": " + what);
    }

    void run();
    void send_posted();
    void send(line_t& line);
    void receive(line_t& line);
    std::size_t gather(outgoing_t const& out, iovec* pieces) const;
    bool accept(line_t const& line) const;
    void complete(line_t& line);

    int sockets_;
    descriptor_t poll_, wake_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<line_t>> lines_;                                         // by box, rail and socket
    std::map<std::tuple<int, int, std::uint32_t, std::uint64_t>, std::size_t> partial_;  // bytes of unfinished messages
    std::atomic<std::uint64_t> bytes_sent_ = 0, bytes_received_ = 0, messages_sent_ = 0, messages_received_ = 0;
    std::atomic<int> unsent_ = 0;  ///< stripes
    std::atomic<bool> stopping_ = false;
    std::thread thread_;
};

inline void tcp_rails_t::run() {
    std::array<epoll_event, 64> events;
    while (!stopping_) {
        int const count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 500);
        for (int i = 0; i < count; ++i) {
            auto* const line = static_cast<line_t*>(events[static_cast<std::size_t>(i)].data.ptr);
            if (!line) {
                std::uint64_t ignored = 0;
                [[maybe_unused]] auto const size = ::read(wake_.get(), &ignored, sizeof(ignored));
                send_posted();
                continue;
            }
            if (!line->closed) receive(*line);
            if (!line->closed && events[static_cast<std::size_t>(i)].events & EPOLLOUT) send(*line);
        }
    }
    send_posted();  // what was posted last still leaves, as far as the sockets take it
}

inline void tcp_rails_t::send_posted() {
    {
        std::lock_guard const lock(mutex_);
        for (auto& line : lines_) {
            line->sending.insert(line->sending.end(), line->posted.begin(), line->posted.end());
            line->posted.clear();
        }
    }
    for (auto& line : lines_)
        if (!line->closed && !line->sending.empty() && !line->blocked) send(*line);
}

/// What is left to send of a stripe: its header, then its share of the sources.
inline std::size_t tcp_rails_t::gather(outgoing_t const& out, iovec* pieces) const {
    std::size_t count = 0, skip = out.sent;
    if (skip < sizeof(stripe_t)) {
        pieces[count++] = {reinterpret_cast<char*>(const_cast<stripe_t*>(&out.header)) + skip, sizeof(stripe_t) - skip};
        skip = 0;
    } else {
        skip -= sizeof(stripe_t);
    }
    std::size_t begin = out.header.offset + skip, left = out.header.bytes - skip;
    for (auto const& piece : *out.sources) {
        if (begin >= piece.size) {
            begin -= piece.size;
            continue;
        }
        std::size_t const take = std::min(left, piece.size - begin);
        if (take == 0 || count == most_pieces_k) break;
        pieces[count++] = {piece.data + begin, take};
        left -= take;
        begin = 0;
    }
    return count;
}

inline void tcp_rails_t::send(line_t& line) {
    bool full = false;
    while (!line.sending.empty() && !full) {
        outgoing_t& out = line.sending.front();
        iovec pieces[most_pieces_k];
        msghdr message{};
        message.msg_iov = pieces;
        message.msg_iovlen = gather(out, pieces);
        ssize_t const sent = ::sendmsg(line.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) return fail(line, "closed the connection (" + error_text(errno) + ")");
        full = sent < 0;
        if (full) break;
        out.sent += static_cast<std::size_t>(sent);
        bytes_sent_ += static_cast<std::uint64_t>(sent);
        if (out.sent < sizeof(stripe_t) + out.header.bytes) continue;
        if (out.header.offset == 0) ++messages_sent_;
        line.sending.pop_front();
        --unsent_;
    }
    if (full == line.blocked) return;
    line.blocked = full;
    watch(line.socket.get(), &line, full ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

/// Whether the stripe's header fits the plan and the step it may be of.
inline bool tcp_rails_t::accept(line_t const& line) const {
    stripe_t const& header = line.header;
    if (header.magic != stripe_t::magic_k || header.kind >= static_cast<std::uint32_t>(kinds_k)) return false;
    auto const kind = static_cast<kind_t>(header.kind);
    std::size_t const bytes = plan_.lane(line.rail, kind).bytes;
    return header.bytes > 0 && header.bytes <= bytes && header.offset <= bytes - header.bytes && header.step > 0 &&
           !arrived(line.box, line.rail, kind, header.step) &&
           (header.step <= 2 || arrived(line.box, line.rail, kind, header.step - 2));
}

inline void tcp_rails_t::receive(line_t& line) {
    for (int reads = 0; reads < most_reads_k; ++reads) {  // then the other lines have their turn
        iovec pieces[2];
        std::size_t count = 0;
        if (line.received < sizeof(stripe_t)) {
            pieces[count++] = {reinterpret_cast<char*>(&line.header) + line.received, sizeof(stripe_t) - line.received};
        } else {
            auto const& lane = plan_.lane(line.rail, static_cast<kind_t>(line.header.kind));
            std::size_t const done = line.received - sizeof(stripe_t);
            pieces[count++] = {lane.landings[static_cast<std::size_t>(line.box)][line.header.step % 2] +
                                   line.header.offset + done,
                               line.header.bytes - done};
        }
        ssize_t const size = ::readv(line.socket.get(), pieces, static_cast<int>(count));
        if (size < 0 && errno == EINTR) continue;
        if (size < 0 && errno == EAGAIN) return;
        if (size < 0) return fail(line, "closed the connection (" + error_text(errno) + ")");
        if (size == 0 && line.received > 0) return fail(line, "closed the connection within a message");
        if (size == 0) return close(line);
        line.received += static_cast<std::size_t>(size);
        bytes_received_ += static_cast<std::uint64_t>(size);
        if (line.received == sizeof(stripe_t) && !accept(line)) return fail(line, "sent a message that makes no sense");
        if (line.received > sizeof(stripe_t) && line.received == sizeof(stripe_t) + line.header.bytes) complete(line);
    }
}

inline void tcp_rails_t::complete(line_t& line) {
    auto const kind = static_cast<kind_t>(line.header.kind);
    auto const key = std::tuple(line.box, line.rail, line.header.kind, line.header.step);
    std::size_t const bytes = plan_.lane(line.rail, kind).bytes, have = partial_[key] += line.header.bytes;
    line.received = 0;
    if (have < bytes) return;
    partial_.erase(key);
    ++messages_received_;
    arrive(line.box, line.rail, kind, line.header.step);
}

}  // namespace scaling_contrasts::rails
