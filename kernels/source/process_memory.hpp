// What Linux says about this process's and the machine's memory.
#pragma once
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

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

/// Makes peak_resident_bytes() start afresh, where the kernel lets us.
inline void reset_peak_resident() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace scaling_contrasts::bench
