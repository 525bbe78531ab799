// Engine: runs one rank's share of a Program. Compute lanes on the calling thread, net lanes by a progress thread or by
// polls between row blocks; every span is stamped, and a stall is told lane by lane.
#pragma once

#include <atomic>
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
#include "run/op.hpp"
#include "run/transport.hpp"

namespace dovetail::run {

struct Lane {
    int id = 0;  // lane of the Program
    bool net = false;
    std::vector<int> ops;
    std::atomic<std::int64_t> done{0};  // ops [0, done) have ended
    std::int64_t issued = 0;
};

struct Collective {
    int kind = 0, group = -1, size = 1;
    bool root = false;  // this rank is the first of the group
};

struct Kernel {
    Matmul* matmul = nullptr;  // or, where null, `python`
};

struct Options {
    bool thread = false;          // net lanes by a progress thread; otherwise polled from the compute thread
    double poll_s = 100e-6;       // the progress thread sleeps this long while compute runs
    std::int64_t block_rows = 0;  // row block of a matmul between two polls, 0 for the whole tile
    int window = 32;              // ops of one net lane in flight at once
    double stall_s = 10.0;        // no progress for so long is a stall
    int reduce_op = 0;            // DT_SUM … DT_AVG of mpi_table.h, of every op that reduces
    int repeats = 1;              // runs one after the other, without a barrier between
    bool spans = true;            // stamp the ops of the last of them
    bool blocking = false;        // collectives of the library by its blocking calls
};

// Ops of a net lane may begin before those ahead of them have ended, where they touch other bytes; in order: never.
class Engine {
  public:
    Engine(Transport& transport, Share share, bool in_order, std::vector<Collective> collectives,
           std::vector<Kernel> kernels, std::function<void(std::int64_t)> python);

    // Runs every op once, or `repeats` times. Returns an empty string, or why it stopped; what a kernel throws goes
    // through. After either failure the engine is spent. start_s/end_s are per op, NaN where not reached.
    std::string run(const Options& options, double (*clock)());

    // From now on `buffer` lies at `base`. Not for programs with kernels of Python, which keep their arrays.
    void rebase(int buffer, std::byte* base) { bases_.at(static_cast<std::size_t>(buffer)) = base; }
    bool computes() const;

    const std::vector<Op>& ops() const { return ops_; }
    std::vector<double> start_s, end_s;

  private:
    struct Flight {  // an issued op of a net lane
        int op = -1;
        int handle = -1;
        enum { receiving, sending, ended } stage = receiving;
        double begun_s = 0.0;
        std::vector<std::byte> staging, packed;  // the message; a strided source
    };
    struct Outgoing {  // a message in its channel's FIFO
        int op = -1, handle = -1;
        double begun_s = 0.0;
        std::vector<std::byte> staging;
    };

    class Busy;

    void index_writers();
    bool is_done(int op) const;
    bool ready(const Op& op) const;
    bool finished(bool net) const;
    std::string run_once(const Options& options);
    std::string refusal(const Options& options) const;
    void average();
    void prepare(const Options& options);
    void drive(const Options& options);
    void execute(const Op& op, std::int64_t block_rows, const std::function<void()>& between);
    bool step_compute(const Options& options);
    void wait_for_net(const Options& options);
    void touch() { last_progress_ = clock_(); }
    void stamp(int op, double begin, double end);
    void fail(const std::string& why);
    void fail(std::exception_ptr thrown);
    bool stalled(const Options& options);
    std::string explain_stall(const Options& options) const;

    // net.cpp
    void progress_loop(const Options& options);
    bool poll();
    bool poll_lane(Lane& lane, std::deque<Flight>& flights);
    bool issue(Lane& lane, std::deque<Flight>& flights);
    void begin(Flight& flight);
    void begin_receive(const Op& op, Flight& flight);
    void begin_collective(const Op& op, Flight& flight);
    bool serve(std::deque<Flight>& flights);
    bool receive(Flight& flight);
    void take_message(const Op& op, Flight& flight);
    bool send(Flight& flight);
    bool must_copy(int op) const;
    bool drain();

    Transport& transport_;
    std::vector<Op> ops_;
    std::vector<std::byte*> bases_;  // by buffer
    std::vector<Quotient> quotients_;
    std::deque<Lane> lanes_;
    std::vector<Collective> collectives_;
    std::vector<Kernel> kernels_;
    std::function<void(std::int64_t)> python_;
    std::vector<std::deque<Flight>> flights_;     // by lane
    std::vector<std::deque<Outgoing>> outgoing_;  // by channel sent on
    std::vector<int> out_slot_;                   // op -> row of outgoing_, or -1
    std::vector<std::int64_t> index_;             // op -> its index within its lane
    std::vector<std::vector<int>> writers_;       // op that sends -> other ops that write what it sends
    std::set<int> written_;                       // buffers that some op writes
    std::vector<double> lane_end_;                // by lane: end of the latest span
    double (*clock_)() = nullptr;
    bool in_order_ = false, spent_ = false;
    bool stamping_ = true, blocking_ = false;
    int window_ = 32, reduce_op_ = 0;
    std::atomic<int> unsent_{0};     // messages in the FIFOs of outgoing_
    std::atomic<int> computing_{0};  // ops that this rank's threads are executing
    std::atomic<bool> stop_{false};
    std::atomic<double> last_progress_{0.0};
    std::mutex failing_;
    std::string failure_;
    std::exception_ptr thrown_;
};

}  // namespace dovetail::run
