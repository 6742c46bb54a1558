// The parts of the rails that need no other box: proofs, frames, what boxes must agree on, and which RDMA device, GID
// and way of registering memory are chosen. The machines are made up; HMAC vectors are those of RFC 4231.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "scaling_contrasts/rails/rails.hpp"
#include "scaling_contrasts/rails/registration.hpp"
#include "scaling_contrasts/rails/sysfs.hpp"
#include "testing.hpp"

using namespace scaling_contrasts::rails;
namespace files = std::filesystem;

namespace {

std::string hex(digest_t const& digest) {
    std::string out;
    for (unsigned char const byte : digest) out += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    return out;
}

void check_hmac() {
    testing::expect(hex(hmac_sha256(std::string(20, '\x0b'), {"Hi ", "There"})) ==
                        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
                    "RFC 4231, case 1");
    testing::expect(hex(hmac_sha256("Jefe", {"what do ya want for nothing?"})) ==
                        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
                    "RFC 4231, case 2");
    testing::expect(
        hex(hmac_sha256(std::string(131, '\xaa'), {"Test Using Larger Than Block-Size Key - Hash Key First"})) ==
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        "RFC 4231, case 6");
    digest_t const a = hmac_sha256("k", {"a"});
    testing::expect(same(a, bytes_of(a)) && !same(a, bytes_of(hmac_sha256("k", {"b"}))) && !same(a, "short"), "same");
}

template <class call_t>
void expect_setup_error(call_t&& call, std::string const& part) {
    try {
        call();
        testing::expect(false, "nothing thrown, expected: " + part);
    } catch (setup_error_t const& problem) {
        testing::expect(std::string(problem.what()).find(part) != std::string::npos, problem.what());
    }
}

void check_endpoints_and_agreement() {
    testing::expect(split_endpoint("node0:29500").host == "node0" && split_endpoint("node0:29500").port == "29500",
                    "name");
    testing::expect(split_endpoint("[fe80::1]:80").host == "fe80::1", "IPv6 in brackets");
    for (char const* wrong : {"node0", "node0:", ":80", "node0:0", "node0:65536", "node0:8o"})
        expect_setup_error([&] { split_endpoint(wrong); }, "give HOST:PORT");
    expect_setup_error([] { address_of("no_such_interface", AF_INET); }, "interface 'no_such_interface' has no IPv4");
    expect_setup_error([] { read_token("/nonexistent"); }, "cannot read the token file");
    testing::expect(difference("rows=4\nloss=a\n", "rows=4\nloss=a\n", "box 0", "box 1").empty(), "alike");
    testing::expect(difference("rows=4\nloss=a\n", "rows=8\nloss=a\n", "box 0", "box 1") ==
                        "rows is 4 on box 0 and 8 on box 1",
                    "the field and both values");
    testing::expect(difference("rows=4\nnew=1\n", "rows=4\n", "box 0", "box 1") ==
                        "new is 1 on box 0 and missing on box 1",
                    "a missing field");
}

void check_frames() {
    int ends[2];
    testing::expect(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "a pair of sockets");
    descriptor_t const a(ends[0]), b(ends[1]);
    using state_t = frame_reader_t::state_t;
    frame_reader_t reader;
    testing::expect(reader.read(b.get()) == state_t::waiting_k, "nothing yet");
    send_frame(a.get(), frame_kind_t::exchange_k, "abc", in_seconds(1));
    testing::expect(reader.read(b.get()) == state_t::ready_k && reader.take().payload == "abc", "a frame");
    send_frame(a.get(), frame_kind_t::goodbye_k, "", in_seconds(1));
    testing::expect(reader.read(b.get()) == state_t::ready_k && reader.take().kind == frame_kind_t::goodbye_k, "empty");
    [[maybe_unused]] auto const half = ::write(a.get(), "SCR1\x05\0\0\0ab", 10);
    testing::expect(reader.read(b.get()) == state_t::waiting_k && !reader.empty(), "half a frame waits");
    [[maybe_unused]] auto const rest = ::write(a.get(), "cde", 3);
    testing::expect(reader.read(b.get()) == state_t::ready_k && reader.take().payload == "abcde",
                    "and is put together");
    [[maybe_unused]] auto const http = ::write(a.get(), "GET / HTTP/1.0\r\n", 16);
    testing::expect(reader.read(b.get()) == state_t::nonsense_k, "another protocol");
    frame_reader_t other;
    [[maybe_unused]] auto const flush = ::recv(b.get(), std::string(64, 0).data(), 64, MSG_DONTWAIT);
    [[maybe_unused]] auto const huge = ::write(a.get(), "SCR1\xff\xff\xff\x7f", 8);
    testing::expect(other.read(b.get()) == state_t::nonsense_k, "a length past the bound");
}

/// A made-up /sys.
class machine_t {
  public:
    machine_t() {
        char name[] = "/tmp/sc_sysfs_XXXXXX";
        root = ::mkdtemp(name);
    }
    ~machine_t() { files::remove_all(root); }

