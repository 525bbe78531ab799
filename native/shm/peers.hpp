// Peers: which ranks of a host use a segment, and whether their processes live.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dovetail::shm {

enum class State : std::uint32_t { absent, here, left, failed, died };

// A row per rank in shared memory, which its rank writes. The kernel is asked whether a process lives; one of another
// PID namespace counts as alive.
class Peers {
  public:
    static std::size_t bytes(int size);
    Peers(std::byte* memory, int rank, int size);  // zeroed before the first rank comes
    ~Peers();
    Peers(const Peers&) = delete;
    Peers& operator=(const Peers&) = delete;

    void arrive();
    void leave(State how);  // left or failed; the first one stays
    State look(int rank);   // asks the kernel: a microsecond
    State state(int rank) const { return rows_[rank].state.load(std::memory_order_acquire); }

  private:
    struct alignas(128) Row {
        std::atomic<State> state;
        std::int32_t pid;
        std::uint64_t started;     // by /proc, in ticks since the host's start: a number that comes again is another's
        std::uint64_t namespace_;  // of its PID
    };
    bool lives(int rank);

    const int rank_, size_;
    Row* const rows_;
    std::vector<int> watched_;  // file descriptors of processes; -1: not opened yet, -2: cannot be
};

}  // namespace dovetail::shm
