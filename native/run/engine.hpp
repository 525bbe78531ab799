// Engine: runs one rank's share of a Program. Compute lanes on the calling thread, net lanes by a progress thread or by
// polls between row blocks; every span is stamped, and a stall is told lane by lane.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "run/kernel.hpp"
#include "run/transport.hpp"

namespace dovetail::run {

enum class Kind : std::uint8_t {
    nop,
    copy,
    reduce,
    send,
    recv,
    recv_reduce,
    recv_copy_send,
    recv_reduce_send,
    recv_reduce_copy_send,
    put,
    signal,
    wait,
    compute,
    collective
};

struct Span {  // a region in bytes, in one buffer's memory
    std::byte* base = nullptr;
    std::int64_t offset = 0, count = 0, stride = 0, blocks = 1, slots = 0;
    int buffer = -1, dtype = 0;
    std::int64_t num_bytes() const { return count * blocks; }
    bool contiguous() const { return blocks == 1 || stride == count; }
    std::byte* data() const { return base + offset; }
};

struct Op {
    Kind kind{};
    int lane = 0;          // index into Engine's lanes
    std::int64_t row = 0;  // row in the Program
    int in_peer = -1, in_tag = 0, out_peer = -1, out_tag = 0, out_depth = 0, call = -1;
    std::vector<Span> reads, writes;
    std::vector<std::pair<int, std::int64_t>> after;  // (lane, index within the lane)
};

struct Lane {
    int id = 0;  // lane of the Program
    bool net = false;
    std::vector<int> ops;
    std::atomic<std::int64_t> done{0};  // ops [0, done) have ended
    std::int64_t issued = 0;
};

struct Collective {
    int kind = 0, group = -1, size = 1, reduce_op = 0;
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
};

class Engine {
  public:
    Engine(Transport& transport, std::vector<Op> ops, std::vector<std::pair<int, bool>> lanes,
           std::vector<Collective> collectives, std::vector<Kernel> kernels, std::function<void(std::int64_t)> python);

    // Runs every op once. Returns an empty string, or why it stopped. start_s/end_s are per op, NaN where not reached.
    std::string run(const Options& options, double (*clock)());

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

    bool is_done(int op) const;
    bool ready(const Op& op) const;
    void index_writers();
    bool must_copy(int op) const;
    bool poll();
    bool serve(std::deque<Flight>& flights);
    bool poll_lane(Lane& lane, std::deque<Flight>& flights);
    bool receive(Flight& flight);
    bool send(Flight& flight);
    bool issue(Lane& lane, std::deque<Flight>& flights);
    void begin(Flight& flight);
    void take_message(const Op& op, Flight& flight);
    bool drain();
    void execute(const Op& op, const Options& options);
    bool step_compute(const Options& options);
    void wait_for_net(const Options& options);
    void progress_loop(const Options& options);
    void fail(const std::string& why);
    bool finished(bool net) const;
    void touch() { last_progress_ = clock_(); }
    bool stalled(const Options& options) const;
    std::string explain_stall(const Options& options) const;
    void stamp(int op, double begin, double end);

    Transport& transport_;
    std::vector<Op> ops_;
    std::deque<Lane> lanes_;
    std::vector<Collective> collectives_;
    std::vector<Kernel> kernels_;
    std::function<void(std::int64_t)> python_;
    std::vector<std::deque<Flight>> flights_;     // by lane
    std::vector<std::deque<Outgoing>> outgoing_;  // by channel sent on
    std::vector<int> out_slot_;                   // op -> row of outgoing_, or -1
    std::vector<std::int64_t> index_;             // op -> its index within its lane
    std::vector<std::vector<int>> writers_;       // op that sends -> other ops that write what it sends
    std::vector<double> lane_end_;                // by lane: end of the latest span
    double (*clock_)() = nullptr;
    int window_ = 32;
    std::atomic<int> unsent_{0};  // messages in the FIFOs of outgoing_
    std::atomic<bool> computing_{false}, stop_{false};
    std::atomic<double> last_progress_{0.0};
    std::string failure_;
    std::mutex failing_;
};

}  // namespace dovetail::run
