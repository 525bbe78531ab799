// The engine of the executors: see engine.hpp.
#include "run/engine.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace dovetail::run {

namespace {

constexpr int collective_window = 2;  // more would share the wire without finishing sooner
const char* const kind_names[] = {"nop",
                                  "copy",
                                  "reduce",
                                  "send",
                                  "recv",
                                  "recv_reduce",
                                  "recv_copy_send",
                                  "recv_reduce_send",
                                  "recv_reduce_copy_send",
                                  "put",
                                  "signal",
                                  "wait",
                                  "compute",
                                  "collective"};

bool receives(Kind kind) {
    return kind == Kind::recv || kind == Kind::wait ||
           (kind >= Kind::recv_reduce && kind <= Kind::recv_reduce_copy_send);
}
bool sends(Kind kind) {
    return kind == Kind::send || kind == Kind::signal ||
           (kind >= Kind::recv_copy_send && kind <= Kind::recv_reduce_copy_send);
}
bool adds(Kind kind) {
    return kind == Kind::recv_reduce || kind == Kind::recv_reduce_send || kind == Kind::recv_reduce_copy_send;
}

bool overlap(const Span& a, const Span& b) {  // by bounding range: conservative for strided spans
    if (a.buffer != b.buffer || a.num_bytes() == 0 || b.num_bytes() == 0) return false;
    const auto end = [](const Span& s) { return s.offset + s.stride * (s.blocks - 1) + s.count; };
    return a.offset < end(b) && b.offset < end(a);
}

bool overlap(const std::vector<Span>& a, const std::vector<Span>& b) {
    for (const auto& x : a)
        for (const auto& y : b)
            if (overlap(x, y)) return true;
    return false;
}

bool conflict(const Op& a, const Op& b) {
    return overlap(a.writes, b.reads) || overlap(a.reads, b.writes) || overlap(a.writes, b.writes);
}

void gather(const Span& span, std::byte* to) {
    for (std::int64_t i = 0; i < span.blocks; ++i)
        std::memcpy(to + i * span.count, span.data() + i * span.stride, static_cast<std::size_t>(span.count));
}

void scatter(const std::byte* from, const Span& span) {
    for (std::int64_t i = 0; i < span.blocks; ++i)
        std::memcpy(span.data() + i * span.stride, from + i * span.count, static_cast<std::size_t>(span.count));
}

// The span's bytes in one piece: itself where contiguous, else gathered into `packed`.
std::byte* packed_data(const Span& span, std::vector<std::byte>& packed) {
    if (span.contiguous()) return span.data();
    packed.resize(static_cast<std::size_t>(span.num_bytes()));
    gather(span, packed.data());
    return packed.data();
}

long long elements(const Span& span) { return span.num_bytes() / dtype_bytes(span.dtype); }

void combine_spans(const Span& src, const std::byte* message, const Span& dst) {
    std::vector<std::byte> left, right;
    const std::byte* a = packed_data(src, left);
    if (dst.contiguous()) return combine(dst.dtype, DT_SUM, a, message, dst.data(), elements(dst));
    right.resize(static_cast<std::size_t>(dst.num_bytes()));
    combine(dst.dtype, DT_SUM, a, message, right.data(), elements(dst));
    scatter(right.data(), dst);
}

void copy_spans(const Span& src, const Span& dst) {
    std::vector<std::byte> packed;
    scatter(packed_data(src, packed), Span{dst.base, dst.offset, dst.count, dst.stride, dst.blocks});
}

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

Engine::Engine(Transport& transport, std::vector<Op> ops, std::vector<std::pair<int, bool>> lanes,
               std::vector<Collective> collectives, std::vector<Kernel> kernels,
               std::function<void(std::int64_t)> python)
    : transport_(transport),
      ops_(std::move(ops)),
      collectives_(std::move(collectives)),
      kernels_(std::move(kernels)),
      python_(std::move(python)) {
    for (const auto& [id, net] : lanes) {
        lanes_.emplace_back();
        lanes_.back().id = id;
        lanes_.back().net = net;
    }
    std::map<std::pair<int, int>, int> slots;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        Lane& lane = lanes_[static_cast<std::size_t>(ops_[i].lane)];
        index_.push_back(static_cast<std::int64_t>(lane.ops.size()));
        lane.ops.push_back(static_cast<int>(i));
        const bool out = sends(ops_[i].kind);
        const auto slot = slots.emplace(std::pair{ops_[i].out_peer, ops_[i].out_tag}, static_cast<int>(slots.size()));
        out_slot_.push_back(out ? slot.first->second : -1);
    }
    outgoing_.resize(slots.size());
    flights_.resize(lanes_.size());
    lane_end_.resize(lanes_.size());
    index_writers();
}

