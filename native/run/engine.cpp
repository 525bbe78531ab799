// The engine of the executors: see engine.hpp. Compute lanes, and a run from its start to its end.
#include "run/engine.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <thread>

#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace dovetail::run {

// While one lives, this rank computes: nobody takes that for a stall.
class Engine::Busy {
  public:
    explicit Busy(Engine& engine) : engine_(engine) {
        ++engine_.computing_;
        engine_.transport_.busy(true);
    }
    ~Busy() {
        engine_.touch();
        engine_.transport_.busy(false);
        --engine_.computing_;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

  private:
    Engine& engine_;
};

Engine::Engine(Transport& transport, Share share, bool in_order, std::vector<Collective> collectives,
               std::vector<Kernel> kernels, std::function<void(std::int64_t)> python)
    : transport_(transport),
      ops_(std::move(share.ops)),
      bases_(std::move(share.bases)),
      quotients_(std::move(share.quotients)),
      collectives_(std::move(collectives)),
      kernels_(std::move(kernels)),
      python_(std::move(python)),
      in_order_(in_order) {
    for (const auto& [id, net] : share.lanes) {
        lanes_.emplace_back();
        lanes_.back().id = id;
        lanes_.back().net = net;
    }
    std::map<std::pair<int, int>, int> slots;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
        Lane& lane = lanes_[static_cast<std::size_t>(ops_[i].lane)];
        index_.push_back(static_cast<std::int64_t>(lane.ops.size()));
        lane.ops.push_back(static_cast<int>(i));
        out_slot_.push_back(-1);
        if (!sends(ops_[i].kind)) continue;
        const auto slot = slots.emplace(std::pair{ops_[i].out_peer, ops_[i].out_tag}, static_cast<int>(slots.size()));
        out_slot_.back() = slot.first->second;
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
            if (w.num_bytes() == 0) continue;
            const Write write{w.offset, w.end(), static_cast<int>(i)};
            written_.insert(w.buffer);
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
            const std::int64_t end = span.num_bytes() ? span.end() : span.offset;
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

bool Engine::finished(bool net) const {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
        return lane.net != net ||
               lane.done.load(std::memory_order_acquire) == static_cast<std::int64_t>(lane.ops.size());
    });
}

bool Engine::computes() const {
    return std::any_of(ops_.begin(), ops_.end(), [](const Op& op) { return op.kind == Kind::compute; });
}

void Engine::stamp(int op, double begin, double end) {
    if (!stamping_) return;
    const auto i = static_cast<std::size_t>(op);
    double& last = lane_end_[static_cast<std::size_t>(ops_[i].lane)];
    start_s[i] = std::min(std::max(begin, last), end);  // a lane is in order: a span starts after the one before
    end_s[i] = end;
    last = std::max(last, end);
}

void Engine::fail(const std::string& why) {
    const std::lock_guard lock(failing_);
    if (failure_.empty()) failure_ = why;
    stop_ = true;
}

void Engine::fail(std::exception_ptr thrown) {
    const std::lock_guard lock(failing_);
    if (!thrown_) thrown_ = std::move(thrown);
    stop_ = true;
}

void Engine::execute(const Op& op, std::int64_t block_rows, const std::function<void()>& between) {
    if (op.kind == Kind::nop) return;
    const Busy busy(*this);
    if (op.kind == Kind::copy) return copy_spans(op.reads[0], op.writes[0]);
    if (op.kind == Kind::reduce) {
        std::vector<std::byte> packed;
        const std::byte* message = packed_data(op.reads[0], packed);
        if (packed.empty() && overlap(op.reads[0], op.writes[0])) {
            packed.assign(message, message + op.reads[0].num_bytes());
            message = packed.data();
        }
        return combine_spans(reduce_op_, op.writes[0], message, op.writes[0]);
    }
    if (op.kind != Kind::compute) return;
    const auto in_one_piece = [](const std::vector<Span>& spans) {
        return std::all_of(spans.begin(), spans.end(), [](const Span& span) { return span.contiguous(); });
    };
    Matmul* matmul = kernels_[static_cast<std::size_t>(op.call)].matmul;
    if (!matmul || overlap(op.reads, op.writes) || !in_one_piece(op.reads) || !in_one_piece(op.writes))
        return python_(op.row);
    const bool fixed = written_.count(op.reads[1].buffer) == 0;
    (*matmul)(op.reads[0].data(), op.reads[1].data(), fixed, op.writes[0].data(), op.writes[0].slots, block_rows,
              between);
}

