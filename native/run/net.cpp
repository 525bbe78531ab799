// Net lanes of the engine: messages and collectives in flight, polled by either thread.
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

constexpr int collective_window = 2;  // more would share the wire without finishing sooner

}  // namespace

void Engine::begin(Flight& flight) {
    const Op& op = ops_[static_cast<std::size_t>(flight.op)];
    flight.begun_s = clock_();
    if (op.kind == Kind::collective) return begin_collective(op, flight);
    if (receives(op.kind)) return begin_receive(op, flight);
    flight.stage = sends(op.kind) ? Flight::sending : Flight::ended;
    if (flight.stage == Flight::ended) execute(op, 0, {});
}

void Engine::begin_receive(const Op& op, Flight& flight) {
    const Span* into = !op.writes.empty() ? &op.writes[0] : op.reads.empty() ? nullptr : &op.reads[0];
    const long long bytes = into ? into->num_bytes() : 0;
    const bool in_place = into && !op.writes.empty() && !adds(op.kind) && into->contiguous();
    if (!in_place) flight.staging.resize(static_cast<std::size_t>(bytes));
    flight.handle = transport_.irecv(in_place ? into->data() : flight.staging.data(), bytes, op.in_peer, op.in_tag);
}

// MPI allows no overlap of what is sent and what is received, other than an all_reduce in place.
void Engine::begin_collective(const Op& op, Flight& flight) {
    const Collective& call = collectives_[static_cast<std::size_t>(op.call)];
    const bool broadcast = call.kind == DT_BROADCAST;
    const Span dst = op.writes.empty() ? op.reads[0] : op.writes[0];
    const Span src = broadcast || op.reads.empty() ? dst : op.reads[0];
    if (broadcast && call.root && !op.writes.empty()) copy_spans(op.reads[0], dst);
    std::byte* from = packed_data(src, flight.packed);
    flight.staging.resize(dst.contiguous() ? 0 : static_cast<std::size_t>(dst.num_bytes()));
    std::byte* to = dst.contiguous() ? dst.data() : flight.staging.data();
    const bool in_place = call.kind == DT_ALL_REDUCE && from == to;
    if (broadcast && to != dst.data()) gather(dst, to);
    if (!broadcast && !in_place && flight.packed.empty() && overlap(src, dst)) {
        flight.packed.assign(from, from + src.num_bytes());
        from = flight.packed.data();
    }
    long long count = call.kind == DT_REDUCE_SCATTER || broadcast ? elements(dst) : elements(src);
    if (call.kind == DT_ALL_TO_ALL) count /= call.size;
    if (blocking_) {
        transport_.collective(call.kind, from, to, count, dst.dtype, reduce_op_, call.group);
        if (!dst.contiguous()) scatter(to, dst);
        flight.stage = Flight::ended;
        return;
    }
    flight.handle = transport_.icollective(call.kind, from, to, count, dst.dtype, reduce_op_, call.group);
}

void Engine::take_message(const Op& op, Flight& flight) {
    if (op.kind == Kind::recv_reduce_send) {
        std::vector<std::byte> packed;
        const std::byte* src = packed_data(op.reads[0], packed);
        combine(op.reads[0].dtype, reduce_op_, src, flight.staging.data(), flight.staging.data(),
                elements(op.reads[0]));
    } else if (adds(op.kind)) {
        combine_spans(reduce_op_, op.reads[0], flight.staging.data(), op.writes[0]);
    } else if (!op.writes.empty() && !op.writes[0].contiguous()) {
        scatter(flight.staging.data(), op.writes[0]);
    }
}

// True when the flight moved on.
bool Engine::receive(Flight& flight) {
    if (!transport_.test(flight.handle)) return false;
    const Op& op = ops_[static_cast<std::size_t>(flight.op)];
    take_message(op, flight);
    flight.stage = sends(op.kind) ? Flight::sending : Flight::ended;
    if (flight.stage == Flight::ended) stamp(flight.op, flight.begun_s, clock_());
    touch();
    return true;
}

bool Engine::must_copy(int op) const {
    const auto& writers = writers_[static_cast<std::size_t>(op)];
    return !std::all_of(writers.begin(), writers.end(), [&](int writer) { return is_done(writer); });
}

