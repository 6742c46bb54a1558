// Frames of the control connections: a kind, a length, a payload of at most `most_payload_k` bytes. Whatever does not
// look like that ends the connection. Numbers are little-endian, as all machines this builds for.
#pragma once
#include <sys/uio.h>

#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "scaling_contrasts/rails/socket.hpp"

namespace scaling_contrasts::rails {

static_assert(std::endian::native == std::endian::little);

enum class frame_kind_t : std::uint32_t {
    hello_k = 0x31524353,  ///< "SCR1": who connects and what for
    challenge_k,           ///< a nonce
    proof_k,               ///< an HMAC of all the above
    refuse_k,              ///< a reason, then the connection closes
    join_k,                ///< what the box is about to run, and where it listens
    table_k,               ///< where every box listens
    exchange_k,            ///< one part of a collective
    abort_k,               ///< this box ends, with its reason
    goodbye_k,             ///< this box is done
};

inline constexpr std::size_t most_payload_k = 64 << 10;
inline constexpr std::size_t frame_header_k = 8;

struct frame_t {
    frame_kind_t kind;
    std::string payload;
};

inline bool send_frame(int socket, frame_kind_t kind, std::string_view payload, deadline_t deadline) {
    std::string bytes(frame_header_k, '\0');
    auto const length = static_cast<std::uint32_t>(payload.size());
    std::memcpy(bytes.data(), &kind, 4);
    std::memcpy(bytes.data() + 4, &length, 4);
    bytes += payload;
    return send_by(socket, bytes.data(), bytes.size(), deadline);
}

/// Puts frames together from what a non-blocking socket has.
class frame_reader_t {
  public:
    enum class state_t { waiting_k, ready_k, closed_k, nonsense_k };

    /// Reads what there is, at most one frame; `closed_k` also when the connection broke within a frame.
    state_t read(int socket) {
        while (true) {
            bool const in_header = bytes_.size() < frame_header_k;
            std::size_t const goal = in_header ? frame_header_k : frame_header_k + length();
            if (bytes_.size() == goal && !in_header) return state_t::ready_k;
            char part[4096];
            std::size_t const most = std::min(goal - bytes_.size(), sizeof(part));
            ssize_t const count = ::recv(socket, part, most, MSG_DONTWAIT);
            if (count == 0) return state_t::closed_k;
            if (count < 0 && errno == EINTR) continue;
            if (count < 0) return errno == EAGAIN ? state_t::waiting_k : state_t::closed_k;
            bytes_.append(part, static_cast<std::size_t>(count));
            if (bytes_.size() < frame_header_k) continue;
            auto const number = static_cast<std::uint32_t>(kind());
            if (number < static_cast<std::uint32_t>(frame_kind_t::hello_k) ||
                number > static_cast<std::uint32_t>(frame_kind_t::goodbye_k) || length() > most_payload_k)
                return state_t::nonsense_k;
        }
    }
    frame_t take() {
        frame_t out = {kind(), bytes_.substr(frame_header_k)};
        bytes_.clear();
        return out;
    }
    bool empty() const { return bytes_.empty(); }

  private:
    frame_kind_t kind() const {
        frame_kind_t out;
        std::memcpy(&out, bytes_.data(), 4);
        return out;
    }
    std::uint32_t length() const {
        std::uint32_t out;
        std::memcpy(&out, bytes_.data() + 4, 4);
        return out;
    }

    std::string bytes_;
};

/// The next frame; nothing: the connection ended, made no sense, or the deadline passed.
inline std::optional<frame_t> read_frame(int socket, deadline_t deadline) {
    frame_reader_t reader;
    while (true) {
        auto const state = reader.read(socket);
        if (state == frame_reader_t::state_t::ready_k) return reader.take();
        if (state != frame_reader_t::state_t::waiting_k || !ready_by(socket, POLLIN, deadline)) return {};
    }
}

}  // namespace scaling_contrasts::rails
