// Rails over RDMA: RoCE v2, one reliable connection (RC queue pair) per device and counterpart. A message is one
// RDMA_WRITE_WITH_IMM straight into the counterpart's landing; its immediate wakes the counterpart's receive queue and
// says which message it was. Only past the device's longest message are there plain writes before it.
// Compiled where <infiniband/verbs.h> is installed; libibverbs itself is opened at run time.
#pragma once
#if __has_include(<infiniband/verbs.h>)
#include "scaling_contrasts/rails/verbs_nic.hpp"
#else
#include "scaling_contrasts/rails/rails.hpp"
#endif

namespace scaling_contrasts::rails {

#if __has_include(<infiniband/verbs.h>)

/// Why this box cannot use verbs for so many rails; empty: it can. `gpus`: as plan_t::gpus.
inline std::string verbs_problem(mesh_t& mesh, options_t const& options, int rails,
                                 std::vector<std::string> const& gpus) {
    if (!verbs_library_t::get().problem.empty()) return verbs_library_t::get().problem;
    bool const ipv4 = mesh.host(mesh.box()).find(':') == std::string::npos;
    for (int rail = 0; rail < rails; ++rail)
        if (!choose_port("/sys", options.device, gpus.empty() ? "" : gpus[static_cast<std::size_t>(rail)],
                         mesh.interface(), ipv4, rail))
            return "no RDMA device" + (options.device.empty() ? "" : " " + options.device) +
                   " with an active Ethernet port and a RoCE v2 GID of " + (ipv4 ? "IPv4" : "IPv6");
    return "";
}

class verbs_rails_t final : public rails_t {
  public:
    /// Collective: connects every rail to every counterpart. Throws failure_t.
    verbs_rails_t(mesh_t& mesh, plan_t plan, options_t const& options)
        : rails_t(mesh, std::move(plan)), options_(options), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        bool const ipv4 = mesh.host(mesh.box()).find(':') == std::string::npos;
        for (int rail = 0; rail < plan_.rails(); ++rail)
            nics_of_rail_.push_back(
                nic_for(*choose_port("/sys", options.device, plan_.gpu(rail), mesh.interface(), ipv4, rail), ipv4));
        for (int box = 0; box < mesh.boxes(); ++box)
            for (int rail = 0; box != mesh.box() && rail < plan_.rails(); ++rail) add_pair(box, rail);
        for (auto& nic : nics_) nic->create_queue();
        for (auto& pair : pairs_) pair->create(options_, receives_k);
        connect();
        for (auto& nic : nics_) nic->arm();
        thread_ = std::thread([this] { run(); });
        mesh.exchange("", "waited for its queue pairs");
    }
    ~verbs_rails_t() override {
        stopping_ = true;
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const ignored = ::write(wake_.get(), &one, sizeof(one));
        thread_.join();
    }

    char const* transport() const override { return "verbs"; }

    void post(int rail, kind_t kind, std::uint64_t step) override {
        lane_t const& lane = plan_.lane(rail, kind);
        for (auto& pair : pairs_) {
            if (pair->rail != rail) continue;
            int const problem = pair->write(lane, kind, step);
            if (problem != 0)
                mesh_.monitor().fail(mesh_.name(pair->box) + ": rail " + std::to_string(rail) +
                                     " takes no more writes: " + error_text(problem));
            bytes_sent_ += lane.bytes;
            ++messages_sent_;
        }
    }

    traffic_t traffic() const override {
        return {bytes_sent_.load(), bytes_received_.load(), messages_sent_.load(), messages_received_.load()};
    }

  private:
    static constexpr int receives_k = 32;  ///< posted at any time; at most two steps of three messages are on their way

    nic_t* nic_for(port_t const& port, bool ipv4) {
        for (auto& nic : nics_)
            if (nic->port.device == port.device && nic->port.number == port.number) return nic.get();
        nics_.push_back(std::make_unique<nic_t>(port, ipv4, mesh_.interface(), options_));
        return nics_.back().get();
    }
    void add_pair(int box, int rail) {
        auto pair = std::make_unique<queue_pair_t>(*nics_of_rail_[static_cast<std::size_t>(rail)], box, rail);
        pair->plan(plan_);
        pair->index = pairs_.size();
        pairs_.push_back(std::move(pair));
    }
    void connect();
    void run();
    void complete(nic_t& nic, ibv_wc const& done);

