// Neighbours: the ranks of one host in the memory that they share: who lives, and the channels between them.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shm/channel.hpp"
#include "shm/region.hpp"

namespace dovetail::shm {

class Neighbours {
  public:
    static std::size_t bytes(int size, const Geometry& geometry);
    static Geometry geometry(int size, std::size_t bytes);  // the inverse, of as many as `bytes` came to
    // `memory` is zeroed before the first rank comes. All ranks give the same geometry.
    Neighbours(std::byte* memory, int rank, int size, const Geometry& geometry);
    ~Neighbours();
    Neighbours(const Neighbours&) = delete;
    Neighbours& operator=(const Neighbours&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    Ends& ends() { return ends_; }
    // Whether the cores that the ranks may run on are at least as many as they. After all ranks have come.
    bool each_has_a_core() const;

    // A call that failed on one rank leaves messages in the channels, and fails on all: each rank calls `fail` once,
    // and sends nothing until the channels are empty again. Its next call is begun by `is_reset`, until that is true.
    void fail();
    bool is_disturbed() const { return rows_[0].latest.load(std::memory_order_acquire) != resets_; }
    bool has_failed(int rank) const;  // in this call, or for good
    bool is_reset();                  // whether all ranks have failed, and skipped what was sent before
    int missing() const;              // a rank that `is_reset` waits for; -1: none
    bool has_ended(int rank) const;   // its process
    Regions regions;

  private:
    struct alignas(128) Row {
        std::atomic<int> pid;
        std::atomic<std::uint64_t> started;  // of the process, in ticks since boot: a later one may have its number
        std::atomic<bool> gone;
        std::atomic<Count> faults, skips;  // calls that failed, and after which it has skipped messages
        std::atomic<Count> latest;         // rank 0's row: faults of the rank that has most
        cpu_set_t cores;
    };
    static std::size_t rows_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Row); }

    const int rank_, size_;
    Row* const rows_;
    Ends ends_;
    Count resets_ = 0;
};

// How a rank waits: it spins while each rank has a core, then yields, then sleeps for ever longer parts of its wait.
class Patience {
  public:
    explicit Patience(const Neighbours& ranks) : ranks_(ranks) {}

    // Nothing moved: pauses. True now and then, when it has waited long: time to see whether others live.
    bool wait(bool rests);
    double waited_s() const;
    void moved() { spins_ = 0, began_s_ = 0.0; }

  private:
    bool yield_or_sleep(bool rests);
    const Neighbours& ranks_;
    int spins_ = 0, most_spins_ = -1;  // the latter: unknown yet
    double began_s_ = 0.0, looked_s_ = 0.0;
};

}  // namespace dovetail::shm