    void write(std::string const& path, std::string const& text) const {
        files::create_directories((root / path).parent_path());
        std::ofstream(root / path) << text << "\n";
    }
    void device(std::string const& name, std::string const& pci, int node, std::string const& state = "4: ACTIVE",
                std::string const& layer = "Ethernet") const {
        write("devices/" + pci + "/numa_node", std::to_string(node));
        files::create_directories(root / "class/infiniband" / name);
        files::create_directory_symlink(root / "devices" / pci, root / "class/infiniband" / name / "device");
        write("class/infiniband/" + name + "/ports/1/state", state);
        write("class/infiniband/" + name + "/ports/1/link_layer", layer);
    }
    void gid(std::string const& name, int index, std::string const& text, std::string const& type,
             std::string const& interface) const {
        std::string const port = "class/infiniband/" + name + "/ports/1/", at = std::to_string(index);
        write(port + "gids/" + at, text);
        write(port + "gid_attrs/types/" + at, type);
        write(port + "gid_attrs/ndevs/" + at, interface);
    }
    void gpu(std::string const& bus_id, std::string const& pci, int node) const {
        write("devices/" + pci + "/numa_node", std::to_string(node));
        files::create_directories(root / "bus/pci/devices");
        files::create_directory_symlink(root / "devices" / pci, root / "bus/pci/devices" / bus_id);
    }

