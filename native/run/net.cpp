// Net lanes of the engine: ops issued in order, messages received piece by piece, polled by either thread.
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "run/engine.hpp"
#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace dovetail::run {

namespace {

// The result of a collective: on a root that only sends, its source.
const std::vector<Span>& result_of(const Op& op) { return op.writes.empty() ? op.reads : op.writes; }

}  // namespace

bool Engine::issue(Lane& lane) {
    if (lane.issued == lane.size()) return false;
    const int op = lane.ops[static_cast<std::size_t>(lane.issued)];
    const Move& move = moves_[static_cast<std::size_t>(op)];
    if (lane.done.load(std::memory_order_relaxed) < move.behind || !ready(ops_[static_cast<std::size_t>(op)]))
        return false;
    Flight& flight = lane.flight(lane.issued++);
    flight.op = op;
    begin(flight, move);
    touch();
    return true;
}

void Engine::begin(Flight& flight, const Move& move) {
    const Op& op = ops_[static_cast<std::size_t>(flight.op)];
    flight.begun = now();
    flight.pieces = flight.posted = flight.taken = 0;
    flight.message = -1;
    if (move.sends) flight.out_turn = fifos_[static_cast<std::size_t>(move.fifo)].issued++;
    if (op.kind == Kind::collective) return begin_collective(op, flight);
    if (move.receives) {
        flight.stage = Flight::receiving;
        flight.pieces = cut(move).pieces();
        flight.in_turn = inbound_[static_cast<std::size_t>(move.in)].issued++;
        post(flight, move);
    } else if (move.sends) {
        flight.stage = Flight::sending;
        send(flight, move);
    } else {
        protect(op.writes);
        execute(op, 0, {});
        end(flight);
    }
}

// MPI allows no overlap of source and result, except in place.
void Engine::begin_collective(const Op& op, Flight& flight) {
    const Collective& call = collectives_[static_cast<std::size_t>(op.call)];
    const bool broadcast = call.kind == DT_BROADCAST;
    const auto& dst = result_of(op);
    const auto& src = broadcast || op.reads.empty() ? dst : op.reads;
    protect(op.writes);
    if (broadcast && call.root && !op.writes.empty()) copy_spans(op.reads[0], dst[0]);
    std::byte* to = in_one_piece(dst);
    if (!to) {
        flight.staging = pool_.take(num_bytes(dst));
        to = flight.staging.data.get();
        if (broadcast) gather(dst, to);
    }
    const std::byte* from = broadcast ? to : in_one_piece(src);
    const bool in_place = broadcast || op.in_place || (call.kind == DT_ALL_REDUCE && from == to);
    if (!from || (!in_place && overlap(src, dst))) {
        flight.packed.resize(static_cast<std::size_t>(num_bytes(src)));
        gather(src, flight.packed.data());
        from = flight.packed.data();
    }
    flight.stage = Flight::receiving;
    flight.landing = to;
    flight.pieces = flight.posted = 1;
    const LibraryCall asked = library_call(op, call, from, to);
    if (blocking_ && !transport_.begun) {
        transport_.collective(asked);
        take_whole(flight, moves_[static_cast<std::size_t>(flight.op)]);
        return end(flight);
    }
    flight.handles[0] = transport_.icollective(asked);
    ++under_way_;
}

LibraryCall Engine::library_call(const Op& op, const Collective& call, const std::byte* from, std::byte* to) const {
    const auto& dst = result_of(op);
    const int dtype = dst[0].dtype;
    LibraryCall asked{call.kind, from, to, 0, nullptr, dtype, reduce_op_, call.group};
    if (!op.counts.empty()) {
        asked.counts = op.counts.data();
        asked.kind = call.kind == DT_ALL_GATHER       ? DT_ALL_GATHER_V
                     : call.kind == DT_REDUCE_SCATTER ? DT_REDUCE_SCATTER_V
                                                      : DT_ALL_TO_ALL_V;
        return asked;
    }
    const bool by_result = call.kind == DT_REDUCE_SCATTER || call.kind == DT_BROADCAST || op.reads.empty();
    asked.count = num_bytes(by_result ? dst : op.reads) / dtype_bytes(dtype);
    if (call.kind == DT_ALL_TO_ALL) asked.count /= call.size;
    return asked;
}

