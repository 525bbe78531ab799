// Facts about the ops of an engine, found before a run: channels, which ops must end before each begins, and which
// ops overwrite the bytes that a message is sent from.
#include <algorithm>
#include <map>

#include "run/engine.hpp"

namespace dovetail::run {

namespace {

// What ops read, or what they write, by buffer and place.
class Accesses {
  public:
    Accesses(std::vector<Op>& ops, std::vector<Span> Op::* side) {
        for (std::size_t i = 0; i < ops.size(); ++i)
            for (auto& span : ops[i].*side) {
                if (span.num_bytes() == 0) continue;
                Buffer& held = buffers_[span.buffer];
                held.accesses.push_back({&span, static_cast<int>(i)});
                held.longest = std::max(held.longest, span.end() - span.offset);
            }
        for (auto& [buffer, held] : buffers_)
            std::sort(held.accesses.begin(), held.accesses.end(),
                      [](const Access& a, const Access& b) { return a.span->offset < b.span->offset; });
    }

    // Calls `f(op, its span)` for each that may touch bytes of `span`: by bounding ranges, as `overlap`.
    template <class F>
    void for_each(const Span& span, F f) const {
        const auto found = buffers_.find(span.buffer);
        if (found == buffers_.end()) return;
        const auto& [accesses, longest] = found->second;
        auto it = std::lower_bound(accesses.begin(), accesses.end(), span.offset - longest,
                                   [](const Access& a, std::int64_t begin) { return a.span->offset < begin; });
        for (; it != accesses.end() && it->span->offset < span.end(); ++it)
            if (it->span->end() > span.offset) f(it->op, *it->span);
    }

  private:
    struct Access {
        Span* span;
        int op;
    };
    struct Buffer {
        std::vector<Access> accesses;
        std::int64_t longest = 0;
    };
    std::map<int, Buffer> buffers_;
};

// Whether it goes to its operands by their spans, as kernels of Python do not.
bool goes_by_address(const Op& op) {
    return op.kind == Kind::copy || op.kind == Kind::reduce ||
           (op.kind == Kind::compute && (op.product.m >= 0 || op.function.call));
}

}  // namespace

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
        inbound_.resize(in.size());
        if (move.receives) ++inbound_[static_cast<std::size_t>(move.in)].ops;
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
    fifos_.resize(out.size());
    std::map<int, int> channels;  // to each peer
    for (const auto& [channel, fifo] : out) ++channels[channel.first];
    for (const auto& [channel, fifo] : out)
        fifos_[static_cast<std::size_t>(fifo)].period = std::max(1, unasked / channels[channel.first]);
}

// Finds the ops that overwrite the source of each send: the message can be sent from there once all these have ended.
void Engine::index_writers() {
    const Accesses writes(ops_, &Op::writes);
    for (const auto& op : ops_)
        for (const auto& w : op.writes)
            if (w.num_bytes()) written_.insert(w.buffer);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        Move& move = moves_[i];
        if (!move.source || move.bytes == 0) continue;
        writes.for_each(*move.source, [&](int writer, const Span&) {
            if (writer == static_cast<int>(i)) return;
            move.writers.push_back(writer);
            move.computed = move.computed || !is_net(writer);
        });
    }
}

// Which ops read what each receive leaves in scratch memory, where the message may as well stay with its sender until
// they have ended: each reads nothing but what came with it, on a compute lane and by its address, and nothing
// overwrites it. Its channel holds all messages of a run, so that no sender waits for them to be given back.
void Engine::index_readers(const std::vector<bool>& scratch) {
    const Accesses reads(ops_, &Op::reads), writes(ops_, &Op::writes);
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        Move& move = moves_[i];
        if (!move.in_place || move.sends || move.bytes == 0) continue;
        const Span& whole = *move.write;
        bool stays = scratch[static_cast<std::size_t>(whole.buffer)] &&
                     inbound_[static_cast<std::size_t>(move.in)].ops <= ops_[i].in_depth;
        std::vector<int> readers;
        std::vector<Span*> read;
        if (stays) writes.for_each(whole, [&](int op, const Span&) { stays = stays && op == static_cast<int>(i); });
        if (stays)
            reads.for_each(whole, [&](int reader, Span& span) {
                stays = stays && span.offset >= whole.offset && span.end() <= whole.end() && !is_net(reader) &&
                        goes_by_address(ops_[static_cast<std::size_t>(reader)]);
                readers.push_back(reader);
                read.push_back(&span);
            });
        if (!stays || readers.empty()) continue;
        move.readers = std::move(readers);
        for (Span* span : read) span->base = &move.place;
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