// Which ops write what each sending op sends: a message may stay in place only while none of them is to come.
void Engine::index_writers() {
    struct Write {
        std::int64_t begin, end;
        int op;
    };
    std::map<int, std::vector<Write>> by_buffer;
    std::map<int, std::int64_t> longest;
    for (std::size_t i = 0; i < ops_.size(); ++i)
        for (const auto& w : ops_[i].writes) {
            const Write write{w.offset, w.offset + w.stride * (w.blocks - 1) + w.count, static_cast<int>(i)};
            by_buffer[w.buffer].push_back(write);
            longest[w.buffer] = std::max(longest[w.buffer], write.end - write.begin);
        }
    for (auto& [buffer, writes] : by_buffer)
        std::sort(writes.begin(), writes.end(), [](const Write& a, const Write& b) { return a.begin < b.begin; });
    writers_.resize(ops_.size());
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        if (out_slot_[i] < 0 || ops_[i].kind == Kind::recv_reduce_send) continue;
        const auto& sent = ops_[i].kind == Kind::send ? ops_[i].reads : ops_[i].writes;
        for (const auto& span : sent) {
            const auto& writes = by_buffer[span.buffer];
            const std::int64_t end = span.offset + span.stride * (span.blocks - 1) + span.count;
            auto it = std::lower_bound(writes.begin(), writes.end(), span.offset - longest[span.buffer],
                                       [](const Write& w, std::int64_t begin) { return w.begin < begin; });
            for (; it != writes.end() && it->begin < end; ++it)
                if (it->end > span.offset && it->op != static_cast<int>(i)) writers_[i].push_back(it->op);
        }
    }
}

bool Engine::is_done(int op) const {
    return lanes_[static_cast<std::size_t>(ops_[static_cast<std::size_t>(op)].lane)].done.load(
               std::memory_order_acquire) > index_[static_cast<std::size_t>(op)];
}

bool Engine::ready(const Op& op) const {
    return std::all_of(op.after.begin(), op.after.end(), [&](const auto& dep) {
        return lanes_[static_cast<std::size_t>(dep.first)].done.load(std::memory_order_acquire) > dep.second;
    });
}

bool Engine::must_copy(int op) const {
    const auto& writers = writers_[static_cast<std::size_t>(op)];
    return !std::all_of(writers.begin(), writers.end(), [&](int writer) { return is_done(writer); });
}

void Engine::stamp(int op, double begin, double end) {
    const auto i = static_cast<std::size_t>(op);
    double& last = lane_end_[static_cast<std::size_t>(ops_[i].lane)];
    start_s[i] = std::min(std::max(begin, last), end);  // a lane is in order: a span starts after the one before
    end_s[i] = end;
    last = std::max(last, end);
}

bool Engine::finished(bool net) const {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
        return lane.net != net ||
               lane.done.load(std::memory_order_acquire) == static_cast<std::int64_t>(lane.ops.size());
    });
}

void Engine::fail(const std::string& why) {
    const std::lock_guard lock(failing_);
    if (failure_.empty()) failure_ = why;
    stop_ = true;
}

// ---- net lanes ----

void Engine::begin(Flight& flight) {
    const Op& op = ops_[static_cast<std::size_t>(flight.op)];
    flight.begun_s = clock_();
    if (op.kind == Kind::collective) {
        const Collective& call = collectives_[static_cast<std::size_t>(op.call)];
        const Span src = op.reads.empty() ? Span{} : op.reads[0], dst = op.writes.empty() ? Span{} : op.writes[0];
        if (call.kind == DT_BROADCAST && !op.reads.empty() && src.num_bytes()) copy_spans(src, dst);
        std::byte* from = packed_data(src, flight.packed);
        flight.staging.resize(dst.contiguous() ? 0 : static_cast<std::size_t>(dst.num_bytes()));
        std::byte* to = dst.contiguous() ? dst.data() : flight.staging.data();
        long long count = call.kind == DT_REDUCE_SCATTER || call.kind == DT_BROADCAST ? elements(dst) : elements(src);
        if (call.kind == DT_ALL_TO_ALL) count /= call.size;
        flight.handle = transport_.icollective(call.kind, from, to, count, dst.dtype, call.reduce_op, call.group);
    } else if (receives(op.kind)) {
        const Span* into = op.writes.empty() ? (op.reads.empty() ? nullptr : &op.reads[0]) : &op.writes[0];
        const long long bytes = into ? into->num_bytes() : 0;
        const bool in_place = into && !op.writes.empty() && !adds(op.kind) && into->contiguous();
        if (!in_place) flight.staging.resize(static_cast<std::size_t>(bytes));
        flight.handle = transport_.irecv(in_place ? into->data() : flight.staging.data(), bytes, op.in_peer, op.in_tag);
    } else {
        flight.stage = sends(op.kind) ? Flight::sending : Flight::ended;
    }
}

void Engine::take_message(const Op& op, Flight& flight) {
    if (op.kind == Kind::recv_reduce_send) {
        std::vector<std::byte> packed;
        const std::byte* src = packed_data(op.reads[0], packed);
        combine(op.reads[0].dtype, DT_SUM, src, flight.staging.data(), flight.staging.data(), elements(op.reads[0]));
    } else if (adds(op.kind)) {
        combine_spans(op.reads[0], flight.staging.data(), op.writes[0]);
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
            if (computing_.load(std::memory_order_relaxed))
                nap(options.poll_s);
            else
                sched_yield();
        }
    } catch (const TransportError& error) {
        fail(error.message);
    }
}