// Puts the message into its channel's FIFO. The op has then ended: what could overwrite the data is sent from a copy.
bool Engine::send(Flight& flight) {
    const Op& op = ops_[static_cast<std::size_t>(flight.op)];
    auto& fifo = outgoing_[static_cast<std::size_t>(out_slot_[static_cast<std::size_t>(flight.op)])];
    if (static_cast<int>(fifo.size()) >= op.out_depth) return false;
    Outgoing message;
    message.op = flight.op;
    message.begun_s = receives(op.kind) ? flight.begun_s : clock_();
    const Span* from = op.kind == Kind::signal ? nullptr
                       : op.kind == Kind::send ? &op.reads[0]
                       : op.writes.empty()     ? nullptr
                                               : &op.writes[0];
    const std::byte* data = nullptr;
    long long bytes = from ? from->num_bytes() : 0;
    if (op.kind == Kind::recv_reduce_send) {
        message.staging = std::move(flight.staging);
        data = message.staging.data();
        bytes = static_cast<long long>(message.staging.size());
    } else if (from && (!from->contiguous() || must_copy(flight.op))) {
        message.staging.resize(static_cast<std::size_t>(bytes));
        gather(*from, message.staging.data());
        data = message.staging.data();
    } else if (from) {
        data = from->data();
    }
    message.handle = transport_.isend(data, bytes, op.out_peer, op.out_tag);
    fifo.push_back(std::move(message));
    ++unsent_;
    flight.stage = Flight::ended;
    touch();
    return true;
}

bool Engine::drain() {
    bool moved = false;
    for (auto& fifo : outgoing_) {
        while (!fifo.empty() && transport_.test(fifo.front().handle)) {
            stamp(fifo.front().op, fifo.front().begun_s, clock_());
            fifo.pop_front();
            --unsent_;
            moved = true;
        }
    }
    if (moved) touch();
    return moved;
}

bool Engine::issue(Lane& lane, std::deque<Flight>& flights) {
    if (lane.issued == static_cast<std::int64_t>(lane.ops.size())) return false;
    const int index = lane.ops[static_cast<std::size_t>(lane.issued)];
    const Op& op = ops_[static_cast<std::size_t>(index)];
    const int limit = op.kind == Kind::collective ? std::min(collective_window, window_) : window_;
    if (static_cast<int>(flights.size()) >= limit || !ready(op)) return false;
    for (const auto& flight : flights)
        if (conflict(op, ops_[static_cast<std::size_t>(flight.op)])) return false;
    flights.emplace_back();
    flights.back().op = index;
    begin(flights.back());
    if (flights.back().stage == Flight::ended) stamp(index, flights.back().begun_s, clock_());
    ++lane.issued;
    touch();
    return true;
}

// Moves the flights of one lane: messages in order for each peer, sends in order for each channel.
bool Engine::serve(std::deque<Flight>& flights) {
    bool moved = false;
    std::vector<int> waiting_on;            // peers whose oldest message has not come: later ones have not either
    std::vector<std::pair<int, int>> held;  // channels on which an earlier flight has yet to send
    for (auto& flight : flights) {
        const Op& op = ops_[static_cast<std::size_t>(flight.op)];
        if (flight.stage == Flight::receiving &&
            std::find(waiting_on.begin(), waiting_on.end(), op.in_peer) == waiting_on.end()) {
            if (receive(flight))
                moved = true;
            else
                waiting_on.push_back(op.in_peer);
        }
        const std::pair out{op.out_peer, op.out_tag};
        const bool blocked = std::find(held.begin(), held.end(), out) != held.end();
        if (flight.stage == Flight::sending && !blocked && send(flight)) moved = true;
        if (flight.stage != Flight::ended && sends(op.kind)) held.push_back(out);
    }
    return moved;
}

bool Engine::poll_lane(Lane& lane, std::deque<Flight>& flights) {
    bool any = false;
    for (bool moved = true; moved; any = any || moved) {
        moved = serve(flights);
        while (!flights.empty() && flights.front().stage == Flight::ended) {
            flights.pop_front();
            lane.done.fetch_add(1, std::memory_order_release);
        }
        while (issue(lane, flights)) moved = true;
    }
    return any;
}

bool Engine::poll() {
    bool moved = drain();
    for (std::size_t i = 0; i < lanes_.size(); ++i)
        if (lanes_[i].net &&
            (!flights_[i].empty() || lanes_[i].issued < static_cast<std::int64_t>(lanes_[i].ops.size())))
            moved = poll_lane(lanes_[i], flights_[i]) || moved;
    return moved;
}

void Engine::progress_loop(const Options& options) {
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    try {
        while (!stop_ && !(finished(true) && unsent_ == 0)) {
            if (poll()) continue;
            if (computing_.load(std::memory_order_relaxed) > 0)
                std::this_thread::sleep_for(std::chrono::duration<double>(options.poll_s));
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
