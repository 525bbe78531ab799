// Neighbours: see neighbours.hpp.
#include "shm/neighbours.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace dovetail::shm {

namespace {

constexpr double spin_s = 20e-6, yield_s = 1e-3, look_s = 50e-3;
constexpr double taken_s = 1e-6;      // a yield that takes longer gave the core away
constexpr double share = 0.05;        // of the time waited so far: a rank's next sleep
constexpr double longest_s = 0.5e-3;  // of one sleep

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

std::size_t Neighbours::bytes(int size, const Geometry& geometry) {
    return rows_bytes(size) + geometry.bytes(static_cast<Count>(size));
}

Geometry Neighbours::geometry(int size, std::size_t bytes) {
    return Geometry::within(size, bytes - std::min(bytes, rows_bytes(size)));
}

Neighbours::Neighbours(std::byte* memory, int rank, int size, const Geometry& geometry, int file)
    : rank_(rank),
      size_(size),
      cores_(reinterpret_cast<Cores*>(memory)),
      states_(memory + cores_bytes(size), file, rank),
      ends_(memory + rows_bytes(size), rank, size, geometry) {
    cpu_set_t& own = cores_[rank].set;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof own, &own);
    states_.arrive();
}

bool Neighbours::each_has_a_core() const {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int rank = 0; rank < size_; ++rank) CPU_OR(&all, &all, &cores_[rank].set);
    return CPU_COUNT(&all) >= size_;
}

bool Patience::wait(bool rests) {
    if (most_spins_ < 0) most_spins_ = ranks_.each_has_a_core() ? 1000 : 0;
    if (++spins_ <= most_spins_ && !rests) return pause(), false;
    return yield_or_sleep(rests);
}

double Patience::waited_s() const { return began_s_ == 0.0 ? 0.0 : now_s() - began_s_; }

bool Patience::yield_or_sleep(bool rests) {
    const double now = now_s();
    if (began_s_ == 0.0) began_s_ = looked_s_ = now;
    const double waited = now - began_s_;
    if (waited < yield_s && !rests) {
        sched_yield();
    } else {
        const double nap = std::clamp(share * waited, 20e-6, longest_s);
        std::this_thread::sleep_for(std::chrono::duration<double>(nap));
    }
    if (now - looked_s_ < look_s) return false;
    looked_s_ = now;
    return true;
}

}  // namespace dovetail::shm
