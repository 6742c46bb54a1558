// The listening side of a box: lets in callers that prove the token, turns away the others, and never waits for one.
// Driven by the thread that polls (mesh.hpp).
#pragma once
#include <functional>
#include <list>

#include "scaling_contrasts/rails/handshake.hpp"

namespace scaling_contrasts::rails {

/// A caller that has proved itself. One that joins has said what it runs, in `joining`.
struct caller_t {
    descriptor_t socket;
    address_t address;
    hello_t hello;
    std::string joining;
};

class door_t {
  public:
    /// `admit` takes a caller in and returns an empty string, or says why it is refused.
    door_t(std::string const& token, std::function<std::string(caller_t&)> admit)
        : token_(token), admit_(std::move(admit)) {}

    void open(descriptor_t listener) { listener_ = std::move(listener); }
    int port() const { return own_address(listener_.get()).port(); }

    void add_to(std::vector<pollfd>& entries) const {
        if (listener_) entries.push_back({listener_.get(), POLLIN, 0});
        for (auto const& guest : guests_) entries.push_back({guest.socket.get(), POLLIN, 0});
    }

    /// Accepts, reads and judges what there is, and drops who takes too long.
    void serve() {
        for (std::size_t calls = 0; listener_ && calls < most_guests_k; ++calls) {  // then those inside have their turn
            address_t from;
            from.size = sizeof(from.storage);
            descriptor_t socket(::accept4(listener_.get(), from.get(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (!socket) break;
            tune(socket.get());
            if (guests_.size() >= most_guests_k) turn_away(guests_.begin(), "too many callers at once");
            guests_.emplace_back(std::move(socket), from, token_);
        }
        for (auto guest = guests_.begin(); guest != guests_.end();) {
            auto const next = std::next(guest);
            serve(guest);
            guest = next;
        }
    }

    /// `; 2 callers were turned away, the last from 10.0.0.9: wrong token`, or nothing.
    std::string turned_away() const {
        std::lock_guard const lock(mutex_);
        if (strangers_ == 0) return "";
        return "; " + std::to_string(strangers_) + (strangers_ == 1 ? " caller was" : " callers were") +
               " turned away, the last from " + last_;
    }

  private:
    static constexpr std::size_t most_guests_k = 64;
    static constexpr double patience_seconds_k = 5;

    struct guest_t {
        descriptor_t socket;
        address_t address;
        frame_reader_t reader;
        doorkeeper_t keeper;
        deadline_t deadline = in_seconds(patience_seconds_k);
        bool convinced = false;
        guest_t(descriptor_t socket, address_t address, std::string const& token)
            : socket(std::move(socket)), address(address), keeper(token) {}
    };
    using guest_at_t = std::list<guest_t>::iterator;

    void turn_away(guest_at_t guest, std::string const& why) {
        {
            std::lock_guard const lock(mutex_);
            ++strangers_;
            last_ = guest->address.host() + ": " + why;
        }
        guests_.erase(guest);
    }

    void serve(guest_at_t guest) {
        auto const state = guest->reader.read(guest->socket.get());
        if (state == frame_reader_t::state_t::closed_k) return turn_away(guest, "it left before it proved itself");
        if (state == frame_reader_t::state_t::nonsense_k) return turn_away(guest, "not a box of this version");
        if (state == frame_reader_t::state_t::waiting_k) {
            if (steady_t::now() > guest->deadline) turn_away(guest, "it fell silent before it proved itself");
            return;
        }
        frame_t frame = guest->reader.take();
        if (!guest->convinced) {
            auto const verdict = guest->keeper.take(guest->socket.get(), frame);
            if (verdict == doorkeeper_t::state_t::strange_k) return turn_away(guest, guest->keeper.reason);
            guest->convinced = verdict == doorkeeper_t::state_t::convinced_k;
            if (!guest->convinced || guest->keeper.hello.purpose == purpose_t::join_k) return;
        } else if (frame.kind != frame_kind_t::join_k) {
            return turn_away(guest, "it did not say what it runs");
        }
        caller_t caller = {std::move(guest->socket), guest->address, guest->keeper.hello, std::move(frame.payload)};
        std::string const refusal = admit_(caller);
        if (refusal.empty()) return void(guests_.erase(guest));
        send_frame(caller.socket.get(), frame_kind_t::refuse_k, refusal, steady_t::now());
        turn_away(guest, refusal);
    }

    std::string const& token_;
    std::function<std::string(caller_t&)> admit_;
    descriptor_t listener_;
    std::list<guest_t> guests_;
    mutable std::mutex mutex_;
    int strangers_ = 0;
    std::string last_;
};

}  // namespace scaling_contrasts::rails
