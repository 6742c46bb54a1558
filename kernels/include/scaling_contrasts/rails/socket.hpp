// TCP sockets with deadlines: owned descriptors, addresses, one interface to listen on. No call blocks for ever.
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "scaling_contrasts/rails/monitor.hpp"

namespace scaling_contrasts::rails {

/// What the user gave cannot work here: one line that says what is wrong and what to do.
struct setup_error_t : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A file descriptor that closes itself.
class descriptor_t {
  public:
    descriptor_t() = default;
    explicit descriptor_t(int number) : number_(number) {}
    descriptor_t(descriptor_t&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    descriptor_t& operator=(descriptor_t&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~descriptor_t() {
        if (number_ >= 0) ::close(number_);
    }
    int get() const { return number_; }
    explicit operator bool() const { return number_ >= 0; }

  private:
    int number_ = -1;
};

inline std::string error_text(int error) { return std::strerror(error); }

struct address_t {
    sockaddr_storage storage{};
    socklen_t size = 0;

    sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
    sockaddr const* get() const { return reinterpret_cast<sockaddr const*>(&storage); }
    int family() const { return storage.ss_family; }
    int port() const {
        return ntohs(family() == AF_INET6 ? reinterpret_cast<sockaddr_in6 const*>(&storage)->sin6_port
                                          : reinterpret_cast<sockaddr_in const*>(&storage)->sin_port);
    }
    void set_port(int port) {
        auto const number = htons(static_cast<std::uint16_t>(port));
        if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = number;
        else reinterpret_cast<sockaddr_in*>(&storage)->sin_port = number;
    }
    /// The numeric host alone; an IPv6 one keeps its zone.
    std::string host() const {
        char text[NI_MAXHOST] = "?";
        ::getnameinfo(get(), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
        return text;
    }
};

struct endpoint_t {
    std::string host, port;
};

/// Splits `host:port` or `[host]:port`. Throws setup_error_t.
inline endpoint_t split_endpoint(std::string const& text) {
    std::size_t const colon = text.rfind(':');
    std::string host = text.substr(0, colon);
    std::string const port = colon == std::string::npos ? "" : text.substr(colon + 1);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    bool const digits = !port.empty() && port.size() < 6 && port.find_first_not_of("0123456789") == std::string::npos;
    if (host.empty() || !digits || std::stoi(port) < 1 || std::stoi(port) > 65535)
        throw setup_error_t("the rendezvous is '" + text + "'; give HOST:PORT, with a port of 1 to 65535");
    return {host, port};
}

/// The host's addresses for TCP. Throws setup_error_t.
inline std::vector<address_t> resolve(endpoint_t const& endpoint) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    int const problem = ::getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found);
    if (problem != 0) throw setup_error_t("cannot find the host '" + endpoint.host + "': " + ::gai_strerror(problem));
    std::vector<address_t> out;
    for (addrinfo const* each = found; each; each = each->ai_next) {
        address_t address;
        std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
        address.size = each->ai_addrlen;
        out.push_back(address);
    }
    ::freeaddrinfo(found);
    return out;
}

/// One address of this machine and the interface that holds it.
struct interface_t {
    std::string name;
    address_t address;
};

inline std::vector<interface_t> interfaces() {
    std::vector<interface_t> out;
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return out;
    for (ifaddrs const* each = list; each; each = each->ifa_next) {
        if (!each->ifa_addr) continue;
        int const family = each->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        interface_t found;
        found.name = each->ifa_name;
        found.address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        std::memcpy(&found.address.storage, each->ifa_addr, found.address.size);
        out.push_back(found);
    }
    ::freeifaddrs(list);
    return out;
}

/// The interface's own address of that family. Throws setup_error_t that names the interfaces there are.
inline address_t address_of(std::string const& interface, int family) {
    std::string known;
    for (auto const& each : interfaces()) {
        if (each.name == interface && each.address.family() == family) return each.address;
        if (known.find(each.name) == std::string::npos) known += (known.empty() ? "" : ", ") + each.name;
    }
    throw setup_error_t("interface '" + interface + "' has no " + (family == AF_INET ? "IPv4" : "IPv6") +
                        " address here; interfaces with addresses: " + known);
}

/// The interface that holds the address; empty: none here does.
inline std::string interface_of(address_t const& address) {
    for (auto const& each : interfaces())
        if (each.address.host() == address.host()) return each.name;
    return "";
}

inline address_t own_address(int socket) {
    address_t out;
    out.size = sizeof(out.storage);
    ::getsockname(socket, out.get(), &out.size);
    return out;
}

inline address_t peer_address(int socket) {
    address_t out;
    out.size = sizeof(out.storage);
    ::getpeername(socket, out.get(), &out.size);
    return out;
}

inline descriptor_t new_socket(int family) {
    descriptor_t out(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!out) throw lost("cannot make a socket: " + error_text(errno));
    return out;
}

/// Small messages leave at once; a host that vanishes without a word is noticed by the kernel too.
inline void tune(int socket) {
    int const on = 1, idle = 10, interval = 5, probes = 3;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

/// Listens on this address alone, and, where the kernel lets us, to packets of that interface alone: Linux would accept
/// packets to the address from any. Throws setup_error_t when the port is taken.
inline descriptor_t listen_on(address_t const& address, std::string const& interface) {
    descriptor_t out = new_socket(address.family());
    int const on = 1;
    ::setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!interface.empty() && interface != "lo")
        ::setsockopt(out.get(), SOL_SOCKET, SO_BINDTODEVICE, interface.c_str(),
                     static_cast<socklen_t>(interface.size() + 1));
    if (::bind(out.get(), address.get(), address.size) != 0 || ::listen(out.get(), 64) != 0) {
        int const error = errno;
        std::string const where = address.host() + " port " + std::to_string(address.port());
        if (error == EADDRINUSE)
            throw setup_error_t("cannot listen on " + where +
                                ": the port is taken; give --rendezvous another one, or end what holds it");
        throw setup_error_t("cannot listen on " + where + ": " + error_text(error) +
                            "; the rendezvous must be an address of box 0");
    }
    return out;
}

/// Whether the socket can be read (or written) before the deadline.
inline bool ready_by(int socket, short events, deadline_t deadline) {
    while (true) {
        auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_t::now()).count();
        pollfd entry = {socket, events, 0};
        int const count = ::poll(&entry, 1, left < 0 ? 0 : static_cast<int>(std::min<long long>(left + 1, 1 << 30)));
        if (count > 0) return true;
        if (count == 0 && steady_t::now() >= deadline) return false;
        if (count < 0 && errno != EINTR) return false;
    }
}

/// A connection, or an empty descriptor and `errno` when that fails or the deadline passes.
inline descriptor_t connect_by(address_t const& address, deadline_t deadline) {
    descriptor_t out = new_socket(address.family());
    if (::connect(out.get(), address.get(), address.size) != 0) {
        if (errno != EINPROGRESS) return {};
        if (!ready_by(out.get(), POLLOUT, deadline)) {
            errno = ETIMEDOUT;
            return {};
        }
        int error = 0;
        socklen_t size = sizeof(error);
        ::getsockopt(out.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) {
            errno = error;
            return {};
        }
    }
    tune(out.get());
    return out;
}

/// Sends all of it; false: the other side is gone or too slow.
inline bool send_by(int socket, void const* data, std::size_t size, deadline_t deadline) {
    auto const* bytes = static_cast<char const*>(data);
    while (size > 0) {
        ssize_t const sent = ::send(socket, bytes, size, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            size -= static_cast<std::size_t>(sent);
        } else if (errno != EINTR && (errno != EAGAIN || !ready_by(socket, POLLOUT, deadline))) {
            return false;
        }
    }
    return true;
}

}  // namespace scaling_contrasts::rails
