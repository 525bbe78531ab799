// Engine: runs one rank's ops of a Program. The calling thread runs compute lanes; a progress thread runs net lanes, or
// polls between row blocks do. Every op's span is recorded. A stall is reported with the op that each lane waits for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "run/kernel.hpp"
#include "run/load.hpp"
#include "run/message.hpp"
#include "run/op.hpp"
#include "run/transport.hpp"
#include "trace/dovetail_trace.h"

namespace dovetail::run {

struct Lane {
    int id = 0;  // lane of the Program
    bool net = false;
    std::vector<int> ops;
    std::atomic<std::int64_t> done{0};  // ops [0, done) have ended
    std::int64_t issued = 0;
    std::vector<Flight> flights;  // of a net lane: op k is at index k modulo the size

    std::int64_t size() const { return static_cast<std::int64_t>(ops.size()); }
    Flight& flight(std::int64_t index) { return flights[static_cast<std::size_t>(index) & (flights.size() - 1)]; }
    void end_one() { done.store(done.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
};

struct Loan {
    int op = -1, handle = -1;
};

struct Collective {
    int kind = 0, group = -1, size = 1;
    bool root = false;  // this rank is the first of the group
};

struct Options {
    bool thread = false;           // a progress thread runs net lanes; false: the compute thread polls them
    double poll_s = 100e-6;        // the progress thread sleeps at least this long while compute runs
    std::int64_t block_rows = 0;   // row block of a matmul between two polls, 0 for the whole tile
    int window = 32;               // ops of one net lane in flight at once
    double stall_s = 10.0;         // no progress for this long is a stall
    int reduce_op = 0;             // DT_SUM … DT_AVG of mpi_table.h, for every op that reduces
    int repeats = 1;               // runs one after the other, without a barrier between
    bool spans = true;             // record start and end of each op of the last run; a trace does too
    bool blocking = false;         // collectives of the library by its blocking calls
    std::int64_t slice_bytes = 0;  // longer messages are sent in pieces of this size, 0: whole
};

// Names of lanes and ops in traces; by number, as in the Program.
struct Titles {
    std::vector<std::string> lanes, kernels, collectives;
};

// Ops of a net lane may begin before earlier ones have ended, if they touch other bytes; never if `in_order`.
class Engine {
  public:
    // `python` runs the compute op of a row, if it is no matrix product.
    Engine(Transport& transport, Share share, bool in_order, std::vector<Collective> collectives, Blas blas,
           std::function<void(std::int64_t)> python);

    // Runs every op once, or `repeats` times. Returns an empty string, or why it stopped. Throws what a kernel throws.
    // After either failure the engine cannot run again.
    std::string run(const Options& options, double (*clock)());

    // From now on `buffer` is at `base`. Not for programs with kernels of Python, which keep their arrays.
    void rebase(int buffer, std::byte* base) { bases_.at(static_cast<std::size_t>(buffer)) = base; }
    bool needs_python() const;  // some compute op has no native form

    const std::vector<Op>& ops() const { return ops_; }
    // When each op started and ended, in seconds of CLOCK_MONOTONIC_RAW; NaN if it was not reached. Of the last run
    // whose ops were recorded.
    std::pair<std::vector<double>, std::vector<double>> spans() const;
    Titles titles;

  private:
    class Busy;

    // prepare.cpp: what is known before a run
    void index_ops();
    void index_messages();
    void index_writers();
    void index_readers(const std::vector<bool>& scratch);
    void look_behind(int window);

    bool is_done(int op) const;
    bool is_net(int op) const { return lanes_[static_cast<std::size_t>(ops_[static_cast<std::size_t>(op)].lane)].net; }
    bool ready(const Op& op) const;
    std::string run_once(const Options& options);
    std::string refusal(const Options& options) const;
    void average();
    void prepare(const Options& options);
    void drive(const Options& options);
    void execute(const Op& op, std::int64_t block_rows, const std::function<void()>& between);
    bool step_compute(const Options& options);
    void idle(const Options& options);
    std::uint64_t now() const { return stamping_ ? dovetail_trace_clock() : 0; }
    void touch() { moved_.store(true, std::memory_order_relaxed); }
    void stamp(int op, std::uint64_t begin, std::uint64_t end);
    void name_ops();
    void fail(const std::string& why);
    void fail(std::exception_ptr thrown);
    bool stalled(const Options& options);
    std::string explain_stall(const Options& options) const;

    // net.cpp: lanes, and incoming messages
    void progress_loop(const Options& options);
    void rest(const Options& options);
    void arrived(Inbound& in);
    void wake();
    bool poll();
    bool pass();
    bool serve(Lane& lane);
    bool issue(Lane& lane);
    void retire(Lane& lane);
    void begin(Flight& flight, const Move& move);
    void begin_collective(const Op& op, Flight& flight);
    LibraryCall library_call(const Op& op, const Collective& call, const std::byte* from, std::byte* to) const;
    bool receive(Flight& flight, const Move& move);
    bool post(Flight& flight, const Move& move);
    void take_piece(Flight& flight, const Move& move, int piece);
    void take_whole(Flight& flight, const Move& move);
    bool give_back();
    void end(Flight& flight);
    void abandon();
    Cut cut(const Move& move) const { return {move.bytes, piece_bytes_}; }

    // send.cpp: FIFOs, and outgoing messages
    bool send(Flight& flight, const Move& move);
    bool enter(Flight& flight, const Move& move, Fifo& fifo);
    void start(Fifo& fifo);
    void start_piece(Fifo& fifo, Outgoing& message, const Move& move);
    void leave(Fifo& fifo);
    bool drain();
    bool must_copy(const Move& move) const;
    void protect(const Span& span, std::int64_t begin, std::int64_t size);
    void protect(const std::vector<Span>& spans);
    void rescue(Outgoing& message, const Move& move, int last);

    Transport& transport_;
    std::vector<Op> ops_;
    std::vector<std::byte*> bases_;  // by buffer
    std::vector<Quotient> quotients_;
    std::deque<Lane> lanes_;
    std::vector<Collective> collectives_;
    Matmul matmul_;
    std::function<void(std::int64_t)> python_;
    std::vector<Move> moves_;                            // by op
    std::vector<std::int64_t> index_;                    // op -> its index within its lane
    std::set<int> written_;                              // buffers that some op writes
    std::vector<Inbound> inbound_;                       // by channel received on
    std::vector<Fifo> fifos_;                            // by channel sent on
    std::vector<int> active_;                            // fifos with messages
    std::vector<Loan> loans_;                            // messages that lie with their senders, and are being read
    std::vector<std::int64_t> asked_;                    // by peer: the last pass that found nothing from it
    std::vector<std::uint64_t> start_, end_, lane_end_;  // of ops, and of each lane's latest; event clock
    std::vector<int> names_;                             // of ops, in traces
    std::uint64_t made_ = 0;                             // one moment by the event clock, and by CLOCK_MONOTONIC_RAW
    std::int64_t made_ns_ = 0;
    Pool pool_;
    double (*clock_)() = nullptr;
    bool in_order_ = false, spent_ = false, stamping_ = true, tracing_ = false, blocking_ = false;
    int window_ = 0, reduce_op_ = 0;
    std::int64_t piece_bytes_ = 0, passes_ = 0;
    std::int64_t net_left_ = 0, compute_left_ = 0;  // ops that have not ended
    int unsent_ = 0, exposed_ = 0;                  // messages in FIFOs; those whose pieces are copied first
    std::atomic<bool> net_done_{false};             // all messages are received, sent and taken
    std::atomic<int> computing_{0};                 // ops that this rank's threads are executing
    std::atomic<bool> stop_{false}, moved_{false};
    double last_progress_ = 0.0;
    std::int64_t idles_ = 0;
    double idle_since_ = 0.0, patience_s_ = 0.0;  // the latest move or yield, and how long to poll after it
    std::mutex resting_;
    std::condition_variable woken_;
    bool wanted_ = false;                     // guarded by `resting_`: the progress thread is to poll
    double pause_s_ = 0.0;                    // between two polls of it
    int under_way_ = 0;                       // pieces and library calls
    bool ran_dry_ = false, kept_on_ = false;  // some channel has received all that was posted; only part of it
    std::mutex failing_;
    std::string failure_;
    std::exception_ptr thrown_;
};

}  // namespace dovetail::run
