// The engine of the executors: see engine.hpp. Compute lanes, and a run from its start to its end.
#include "run/engine.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "run/mpi_table.h"
#include "run/reduce.hpp"
#include "trace/dovetail_trace_meet.h"

namespace dovetail::run {

// While an object of this class exists, this rank computes, which counts as progress.
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

Engine::Engine(Transport& transport, Share share, bool in_order, std::vector<Collective> collectives, Blas blas,
               std::function<void(std::int64_t)> python)
    : transport_(transport),
      ops_(std::move(share.ops)),
      bases_(std::move(share.bases)),
      quotients_(std::move(share.quotients)),
      collectives_(std::move(collectives)),
      matmul_(blas),
      python_(std::move(python)),
      in_order_(in_order) {
    for (const auto& [id, net] : share.lanes) {
        lanes_.emplace_back();
        lanes_.back().id = id;
        lanes_.back().net = net;
    }
    index_ops();
    index_readers(share.scratch);
    made_ns_ = dovetail_trace_moment(&made_);
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

bool Engine::needs_python() const {
    return std::any_of(ops_.begin(), ops_.end(),
                       [](const Op& op) { return op.kind == Kind::compute && op.product.m < 0 && !op.function.call; });
}

void Engine::stamp(int op, std::uint64_t begin, std::uint64_t end) {
    if (!stamping_) return;
    const auto i = static_cast<std::size_t>(op);
    std::uint64_t& last = lane_end_[static_cast<std::size_t>(ops_[i].lane)];
    start_[i] = std::min(std::max(begin, last), end);  // a lane is in order: a span starts after the one before
    end_[i] = end;
    last = std::max(last, end);
    if (tracing_) dovetail_trace_span(names_[i], ops_[i].row, start_[i], end);
}

std::pair<std::vector<double>, std::vector<double>> Engine::spans() const {
    std::uint64_t now = 0;
    const std::int64_t now_ns = dovetail_trace_moment(&now);
    const double rate = now > made_ ? static_cast<double>(now_ns - made_ns_) / static_cast<double>(now - made_) : 1.0;
    const auto seconds = [&](const std::vector<std::uint64_t>& clocks) {
        std::vector<double> found;
        for (const auto at : clocks)
            found.push_back(at ? (static_cast<double>(made_ns_) + static_cast<double>(at - made_) * rate) * 1e-9
                               : std::numeric_limits<double>::quiet_NaN());
        return found;
    };
    return {seconds(start_), seconds(end_)};
}

// Gives every op its name in traces, on its lane: that of its kernel or collective, or its kind.
void Engine::name_ops() {
    const auto title = [](const std::vector<std::string>& titles, int number, const std::string& otherwise) {
        return number >= 0 && number < static_cast<int>(titles.size()) ? titles[static_cast<std::size_t>(number)]
                                                                       : otherwise;
    };
    for (const Op& op : ops_) {
        const auto& called = op.kind == Kind::compute ? titles.kernels : titles.collectives;
        const bool calls = op.kind == Kind::compute || op.kind == Kind::collective;
        const std::string text = title(called, calls ? op.call : -1, kind_name(op.kind));
        const int lane = lanes_[static_cast<std::size_t>(op.lane)].id;
        names_.push_back(
            dovetail_trace_lane(text.c_str(), title(titles.lanes, lane, "lane " + std::to_string(lane)).c_str()));
    }
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
    if (op.function.call) return call_function(op);
    if (op.product.m < 0) return python_(op.row);
    matmul_(op, written_.count(op.reads[1].buffer) == 0, block_rows, between);
}

bool Engine::step_compute(const Options& options) {
    bool moved = false;
    const auto between = options.thread ? std::function<void()>() : [this] { poll(); };
    for (auto& lane : lanes_) {
        if (lane.net) continue;
        while (lane.issued < lane.size() && !stop_) {
            const int index = lane.ops[static_cast<std::size_t>(lane.issued)];
            const Op& op = ops_[static_cast<std::size_t>(index)];
            if (!ready(op)) break;
            const std::uint64_t begin = now();
            execute(op, options.block_rows, between);
            stamp(index, begin, now());
            ++lane.issued;
            --compute_left_;
            lane.end_one();
            touch();
            moved = true;
            options.thread ? wake() : void(poll());
        }
    }
    return moved;
}

// Nothing moved: returns for a while to poll again, then yields the core; at once if the last yield gave it to another
// process. Checks at intervals whether nothing has moved for too long.
void Engine::idle(const Options& options) {
    constexpr double spin_s = 5e-6, taken_s = 1e-6;  // a yield that takes longer gave the core away
    if (++idles_ % 64 == 0 && stalled(options)) stop_ = true;
    if (options.thread) wake();
    if (transport_.rests) return std::this_thread::sleep_for(std::chrono::duration<double>(options.poll_s));
    if (options.thread) return std::this_thread::sleep_for(std::chrono::microseconds(10));
    const double begin = clock_();
    if (idle_since_ == 0.0) idle_since_ = begin;
    if (begin - idle_since_ < patience_s_) return;
    sched_yield();
    idle_since_ = clock_();
    patience_s_ = idle_since_ - begin > taken_s ? 0.0 : spin_s;
}

bool Engine::stalled(const Options& options) {
    const double now = clock_();
    if (moved_.exchange(false) || computing_ > 0 || transport_.anyone_busy()) last_progress_ = now;
    return now - last_progress_ > options.stall_s;
}

// Only after the progress thread has ended: this reads what that thread writes.
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
    for (const auto& fifo : fifos_) {
        if (!fifo.size()) continue;
        const Op& op = ops_[static_cast<std::size_t>(fifo[fifo.begin()].op)];
        text += "\n  a message of row " + std::to_string(op.row) + " to rank " + std::to_string(op.out_peer) +
                " was never taken";
    }
    return text;
}

// Divides every slot that a post-condition names by the number of its terms.
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
    tracing_ = dovetail_trace_is_on() != 0;
    stamping_ = options.spans || tracing_;
    if (tracing_ && names_.empty()) name_ops();
    blocking_ = options.blocking;
    constexpr std::int64_t longest = 1 << 30;  // MPI can count it, and it is a multiple of every element
    piece_bytes_ = options.slice_bytes > 0 ? std::clamp<std::int64_t>(options.slice_bytes & ~63, 64, longest) : longest;
    const int window = in_order_ ? 1 : std::max(options.window, 1);
    if (window != window_) look_behind(window);
    if (stamping_ || start_.empty()) {
        start_.assign(ops_.size(), 0);
        end_ = start_;
        std::fill(lane_end_.begin(), lane_end_.end(), 0);
    }
    for (auto& fifo : fifos_) fifo.pieces = 0;
    for (auto& in : inbound_) in.under_way = in.expected = 0;
    under_way_ = 0;
    net_left_ = compute_left_ = 0;
    for (auto& lane : lanes_) {
        lane.issued = 0, lane.done = 0;
        (lane.net ? net_left_ : compute_left_) += lane.size();
    }
    for (auto& move : moves_)
        if (!move.readers.empty()) move.place = bases_[static_cast<std::size_t>(move.write->buffer)];
    matmul_.forget();
    net_done_ = net_left_ == 0;
    stop_ = false;
    last_progress_ = clock_();
    if (options.thread || transport_.begun) prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

void Engine::drive(const Options& options) {
    try {
        if (!options.thread) poll();
        while (!stop_ && !(compute_left_ == 0 && net_done_.load(std::memory_order_acquire)))
            if ((compute_left_ > 0 && step_compute(options)) || (!options.thread && poll()))
                idle_since_ = 0.0;
            else
                idle(options);
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
    constexpr std::size_t kept = std::size_t{64} << 20;
    if (failure.empty()) pool_.shrink(kept);
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
    abandon();
    if (thrown_ || !failure_.empty()) transport_.stop();
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    return failure_.empty() ? explain_stall(options) : failure_;
}

}  // namespace dovetail::run
