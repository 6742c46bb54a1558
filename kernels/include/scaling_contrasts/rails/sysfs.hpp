// Which RDMA device, port and GID a rail uses, read from sysfs: the files are the same for every vendor, and a test can
// lay out a machine of its own.
#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace scaling_contrasts::rails {

/// An entry of a port's GID table that RoCE v2 can use.
struct gid_t {
    int index = 0;
    std::string text;       ///< `0000:...:ffff:0a00:0001`
    std::string interface;  ///< network interface that it belongs to
    bool ipv4 = false;      ///< an IPv4 address mapped into IPv6
};

/// An active Ethernet port with at least one usable GID.
struct port_t {
    std::string device;
    int number = 1;
    std::vector<gid_t> gids;
    std::vector<std::string> path;  ///< where the device hangs: components of its real path; empty: it is virtual
    int numa_node = -1;
};

namespace detail {

inline std::string first_line(std::filesystem::path const& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);  // an unmapped GID cannot be read: that is empty too
    return line;
}

inline std::vector<std::string> components(std::filesystem::path const& path) {
    std::error_code problem;
    auto const real = std::filesystem::canonical(path, problem);
    std::vector<std::string> out;
    if (!problem)
        for (auto const& part : real) out.push_back(part.string());
    return out;
}

inline int number(std::filesystem::path const& path) {
    std::string const line = first_line(path);
    return line.empty() ? -1 : std::atoi(line.c_str());
}

/// Names of a folder's entries, sorted: numbers by value, `mlx5_2` before `mlx5_10`.
inline std::vector<std::string> entries(std::filesystem::path const& folder) {
    std::vector<std::string> out;
    std::error_code problem;
    for (auto const& entry : std::filesystem::directory_iterator(folder, problem))
        out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end(),
              [](auto const& a, auto const& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
    return out;
}

}  // namespace detail

/// GIDs of RoCE v2 that are an address: not zero, not link-local (fe80::/10), in the order of the table.
inline std::vector<gid_t> gids_of(std::filesystem::path const& port) {
    std::vector<gid_t> out;
    for (auto const& name : detail::entries(port / "gids")) {
        std::string const text = detail::first_line(port / "gids" / name);
        if (text.find_first_not_of("0:") == std::string::npos || text.starts_with("fe8") || text.starts_with("fe9") ||
            text.starts_with("fea") || text.starts_with("feb"))
            continue;
        if (detail::first_line(port / "gid_attrs/types" / name) != "RoCE v2") continue;
        out.push_back({std::atoi(name.c_str()), text, detail::first_line(port / "gid_attrs/ndevs" / name),
                       text.starts_with("0000:0000:0000:0000:0000:ffff:")});
    }
    return out;
}

/// The ports that can be used, by device. `sysfs` is `/sys`, or a test's own folder.
inline std::vector<port_t> usable_ports(std::filesystem::path const& sysfs) {
    std::vector<port_t> out;
    for (auto const& device : detail::entries(sysfs / "class/infiniband")) {
        auto const folder = sysfs / "class/infiniband" / device;
        for (auto const& number : detail::entries(folder / "ports")) {
            auto const port = folder / "ports" / number;
            if (!detail::first_line(port / "state").starts_with("4:")) continue;  // ACTIVE
            if (detail::first_line(port / "link_layer") != "Ethernet") continue;
            auto const gids = gids_of(port);
            if (gids.empty()) continue;
            out.push_back({device, std::atoi(number.c_str()), gids, detail::components(folder / "device"),
                           detail::number(folder / "device/numa_node")});
        }
    }
    return out;
}

/// The GID to use: of the wanted address family, on the interface if the port has one there. Nothing: no such GID.
inline std::optional<gid_t> choose_gid(port_t const& port, bool ipv4, std::string const& interface) {
    std::optional<gid_t> best;
    for (auto const& gid : port.gids) {
        if (gid.ipv4 != ipv4) continue;
        if (gid.interface == interface) return gid;
        if (!best) best = gid;
    }
    return best;
}

/// How near two devices are: shared bridges first, then the same NUMA node.
inline int nearness(std::vector<std::string> const& a, int a_node, std::vector<std::string> const& b, int b_node) {
    auto const differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    return 2 * static_cast<int>(differ - a.begin()) + (a_node >= 0 && a_node == b_node ? 1 : 0);
}

/// A PCI bus id as sysfs spells it: lower case, four digits of domain where CUDA gives eight.
inline std::string pci_name(std::string bus_id) {
    for (char& c : bus_id) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::size_t const colon = bus_id.find(':');
    return colon == 8 ? bus_id.substr(4) : bus_id;
}

/// The port of rail `rail`: nearest to its GPU (PCI bus id), or for host memory one on the interface; equals are dealt
/// out by rail. `device` narrows it to one by name. Nothing: no port fits.
inline std::optional<port_t> choose_port(std::filesystem::path const& sysfs, std::string const& device,
                                         std::string const& gpu, std::string const& interface, bool ipv4, int rail) {
    std::vector<port_t> best;
    int most = -1;
    auto const gpu_folder = sysfs / "bus/pci/devices" / pci_name(gpu);
    auto const gpu_path = gpu.empty() ? std::vector<std::string>{} : detail::components(gpu_folder);
    int const gpu_node = gpu.empty() ? -1 : detail::number(gpu_folder / "numa_node");
    for (auto const& port : usable_ports(sysfs)) {
        if (!device.empty() && port.device != device) continue;
        auto const gid = choose_gid(port, ipv4, interface);
        if (!gid) continue;
        int const rank = gpu.empty() ? (gid->interface == interface ? 1 : 0)
                                     : nearness(gpu_path, gpu_node, port.path, port.numa_node);
        if (rank > most) best.clear(), most = rank;
        if (rank == most) best.push_back(port);
    }
    if (best.empty()) return {};
    return best[static_cast<std::size_t>(rail) % best.size()];
}

}  // namespace scaling_contrasts::rails
