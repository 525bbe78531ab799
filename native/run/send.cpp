// FIFOs of the engine: a message enters its channel's FIFO once a piece is available, and is sent piece by piece.
#include <algorithm>
#include <cstring>

#include "run/engine.hpp"

namespace dovetail::run {

namespace {

constexpr std::int64_t short_bytes = 1 << 14;  // sends up to this size are often complete when they return

}  // namespace

bool Engine::must_copy(const Move& move) const {
    return !std::all_of(move.writers.begin(), move.writers.end(), [&](int writer) { return is_done(writer); });
}

// Passes the pieces that are available to the FIFO. True if anything moved. The op ends with the last piece.
bool Engine::send(Flight& flight, const Move& move) {
    const bool all = flight.taken == flight.pieces;
    const int there = !move.receives ? cut(move).pieces() : all || move.piecewise ? flight.taken : 0;
    Fifo& fifo = fifos_[static_cast<std::size_t>(move.fifo)];
    if (flight.message < 0 && (there == 0 || !enter(flight, move, fifo))) return false;
    Outgoing& message = fifo[flight.message];
    if (message.available == there) return false;
    message.available = there;
    if (all) end(flight);
    start(fifo);
    touch();
    return true;
}

// Puts a message into its FIFO if it is the next one. From then on its bytes are in a copy, or in place under
// `protect`, which copies them before they are overwritten.
bool Engine::enter(Flight& flight, const Move& move, Fifo& fifo) {
    if (fifo.turn != flight.out_turn || fifo.size() >= move.depth) return false;
    const bool late = move.source && must_copy(move);
    const bool whole = move.source && (!move.source->contiguous() || (late && move.computed));
    if (whole && flight.taken < flight.pieces) return false;
    flight.message = fifo.end();
    Outgoing& message = fifo.push();
    message.op = flight.op;
    message.pieces = cut(move).pieces();
    message.available = message.started = message.left = message.copied = 0;
    message.begun = move.receives ? flight.begun : now();
    message.copies = late && !whole;
    if (whole) {
        message.whole = pool_.take(move.bytes);
        gather(*move.source, message.whole.data.get());
    } else if (move.kind == Kind::recv_reduce_send) {
        message.whole = std::move(flight.staging);
    }
    message.data = message.whole.data ? message.whole.data.get() : move.source ? move.source->data() : nullptr;
    exposed_ += message.copies;
    ++fifo.turn;
    ++unsent_;
    if (!fifo.active) active_.push_back(move.fifo);
    fifo.active = true;
    return true;
}

void Engine::start(Fifo& fifo) {
    for (; fifo.starting < fifo.end(); ++fifo.starting) {
        Outgoing& message = fifo[fifo.starting];
        const Move& move = moves_[static_cast<std::size_t>(message.op)];
        while (message.started < message.available && message.started - message.left < std::min(ahead, fifo.period)) {
            start_piece(fifo, message, move);
            const bool oldest = fifo.starting == fifo.begin() && message.left + 1 == message.started;
            if (oldest && move.bytes <= short_bytes && transport_.test(message.handles[message.left % ahead]))
                ++message.left, --under_way_;
        }
        if (message.started < message.pieces) break;
        exposed_ -= message.copies;
        message.copies = false;
    }
    leave(fifo);
}

void Engine::start_piece(Fifo& fifo, Outgoing& message, const Move& move) {
    const Cut cut = this->cut(move);
    const int piece = message.started++;
    const auto size = cut.size(piece);
    const std::byte* data = message.data + cut.begin(piece);
    if (piece < message.copied) {
        data = message.whole.data.get() + cut.begin(piece);
    } else if (message.copies) {
        if (!message.some.data) message.some = pool_.take(cut.some());
        auto* copy = message.some.data.get() + piece % ahead * cut.each;
        std::memcpy(copy, data, static_cast<std::size_t>(size));
        data = copy;
    }
    const Op& op = ops_[static_cast<std::size_t>(message.op)];
    const bool matched = ++fifo.pieces % fifo.period == 0;
    message.handles[piece % ahead] = transport_.isend(data, size, op.out_peer, op.out_tag, matched);
    ++under_way_;
}

// Removes messages from the FIFO whose last piece has been sent.
void Engine::leave(Fifo& fifo) {
    while (fifo.size() && fifo[fifo.begin()].left == fifo[fifo.begin()].pieces) {
        Outgoing& message = fifo[fifo.begin()];
        stamp(message.op, message.begun, now());
        pool_.give(message.whole);
        pool_.give(message.some);
        fifo.pop();
        --unsent_;
    }
}

bool Engine::drain() {
    bool moved = false;
    for (std::size_t i = 0; i < active_.size();) {
        Fifo& fifo = fifos_[static_cast<std::size_t>(active_[i])];
        while (fifo.size()) {
            Outgoing& message = fifo[fifo.begin()];
            if (message.left == message.started || !transport_.test(message.handles[message.left % ahead])) break;
            ++message.left;
            --under_way_;
            moved = true;
            touch();
            start(fifo);
        }
        fifo.active = fifo.size() > 0;
        if (fifo.active) {
            ++i;
        } else {
            active_[i] = active_.back();
            active_.pop_back();
        }
    }
    return moved;
}

// Called before `size` bytes from `begin` of a span are written: copies pieces there that are still to be sent.
void Engine::protect(const Span& span, std::int64_t begin, std::int64_t size) {
    if (exposed_ == 0 || size == 0) return;
    for (const int number : active_) {
        Fifo& fifo = fifos_[static_cast<std::size_t>(number)];
        for (auto i = fifo.starting; i < fifo.end(); ++i) {
            const Move& move = moves_[static_cast<std::size_t>(fifo[i].op)];
            if (!fifo[i].copies || move.source->buffer != span.buffer) continue;
            const auto first = span.offset + begin - move.source->offset, last = first + size - 1;
            if (last >= 0 && first < move.bytes)
                rescue(fifo[i], move, static_cast<int>(std::min(last, move.bytes - 1) / piece_bytes_));
        }
    }
}

void Engine::protect(const std::vector<Span>& spans) {
    for (const auto& span : spans)
        if (span.num_bytes()) protect(span, 0, span.end() - span.offset);
}

// Copies pieces up to `last`, except those not available yet: the message's own op has still to write them.
void Engine::rescue(Outgoing& message, const Move& move, int last) {
    const Cut cut = this->cut(move);
    const int first = std::max(message.started, message.copied);
    last = std::min(last, message.available - 1);
    if (last < first) return;
    if (!message.whole.data) message.whole = pool_.take(move.bytes);
    const auto begin = cut.begin(first), end = cut.begin(last) + cut.size(last);
    std::memcpy(message.whole.data.get() + begin, message.data + begin, static_cast<std::size_t>(end - begin));
    message.copied = last + 1;
}

}  // namespace dovetail::run
