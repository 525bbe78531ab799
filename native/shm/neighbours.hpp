// Neighbours: the ranks of one host that share memory: whether they live, and the channels between them.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>

#include "shm/channel.hpp"
#include "shm/peers.hpp"
#include "shm/region.hpp"

namespace dovetail::shm {

class Neighbours {
  public:
    static std::size_t bytes(int size, const Geometry& geometry);
    static Geometry geometry(int size, std::size_t bytes);  // the inverse of `bytes`
    // `memory` is zeroed before the first rank calls this. All ranks give the same geometry. `file`: as for Peers.
    Neighbours(std::byte* memory, int rank, int size, const Geometry& geometry, int file = -1);
    ~Neighbours() { states_.leave(State::failed); }
    Neighbours(const Neighbours&) = delete;
    Neighbours& operator=(const Neighbours&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    Ends& ends() { return ends_; }
    // Whether the ranks may run on at least as many cores as there are ranks. Valid once all are constructed.
    bool each_has_a_core() const;

    // A call that failed on one rank leaves messages in the channels, and fails on all: each rank calls `fail` once,
    // and sends nothing until the channels are empty again. It begins its next call by `is_reset`, until that is true.
    void fail();
    bool is_disturbed() const { return rows_[0].latest.load(std::memory_order_acquire) != resets_; }
    bool has_failed(int rank) const;  // in this call, or for good
    bool is_reset();                  // whether all ranks have failed, and skipped what was sent before
    int missing() const;              // a rank that `is_reset` waits for; -1: none
    bool has_ended(int rank) const { return states_.has_ended(rank); }  // its process
    Regions regions;

  private:
    struct alignas(128) Row {
        std::atomic<Count> faults, skips;  // calls that failed, and after which it has skipped messages
        std::atomic<Count> latest;         // rank 0's row: faults of the rank that has most
        cpu_set_t cores;                   // that it may run on
    };
    static std::size_t own_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Row); }
    static std::size_t rows_bytes(int size) { return own_bytes(size) + Peers::bytes(size); }

    const int rank_, size_;
    Row* const rows_;
    Peers states_;
    Ends ends_;
    Count resets_ = 0;
};

// How a rank waits: if each rank has a core, it first polls. Then it yields, then it sleeps, longer and longer.
class Patience {
  public:
    explicit Patience(const Neighbours& ranks) : ranks_(ranks) {}

    // Called if nothing moved: waits a little. True at intervals in a long wait: the caller then checks if others live.
    bool wait(bool rests);
    double waited_s() const;
    void moved() { spins_ = 0, began_s_ = 0.0; }

  private:
    bool yield_or_sleep(bool rests);
    const Neighbours& ranks_;
    int spins_ = 0, most_spins_ = -1;  // most_spins_ -1: not known yet
    double began_s_ = 0.0, looked_s_ = 0.0;
};

}  // namespace dovetail::shm
