// Bounds: see bounds.hpp.
#include "ir/bounds.hpp"

namespace dovetail::ir {
namespace {

constexpr std::int64_t kMaxSlots = std::int64_t{1} << 40;

struct Shape {
    std::int64_t reads, writes;
    bool receives, sends;
};

constexpr Shape kShapes[] = {
    {0, 0, false, false},  // nop
    {1, 1, false, false},  // copy
    {1, 1, false, false},  // reduce
    {1, 0, false, true},   // send
    {0, 1, true, false},   // recv
    {1, 1, true, false},   // recv_reduce
    {0, 1, true, true},    // recv_copy_send
    {1, 0, true, true},    // recv_reduce_send
    {1, 1, true, true},    // recv_reduce_copy_send
    {1, 1, false, true},   // put
    {0, 0, false, true},   // signal
    {0, 0, true, false},   // wait
    {0, 0, false, false},  // compute: see shape_fits
    {0, 0, false, false},  // collective: likewise
    {1, 1, true, false},   // get
};

bool fits(const Program& p, std::int32_t rank, const Region& r) {
    using Wide = __int128;
    if (r.offset < 0 || r.count < 0 || r.stride < 0 || r.blocks < 0) return false;
    if (Wide{r.count} * r.blocks > kMaxSlots) return false;
    const Wide end = Wide{r.offset} + r.count + Wide{r.stride} * (r.blocks > 1 ? r.blocks - 1 : 0);
    return end <= p.buffer_slots[std::int64_t{r.buffer} * p.num_ranks + rank];
}

bool channels_fit(const Program& p, std::int64_t op) {
    const std::uint8_t kind = p.kind[op];
    const std::int32_t in = p.chan_in[op], out = p.chan_out[op];
    if ((in >= 0) != kShapes[kind].receives || (out >= 0) != kShapes[kind].sends) return false;
    if (in >= 0 && (p.chan_dst[in] != p.rank[op] || p.chan_src[in] == p.chan_dst[in])) return false;
    return out < 0 || (p.chan_src[out] == p.rank[op] && p.chan_src[out] != p.chan_dst[out]);
}

// Index of `rank` in the group of a collective; -1 if it is no member.
std::int32_t member(const Program& p, std::int32_t call, std::int32_t rank) {
    const auto group = p.group.subspan(p.group_start[call], p.group_size(call));
    for (std::size_t i = 0; i < group.size(); ++i)
        if (group[i] == rank) return static_cast<std::int32_t>(i);
    return -1;
}

bool collective_fits(const Program& p, std::int64_t op) {
    const std::int32_t call = p.call[op];
    if (call < 0 || p.collective[call] == kUnknown) return false;
    const std::int32_t place = member(p, call, p.rank[op]);
    if (place < 0) return false;
    const std::int64_t reads = p.num_reads(op), writes = p.num_writes(op);
    if (p.collective[call] == kAllToAll && reads == p.group_size(call) && writes == reads) return true;
    if (p.collective[call] != kBroadcast) return reads == 1 && writes == 1;
    return place == 0 ? reads == 1 && writes <= 1 : reads <= 1 && writes == 1;
}

bool shape_fits(const Program& p, std::int64_t op) {
    const std::uint8_t kind = p.kind[op];
    if (kind == kCollective) return collective_fits(p, op);
    if (kind == kCompute) {
        const std::int32_t call = p.call[op];
        return call >= 0 && p.num_reads(op) == p.mode_start[call + 1] - p.mode_start[call];
    }
    return p.call[op] == -1 && p.num_reads(op) == kShapes[kind].reads && p.num_writes(op) == kShapes[kind].writes;
}

// Whether the operands `sum` and `each_sum` of a compute op suit results of `slots` slots.
bool contraction_fits(const Program& p, std::int64_t op, std::int64_t slots) {
    using Wide = __int128;
    const auto modes = p.modes(p.call[op]);
    const auto size = [&](std::int64_t i) { return p.read[p.read_start[op] + i].slots(); };
    const std::int64_t terms = num_terms(modes, slots, size);
    for (std::int64_t i = 0; i < std::ssize(modes); ++i) {
        if (modes[i] == kSum && size(i) != terms) return false;
        if (modes[i] == kEachSum && size(i) != Wide{slots} * terms) return false;
    }
    return terms > 0 || slots == 0;
}

bool regions_fit(const Program& p, std::int64_t op) {
    const std::uint8_t kind = p.kind[op];
    std::int64_t size = -1;
    bool same = true;
    const auto note = [&](const Region& region) {
        same = same && (size == -1 || region.slots() == size);
        size = region.slots();
    };
    for (std::int64_t i = 0; i < p.num_reads(op); ++i) {
        const Region region = p.read[p.read_start[op] + i];
        if (!fits(p, p.source(op), region)) return false;
        if (kind != kCompute || p.mode_of(op, i) == kEach) note(region);
    }
    for (std::int64_t i = 0; i < p.num_writes(op); ++i) {
        const Region region = p.write[p.write_start[op] + i];
        if (!fits(p, p.target(op), region)) return false;
        note(region);
    }
    if (kind == kCompute) return same && contraction_fits(p, op, size == -1 ? 1 : size);
    return same || kind == kCollective;
}

bool deps_fit(const Program& p, std::int64_t op) {
    for (std::int64_t i = p.dep_start[op]; i < p.dep_start[op + 1]; ++i)
        if (p.rank[p.dep[i]] != p.rank[op]) return false;
    return true;
}

// Whether each member of an all_to_all sends each other member as many slots as that one receives from it.
bool parts_fit(const Program& p, std::span<const std::int32_t> members) {
    const auto n = static_cast<std::int64_t>(members.size());
    for (const std::int32_t op : members) {
        if (p.num_reads(op) == 1 && p.read[p.read_start[op]].slots() % n) return false;
        if (p.num_writes(op) == 1 && p.write[p.write_start[op]].slots() % n) return false;
    }
    for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j)
            if (p.sent_slots(members[i], j) != p.taken_slots(members[j], i)) return false;
    return true;
}

bool sizes_fit(const Program& p, std::span<const std::int32_t> members) {
    const std::uint8_t kind = p.collective[p.call[members[0]]];
    if (kind == kAllToAll && p.in_parts(members)) return parts_fit(p, members);
    const auto reads = [&](std::int64_t op) { return p.num_reads(op) ? p.read[p.read_start[op]].slots() : -1; };
    const auto writes = [&](std::int64_t op) { return p.num_writes(op) ? p.write[p.write_start[op]].slots() : -1; };
    std::int64_t in = 0, out = 0;
    const std::int64_t first = reads(members[0]);
    bool same = true, all_in = true, all_out = true;
    for (const std::int32_t op : members) in += reads(op), out += writes(op);
    for (const std::int32_t op : members) {
        const std::int64_t r = reads(op), w = writes(op);
        same = same && (r == first || r == -1) && (w == first || w == -1);
        all_in = all_in && r == out;
        all_out = all_out && w == in;
    }
    if (kind == kAllGather) return all_out;
    if (kind == kReduceScatter) return all_in;
    return same && (kind != kAllToAll || first % static_cast<std::int64_t>(members.size()) == 0);
}

}  // namespace

std::int64_t first_unfit(const Program& p) {
    for (std::int64_t op = 0; op < p.num_ops(); ++op)
        if (!channels_fit(p, op) || !shape_fits(p, op) || !regions_fit(p, op) || !deps_fit(p, op)) return op;
    return -1;
}

std::int64_t first_mismatch(const Program& p, const Run& run) {
    for (const std::int32_t op : run.order) {
        const std::uint8_t kind = p.kind[op];
        if (receives(kind)) {
            if (p.message_slots(run.matched[op]) != p.message_slots(op)) return op;
        } else if (kind == kCollective) {
            const auto members = run.members(p, op);
            if (members[0] == op && !sizes_fit(p, members)) return op;
        }
    }
    return -1;
}

}  // namespace dovetail::ir
