// Peers: which ranks of a host use a segment, and whether their processes live.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace dovetail::shm {

enum class State : std::uint32_t { absent, here, left, failed, died };

// A row per rank in shared memory, which its rank writes. The kernel is asked whether a process lives: by its number,
// or, in another PID namespace, by the lock that it holds on a byte of the memory's file, if there is one. Nothing is
// kept open for it, and what cannot be asked counts as alive.
class Peers {
  public:
    static std::size_t bytes(int size);
    Peers(std::byte* memory, int file, int rank);  // zeroed before the first rank comes; file: -1 if none

    void arrive();
    void leave(State how);  // left or failed; the first one stays
    State look(int rank);   // asks the kernel: some microseconds
    State state(int rank) const { return rows_[rank].state.load(std::memory_order_acquire); }
    bool has_ended(int rank) const;  // the process of a rank that has arrived; asks the kernel

  private:
    struct alignas(128) Row {
        std::atomic<State> state;
        std::int32_t pid;
        std::uint64_t started;     // by /proc, in ticks since the host's start: a number that comes again is another's
        std::uint64_t namespace_;  // of its PID; 0: unknown
        std::uint32_t is_locked;
    };
    bool lives(int rank) const;

    const int file_, rank_;
    Row* const rows_;
    std::int32_t pid_ = 0;  // of who arrived: not of a process that it forked
};

}  // namespace dovetail::shm
