// Neighbours: the ranks of one host that share memory: whether they live, and the channels between them.
#pragma once

#include <sched.h>

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
    ~Neighbours() { fail(); }
    Neighbours(const Neighbours&) = delete;
    Neighbours& operator=(const Neighbours&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    Ends& ends() { return ends_; }
    // Whether the ranks may run on at least as many cores as there are ranks. Valid once all are constructed.
    bool each_has_a_core() const;
    void fail() { states_.leave(State::failed); }  // tells the others that this rank sends no more
    bool has_failed(int rank) const { return states_.state(rank) == State::failed; }
    bool has_ended(int rank) const { return states_.has_ended(rank); }  // whether its process has
    Regions regions;

  private:
    struct alignas(128) Cores {
        cpu_set_t set;
    };
    static std::size_t cores_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Cores); }
    static std::size_t rows_bytes(int size) { return cores_bytes(size) + Peers::bytes(size); }

    const int rank_, size_;
    Cores* const cores_;  // by rank: those that it may run on
    Peers states_;
    Ends ends_;
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