// ---- compute lanes ----

void Engine::execute(const Op& op, const Options& options) {
    if (op.kind == Kind::copy) return copy_spans(op.reads[0], op.writes[0]);
    if (op.kind == Kind::reduce) {
        std::vector<std::byte> packed;
        return combine_spans(op.writes[0], packed_data(op.reads[0], packed), op.writes[0]);
    }
    if (op.kind != Kind::compute) return;
    const Kernel& kernel = kernels_[static_cast<std::size_t>(op.call)];
    if (!kernel.matmul) return python_(op.row);
    const auto between = options.thread ? std::function<void()>() : [this] { poll(); };
    (*kernel.matmul)(op.reads[0].data(), op.reads[1].data(), op.writes[0].data(), op.writes[0].slots,
                     options.block_rows, between);
}

bool Engine::step_compute(const Options& options) {
    bool moved = false;
    for (auto& lane : lanes_) {
        if (lane.net) continue;
        while (lane.issued < static_cast<std::int64_t>(lane.ops.size()) && !stop_) {
            const int index = lane.ops[static_cast<std::size_t>(lane.issued)];
            const Op& op = ops_[static_cast<std::size_t>(index)];
            if (!ready(op)) break;
            computing_ = true;
            const double begin = clock_();
            execute(op, options);
            stamp(index, begin, clock_());
            computing_ = false;
            ++lane.issued;
            lane.done.fetch_add(1, std::memory_order_release);
            touch();
            moved = true;
            if (!options.thread) poll();
        }
    }
    return moved;
}

void Engine::wait_for_net(const Options& options) {
    if (options.thread)
        nap(10e-6);
    else if (!poll())
        sched_yield();
    if (stalled(options)) fail(explain_stall(options));
}

bool Engine::stalled(const Options& options) const {
    return !computing_ && clock_() - last_progress_.load() > options.stall_s;
}

std::string Engine::explain_stall(const Options& options) const {
    std::string text = "rank " + std::to_string(transport_.rank()) + " stalled: no op moved for " +
                       std::to_string(static_cast<int>(std::ceil(options.stall_s))) + " s";
    for (const auto& lane : lanes_) {
        const auto done = lane.done.load();
        if (done == static_cast<std::int64_t>(lane.ops.size())) continue;
        const Op& op = ops_[static_cast<std::size_t>(lane.ops[static_cast<std::size_t>(done)])];
        text += "\n  lane " + std::to_string(lane.id) + " waits at its op " + std::to_string(done) + " '" +
                kind_names[static_cast<int>(op.kind)] + "' (row " + std::to_string(op.row) + ")";
        if (!ready(op))
            text += " for an op of another lane";
        else if (receives(op.kind))
            text += " for a message from rank " + std::to_string(op.in_peer);
        else if (sends(op.kind))
            text += " for rank " + std::to_string(op.out_peer) + " to take earlier messages";
        else if (op.kind == Kind::collective)
            text += " for the other members of its group";
    }
    for (const auto& fifo : outgoing_)
        if (!fifo.empty())
            text += "\n  a message of row " + std::to_string(ops_[static_cast<std::size_t>(fifo.front().op)].row) +
                    " to rank " + std::to_string(ops_[static_cast<std::size_t>(fifo.front().op)].out_peer) +
                    " was never taken";
    return text;
}

std::string Engine::run(const Options& options, double (*clock)()) {
    clock_ = clock;
    window_ = std::max(options.window, 1);
    const double never = std::numeric_limits<double>::quiet_NaN();
    start_s.assign(ops_.size(), never);
    end_s.assign(ops_.size(), never);
    std::fill(lane_end_.begin(), lane_end_.end(), 0.0);
    for (auto& lane : lanes_) lane.issued = 0, lane.done = 0;
    for (auto& flights : flights_) flights.clear();
    for (auto& fifo : outgoing_) fifo.clear();
    for (auto& kernel : kernels_)
        if (kernel.matmul) kernel.matmul->forget();
    failure_.clear();
    unsent_ = 0;
    stop_ = computing_ = false;
    touch();
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    std::thread helper;
    if (options.thread) helper = std::thread([&] { progress_loop(options); });
    try {
        if (!options.thread) poll();
        while (!stop_ && !finished(false))
            if (!step_compute(options)) wait_for_net(options);
        while (!stop_ && !(finished(true) && unsent_ == 0)) wait_for_net(options);
    } catch (const TransportError& error) {
        fail(error.message);
    } catch (...) {
        stop_ = true;
        if (helper.joinable()) helper.join();
        throw;
    }
    if (helper.joinable()) helper.join();
    return failure_;
}

}  // namespace dovetail::run
