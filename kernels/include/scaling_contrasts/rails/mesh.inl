// How boxes meet and talk: the members of mesh_t (mesh.hpp).
#pragma once

namespace scaling_contrasts::rails {

inline void mesh_t::open_door(address_t address) {
    interface_ = meeting_.interface.empty() ? interface_of(address) : meeting_.interface;
    door_.open(listen_on(address, meeting_.interface));
}

inline std::string mesh_t::missing(std::function<bool(int)> const& there) const {
    std::string out;
    for (int box = 0; box < boxes(); ++box)
        if (box != meeting_.box && !there(box)) out += (out.empty() ? "" : ", ") + name(box);
    return out;
}

inline void mesh_t::wait_for_peers(double seconds) {
    auto there = [this](int box) { return box == meeting_.box || peer(box) != nullptr; };
    monitor_.wait(
        in_seconds(seconds),
        [&] {
            for (int box = 0; box < boxes(); ++box)
                if (!there(box)) return false;
            return true;
        },
        [] { return std::string("waited for the boxes to come"); },
        [&] {
            std::ostringstream text;
            text << missing(there) << " did not come within " << seconds << " s" << door_.turned_away();
            return text.str();
        });
}

/// Box 0: everyone comes here.
inline void mesh_t::lead() {
    endpoint_t const endpoint = split_endpoint(meeting_.rendezvous);
    address_t at;
    for (auto const& address : resolve(endpoint)) {
        bool held = false;
        for (auto const& each : interfaces())
            held = held || ((meeting_.interface.empty() || each.name == meeting_.interface) &&
                            each.address.host() == address.host());
        if (held && at.size == 0) at = address;
    }
    if (at.size == 0)
        throw setup_error_t("the rendezvous host '" + endpoint.host + "' is not an address of " +
                            (meeting_.interface.empty() ? "box 0" : "box 0's interface " + meeting_.interface) +
                            "; box 0 listens there");
    open_door(at);
    session_ = random_bytes<session_t>();
    table_[0] = {at.host(), std::to_string(door_.port())};
    start();
    wait_for_peers(meeting_.join_seconds);
    std::string table(session_.begin(), session_.end());
    {
        std::lock_guard const lock(mutex_);
        for (auto const& each : table_) table += each.host + " " + each.port + "\n";
    }
    std::vector<int> others(peers_.size() - 1);
    std::iota(others.begin(), others.end(), 1);
    for (int const box : others) send(box, frame_kind_t::table_k, table);
    collect(others,
            "waited for all to know where the boxes are");  // a box that does not know the session takes no calls
    for (int const box : others) send(box, frame_kind_t::exchange_k, "");
    wait_for_peers(wait_seconds_);
}

/// The others: join box 0, learn where all boxes listen, connect to those of lower number.
inline void mesh_t::follow() {
    deadline_t const deadline = in_seconds(meeting_.join_seconds);
    auto const addresses = resolve(split_endpoint(meeting_.rendezvous));
    std::string const leader = "box 0 (" + meeting_.rendezvous + ")";
    descriptor_t socket;
    table_[0].host = addresses[0].host();
    std::string why;
    while (!socket) {
        for (auto const& address : addresses) {
            socket = connect_by(address, std::min(deadline, in_seconds(5)));
            if (socket) break;
            why = error_text(errno);
        }
        if (socket) break;
        if (steady_t::now() >= deadline) throw lost(leader + ": " + why + ", while this box waited to join it");
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    hello_t hello;
    hello.box = static_cast<std::uint32_t>(meeting_.box);
    std::string const problem = introduce(socket.get(), token_, hello, deadline);
    if (!problem.empty()) throw lost(leader + ": " + problem + ", while this box joined it");

    address_t own = own_address(socket.get());
    if (!meeting_.interface.empty()) own = address_of(meeting_.interface, own.family());
    own.set_port(0);
    open_door(own);
    std::string const joining = std::to_string(door_.port()) + " " + own.host() + "\n" + agreement_;
    send_frame(socket.get(), frame_kind_t::join_k, joining, deadline);
    add_peer(0, std::move(socket));
    start();
    auto heard = [this] {
        std::lock_guard const lock(mutex_);
        return !heard_table_.empty();
    };
    // Box 0 may have begun to wait just now; it knows best who is missing.
    monitor_.wait(
        in_seconds(meeting_.join_seconds + 2), heard, [] { return std::string("waited for the other boxes to come"); },
        [&] { return leader + ": has not said where the other boxes are, while this box waited for them to come"; });
    {
        std::lock_guard const lock(mutex_);
        std::copy_n(heard_table_.begin(), session_.size(), session_.begin());
        std::istringstream lines(heard_table_.substr(session_.size()));
        for (auto& each : table_)
            if (!(lines >> each.host >> each.port)) throw lost(leader + ": sent a table that makes no sense");
    }
    send(0, frame_kind_t::exchange_k, "");
    collect({0}, "waited for all to know where the boxes are");
    for (int box = 1; box < meeting_.box; ++box) {
        hello.purpose = purpose_t::control_k;
        add_peer(box, call(box, hello, "waited to meet it"));
    }
    wait_for_peers(meeting_.join_seconds);
}

inline descriptor_t mesh_t::call(int box, hello_t hello, std::string const& phase) {
    hello.box = static_cast<std::uint32_t>(meeting_.box);
    hello.session = session_;
    deadline_t const deadline = in_seconds(wait_seconds_);
    std::string why = "cannot be reached";
    for (auto const& address : resolve(table_[static_cast<std::size_t>(box)])) {
        descriptor_t socket = connect_by(address, deadline);
        why = socket ? introduce(socket.get(), token_, hello, deadline) : error_text(errno);
        if (why.empty()) return socket;
    }
    throw lost(name(box) + ": " + why + ", while this box " + phase);
}

inline descriptor_t mesh_t::take_call(int box, hello_t const& wanted, std::string const& phase) {
    hello_t hello = wanted;
    hello.box = static_cast<std::uint32_t>(box);
    descriptor_t out;
    monitor_.wait(
        in_seconds(wait_seconds_),
        [&] {
            std::lock_guard const lock(mutex_);
            auto const found = calls_.find(key_of(hello));
            if (found == calls_.end()) return false;
            out = std::move(found->second);
            calls_.erase(found);
            return true;
        },
        [&] { return phase; }, [&] { return name(box) + ": did not call in time, while this box " + phase; });
    return out;
}

inline void mesh_t::send(int box, frame_kind_t kind, std::string const& payload) {
    if (!send_frame(peer(box)->socket.get(), kind, payload, in_seconds(wait_seconds_)))
        monitor_.fail(name(box) + (peer(box)->left ? ": has ended its run" : ": takes no messages"));
}

/// One part from each of the boxes, in their order.
inline std::vector<std::string> mesh_t::collect(std::vector<int> const& boxes, std::string const& phase) {
    double const seconds = wait_seconds_;
    auto there = [this](int box) {
        std::lock_guard const lock(mutex_);
        return !peers_[static_cast<std::size_t>(box)]->parts.empty();
    };
    monitor_.wait(
        in_seconds(seconds), [&] { return std::all_of(boxes.begin(), boxes.end(), there); }, [&] { return phase; },
        [&] {
            std::ostringstream text;
            auto const asked = [&](int box) { return std::find(boxes.begin(), boxes.end(), box) != boxes.end(); };
            text << missing([&](int box) { return !asked(box) || there(box); }) << ": silent for " << seconds
                 << " s, while this box " << phase;
            return text.str();
        });
    std::vector<std::string> out;
    std::lock_guard const lock(mutex_);
    for (int const box : boxes) {
        auto& parts = peers_[static_cast<std::size_t>(box)]->parts;
        out.push_back(std::move(parts.front()));
        parts.pop_front();
    }
    return out;
}

inline std::vector<std::string> mesh_t::exchange(std::string const& mine, std::string const& phase) {
    std::vector<int> others;
    for (int box = 0; box < boxes(); ++box)
        if (box != meeting_.box) others.push_back(box);
    for (int const box : others) send(box, frame_kind_t::exchange_k, mine);
    auto parts = collect(others, phase);
    parts.insert(parts.begin() + meeting_.box, mine);
    return parts;
}

inline double mesh_t::maximum(double value, std::string const& phase) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    for (auto const& part : exchange(bytes, phase)) {
        double other = value;
        if (part.size() == sizeof(other)) std::memcpy(&other, part.data(), sizeof(other));
        value = std::max(value, other);
    }
    return value;
}

/// Says that this box is done, and waits a moment for the others to say so too: a connection that closes first may take
/// what is still on its way with it.
inline void mesh_t::say_goodbye() {
    for (auto const& each : peers_)
        if (each) send_frame(each->socket.get(), frame_kind_t::goodbye_k, "", in_seconds(1));
    auto all_left = [this] {
        std::lock_guard const lock(mutex_);
        for (int box = 0; box < boxes(); ++box)
            if (box != meeting_.box && !peers_[static_cast<std::size_t>(box)]->left) return false;
        return true;
    };
    for (deadline_t const deadline = in_seconds(2); !all_left() && !monitor_.failed() && steady_t::now() < deadline;)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline void mesh_t::run() {
    while (!stopping_) {
        std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
        door_.add_to(entries);
        for (int box = 0; box < boxes(); ++box)
            if (peer_t* const each = peer(box); each && !each->closed)
                entries.push_back({each->socket.get(), POLLIN, 0});
        ::poll(entries.data(), entries.size(), 500);
        std::uint64_t count = 0;
        [[maybe_unused]] auto const ignored = ::read(wake_.get(), &count, sizeof(count));
        try {
            door_.serve();
            for (int box = 0; box < boxes(); ++box)
                if (peer_t* const each = peer(box); each && !each->closed) listen_to(box, *each);
        } catch (std::exception const& problem) {
            monitor_.fail(problem.what());
        }
    }
}

inline void mesh_t::listen_to(int box, peer_t& peer) {
    using state_t = frame_reader_t::state_t;
    while (true) {
        auto const state = peer.reader.read(peer.socket.get());
        if (state == state_t::waiting_k) return;
        if (state == state_t::ready_k) {
            take_frame(box, peer, peer.reader.take());
            continue;
        }
        bool const whole = peer.reader.empty();
        ::shutdown(peer.socket.get(), SHUT_RDWR);
        peer.closed = true;
        if (peer.left) return;
        if (state == state_t::nonsense_k) monitor_.fail(name(box) + ": sent a message that makes no sense");
        else monitor_.fail(name(box) + ": closed the connection" + (whole ? "" : " within a message"));
        return;
    }
}

inline void mesh_t::take_frame(int box, peer_t& peer, frame_t frame) {
    bool odd = false;
    {
        std::lock_guard const lock(mutex_);
        if (frame.kind == frame_kind_t::exchange_k) peer.parts.push_back(std::move(frame.payload));
        else if (frame.kind == frame_kind_t::goodbye_k) peer.left = true;
        else if (frame.kind == frame_kind_t::table_k && box == 0 && frame.payload.size() > session_.size())
            heard_table_ = std::move(frame.payload);
        else odd = true;
    }
    if (!odd) return monitor_.notify();
    if (frame.kind == frame_kind_t::abort_k) return monitor_.fail(name(box) + ": stopped: " + frame.payload);
    if (frame.kind == frame_kind_t::refuse_k) return monitor_.fail(name(box) + ": refused: " + frame.payload);
    monitor_.fail(name(box) + ": sent a message that makes no sense");
}

inline std::string mesh_t::admit(caller_t& caller) {
    if (caller.hello.purpose == purpose_t::join_k) return admit_joining(caller);
    int const box = static_cast<int>(caller.hello.box);
    if (caller.hello.session != session_) return "this is another run";
    if (box <= meeting_.box || box >= boxes()) return "no such box calls here";
    if (caller.hello.purpose == purpose_t::control_k) {
        if (peer(box)) return "box " + std::to_string(box) + " is here already";
        add_peer(box, std::move(caller.socket));
        return "";
    }
    {
        std::lock_guard const lock(mutex_);
        if (caller.hello.purpose != purpose_t::rail_k || calls_.size() > 4096) return "no such rail";
        calls_[key_of(caller.hello)] = std::move(caller.socket);
    }
    monitor_.notify();
    return "";
}

inline std::string mesh_t::admit_joining(caller_t& caller) {
    int const box = static_cast<int>(caller.hello.box);
    std::string const& said = caller.joining;
    std::size_t const line = said.find('\n');
    std::istringstream words(said.substr(0, line));
    endpoint_t endpoint;
    if (meeting_.box != 0) return "boxes join at box 0";
    if (line == std::string::npos || !(words >> endpoint.port >> endpoint.host))
        return "it did not say where it listens";
    std::string const me = name(0), them = "box " + std::to_string(box) + " (" + endpoint.host + ")";
    std::string const differs = difference(agreement_, said.substr(line + 1), me, them);
    if (!differs.empty()) {
        monitor_.fail("the boxes do not agree: " + differs);
        return "the boxes do not agree: " + differs;
    }
    if (box < 1 || box >= boxes()) return "there is no box " + std::to_string(box);
    if (peer(box)) return "box " + std::to_string(box) + " has joined already, from " + name(box);
    {
        std::lock_guard const lock(mutex_);
        table_[static_cast<std::size_t>(box)] = endpoint;
    }
    add_peer(box, std::move(caller.socket));
    return "";
}

}  // namespace scaling_contrasts::rails
