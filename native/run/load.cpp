// Picks one rank's ops out of a Program and binds their regions to memory.
#include "run/load.hpp"

#include <limits>
#include <map>
#include <stdexcept>

namespace dovetail::run {

namespace {

std::vector<Span> spans(const Regions& regions, std::int64_t op, const std::vector<Memory>& memory) {
    std::vector<Span> out;
    for (std::int64_t row = regions.start[op]; row < regions.start[op + 1]; ++row) {
        const int buffer = regions.buffer[row];
        const Memory& home = memory[static_cast<std::size_t>(buffer)];
        Span span;
        span.base = home.base;
        span.offset = regions.offset[row] * home.slot_bytes;
        span.count = regions.count[row] * home.slot_bytes;
        span.stride = regions.stride[row] * home.slot_bytes;
        span.blocks = regions.blocks[row];
        span.slots = regions.count[row] * regions.blocks[row];
        span.buffer = buffer;
        span.dtype = home.dtype;
        out.push_back(span);
    }
    return out;
}

constexpr int max_tag = 16000;  // below those that control messages use, and below what MPI grants

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
           const std::vector<ChannelRow>& channels, const std::vector<Memory>& memory) {
    Share share;
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
            op.in_tag = tag[static_cast<std::size_t>(columns.chan_in[i])] + (op.kind == Kind::wait);
        }
        if (columns.chan_out[i] >= 0) {
            const ChannelRow& channel = channels[static_cast<std::size_t>(columns.chan_out[i])];
            op.out_peer = channel.dst;
            op.out_tag = tag[static_cast<std::size_t>(columns.chan_out[i])] + (op.kind == Kind::signal);
            op.out_depth = op.kind == Kind::signal ? std::numeric_limits<int>::max() : channel.depth;
        }
        op.reads = spans(columns.reads, i, memory);
        op.writes = spans(columns.writes, i, memory);
        auto& lane = share.lanes[static_cast<std::size_t>(op.lane)];
        lane.second = lane.second || meets_others(op.kind);
        share.ops.push_back(std::move(op));
    }
    for (auto& op : share.ops)
        for (std::int64_t d = columns.dep_start[op.row]; d < columns.dep_start[op.row + 1]; ++d)
            op.after.push_back(place[static_cast<std::size_t>(columns.dep[d])]);
    return share;
}

}  // namespace dovetail::run
