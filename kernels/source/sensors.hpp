// Clock, power, throttle reasons, energy and load at the edges of timed blocks (docs/contracts.md, section 3).
// GPUs answer through NVIDIA's management library, opened at run time; what nobody answers is null.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "json.hpp"

namespace scaling_contrasts::bench {

/// One moment of all the devices that this process drives; clocks in MHz, power in watts, energy in joules.
struct reading_t {
    std::vector<double> clocks, powers;
    std::set<std::string> throttle_reasons;
    std::optional<double> energy, load;
};

class sensors_t {
  public:
    /// `bus_ids`: PCI addresses of the GPUs driven; none on CPU.
    explicit sensors_t(std::vector<std::string> const& bus_ids) {
        if (bus_ids.empty()) return;
        library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        auto const initialize = find<int()>("nvmlInit_v2");
        auto const by_address = find<int(char const*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
        if (!initialize || !by_address || initialize() != 0) return;
        for (auto const& id : bus_ids) {
            void* handle = nullptr;
            if (by_address(id.c_str(), &handle) == 0) handles_.push_back(handle);
        }
    }

    reading_t read() const {
        reading_t out;
        if (double load = 0; ::getloadavg(&load, 1) == 1) out.load = load;
        if (!library_) {
            if (auto const clock = cpu_clock()) out.clocks.push_back(*clock);
            return out;
        }
        auto const clock = find<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
        auto const power = find<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage");
        auto const energy = find<int(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
        auto const throttle = find<int(void*, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons");
        bool counted = energy && !handles_.empty();
        double joules = 0;
        for (void* handle : handles_) {
            unsigned value = 0;
            unsigned long long wide = 0;
            if (clock && clock(handle, 1, &value) == 0) out.clocks.push_back(value);  // 1: the multiprocessors'
            if (power && power(handle, &value) == 0) out.powers.push_back(value * 1e-3);
            if (counted && energy(handle, &wide) == 0) joules += static_cast<double>(wide) * 1e-3;
            else counted = false;
            if (throttle && throttle(handle, &wide) == 0)
                for (auto const& [bit, name] : reasons_k)
                    if (wide & bit) out.throttle_reasons.insert(name);
        }
        if (counted) out.energy = joules;
        return out;
    }

    /// Adds the fields of an event, from readings before and after what it tells of.
    static json_t& add(json_t& event, reading_t const& before, reading_t const& after) {
        auto const all = [](std::vector<double> one, std::vector<double> const& other) {
            one.insert(one.end(), other.begin(), other.end());
            return one;
        };
        auto const number = [&](char const* name, std::optional<double> value) {
            if (value) event.number(name, *value);
            else event.raw(name, "null");
        };
        auto const clocks = all(before.clocks, after.clocks), powers = all(before.powers, after.powers);
        auto const [low, high] = std::minmax_element(clocks.begin(), clocks.end());
        number("clock_low_mhz", clocks.empty() ? std::nullopt : std::optional(*low));
        number("clock_high_mhz", clocks.empty() ? std::nullopt : std::optional(*high));
        double sum = 0;
        for (double const each : powers) sum += each;
        number("power_watts", powers.empty() ? std::nullopt : std::optional(sum / static_cast<double>(powers.size())));
        auto reasons = before.throttle_reasons;
        reasons.insert(after.throttle_reasons.begin(), after.throttle_reasons.end());
        event.texts("throttle_reasons", std::vector<std::string>(reasons.begin(), reasons.end()));
        number("energy_joules",
               before.energy && after.energy ? std::optional(*after.energy - *before.energy) : std::nullopt);
        number("load_average",
               before.load && after.load ? std::optional(std::max(*before.load, *after.load)) : std::nullopt);
        return event;
    }

  private:
    struct reason_t {
        unsigned long long bit;
        char const* name;
    };
    /// Bits of nvml.h. Idleness and clocks that somebody set are no throttling.
    static constexpr reason_t reasons_k[] = {{0x04, "sw_power_cap"},        {0x08, "hw_slowdown"},
                                             {0x10, "sync_boost"},          {0x20, "sw_thermal_slowdown"},
                                             {0x40, "hw_thermal_slowdown"}, {0x80, "hw_power_brake_slowdown"}};

    template <class function_t>
    function_t* find(char const* name) const {
        return library_ ? reinterpret_cast<function_t*>(::dlsym(library_, name)) : nullptr;
    }

    /// Mean over the machine's cores, as virtual machines show it too.
    static std::optional<double> cpu_clock() {
        std::ifstream file("/proc/cpuinfo");
        double sum = 0;
        int cores = 0;
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("cpu MHz")) sum += std::atof(line.c_str() + line.find(':') + 1), ++cores;
        return cores ? std::optional(sum / cores) : std::nullopt;
    }

    void* library_ = nullptr;  // stays open until the process ends
    std::vector<void*> handles_;
};

}  // namespace scaling_contrasts::bench
