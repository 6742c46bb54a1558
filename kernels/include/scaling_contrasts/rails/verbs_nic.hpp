// One RDMA device as the rails use it, and one queue pair on it. See verbs.hpp for what they carry.
#pragma once
#include <endian.h>

#include "scaling_contrasts/rails/rails.hpp"
#include "scaling_contrasts/rails/registration.hpp"
#include "scaling_contrasts/rails/sysfs.hpp"
#include "scaling_contrasts/rails/verbs_library.hpp"

namespace scaling_contrasts::rails {

/// What the immediate of a message says: its kind, and the low bits of its step.
struct message_t {
    static constexpr std::uint32_t step_mask_k = (1u << 30) - 1;
    kind_t kind;
    std::uint32_t step;

    static std::uint32_t to(kind_t kind, std::uint64_t step) {
        return htobe32(static_cast<std::uint32_t>(kind) << 30 | (static_cast<std::uint32_t>(step) & step_mask_k));
    }
    static message_t from(std::uint32_t immediate) {
        std::uint32_t const bits = be32toh(immediate);
        return {static_cast<kind_t>(bits >> 30), bits & step_mask_k};
    }
};

/// What a box tells a counterpart about one queue pair. Sent as it lies in memory.
struct pair_card_t {
    struct landing_t {
        std::uint64_t address = 0;
        std::uint32_t key = 0, unused = 0;
    };
    std::uint32_t number = 0, first_packet = 0, mtu = 0, unused = 0;
    std::uint8_t gid[16] = {};
    landing_t landings[kinds_k][2];
};

/// A device's context, with its protection domain, memory regions and the one completion queue of its queue pairs.
class nic_t {
  public:
    nic_t(port_t const& port, bool ipv4, std::string const& interface, options_t const& options) : port(port) {
        int count = 0;
        ibv_device** const list = verbs.get_device_list(&count);
        for (int i = 0; i < count; ++i)
            if (port.device == verbs.get_device_name(list[i])) context = verbs.open_device(list[i]);
        if (list) verbs.free_device_list(list);
        require(context, "open it");
        ibv_port_attr attributes{};
        require(verbs.query_port(context, static_cast<std::uint8_t>(port.number), &attributes) == 0, "query its port");
        mtu = attributes.active_mtu;
        most_bytes = std::max<std::uint64_t>(1, attributes.max_msg_sz);
        gid_index = options.gid_index >= 0 ? options.gid_index : choose_gid(port, ipv4, interface)->index;
        require(verbs.query_gid(context, static_cast<std::uint8_t>(port.number), gid_index, &gid) == 0,
                "read its GID " + std::to_string(gid_index));
        domain = verbs.alloc_pd(context);
        require(domain, "allocate a protection domain");
        channel = verbs.create_comp_channel(context);
        require(channel, "create a completion channel");
        ::fcntl(channel->fd, F_SETFL, ::fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    }
    ~nic_t() {
        if (queue) {
            verbs.ack_cq_events(queue, unacknowledged_);
            verbs.destroy_cq(queue);
        }
        for (auto const& [piece, region] : regions_) verbs.dereg_mr(region);
        if (channel) verbs.destroy_comp_channel(channel);
        if (domain) verbs.dealloc_pd(domain);
        if (context) verbs.close_device(context);
    }
    nic_t(nic_t const&) = delete;
    nic_t& operator=(nic_t const&) = delete;

    /// The region of a piece of memory, registered when first asked for.
    ibv_mr* region(piece_t const& piece, plan_t const& plan) {
        ibv_mr*& found = regions_[{piece.data, piece.size}];
        if (!found) found = enroll(piece, plan);
        return found;
    }
    void create_queue() {
        queue = verbs.create_cq(context, queue_entries, nullptr, channel, 0);
        require(queue, "create a completion queue of " + std::to_string(queue_entries));
    }
    void arm() { require(::ibv_req_notify_cq(queue, 0) == 0, "ask for completion events"); }
    /// Takes what the channel has, and asks for the next event.
    void take_events() {
        ibv_cq* from = nullptr;
        void* context_of = nullptr;
        while (verbs.get_cq_event(channel, &from, &context_of) == 0) {
            if (++unacknowledged_ == 1024) verbs.ack_cq_events(queue, std::exchange(unacknowledged_, 0));
            arm();
        }
    }
    void require(bool holds, std::string const& what) const {
        if (!holds) throw lost("RDMA device " + port.device + ": cannot " + what + ": " + error_text(errno));
    }
    void require(void const* holds, std::string const& what) const { require(holds != nullptr, what); }

    verbs_library_t const& verbs = verbs_library_t::get();
    port_t port;
    ibv_context* context = nullptr;
    ibv_pd* domain = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* queue = nullptr;
    ibv_gid gid{};
    int gid_index = 0, queue_entries = 0;
    ibv_mtu mtu = IBV_MTU_1024;
    std::uint64_t most_bytes = 0;  ///< of one message

  private:
    /// GPU memory: compiles, never run on hardware.
    ibv_mr* enroll(piece_t const& piece, plan_t const& plan) {
        int const access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        registration_facts_t facts;
        facts.on_gpu = plan.is_on_gpu(piece.data);
        facts.gpu_exports_dmabuf = static_cast<bool>(plan.export_dmabuf);
        facts.library_takes_dmabuf = verbs.reg_dmabuf_mr != nullptr;
        facts.peermem_loaded = peermem_loaded("/sys");
        if (facts.on_gpu && facts.library_takes_dmabuf) {
            verbs.reg_dmabuf_mr(domain, 0, 4096, 0, -1, access);
            facts.dmabuf_probe = errno;
        }
        auto const choice = choose_registration(facts);
        if (choice.how == registration_t::impossible_k)
            throw failure_t(status_t::unsupported_k,
                            "RDMA device " + port.device + " cannot reach the GPU's memory: " + choice.reason);
        ibv_mr* out = nullptr;
        if (choice.how == registration_t::dmabuf_k) {
            auto const address = reinterpret_cast<std::uint64_t>(piece.data);
            pages_t const pages = whole_pages(address, piece.size, static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
            descriptor_t const exported(plan.export_dmabuf(pages.begin, pages.size));
            require(static_cast<bool>(exported), "get a dma-buf of the GPU's memory");
            // The address in work requests is the GPU's own: a scatter entry by another one is a protection error.
            out = verbs.reg_dmabuf_mr(domain, pages.offset, piece.size, address, exported.get(), access);
        } else {
            out = verbs.reg_mr(domain, piece.data, piece.size, access);
        }
        require(out, "register " + std::to_string(piece.size) + " bytes (see ulimit -l)");
        return out;
    }

    std::map<std::pair<std::byte*, std::size_t>, ibv_mr*> regions_;
    unsigned unacknowledged_ = 0;
};

/// One reliable connection: this box's rail to its counterpart on `box`.
class queue_pair_t {
  public:
    static constexpr std::uint64_t receive_k = std::uint64_t{1} << 63;  ///< in wr_id: a receive, else a write
    static constexpr std::uint64_t index_mask_k = 0xffffffff;

    queue_pair_t(nic_t& nic, int box, int rail) : box(box), rail(rail), nic_(nic) {}
    ~queue_pair_t() {
        if (pair_) nic_.verbs.destroy_qp(pair_);
    }
    queue_pair_t(queue_pair_t const&) = delete;
    queue_pair_t& operator=(queue_pair_t const&) = delete;

    /// Registers what it will send and where it will be sent to, and counts the work requests of two steps.
    void plan(plan_t const& plan) {
        for (int kind = 0; kind < kinds_k; ++kind) {
            lane_t const& lane = plan.lane(rail, static_cast<kind_t>(kind));
            if (lane.bytes == 0) continue;
            sends_ += 4 * static_cast<int>(parts_of(lane.bytes, nic_.most_bytes));
            for (std::size_t parity = 0; parity < 2; ++parity) {
                std::byte* const landing = lane.landings[static_cast<std::size_t>(box)][parity];
                card_.landings[kind][parity] = {reinterpret_cast<std::uint64_t>(landing),
                                                nic_.region({landing, lane.bytes}, plan)->rkey, 0};
                for (auto const& piece : lane.sources[parity]) keys_[piece.data] = nic_.region(piece, plan)->lkey;
            }
        }
        nic_.queue_entries += sends_ + 64;
    }

    void create(options_t const& options, int receives) {
        ibv_qp_init_attr wanted{};
        wanted.send_cq = wanted.recv_cq = nic_.queue;
        wanted.qp_type = IBV_QPT_RC;
        wanted.cap.max_send_wr = static_cast<std::uint32_t>(sends_);
        wanted.cap.max_recv_wr = static_cast<std::uint32_t>(receives);
        wanted.cap.max_send_sge = 2;
        wanted.cap.max_recv_sge = 1;
        pair_ = nic_.verbs.create_qp(nic_.domain, &wanted);
        nic_.require(pair_, "create a queue pair");
        ibv_qp_attr state{};
        state.qp_state = IBV_QPS_INIT;
        state.port_num = static_cast<std::uint8_t>(nic_.port.number);
        state.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        nic_.require(nic_.verbs.modify_qp(pair_, &state,
                                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
                     "initialise a queue pair");
        for (int i = 0; i < receives; ++i) nic_.require(post_receive() == 0, "post a receive");
        card_.number = pair_->qp_num;
        card_.first_packet = pair_->qp_num & 0xffffff;
        card_.mtu = static_cast<std::uint32_t>(options.mtu > 0 ? std::min(mtu_of(options.mtu), nic_.mtu) : nic_.mtu);
        std::memcpy(card_.gid, nic_.gid.raw, sizeof(card_.gid));
    }
    pair_card_t const& card() const { return card_; }

    /// Connects to the counterpart. Empty: done; else what failed.
    std::string join(pair_card_t const& other, options_t const& options) {
        other_ = other;
        ibv_qp_attr state{};
        state.qp_state = IBV_QPS_RTR;
        state.path_mtu = static_cast<ibv_mtu>(std::min(card_.mtu, other.mtu));
        state.dest_qp_num = other.number;
        state.rq_psn = other.first_packet;
        state.max_dest_rd_atomic = 1;
        state.min_rnr_timer = 12;
        state.ah_attr.is_global = 1;
        std::memcpy(state.ah_attr.grh.dgid.raw, other.gid, sizeof(other.gid));
        state.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(nic_.gid_index);
        state.ah_attr.grh.hop_limit = 255;  // routers take one off
        state.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(options.traffic_class);
        state.ah_attr.sl = static_cast<std::uint8_t>(options.service_level);
        state.ah_attr.port_num = static_cast<std::uint8_t>(nic_.port.number);
        int problem = nic_.verbs.modify_qp(pair_, &state,
                                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        if (problem != 0) return "the queue pair does not get ready to receive: " + error_text(problem);
        state = {};
        state.qp_state = IBV_QPS_RTS;
        state.sq_psn = card_.first_packet;
        state.timeout = static_cast<std::uint8_t>(options.timeout);
        state.retry_cnt = static_cast<std::uint8_t>(options.retries);
        state.rnr_retry = 7;  // without end: the wait above has the deadline
        state.max_rd_atomic = 1;
        problem = nic_.verbs.modify_qp(pair_, &state,
                                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                           IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
        return problem == 0 ? "" : "the queue pair does not get ready to send: " + error_text(problem);
    }

    /// Posts the message of that step: 0, or an errno.
    int write(lane_t const& lane, kind_t kind, std::uint64_t step) {
        auto const& landing = other_.landings[static_cast<std::size_t>(kind)][step % 2];
        std::uint64_t const parts = parts_of(lane.bytes, nic_.most_bytes);
        for (std::uint64_t part = 0; part < parts; ++part) {
            std::uint64_t const begin = part * nic_.most_bytes, end = std::min(begin + nic_.most_bytes, lane.bytes);
            ibv_sge pieces[2];
            ibv_send_wr request{}, *refused = nullptr;
            request.wr_id = index;
            request.sg_list = pieces;
            request.num_sge = gather(lane.sources[step % 2], begin, end, pieces);
            bool const last = part + 1 == parts;
            request.opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
            request.send_flags = last ? IBV_SEND_SIGNALED : 0;
            request.imm_data = message_t::to(kind, step);
            request.wr.rdma.remote_addr = landing.address + begin;
            request.wr.rdma.rkey = landing.key;
            if (int const problem = ::ibv_post_send(pair_, &request, &refused)) return problem;
        }
        return 0;
    }

    /// A receive has no memory: the immediate is all it takes.
    int post_receive() {
        ibv_recv_wr request{}, *refused = nullptr;
        request.wr_id = receive_k | index;
        return ::ibv_post_recv(pair_, &request, &refused);
    }

    int box, rail;
    std::uint64_t index = 0;                           ///< among the rails' queue pairs
    std::array<std::uint64_t, kinds_k> received = {};  ///< messages of each kind so far

  private:
    static ibv_mtu mtu_of(int bytes) {
        ibv_mtu out = IBV_MTU_256;
        for (int size = 256; size < bytes; size *= 2) out = static_cast<ibv_mtu>(out + 1);
        return out;
    }
    /// The part [begin, end) of the sources, as at most two pieces.
    int gather(std::vector<piece_t> const& sources, std::uint64_t begin, std::uint64_t end, ibv_sge* pieces) const {
        int count = 0;
        std::uint64_t first = 0;
        for (auto const& source : sources) {
            std::uint64_t const from = std::max(begin, first), to = std::min(end, first + source.size);
            if (from < to)
                pieces[count++] = {reinterpret_cast<std::uint64_t>(source.data) + from - first,
                                   static_cast<std::uint32_t>(to - from), keys_.at(source.data)};
            first += source.size;
        }
        return count;
    }

    nic_t& nic_;
    ibv_qp* pair_ = nullptr;
    int sends_ = 0;
    pair_card_t card_, other_;
    std::map<std::byte*, std::uint32_t> keys_;
};

}  // namespace scaling_contrasts::rails
