// Copies that run by themselves: bulk and tensor copies, which an mbarrier or a group counts, and sm80's cp.async.
#include <cstring>

#include "frame.hpp"
#include "operand.hpp"
#include "tensor_map.hpp"

namespace emulation {
namespace {

/// Element by element: the box at the coordinates, and where each of its elements lies in shared memory, from the box's
/// start.
template <class each_t>
void walk_box(tensor_map_t const& map, std::int64_t const (&at)[5], each_t const& each) {
    std::uint32_t total = 1;
    for (int d = 0; d < map.rank; ++d) total *= map.box[d];
    for (std::uint32_t i = 0; i < total; ++i) {
        bool inside = true;
        std::int64_t offset = 0;
        std::uint32_t rest = i;
        for (int d = 0; d < map.rank; ++d) {
            std::int64_t const x = at[d] + rest % map.box[d];
            rest /= map.box[d];
            inside = inside && x >= 0 && static_cast<std::uint64_t>(x) < map.size[d];
            offset += x * static_cast<std::int64_t>(map.stride[d]);
        }
        each(i * static_cast<std::uint32_t>(map.bytes), inside ? map.base + offset : nullptr);
    }
}

tensor_map_t map_of(frame_t& f, std::size_t i, int rank) {
    auto const* from = f.pointer<tensor_map_t const>(i);
    if (reinterpret_cast<std::uintptr_t>(from) % 64 || from->mark != tensor_map_mark_k)
        fail(std::string(f.name()) + ": no tensor map");
    if (from->rank != rank) fail(std::string(f.name()) + ": a tensor map of another rank");
    return *from;
}
std::uint32_t box_bytes(tensor_map_t const& map) {
    auto bytes = static_cast<std::uint32_t>(map.bytes);
    for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
    return bytes;
}
void check_alignment(frame_t& f, tensor_map_t const& map, std::uint32_t address) {
    // by rule 128; the swizzle's pattern begins where the address says, which no product expects within a pattern
    std::uint32_t const least = map.swizzle ? static_cast<std::uint32_t>(map.swizzle) * 8 : 128;
    if (address % least)
        fail(std::string(f.name()) + ": the place in shared memory is no multiple of " + std::to_string(least));
}

template <int rank>
void tensor_load(frame_t& f) {
    std::uint32_t const to = f.u32(0);
    tensor_map_t const map = map_of(f, 1, rank);
    std::int64_t at[5] = {};
    for (int d = 0; d < rank; ++d) at[d] = static_cast<std::int32_t>(f.u32(2 + static_cast<std::size_t>(d)));
    check_alignment(f, map, to & 0xffffff);
    std::uint32_t const bytes = box_bytes(map);
    std::uint8_t* const shared = shared_at(to, bytes, 128);
    mbarrier_t& barrier = mbarrier_at(f.u32(2 + rank));
    if (poisons()) std::memset(shared, 0xff, bytes);
    start(nullptr, [=, &barrier] {
        walk_box(map, at, [&](std::uint32_t offset, std::uint8_t const* from) {
            std::uint32_t const base = to & 0xffffff, place = swizzled(base + offset, map.swizzle) - base;
            if (from) std::memcpy(shared + place, from, static_cast<std::size_t>(map.bytes));
            else std::memset(shared + place, map.nan_outside ? 0xff : 0, static_cast<std::size_t>(map.bytes));
        });
        complete(barrier, bytes);
    });
    perhaps_yield();
}

void bulk_load(frame_t& f) {
    std::uint32_t const bytes = f.u32(2);
    auto const* const from = f.pointer<std::uint8_t const>(1);
    if (bytes % 16 || bytes == 0 || reinterpret_cast<std::uintptr_t>(from) % 16)
        fail("a bulk copy that is no multiple of 16 bytes");
    std::uint8_t* const to = shared_at(f.u32(0), bytes, 16);
    mbarrier_t& barrier = mbarrier_at(f.u32(3));
    if (poisons()) std::memset(to, 0xff, bytes);
    start(nullptr, [=, &barrier] {
        std::memcpy(to, from, bytes);
        complete(barrier, bytes);
    });
    perhaps_yield();
}

using groups_t = std::deque<std::shared_ptr<group_t>>;
/// The group that operations join until it is closed.
std::shared_ptr<group_t> open_group(groups_t& groups) {
    if (groups.empty()) groups.push_back(std::make_shared<group_t>());
    return groups.back();
}
void close_group(groups_t& groups) {
    open_group(groups);
    groups.push_back(std::make_shared<group_t>());
}
/// Waits until at most `pending` of the closed groups are unfinished.
void wait_groups(frame_t& f, groups_t& groups, std::uint64_t pending, bool written) {
    std::size_t const closed = groups.empty() ? 0 : groups.size() - 1;
    if (closed > pending) {
        std::vector<std::shared_ptr<group_t>> needed(groups.begin(),
                                                     groups.begin() + static_cast<std::ptrdiff_t>(closed - pending));
        for (auto const& group : needed) {
            for (auto const& copy : group->at_wait) copy();
            group->at_wait.clear();
        }
        wait_until(
            [needed, written] {
                for (auto const& group : needed)
                    if (group->unread || (written && group->unwritten)) return false;
                return true;
            },
            [name = std::string(f.name())] { return name; });
    }
    while (groups.size() > 1 && groups.front()->done()) groups.pop_front();
}

/// A copy in two acts: what is read must stay until then, and what is written is not there before.
void join_group(groups_t& groups, std::function<void()> const& read, std::function<void()> const& write) {
    auto const group = open_group(groups);
    ++group->unread, ++group->unwritten;
    start(nullptr, {[=] { read(), --group->unread; }, [=] { write(), --group->unwritten; }});
}

void bulk_store(frame_t& f) {
    std::uint32_t const bytes = f.u32(2);
    auto* const to = f.pointer<std::uint8_t>(0);
    if (bytes % 16 || bytes == 0 || reinterpret_cast<std::uintptr_t>(to) % 16)
        fail("a bulk copy that is no multiple of 16 bytes");
    std::uint8_t const* const from = shared_at(f.u32(1), bytes, 16);
    auto const held = std::make_shared<std::vector<std::uint8_t>>();
    if (poisons()) std::memset(to, 0xff, bytes);
    join_group(self().bulks, [=] { held->assign(from, from + bytes); }, [=] { std::memcpy(to, held->data(), bytes); });
    perhaps_yield();
}

template <int rank>
void tensor_store(frame_t& f) {
    tensor_map_t const map = map_of(f, 0, rank);
    std::int64_t at[5] = {};
    for (int d = 0; d < rank; ++d) at[d] = static_cast<std::int32_t>(f.u32(1 + static_cast<std::size_t>(d)));
    std::uint32_t const from = f.u32(1 + rank), bytes = box_bytes(map);
    check_alignment(f, map, from);
    std::uint8_t const* const shared = shared_at(from, bytes, 128);
    auto const held = std::make_shared<std::vector<std::uint8_t>>();
    join_group(
        self().bulks, [=] { held->assign(shared, shared + bytes); },
        [=] {
            walk_box(map, at, [&](std::uint32_t offset, std::uint8_t* to) {
                if (to)
                    std::memcpy(to, held->data() + (swizzled(from + offset, map.swizzle) - from),
                                static_cast<std::size_t>(map.bytes));
            });
        });
}

/// cp.async [to], [from], bytes{, bytes that are read}: the rest becomes zeros.
void copy_async(frame_t& f) {
    std::uint32_t const bytes = f.u32(2), read = f.count() > 3 ? f.u32(3) : bytes;
    if ((bytes != 4 && bytes != 8 && bytes != 16) || read > bytes) fail("cp.async of a size that does not exist");
    auto const* const from = f.pointer<std::uint8_t const>(1);
    if (reinterpret_cast<std::uintptr_t>(from) % bytes) fail("cp.async from a misaligned address");
    std::uint8_t* const to = shared_at(f.u32(0), bytes, bytes);
    auto copy = [=] {
        std::memcpy(to, from, read);
        std::memset(to + read, 0, bytes - read);
    };
    if (poisons()) std::memset(to, 0xff, bytes);
    // nobody but the thread's own wait can tell that it is done: with late timing, that wait does it
    if (options().timing == timing_t::late_k) open_group(self().copies)->at_wait.push_back(copy);
    else join_group(self().copies, [] {}, copy);
}

}  // namespace

void add_copies(table_t& table) {
    for (std::string const to : {"shared::cluster", "shared::cta"}) {
        std::string const by = "." + to + ".global.";
        table["cp.async.bulk.tensor.2d" + by + "mbarrier::complete_tx::bytes"] = tensor_load<2>;
        table["cp.async.bulk.tensor.3d" + by + "mbarrier::complete_tx::bytes"] = tensor_load<3>;
        table["cp.async.bulk.tensor.2d" + by + "tile.mbarrier::complete_tx::bytes"] = tensor_load<2>;
        table["cp.async.bulk.tensor.3d" + by + "tile.mbarrier::complete_tx::bytes"] = tensor_load<3>;
        table["cp.async.bulk" + by + "mbarrier::complete_tx::bytes"] = bulk_load;
    }
    table["cp.async.bulk.global.shared::cta.bulk_group"] = bulk_store;
    table["cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"] = tensor_store<2>;
    table["cp.async.bulk.tensor.3d.global.shared::cta.bulk_group"] = tensor_store<3>;
    table["cp.async.bulk.commit_group"] = [](frame_t&) { close_group(self().bulks); };
    table["cp.async.bulk.wait_group.read"] = [](frame_t& f) { wait_groups(f, self().bulks, f.u64(0), false); };
    table["cp.async.bulk.wait_group"] = [](frame_t& f) { wait_groups(f, self().bulks, f.u64(0), true); };
    table["cp.async.cg.shared.global"] = table["cp.async.ca.shared.global"] = copy_async;
    table["cp.async.commit_group"] = [](frame_t&) { close_group(self().copies); };
    table["cp.async.wait_group"] = [](frame_t& f) { wait_groups(f, self().copies, f.u64(0), true); };
}

}  // namespace emulation
