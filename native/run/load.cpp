// Picks one rank's ops out of a Program and binds their regions to memory.
#include "run/load.hpp"

#include <limits>
#include <map>
#include <stdexcept>

namespace dovetail::run {

namespace {

struct Region {
    int buffer;
    std::int64_t offset, count, stride, blocks;
};

// Blocks of slots that differ in size: one block if they are adjacent, else a list.
void place_uneven(Span& span, const Region& region, const std::int64_t* starts) {
    std::vector<Piece> pieces;
    for (std::int64_t i = 0; i < region.blocks; ++i) {
        const auto slot = region.offset + i * region.stride;
        const Piece piece{starts[slot], starts[slot + region.count] - starts[slot]};
        span.count += piece.count;
        if (!pieces.empty() && pieces.back().offset + pieces.back().count == piece.offset)
            pieces.back().count += piece.count;
        else if (piece.count > 0)
            pieces.push_back(piece);
    }
    if (!pieces.empty()) span.offset = pieces.front().offset;
    if (pieces.size() > 1) span.pieces = std::make_shared<const std::vector<Piece>>(std::move(pieces));
}

Span span_of(const Region& region, const std::vector<Memory>& memory, const std::vector<std::byte*>& bases) {
    const Memory& home = memory[static_cast<std::size_t>(region.buffer)];
    Span span;
    span.base = &bases[static_cast<std::size_t>(region.buffer)];
    span.slots = region.count * region.blocks;
    span.buffer = region.buffer;
    span.dtype = home.dtype;
    if (home.starts) {
        place_uneven(span, region, home.starts);
    } else {
        span.offset = region.offset * home.slot_bytes;
        span.count = region.count * home.slot_bytes;
        span.stride = region.stride * home.slot_bytes;
        span.blocks = region.blocks;
    }
    return span;
}

std::vector<Span> spans(const Regions& regions, std::int64_t op, const std::vector<Memory>& memory,
                        const std::vector<std::byte*>& bases) {
    std::vector<Span> out;
    for (std::int64_t row = regions.start[op]; row < regions.start[op + 1]; ++row)
        out.push_back(span_of(
            {regions.buffer[row], regions.offset[row], regions.count[row], regions.stride[row], regions.blocks[row]},
            memory, bases));
    return out;
}

constexpr int max_tag = 16000;  // below the tags of control messages, and below MPI's upper bound

std::vector<int> tags(const std::vector<ChannelRow>& channels) {
    std::map<std::pair<int, int>, int> used;
    std::vector<int> out;
    for (const auto& channel : channels) {
        out.push_back(2 * used[{channel.src, channel.dst}]++);
        if (out.back() > max_tag) throw std::length_error("more than 8000 channels between two ranks");
    }
    return out;
}

bool meets_others(Kind kind) { return receives(kind) || sends(kind) || kind == Kind::collective; }

}  // namespace

Share load(int rank, const Columns& columns, const std::vector<bool>& lane_is_net,
           const std::vector<ChannelRow>& channels, const std::vector<Memory>& memory,
           const std::vector<QuotientRow>& quotients, const std::vector<PartsRow>& parts) {
    Share share;
    for (const auto& home : memory) share.bases.push_back(home.base), share.scratch.push_back(home.scratch);
    const std::vector<int> tag = tags(channels);
    std::map<int, int> lanes;  // lane of the Program -> lane of the engine
    std::vector<std::pair<int, std::int64_t>> place(static_cast<std::size_t>(columns.num_ops), {-1, -1});
    std::vector<std::int64_t> length;
    for (std::int64_t i = 0; i < columns.num_ops; ++i) {
        if (columns.rank[i] != rank) continue;
        const auto [it, fresh] = lanes.emplace(columns.lane[i], static_cast<int>(share.lanes.size()));
        if (fresh) {
            share.lanes.emplace_back(columns.lane[i], lane_is_net[static_cast<std::size_t>(columns.lane[i])]);
            length.push_back(0);
        }
        place[static_cast<std::size_t>(i)] = {it->second, length[static_cast<std::size_t>(it->second)]++};
        Op op;
        op.kind = static_cast<Kind>(columns.kind[i]);
        op.lane = it->second;
        op.row = i;
        op.call = columns.call[i];
        if (columns.chan_in[i] >= 0) {
            op.in_peer = channels[static_cast<std::size_t>(columns.chan_in[i])].src;
            op.in_depth = channels[static_cast<std::size_t>(columns.chan_in[i])].depth;
            op.in_tag = tag[static_cast<std::size_t>(columns.chan_in[i])] + (op.kind == Kind::wait);
        }
        if (columns.chan_out[i] >= 0) {
            const ChannelRow& channel = channels[static_cast<std::size_t>(columns.chan_out[i])];
            op.out_peer = channel.dst;
            op.out_tag = tag[static_cast<std::size_t>(columns.chan_out[i])] + (op.kind == Kind::signal);
            op.out_depth = op.kind == Kind::signal ? std::numeric_limits<int>::max() : channel.depth;
        }
        op.reads = spans(columns.reads, i, memory, share.bases);
        op.writes = spans(columns.writes, i, memory, share.bases);
        auto& lane = share.lanes[static_cast<std::size_t>(op.lane)];
        lane.second = lane.second || meets_others(op.kind);
        share.ops.push_back(std::move(op));
    }
    for (auto& op : share.ops)
        for (std::int64_t d = columns.dep_start[op.row]; d < columns.dep_start[op.row + 1]; ++d)
            op.after.push_back(place[static_cast<std::size_t>(columns.dep[d])]);
    std::map<std::int64_t, const PartsRow*> parts_of;
    for (const auto& each : parts) parts_of[each.row] = &each;
    for (auto& op : share.ops)
        if (const auto found = parts_of.find(op.row); found != parts_of.end())
            op.in_place = found->second->in_place, op.counts = found->second->counts;
    for (const auto& [buffer, offset, count, divisor] : quotients)
        share.quotients.push_back({span_of({buffer, offset, count, 0, 1}, memory, share.bases), divisor});
    return share;
}

}  // namespace dovetail::run
