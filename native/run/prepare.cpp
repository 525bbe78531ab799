// Facts about the ops of an engine, found before a run: channels, which ops must end before each begins, and which
// ops overwrite the bytes that a message is sent from.
#include <algorithm>
#include <map>

#include "run/engine.hpp"

namespace dovetail::run {

void Engine::index_ops() {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        Lane& lane = lanes_[static_cast<std::size_t>(ops_[i].lane)];
        index_.push_back(lane.size());
        lane.ops.push_back(static_cast<int>(i));
    }
    moves_.resize(ops_.size());
    index_messages();
    index_writers();
    asked_.resize(static_cast<std::size_t>(transport_.size()) + 1);
    lane_end_.resize(lanes_.size());
}

void Engine::index_messages() {
    std::map<std::pair<int, int>, int> in, out;
    const auto number = [](auto& known, int peer, int tag) {
        return known.emplace(std::pair{peer, tag}, static_cast<int>(known.size())).first->second;
    };
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        const Op& op = ops_[i];
        Move& move = moves_[i];
        move.kind = op.kind;
        move.receives = receives(op.kind);
        move.sends = sends(op.kind);
        move.read = op.reads.empty() ? nullptr : &op.reads[0];
        move.write = op.writes.empty() ? nullptr : &op.writes[0];
        if (move.receives) move.in = number(in, op.in_peer, op.in_tag), move.peer = op.in_peer;
        if (move.sends) move.fifo = number(out, op.out_peer, op.out_tag), move.depth = op.out_depth;
        const Span* moved = move.write ? move.write : move.read;
        if (op.kind == Kind::send) moved = move.source = move.read;
        if (move.receives && move.sends && op.kind != Kind::recv_reduce_send) move.source = move.write;
        if ((move.receives || move.sends) && moved) move.bytes = moved->num_bytes();
        move.in_place = move.receives && move.write && !adds(op.kind) && move.write->contiguous();
        move.piecewise = move.in_place || !moved;
        if (adds(op.kind)) {
            const Span &src = *move.read, &dst = move.write ? *move.write : *move.read;
            const bool same = src.buffer == dst.buffer && src.offset == dst.offset;
            move.piecewise = src.contiguous() && dst.contiguous() && (same || !overlap(src, dst));
        }
    }
    inbound_.resize(in.size());
    fifos_.resize(out.size());
    std::map<int, int> channels;  // to each peer
    for (const auto& [channel, fifo] : out) ++channels[channel.first];
    for (const auto& [channel, fifo] : out)
        fifos_[static_cast<std::size_t>(fifo)].period = std::max(1, unasked / channels[channel.first]);
}

// Finds the ops that overwrite the source of each send: the message can be sent from there once all these have ended.
void Engine::index_writers() {
    struct Write {
        std::int64_t begin, end;
        int op;
    };
    std::map<int, std::vector<Write>> by_buffer;
    std::map<int, std::int64_t> longest;
    for (std::size_t i = 0; i < ops_.size(); ++i)
        for (const auto& w : ops_[i].writes) {
            if (w.num_bytes() == 0) continue;
            const Write write{w.offset, w.end(), static_cast<int>(i)};
            written_.insert(w.buffer);
            by_buffer[w.buffer].push_back(write);
            longest[w.buffer] = std::max(longest[w.buffer], write.end - write.begin);
        }
    for (auto& [buffer, writes] : by_buffer)
        std::sort(writes.begin(), writes.end(), [](const Write& a, const Write& b) { return a.begin < b.begin; });
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        Move& move = moves_[i];
        if (!move.source || move.bytes == 0) continue;
        const Span& span = *move.source;
        const auto& writes = by_buffer[span.buffer];
        auto it = std::lower_bound(writes.begin(), writes.end(), span.offset - longest[span.buffer],
                                   [](const Write& w, std::int64_t begin) { return w.begin < begin; });
        for (; it != writes.end() && it->begin < span.end(); ++it) {
            if (it->end <= span.offset || it->op == static_cast<int>(i)) continue;
            move.writers.push_back(it->op);
            const Op& writer = ops_[static_cast<std::size_t>(it->op)];
            move.computed = move.computed || !lanes_[static_cast<std::size_t>(writer.lane)].net;
        }
    }
}

// An op of a net lane begins once earlier ones that touch the same bytes have ended, at most `window` at a time.
void Engine::look_behind(int window) {
    constexpr std::int64_t collective_window = 2;  // more would share the network, and end no sooner
    window_ = window;
    for (auto& lane : lanes_) {
        if (!lane.net) continue;
        const auto most = std::min<std::int64_t>(window, std::max<std::int64_t>(lane.size(), 1));
        lane.flights.resize(std::bit_ceil(static_cast<std::size_t>(most)));
        for (std::int64_t k = 0; k < lane.size(); ++k) {
            const auto op = static_cast<std::size_t>(lane.ops[static_cast<std::size_t>(k)]);
            const bool collective = ops_[op].kind == Kind::collective;
            const auto first =
                std::max<std::int64_t>(0, k + 1 - (collective ? std::min(collective_window, most) : most));
            auto& behind = moves_[op].behind;
            for (behind = k; behind > first; --behind) {
                const auto other = static_cast<std::size_t>(lane.ops[static_cast<std::size_t>(behind - 1)]);
                if (conflict(ops_[op], ops_[other])) break;
            }
        }
    }
}

}  // namespace dovetail::run