    options_t options_;
    descriptor_t wake_;
    std::vector<std::unique_ptr<nic_t>> nics_;
    std::vector<nic_t*> nics_of_rail_;
    std::vector<std::unique_ptr<queue_pair_t>> pairs_;  // destroyed before the devices
    std::atomic<std::uint64_t> bytes_sent_ = 0, bytes_received_ = 0, messages_sent_ = 0, messages_received_ = 0;
    std::atomic<bool> stopping_ = false;
    std::thread thread_;
};

/// Everyone tells everyone where its queue pairs are and where its landings lie.
inline void verbs_rails_t::connect() {
    std::string mine;
    for (auto const& pair : pairs_) {
        pair_card_t const card = pair->card();
        mine.append(reinterpret_cast<char const*>(&card), sizeof(card));
    }
    auto const theirs = mesh_.exchange(mine, "waited for its queue pairs' numbers");
    for (auto& pair : pairs_) {
        // A box lists its counterparts in order and skips itself.
        int const place = mesh_.box() - (mesh_.box() > pair->box ? 1 : 0);
        auto const at = static_cast<std::size_t>(place * plan_.rails() + pair->rail) * sizeof(pair_card_t);
        std::string const& cards = theirs[static_cast<std::size_t>(pair->box)];
        if (cards.size() < at + sizeof(pair_card_t))
            throw lost(mesh_.name(pair->box) + ": has other rails, while this box connected its own");
        pair_card_t card;
        std::memcpy(&card, cards.data() + at, sizeof(card));
        std::string const problem = pair->join(card, options_);
        if (!problem.empty())
            throw lost(mesh_.name(pair->box) + ": " + problem + ", while this box connected rail " +
                       std::to_string(pair->rail) + " to it");
    }
}

inline void verbs_rails_t::run() {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
    for (auto& nic : nics_) entries.push_back({nic->channel->fd, POLLIN, 0});
    while (!stopping_) {
        ::poll(entries.data(), entries.size(), 500);
        for (auto& nic : nics_) {
            nic->take_events();  // and ask for the next before looking, so that none is missed
            ibv_wc done[16];
            for (int count = 0; (count = ::ibv_poll_cq(nic->queue, 16, done)) > 0;)
                for (int i = 0; i < count; ++i) complete(*nic, done[i]);
        }
    }
}

inline void verbs_rails_t::complete(nic_t&, ibv_wc const& done) {
    queue_pair_t& pair = *pairs_[done.wr_id & queue_pair_t::index_mask_k];
    if (done.status != IBV_WC_SUCCESS) {
        if (done.status != IBV_WC_WR_FLUSH_ERR && !stopping_)
            mesh_.monitor().fail(mesh_.name(pair.box) + ": rail " + std::to_string(pair.rail) + ": " +
                                 verbs_library_t::get().wc_status_str(done.status) + " (verbs status " +
                                 std::to_string(done.status) + ")");
        return;
    }
    if (!(done.wr_id & queue_pair_t::receive_k)) return;
    message_t const message = message_t::from(done.imm_data);
    std::size_t const bytes = plan_.lane(pair.rail, message.kind).bytes;
    std::uint64_t const step = ++pair.received[static_cast<std::size_t>(message.kind)];
    int const problem = pair.post_receive();
    if ((step & message_t::step_mask_k) != message.step || bytes == 0 || problem != 0)
        return mesh_.monitor().fail(mesh_.name(pair.box) + ": sent a message that makes no sense");
    bytes_received_ += bytes;
    ++messages_received_;
    arrive(pair.box, pair.rail, message.kind, step);
}

#else

inline std::string verbs_problem(mesh_t&, options_t const&, int, std::vector<std::string> const&) {
    return "this binary was built without <infiniband/verbs.h>; install libibverbs-dev and build again";
}

class verbs_rails_t final : public rails_t {
  public:
    verbs_rails_t(mesh_t& mesh, plan_t plan, options_t const&) : rails_t(mesh, std::move(plan)) {}
    char const* transport() const override { return "verbs"; }
    void post(int, kind_t, std::uint64_t) override {}
    traffic_t traffic() const override { return {}; }
};

#endif

}  // namespace scaling_contrasts::rails