bool Engine::step_compute(const Options& options) {
    bool moved = false;
    const auto between = options.thread ? std::function<void()>() : [this] { poll(); };
    for (auto& lane : lanes_) {
        if (lane.net) continue;
        while (lane.issued < static_cast<std::int64_t>(lane.ops.size()) && !stop_) {
            const int index = lane.ops[static_cast<std::size_t>(lane.issued)];
            const Op& op = ops_[static_cast<std::size_t>(index)];
            if (!ready(op)) break;
            const double begin = clock_();
            execute(op, options.block_rows, between);
            stamp(index, begin, clock_());
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
        std::this_thread::sleep_for(std::chrono::microseconds(10));
    else if (!poll())
        sched_yield();
    if (stalled(options)) stop_ = true;
}

bool Engine::stalled(const Options& options) {
    if (computing_ > 0 || transport_.anyone_busy()) touch();
    return clock_() - last_progress_.load() > options.stall_s;
}

// Only after the progress thread has ended: what it moves is read here.
std::string Engine::explain_stall(const Options& options) const {
    std::string text = "rank " + std::to_string(transport_.rank()) + " stalled: no op moved for " +
                       std::to_string(static_cast<int>(std::ceil(options.stall_s))) + " s";
    for (const auto& lane : lanes_) {
        const auto done = lane.done.load();
        if (done == static_cast<std::int64_t>(lane.ops.size())) continue;
        const Op& op = ops_[static_cast<std::size_t>(lane.ops[static_cast<std::size_t>(done)])];
        text += "\n  lane " + std::to_string(lane.id) + " waits at its op " + std::to_string(done) + " '" +
                kind_name(op.kind) + "' (row " + std::to_string(op.row) + ")";
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

// Every slot that a post-condition names, divided by the number of its terms.
void Engine::average() {
    for (const auto& [where, divisor] : quotients_) divide(where.dtype, where.data(), elements(where), divisor);
}

std::string Engine::refusal(const Options& options) const {
    const auto whole = [](const Quotient& quotient) { return is_integer(quotient.where.dtype); };
    if (options.reduce_op == DT_AVG && std::any_of(quotients_.begin(), quotients_.end(), whole))
        return "an average of integers would not be one";
    return spent_ ? "an engine that failed cannot run again" : "";
}

void Engine::prepare(const Options& options) {
    reduce_op_ = options.reduce_op;
    stamping_ = options.spans;
    blocking_ = options.blocking;
    window_ = in_order_ ? 1 : std::max(options.window, 1);
    start_s.assign(ops_.size(), std::numeric_limits<double>::quiet_NaN());
    end_s = start_s;
    std::fill(lane_end_.begin(), lane_end_.end(), 0.0);
    for (auto& lane : lanes_) lane.issued = 0, lane.done = 0;
    for (auto& kernel : kernels_)
        if (kernel.matmul) kernel.matmul->forget();
    unsent_ = 0;
    computing_ = 0;
    stop_ = false;
    touch();
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

void Engine::drive(const Options& options) {
    try {
        if (!options.thread) poll();
        while (!stop_ && !finished(false))
            if (!step_compute(options)) wait_for_net(options);
        while (!stop_ && !(finished(true) && unsent_ == 0)) wait_for_net(options);
    } catch (const TransportError& error) {
        fail("rank " + std::to_string(transport_.rank()) + ": " + error.message);
    } catch (...) {
        fail(std::current_exception());
    }
}

std::string Engine::run(const Options& options, double (*clock)()) {
    clock_ = clock;
    const std::string why = refusal(options);
    if (!why.empty()) return "rank " + std::to_string(transport_.rank()) + ": " + why;
    std::string failure;
    for (int turn = 0; turn < options.repeats && failure.empty(); ++turn) failure = run_once(options);
    return failure;
}

std::string Engine::run_once(const Options& options) {
    prepare(options);
    std::thread helper;
    if (options.thread) helper = std::thread([&] { progress_loop(options); });
    drive(options);
    if (helper.joinable()) helper.join();
    spent_ = stop_;
    if (!spent_ && reduce_op_ == DT_AVG) average();
    if (!spent_) return "";
    if (thrown_ || !failure_.empty()) transport_.stop();
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    return failure_.empty() ? explain_stall(options) : failure_;
}

}  // namespace dovetail::run