    files::path root;
};

std::string const zero_k = "0000:0000:0000:0000:0000:0000:0000:0000";
std::string const local_k = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001";
std::string const ipv4_k = "0000:0000:0000:0000:0000:ffff:0a09:0001";
std::string const ipv6_k = "2001:0db8:0000:0000:0000:0000:0000:0001";

/// The table of a usual adapter: both RoCE versions of each address.
void fill_gids(machine_t const& machine, std::string const& name, std::string const& interface) {
    machine.gid(name, 0, local_k, "IB/RoCE v1", interface);
    machine.gid(name, 1, local_k, "RoCE v2", interface);
    machine.gid(name, 2, ipv4_k, "IB/RoCE v1", interface);
    machine.gid(name, 3, ipv4_k, "RoCE v2", interface);
    machine.gid(name, 10, ipv6_k, "RoCE v2", interface);
    machine.gid(name, 11, zero_k, "", "");
}

void check_gids() {
    machine_t machine;
    machine.device("mlx5_0", "pci0000:00/0000:01:00.0", 0);
    fill_gids(machine, "mlx5_0", "eth0");
    machine.gid("mlx5_0", 4, ipv4_k, "RoCE v2", "eth0.7");  // a VLAN on the same port
    auto const ports = usable_ports(machine.root);
    testing::expect(ports.size() == 1 && ports[0].gids.size() == 3, "addresses of RoCE v2 alone");
    testing::expect(choose_gid(ports[0], true, "eth0")->index == 3, "IPv4 is index 3");
    testing::expect(choose_gid(ports[0], true, "eth0.7")->index == 4, "the interface's own");
    testing::expect(choose_gid(ports[0], true, "elsewhere")->index == 3, "else the first");
    testing::expect(choose_gid(ports[0], false, "eth0")->index == 10, "IPv6 is index 10");
    machine_t bare;
    bare.device("mlx5_0", "pci0000:00/0000:01:00.0", 0);
    bare.gid("mlx5_0", 0, local_k, "RoCE v2", "eth0");
    testing::expect(usable_ports(bare.root).empty(), "link-local alone is no address");
}

void check_nearest() {
    machine_t machine;
    machine.device("mlx5_2", "pci0000:80/0000:80:01.0/0000:81:00.0", 1);
    machine.device("mlx5_10", "pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:02.0/0000:14:00.0", 0);
    machine.device("mlx5_3", "pci0000:00/0000:00:05.0/0000:30:00.0", 0);
    machine.device("down", "pci0000:80/0000:80:01.0/0000:82:00.0", 1, "1: DOWN");
    machine.device("fabric", "pci0000:80/0000:80:01.0/0000:83:00.0", 1, "4: ACTIVE", "InfiniBand");
    for (char const* name : {"mlx5_2", "mlx5_10", "mlx5_3", "down", "fabric"})
        fill_gids(machine, name, std::string("net_") + name);
    machine.gpu("0000:13:00.0", "pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:01.0/0000:13:00.0", 0);
    machine.gpu("0000:90:00.0", "pci0000:80/0000:80:03.0/0000:90:00.0", 1);
    machine.gpu("0000:c0:00.0", "pci0000:c0/0000:c0:01.0/0000:c1:00.0", 1);
    auto pick = [&](char const* gpu, int rail, char const* device = "") {
        auto const port = choose_port(machine.root, device, gpu, "net_mlx5_3", true, rail);
        return port ? port->device : "none";
    };
    testing::expect(pick("00000000:13:00.0", 0) == "mlx5_10", "behind the same switch; CUDA's eight digits");
    testing::expect(pick("0000:90:00.0", 0) == "mlx5_2", "the same root; neither the port that is down nor InfiniBand");
    testing::expect(pick("0000:C0:00.0", 5) == "mlx5_2", "the same NUMA node");
    testing::expect(pick("", 0) == "mlx5_3", "host memory: on the interface");
    testing::expect(pick("0000:13:00.0", 0, "mlx5_2") == "mlx5_2", "as told");
    testing::expect(pick("0000:13:00.0", 0, "mlx5_9") == "none", "no such device");
    machine_t twins;
    for (char const* name : {"a", "b"}) {
        twins.device(name, std::string("pci0000:00/0000:00:01.0/0000:1") + name + ":00.0", 0);
        fill_gids(twins, name, name);
    }
    twins.gpu("0000:20:00.0", "pci0000:00/0000:00:01.0/0000:20:00.0", 0);
    auto twin = [&](int rail) { return choose_port(twins.root, "", "0000:20:00.0", "x", true, rail)->device; };
    testing::expect(twin(0) == "a" && twin(1) == "b" && twin(2) == "a", "equals are dealt out");
}

void check_registration() {
    auto how = [](bool gpu, bool exports, bool library, int probe, bool peermem) {
        return choose_registration({gpu, exports, library, probe, peermem}).how;
    };
    using enum registration_t;
    testing::expect(how(false, true, true, EBADF, true) == host_k, "host memory");
    testing::expect(how(true, true, true, EBADF, true) == dmabuf_k, "dma-buf first");
    testing::expect(how(true, true, true, EOPNOTSUPP, true) == peermem_k, "the device takes none");
    testing::expect(how(true, true, true, EPROTONOSUPPORT, true) == peermem_k, "the device takes none");
    testing::expect(how(true, true, false, EBADF, true) == peermem_k, "the library has none");
    testing::expect(how(true, false, true, EBADF, true) == peermem_k, "the driver exports none");
    testing::expect(how(true, false, true, EBADF, false) == impossible_k, "no way");
    auto const choice = choose_registration({true, true, true, EOPNOTSUPP, false});
    testing::expect(choice.reason.find("RDMA device takes no dma-buf") != std::string::npos &&
                        choice.reason.find("nvidia_peermem is not loaded") != std::string::npos,
                    choice.reason);
    machine_t machine;
    testing::expect(!peermem_loaded(machine.root), "no module");
    machine.write("module/nvidia_peermem/version", "1");
    testing::expect(peermem_loaded(machine.root), "the module");
    pages_t const pages = whole_pages(0x7f0000001200, 0x2000, 0x1000);
    testing::expect(pages.begin == 0x7f0000001000 && pages.size == 0x3000 && pages.offset == 0x200, "whole pages");
    testing::expect(parts_of(0, 8) == 1 && parts_of(8, 8) == 1 && parts_of(9, 8) == 2, "parts of a message");
}

/// Whether embeddings leave from GPU memory, and what a completion must be followed by. 100 and 200 are CUDA's numbers.
void check_travel() {
    travel_facts_t facts;
    facts.verbs = true;
    facts.registration = {true, true, true, EBADF, false};
    auto travel = [&](auto&& change) {
        travel_facts_t changed = facts;
        change(changed);
        return choose_travel(changed);
    };
    auto nothing = [](travel_facts_t&) {};
    testing::expect(travel(nothing).direct && travel(nothing).flush == flush_t::none_k, "in order for all");
    testing::expect(!travel([](auto& f) { f.verbs = false; }).direct, "TCP");
    testing::expect(!travel([](auto& f) { f.wanted = "host"; }).direct, "as told");
    auto const impossible = travel([](auto& f) { f.registration.gpu_exports_dmabuf = false; });
    testing::expect(!impossible.direct && impossible.reason.find("exports no dma-buf") != std::string::npos,
                    impossible.reason);
    auto ordered = [&](int ordering, bool peers, bool flush) {
        return travel(
            [=](auto& f) { f.writes_ordered_for = ordering, f.peers_read = peers, f.host_can_flush = flush; });
    };
    testing::expect(ordered(100, false, false).direct, "an H200 that reads for itself alone");
    testing::expect(ordered(100, false, false).flush == flush_t::none_k, "and needs no flush");
    testing::expect(ordered(100, true, true).flush == flush_t::to_all_k, "an H200 whose neighbours read too");
    testing::expect(!ordered(100, true, false).direct, "which cannot be flushed");
    testing::expect(ordered(0, false, true).flush == flush_t::to_owner_k, "no order at all");
    testing::expect(!ordered(0, false, false).direct, "nor a flush");
}

}  // namespace

int main() {
    check_hmac();
    check_endpoints_and_agreement();
    check_frames();
    check_gids();
    check_nearest();
    check_registration();
    check_travel();
    return testing::report();
}
