// Loads, stores and reductions of one thread.
#include <cstring>

#include "frame.hpp"

namespace emulation {
namespace {

/// Words of a vector: operands first to first + n of the statement, `bytes` each.
void load(frame_t& f, void const* from, std::size_t first, std::size_t n, std::size_t bytes) {
    for (std::size_t i = 0; i < n; ++i) {
        std::uint64_t value = 0;
        std::memcpy(&value, static_cast<std::uint8_t const*>(from) + i * bytes, bytes);
        f.set(first + i, value);
    }
}
void store(frame_t& f, void* to, std::size_t first, std::size_t n, std::size_t bytes) {
    for (std::size_t i = 0; i < n; ++i) {
        std::uint64_t const value = f.u64(first + i);
        std::memcpy(static_cast<std::uint8_t*>(to) + i * bytes, &value, bytes);
    }
}
void* global(frame_t& f, std::size_t i, std::size_t bytes) {
    auto* const at = f.pointer(i);
    if (reinterpret_cast<std::uintptr_t>(at) < 4096) fail(std::string(f.name()) + ": an illegal address");
    if (reinterpret_cast<std::uintptr_t>(at) % bytes) fail(std::string(f.name()) + ": a misaligned address");
    return at;
}

template <std::size_t n, std::size_t bytes>
void load_shared(frame_t& f) {
    load(f, shared_at(f.u32(n), n * bytes, n * bytes), 0, n, bytes);
}
template <std::size_t n, std::size_t bytes>
void store_shared(frame_t& f) {
    store(f, shared_at(f.u32(0), n * bytes, n * bytes), 1, n, bytes);
}
template <std::size_t n, std::size_t bytes>
void load_global(frame_t& f) {
    load(f, global(f, n, n * bytes), 0, n, bytes);
}
template <std::size_t n, std::size_t bytes>
void store_global(frame_t& f) {
    store(f, global(f, 0, n * bytes), 1, n, bytes);
}
/// A load that another thread's store shall be seen by: whoever looks again and again, with no instruction in between,
/// and finds the same, waits until it is another.
template <std::size_t bytes>
void load_acquire(frame_t& f) {
    auto const* const at = static_cast<std::uint8_t*>(global(f, 1, bytes));
    auto look = [at] {
        std::uint64_t value = 0;
        std::memcpy(&value, at, bytes);
        return value;
    };
    thread_t& thread = self();
    if (thread.polled != at || thread.polled_value != look()) thread.polls = 0;
    if (++thread.polls > 2)
        wait_until([look, seen = look()] { return look() != seen; },
                   [at, seen = look()] {
                       char text[96];
                       std::snprintf(text, sizeof text, "another value than %llu in memory at %p",
                                     static_cast<unsigned long long>(seen), static_cast<void const*>(at));
                       return std::string(text);
                   });
    else perhaps_yield();
    thread.polled = at, thread.polled_value = look();
    f.set(0, thread.polled_value);
}
template <std::size_t n>
void add_floats(frame_t& f) {
    perhaps_yield();
    auto* const to = static_cast<float*>(global(f, 0, n * 4));
    for (std::size_t i = 0; i < n; ++i) to[i] += f.f32(1 + i);
}
template <class word_t>
void add_words(frame_t& f) {
    perhaps_yield();
    *static_cast<word_t*>(global(f, 0, sizeof(word_t))) += static_cast<word_t>(f.u64(1));
}

}  // namespace

void add_memory(table_t& table) {
    for (std::string const type : {"b32", "u32", "s32", "f32"}) {
        for (std::string const space : {"ld.shared.", "ld.shared::cta."}) {
            table[space + type] = load_shared<1, 4>;
            table[space + "v2." + type] = load_shared<2, 4>;
            table[space + "v4." + type] = load_shared<4, 4>;
        }
        for (std::string const space : {"st.shared.", "st.shared::cta."}) {
            table[space + type] = store_shared<1, 4>;
            table[space + "v2." + type] = store_shared<2, 4>;
            table[space + "v4." + type] = store_shared<4, 4>;
        }
        for (std::string const space : {"ld.global.", "ld.global.nc.", "ld.relaxed.gpu.global."}) {
            table[space + type] = load_global<1, 4>;
            table[space + "v2." + type] = load_global<2, 4>;
            table[space + "v4." + type] = load_global<4, 4>;
        }
        for (std::string const space : {"st.global.", "st.relaxed.gpu.global."}) {
            table[space + type] = store_global<1, 4>;
            table[space + "v2." + type] = store_global<2, 4>;
            table[space + "v4." + type] = store_global<4, 4>;
        }
    }
    for (std::string const scope : {"gpu", "sys"}) {
        table["ld.acquire." + scope + ".global.u32"] = load_acquire<4>;
        table["ld.acquire." + scope + ".global.u64"] = load_acquire<8>;
        table["st.release." + scope + ".global.u32"] = [](frame_t& f) {
            perhaps_yield();
            store_global<1, 4>(f);
        };
        for (std::string const order : {"relaxed", "release"}) {
            table["red." + order + "." + scope + ".global.add.u32"] = add_words<std::uint32_t>;
            table["red." + order + "." + scope + ".global.add.u64"] = add_words<std::uint64_t>;
            table["red." + order + "." + scope + ".global.add.f32"] = add_floats<1>;
            table["red." + order + "." + scope + ".global.add.v4.f32"] = add_floats<4>;
        }
    }
    table["red.global.add.f32"] = add_floats<1>;
    table["atom.acq_rel.gpu.global.add.u32"] = [](frame_t& f) {
        perhaps_yield();
        auto* const at = static_cast<std::uint32_t*>(global(f, 1, 4));
        std::uint32_t const before = *at, more = f.u32(2);
        *at = before + more;
        f.set(0, std::uint64_t(before));
    };
}

}  // namespace emulation
