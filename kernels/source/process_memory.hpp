// What Linux says about this process's and the machine's memory.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace scaling_contrasts::bench {

/// A `name: value kB` line of a /proc file, in bytes.
inline std::optional<std::int64_t> proc_bytes(char const* path, std::string const& name) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
        if (line.compare(0, name.size() + 1, name + ":") == 0) return std::stoll(line.substr(name.size() + 1)) * 1024;
    return std::nullopt;
}

inline std::optional<std::int64_t> resident_bytes() { return proc_bytes("/proc/self/status", "VmRSS"); }
inline std::optional<std::int64_t> peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM"); }
inline std::optional<std::int64_t> available_bytes() { return proc_bytes("/proc/meminfo", "MemAvailable"); }

/// What the process held when this was first asked, before it had made anything.
inline std::optional<std::int64_t> const& empty_process_bytes() {
    static std::optional<std::int64_t> const bytes = resident_bytes();
    return bytes;
}

/// Gives freed memory back to the system, where the C library can, so that what earlier actions used does not count.
inline void trim() {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
}

/// Makes peak_resident_bytes() start afresh, where the kernel lets us.
inline void reset_peak_resident() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// The highest resident size since then beyond the empty process's.
inline std::optional<std::int64_t> used_bytes() {
    auto const peak = peak_resident_bytes();
    auto const& empty = empty_process_bytes();
    if (!peak || !empty) return std::nullopt;
    return *peak - *empty;
}

}  // namespace scaling_contrasts::bench
