// SHA-256 (FIPS 180-4), for the digest of the inputs, and HMAC (RFC 2104) with it, for boxes that prove they know a
// token.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace scaling_contrasts::rails {

using digest_t = std::array<unsigned char, 32>;

class sha256_t {
  public:
    void add(void const* data, std::size_t size) {
        auto const* bytes = static_cast<unsigned char const*>(data);
        length_ += size;
        for (std::size_t i = 0; i < size; ++i) {
            block_[filled_++] = bytes[i];
            if (filled_ == 64) compress();
        }
    }
    digest_t digest() {
        std::uint64_t const bits = length_ * 8;
        unsigned char const one = 0x80, zero = 0;
        add(&one, 1);
        while (filled_ != 56) add(&zero, 1);
        for (int i = 7; i >= 0; --i) {
            auto const byte = static_cast<unsigned char>(bits >> (8 * i));
            add(&byte, 1);
        }
        digest_t out;
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = static_cast<unsigned char>(state_[i / 4] >> (24 - 8 * (i % 4)));
        return out;
    }
    std::string hex() {
        std::string text;
        for (unsigned char const byte : digest())
            text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
        return text;
    }

  private:
    /// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
    static std::array<std::uint32_t, 64> const& constants() {
        static std::array<std::uint32_t, 64> const table = [] {
            std::array<std::uint32_t, 64> out{};
            std::size_t found = 0;
            for (unsigned n = 2; found < 64; ++n) {
                bool prime = true;
                for (unsigned d = 2; d * d <= n; ++d) prime = prime && n % d;
                if (!prime) continue;
                // floor(cbrt(n) * 2^32) by bisection on integers, so that no rounding of cbrt() matters
                unsigned __int128 low = 0, high = static_cast<unsigned __int128>(1) << 36;
                unsigned __int128 const goal = static_cast<unsigned __int128>(n) << 96;
                while (high - low > 1) {
                    auto const middle = (low + high) / 2;
                    (middle * middle * middle <= goal ? low : high) = middle;
                }
                out[found++] = static_cast<std::uint32_t>(low);
            }
            return out;
        }();
        return table;
    }
    void compress() {
        std::array<std::uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i)
            w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 |
                   std::uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
        for (std::size_t i = 16; i < 64; ++i) {
            auto const a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
                   (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
        }
        auto s = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            auto const t1 = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                            ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants()[i] + w[i];
            auto const t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                            ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
        }
        for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
        filled_ = 0;
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<unsigned char, 64> block_{};
    std::size_t filled_ = 0;
    std::uint64_t length_ = 0;
};

/// HMAC-SHA256 of the parts, one after the other.
inline digest_t hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts) {
    std::array<unsigned char, 64> pad{};
    if (key.size() > pad.size()) {
        sha256_t hash;
        hash.add(key.data(), key.size());
        digest_t const digest = hash.digest();
        std::copy(digest.begin(), digest.end(), pad.begin());
    } else {
        std::copy(key.begin(), key.end(), pad.begin());
    }
    auto keyed = [&pad](unsigned char mask) {
        auto block = pad;
        for (auto& byte : block) byte ^= mask;
        sha256_t hash;
        hash.add(block.data(), block.size());
        return hash;
    };
    sha256_t inner = keyed(0x36), outer = keyed(0x5c);
    for (auto const part : parts) inner.add(part.data(), part.size());
    digest_t const digest = inner.digest();
    outer.add(digest.data(), digest.size());
    return outer.digest();
}

/// Compares in a time that does not depend on where they differ.
inline bool same(digest_t const& a, std::string_view b) {
    unsigned char difference = b.size() == a.size() ? 0 : 1;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
        difference |= static_cast<unsigned char>(a[i] ^ static_cast<unsigned char>(b[i]));
    return difference == 0;
}

}  // namespace scaling_contrasts::rails
