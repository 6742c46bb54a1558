// How a connection between boxes proves itself. Both sides know the token; it never travels:
//   caller                                 listener
//   hello: who, what for, a nonce    ->
//                                    <-    challenge: a nonce
//   proof: HMAC(token, caller's ...) ->
//                                    <-    proof: HMAC(token, listener's ...), or refuse: why
// The caller proves itself first, so that a stranger learns nothing to try tokens on. This authenticates; it does not
// encrypt: what follows travels in the clear, on a network that must be trusted (docs/rails.md).
#pragma once
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <sstream>

#include "scaling_contrasts/rails/frame.hpp"
#include "scaling_contrasts/rails/sha256.hpp"

namespace scaling_contrasts::rails {

enum class purpose_t : std::uint32_t { join_k = 1, control_k, rail_k };

using nonce_t = std::array<char, 32>;
using session_t = std::array<char, 16>;

/// What a caller says first. Plain data, sent as it lies in memory.
struct hello_t {
    purpose_t purpose = purpose_t::join_k;
    std::uint32_t box = 0;
    std::uint32_t epoch = 0;  ///< rails: which ones, counted from 1
    std::uint32_t rail = 0;
    std::uint32_t socket = 0;
    session_t session{};  ///< of the run; zero when joining
    nonce_t nonce{};
};
static_assert(sizeof(hello_t) == 68);

template <class bytes_t>
bytes_t random_bytes() {
    bytes_t out;
    if (::getrandom(out.data(), out.size(), 0) != static_cast<ssize_t>(out.size()))
        throw lost("the kernel gives no random bytes: " + error_text(errno));
    return out;
}

inline std::string_view bytes_of(hello_t const& hello) {
    return {reinterpret_cast<char const*>(&hello), sizeof(hello)};
}
inline std::string_view bytes_of(digest_t const& digest) {
    return {reinterpret_cast<char const*>(digest.data()), digest.size()};
}

inline digest_t proof_of(std::string const& token, char const* side, hello_t const& hello, std::string_view challenge) {
    return hmac_sha256(token, {side, bytes_of(hello), challenge});
}

/// The shared secret. Throws setup_error_t, also where others than the file's owner can read it.
inline std::string read_token(std::string const& path) {
    descriptor_t const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat about{};
    if (!file || ::fstat(file.get(), &about) != 0)
        throw setup_error_t("cannot read the token file '" + path + "'; give --token-file a file with a secret");
    if (about.st_mode & 077)
        throw setup_error_t("the token file '" + path + "' can be read by others; chmod 600 " + path);
    std::string token(8192, '\0');  // more than a token may have
    std::size_t size = 0;
    for (ssize_t count = 1; count > 0 && size < token.size();
         size += static_cast<std::size_t>(std::max<ssize_t>(count, 0)))
        count = ::read(file.get(), token.data() + size, token.size() - size);
    token.resize(size);
    while (!token.empty() && std::string_view(" \t\r\n").find(token.back()) != std::string_view::npos) token.pop_back();
    if (token.size() < 16 || token.size() > 4096)
        throw setup_error_t("the token in '" + path + "' has " + std::to_string(token.size()) +
                            " bytes; it must have 16 to 4096");
    return token;
}

/// The caller's side. Empty: the listener is convinced; else why not.
inline std::string introduce(int socket, std::string const& token, hello_t hello, deadline_t deadline) {
    hello.nonce = random_bytes<nonce_t>();
    std::string const silent = "does not answer as a box would";
    if (!send_frame(socket, frame_kind_t::hello_k, bytes_of(hello), deadline)) return "closed the connection";
    auto const challenge = read_frame(socket, deadline);
    if (challenge && challenge->kind == frame_kind_t::refuse_k) return "refused: " + challenge->payload;
    if (!challenge || challenge->kind != frame_kind_t::challenge_k || challenge->payload.size() != sizeof(nonce_t))
        return silent;
    digest_t const mine = proof_of(token, "caller", hello, challenge->payload);
    if (!send_frame(socket, frame_kind_t::proof_k, bytes_of(mine), deadline)) return "closed the connection";
    auto const answer = read_frame(socket, deadline);
    if (answer && answer->kind == frame_kind_t::refuse_k) return "refused: " + answer->payload;
    if (!answer || answer->kind != frame_kind_t::proof_k) return silent;
    if (!same(proof_of(token, "listener", hello, challenge->payload), answer->payload))
        return "has another token; all boxes need the same";
    return "";
}

/// The listener's side, frame by frame: it must not wait for a stranger.
class doorkeeper_t {
  public:
    enum class state_t { busy_k, convinced_k, strange_k };

    explicit doorkeeper_t(std::string const& token) : token_(token), challenge_(random_bytes<nonce_t>()) {}

    /// `strange_k`: close the connection; `reason` says why.
    state_t take(int socket, frame_t const& frame) {
        deadline_t const now = steady_t::now();
        std::string_view const challenge = {challenge_.data(), challenge_.size()};
        if (!greeted_) {
            if (frame.kind != frame_kind_t::hello_k || frame.payload.size() != sizeof(hello_t))
                return strange(socket, "not a box of this version");
            std::memcpy(&hello, frame.payload.data(), sizeof(hello));
            greeted_ = true;
            return send_frame(socket, frame_kind_t::challenge_k, challenge, now) ? state_t::busy_k
                                                                                 : strange(socket, "it left");
        }
        if (frame.kind != frame_kind_t::proof_k || !same(proof_of(token_, "caller", hello, challenge), frame.payload))
            return strange(socket, "wrong token; all boxes need the same");
        if (!send_frame(socket, frame_kind_t::proof_k, bytes_of(proof_of(token_, "listener", hello, challenge)), now))
            return strange(socket, "it left");
        return state_t::convinced_k;
    }

    hello_t hello;
    std::string reason;

  private:
    state_t strange(int socket, std::string const& why) {
        reason = why;
        send_frame(socket, frame_kind_t::refuse_k, why, steady_t::now());
        return state_t::strange_k;
    }

    std::string const& token_;
    nonce_t challenge_;
    bool greeted_ = false;
};

}  // namespace scaling_contrasts::rails
