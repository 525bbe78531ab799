// Peers: the ranks of a host that use a segment, and whether their processes live.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace dovetail::shm {

enum class State : std::uint32_t { absent, here, left, failed, died };

// One row for each rank in shared memory, which that rank writes. The kernel tells whether a process lives: by its pid,
// or, in another PID namespace, by its lock on a byte of the memory's file, if there is a file. No descriptor is
// kept open for it. If the kernel cannot tell, the process counts as alive.
class Peers {
  public:
    static std::size_t bytes(int size);
    Peers(std::byte* memory, int file, int rank);  // zeroed before the first rank calls it; file: -1 if none

    void arrive();
    void leave(State how);  // left or failed; only the first call counts
    State look(int rank);   // asks the kernel: some microseconds
    State state(int rank) const { return rows_[rank].state.load(std::memory_order_acquire); }
    bool has_ended(int rank) const;  // the process of a rank that has arrived; asks the kernel

  private:
    struct alignas(128) Row {
        std::atomic<State> state;
        std::int32_t pid;
        std::uint64_t started;     // by /proc, in ticks since boot: a later process may have the same pid
        std::uint64_t namespace_;  // of its pid; 0: unknown
        std::uint32_t is_locked;
    };
    bool lives(int rank) const;

    const int file_, rank_;
    Row* const rows_;
    std::int32_t pid_ = 0;  // of the process that called `arrive`, not of one that it forked
};

}  // namespace dovetail::shm
