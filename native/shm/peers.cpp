// Peers: see peers.hpp.
#include "shm/peers.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace dovetail::shm {

namespace {

constexpr int unopened = -1, unwatched = -2;

struct Process {
    char state = 0;  // 0: there is none
    std::uint64_t started = 0;
};

// The state letter and the start time, fields 3 and 22 of /proc/PID/stat. The name before them may hold anything.
Process process(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto end = text.rfind(')');
    if (end == std::string::npos) return {};
    std::istringstream words(text.substr(end + 1));
    Process found;
    std::string skipped;
    words >> found.state;
    for (int field = 4; field < 22; ++field) words >> skipped;
    words >> found.started;
    return found;
}

std::uint64_t own_namespace() {
    struct stat found{};
    return stat("/proc/self/ns/pid", &found) ? 0 : static_cast<std::uint64_t>(found.st_ino);
}

int open_process(int pid) {
#ifdef SYS_pidfd_open
    const auto file = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    return file < 0 ? unwatched : file;
#else
    return (void)pid, unwatched;
#endif
}

}  // namespace

std::size_t Peers::bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Row); }

Peers::Peers(std::byte* memory, int rank, int size)
    : rank_(rank), size_(size), rows_(reinterpret_cast<Row*>(memory)), watched_(static_cast<std::size_t>(size), -1) {}

Peers::~Peers() {
    for (const int file : watched_)
        if (file >= 0) close(file);
}

void Peers::arrive() {
    Row& own = rows_[rank_];
    own.pid = getpid();
    own.started = process(own.pid).started;
    own.namespace_ = own_namespace();
    own.state.store(State::here, std::memory_order_release);
}

void Peers::leave(State how) {
    State found = State::here;
    rows_[rank_].state.compare_exchange_strong(found, how, std::memory_order_acq_rel);
}

State Peers::look(int rank) {
    const State found = state(rank);
    if (found != State::here || rank == rank_ || lives(rank)) return found;
    const State last = state(rank);  // it may have left before it ended
    return last == State::here ? State::died : last;
}

bool Peers::lives(int rank) {
    const Row& row = rows_[rank];
    if (row.namespace_ != own_namespace()) return true;
    int& file = watched_[static_cast<std::size_t>(rank)];
    if (file == unopened) {
        file = open_process(row.pid);
        const Process found = process(row.pid);  // asked after: the number may have become another's before
        if (!found.state || found.started != row.started) return false;
    }
    if (file >= 0) {
        pollfd watched{file, POLLIN, 0};
        return poll(&watched, 1, 0) == 0;
    }
    const Process found = process(row.pid);
    return found.state && found.state != 'Z' && found.state != 'X' && found.started == row.started;
}

}  // namespace dovetail::shm
