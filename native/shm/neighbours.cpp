// Neighbours: see neighbours.hpp.
#include "shm/neighbours.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace dovetail::shm {

namespace {

constexpr double spin_s = 20e-6, yield_s = 1e-3, look_s = 50e-3;
constexpr double taken_s = 1e-6;      // a yield that takes longer gave the core away
constexpr double share = 0.05;        // of its wait that a rank sleeps at a time
constexpr double longest_s = 0.5e-3;  // that it sleeps at a time

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// State and starting time of a process, by the kernel's own text; ' ' where it cannot be read.
std::pair<char, std::uint64_t> look_at(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto name = text.rfind(')');  // the name in parentheses may hold anything
    if (name == std::string::npos) return {' ', 0};
    std::istringstream rest(text.substr(name + 1));
    char state = ' ';
    rest >> state;
    std::string word;
    for (int field = 4; field < 22; ++field) rest >> word;
    std::uint64_t started = 0;
    rest >> started;
    return {state, started};
}

bool lives(int pid, std::uint64_t started) {
    if (kill(pid, 0) != 0 && errno == ESRCH) return false;
    const auto [state, since] = look_at(pid);
    return state != 'Z' && state != 'X' && (since == 0 || started == 0 || since == started);
}

}  // namespace

std::size_t Neighbours::bytes(int size, const Geometry& geometry) {
    return rows_bytes(size) + geometry.bytes(static_cast<Count>(size));
}

Geometry Neighbours::geometry(int size, std::size_t bytes) {
    return Geometry::within(size, bytes - std::min(bytes, rows_bytes(size)));
}

Neighbours::Neighbours(std::byte* memory, int rank, int size, const Geometry& geometry)
    : rank_(rank),
      size_(size),
      rows_(reinterpret_cast<Row*>(memory)),
      ends_(memory + rows_bytes(size), rank, size, geometry) {
    Row& own = rows_[rank];
    CPU_ZERO(&own.cores);
    sched_getaffinity(0, sizeof own.cores, &own.cores);
    own.started.store(look_at(getpid()).second);
    own.pid.store(getpid());
}

Neighbours::~Neighbours() { rows_[rank_].gone.store(true); }

bool Neighbours::each_has_a_core() const {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int rank = 0; rank < size_; ++rank) CPU_OR(&all, &all, &rows_[rank].cores);
    return CPU_COUNT(&all) >= size_;
}

void Neighbours::fail() {
    if (has_failed(rank_)) return;
    ends_.publish();
    rows_[rank_].faults.store(resets_ + 1);
    rows_[0].latest.store(resets_ + 1);
}

bool Neighbours::has_failed(int rank) const { return rows_[rank].gone.load() || rows_[rank].faults.load() > resets_; }

int Neighbours::missing() const {
    const bool skipped = rows_[rank_].skips.load() > resets_;
    for (int rank = 0; rank < size_; ++rank)
        if ((skipped ? rows_[rank].skips : rows_[rank].faults).load() <= resets_) return rank;
    return -1;
}

bool Neighbours::is_reset() {
    if (missing() >= 0) return false;
    Row& own = rows_[rank_];
    if (own.skips.load() <= resets_) {
        ends_.skip();
        own.skips.store(resets_ + 1);
        if (missing() >= 0) return false;
    }
    ++resets_;
    return true;
}

bool Neighbours::has_ended(int rank) const {
    const int pid = rows_[rank].pid.load();
    return pid != 0 && !lives(pid, rows_[rank].started.load());
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