// Posts receives for the next pieces, in the channel's order of messages. Pieces arrive in place, or in staging memory.
// That has room for the whole message if it is forwarded from there or handled as a whole, else for a few pieces.
bool Engine::post(Flight& flight, const Move& move) {
    Inbound& in = inbound_[static_cast<std::size_t>(move.in)];
    if (flight.posted == flight.pieces || in.turn != flight.in_turn) return false;
    const Cut cut = this->cut(move);
    const bool some = move.piecewise && move.write;
    if (!move.in_place && flight.posted == 0 && move.bytes > 0) {
        flight.staging = pool_.take(some ? cut.some() : move.bytes);
        flight.landing = flight.staging.data.get();
    }
    const Op& op = ops_[static_cast<std::size_t>(flight.op)];
    const bool borrows = move.readers.empty() ? adds(move.kind) && move.piecewise : flight.pieces == 1;
    const int before = flight.posted;
    for (; flight.posted < flight.pieces && flight.posted - flight.taken < ahead; ++flight.posted) {
        const auto begin = cut.begin(flight.posted), size = cut.size(flight.posted);
        if (move.in_place) protect(*move.write, begin, size);
        std::byte* to = move.in_place ? move.write->data() + begin
                                      : flight.landing + (some ? flight.posted % ahead * cut.each : begin);
        const std::byte*& lent = flight.lent[flight.posted % ahead];
        lent = nullptr;
        flight.handles[flight.posted % ahead] = borrows ? transport_.borrow(to, size, op.in_peer, op.in_tag, &lent)
                                                        : transport_.irecv(to, size, op.in_peer, op.in_tag);
        ++in.under_way, ++under_way_;
    }
    if (flight.posted == flight.pieces) ++in.turn;
    return flight.posted > before;
}

// Tests the oldest receive and handles its piece if it has arrived. True if anything moved.
bool Engine::receive(Flight& flight, const Move& move) {
    const bool posted = move.receives && post(flight, move);
    if (flight.taken == flight.posted || !transport_.test(flight.handles[flight.taken % ahead])) return posted;
    --under_way_;
    if (move.receives)
        arrived(inbound_[static_cast<std::size_t>(move.in)]);
    else
        ran_dry_ = true;
    take_piece(flight, move, flight.taken++);
    if (flight.taken < flight.pieces) {
        post(flight, move);
    } else {
        if (!move.piecewise) take_whole(flight, move);
        flight.stage = Flight::sending;
        if (!move.sends) end(flight);
    }
    touch();
    return true;
}

// One that lies with its sender is added from there, or else read there by later ops; then it is given back.
void Engine::take_piece(Flight& flight, const Move& move, int piece) {
    const std::byte* lent = flight.lent[piece % ahead];
    if (move.in_place && lent) {
        moves_[static_cast<std::size_t>(flight.op)].place = const_cast<std::byte*>(lent) - move.write->offset;
        loans_.push_back({flight.op, flight.handles[piece % ahead]});
    }
    if (move.in_place || !move.piecewise || !move.read) return;
    const Cut cut = this->cut(move);
    const auto begin = cut.begin(piece), size = cut.size(piece);
    std::byte* here = flight.landing + (move.write ? piece % ahead * cut.each : begin);
    std::byte* to = move.write ? move.write->data() + begin : here;
    if (move.write) protect(*move.write, begin, size);
    combine(move.read->dtype, reduce_op_, move.read->data() + begin, lent ? lent : here, to,
            size / dtype_bytes(move.read->dtype));
    if (lent) loans_.push_back({flight.op, flight.handles[piece % ahead]});
}

// Gives back the messages that all their readers have read; true where there were any.
bool Engine::give_back() {
    const auto is_read = [&](const Loan& loan) {
        const auto& readers = moves_[static_cast<std::size_t>(loan.op)].readers;
        if (!std::all_of(readers.begin(), readers.end(), [&](int reader) { return is_done(reader); })) return false;
        if (!transport_.give_back(loan.handle)) return false;
        touch();
        return true;
    };
    return std::erase_if(loans_, is_read) > 0;
}

// Moves a message that is handled as a whole, or the result of a collective, from staging to its destination.
void Engine::take_whole(Flight& flight, const Move& move) {
    const std::byte* message = flight.landing;
    if (move.kind == Kind::collective) {
        if (flight.staging.data) scatter(message, result_of(ops_[static_cast<std::size_t>(flight.op)]));
    } else if (move.kind == Kind::recv_reduce_send) {
        std::vector<std::byte> packed;
        const std::byte* src = packed_data(*move.read, packed);
        combine(move.read->dtype, reduce_op_, src, message, flight.landing, elements(*move.read));
    } else if (adds(move.kind)) {
        protect(*move.write, 0, move.write->end() - move.write->offset);
        combine_spans(reduce_op_, *move.read, message, *move.write);
    } else if (move.write) {
        protect(*move.write, 0, move.write->end() - move.write->offset);
        scatter(message, *move.write);
    }
}

void Engine::end(Flight& flight) {
    if (!moves_[static_cast<std::size_t>(flight.op)].sends) stamp(flight.op, flight.begun, now());
    flight.stage = Flight::ended;
    pool_.give(flight.staging);
}

// After a failure: cancels posted receives, since the caller may free the memory that they would write to.
void Engine::abandon() {
    for (const Loan& loan : std::exchange(loans_, {})) transport_.cancel(loan.handle);
    for (auto& lane : lanes_)
        for (auto& flight : lane.flights) {
            if (flight.stage != Flight::receiving || !moves_[static_cast<std::size_t>(flight.op)].receives) continue;
            for (; flight.taken < flight.posted; ++flight.taken)
                transport_.cancel(flight.handles[flight.taken % ahead]);
        }
}

// Advances the flights of one lane. Only the oldest message of each peer is tested in a pass: if it has not come, later
// ones have not either.
bool Engine::serve(Lane& lane) {
    bool moved = false;
    for (auto k = lane.done.load(std::memory_order_relaxed); k < lane.issued; ++k) {
        Flight& flight = lane.flight(k);
        if (flight.stage == Flight::ended) continue;
        const Move& move = moves_[static_cast<std::size_t>(flight.op)];
        auto& asked = asked_[static_cast<std::size_t>(move.peer + 1)];
        if (flight.stage == Flight::receiving && asked != passes_) {
            moved = receive(flight, move) || moved;
            if (flight.stage == Flight::receiving) asked = passes_;
        }
        if (move.sends && flight.stage != Flight::ended) moved = send(flight, move) || moved;
    }
    return moved;
}

void Engine::retire(Lane& lane) {
    for (auto k = lane.done.load(std::memory_order_relaxed); k < lane.issued && lane.flight(k).stage == Flight::ended;
         ++k) {
        lane.end_one();
        --net_left_;
    }
}

// Tests all messages and library calls in flight, once.
bool Engine::pass() {
    bool moved = drain();
    moved = give_back() || moved;
    for (auto& lane : lanes_) {
        if (!lane.net || lane.done.load(std::memory_order_relaxed) == lane.size()) continue;
        ++passes_;
        moved = serve(lane) || moved;
        while (retire(lane), issue(lane)) moved = true;
    }
    if (net_left_ == 0 && unsent_ == 0 && loans_.empty()) net_done_.store(true, std::memory_order_release);
    return moved;
}

bool Engine::poll() {
    bool any = false;
    while (!net_done_.load(std::memory_order_relaxed) && pass()) any = true;
    return any;
}

void Engine::arrived(Inbound& in) {
    --in.under_way;
    if (--in.expected >= 0) (in.expected > 0 ? kept_on_ : ran_dry_) = true;
}

// A poll costs the computing thread more time than it takes itself. Polls become rarer while they find that only part
// of the posted pieces has arrived, so that no sender waits for the poll; more frequent if all had arrived. If nothing
// is in flight, no poll is needed until an op ends.
void Engine::rest(const Options& options) {
    constexpr double rarest = 16, slower = 1.25, faster = 0.25;
    const double least_s = options.poll_s, most_s = rarest * least_s;
    pause_s_ = std::clamp(pause_s_ * (ran_dry_ ? faster : kept_on_ ? slower : 1.0), least_s, most_s);
    ran_dry_ = kept_on_ = false;
    for (auto& in : inbound_) in.expected = in.under_way;
    std::this_thread::sleep_for(std::chrono::duration<double>(least_s));
    std::unique_lock lock(resting_);
    const double more_s = (under_way_ > 0 ? pause_s_ : most_s) - least_s;
    woken_.wait_for(lock, std::chrono::duration<double>(more_s), [&] { return wanted_; });
    wanted_ = false;
}

void Engine::wake() {
    const std::lock_guard lock(resting_);
    wanted_ = true;
    woken_.notify_one();
}

void Engine::progress_loop(const Options& options) {
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    try {
        while (!stop_ && !net_done_.load(std::memory_order_relaxed)) {
            if (poll()) continue;
            if (computing_.load(std::memory_order_relaxed) > 0 || transport_.rests)
                rest(options);
            else
                sched_yield();
        }
    } catch (const TransportError& error) {
        fail("rank " + std::to_string(transport_.rank()) + ": " + error.message);
    } catch (...) {
        fail(std::current_exception());
    }
}

}  // namespace dovetail::run
