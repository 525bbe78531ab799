// Peers: see peers.hpp.
#include "shm/peers.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

namespace dovetail::shm {

namespace {

struct Process {
    char state = 0;  // 0: there is none, or it cannot be read
    std::uint64_t started = 0;
};

// The state letter and the start time, fields 3 and 22 of /proc/PID/stat. The name before them may have any characters.
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

// Whether another process has locked this rank's byte of the file.
bool is_locked(int file, int rank) {
    struct flock found{};
    found.l_type = F_WRLCK, found.l_whence = SEEK_SET, found.l_start = rank, found.l_len = 1;
    return fcntl(file, F_GETLK, &found) || found.l_type != F_UNLCK;
}

// Locks this rank's byte. The lock ends with the process; processes that it forks do not have it.
bool lock(int file, int rank) {
    struct flock asked{};
    asked.l_type = F_WRLCK, asked.l_whence = SEEK_SET, asked.l_start = rank, asked.l_len = 1;
    return file >= 0 && !fcntl(file, F_SETLK, &asked);
}

}  // namespace

std::size_t Peers::bytes(int size) { return static_cast<std::size_t>(size) * sizeof(Row); }

Peers::Peers(std::byte* memory, int file, int rank) : file_(file), rank_(rank), rows_(reinterpret_cast<Row*>(memory)) {}

void Peers::arrive() {
    Row& own = rows_[rank_];
    own.pid = pid_ = getpid();
    own.started = process(own.pid).started;
    own.namespace_ = own_namespace();
    own.is_locked = lock(file_, rank_);
    own.state.store(State::here, std::memory_order_release);
}

void Peers::leave(State how) {
    if (getpid() != pid_) return;  // this process was forked by the rank
    State found = State::here;
    rows_[rank_].state.compare_exchange_strong(found, how, std::memory_order_acq_rel);
}

State Peers::look(int rank) {
    const State found = state(rank);
    if (found != State::here || rank == rank_ || lives(rank)) return found;
    const State last = state(rank);  // it may have called `leave` before it ended
    return last == State::here ? State::died : last;
}

bool Peers::has_ended(int rank) const { return rank != rank_ && state(rank) != State::absent && !lives(rank); }

bool Peers::lives(int rank) const {
    const Row& row = rows_[rank];
    if (!row.namespace_ || row.namespace_ != own_namespace()) return !row.is_locked || is_locked(file_, rank);
    if (kill(row.pid, 0) && errno == ESRCH) return false;
    const Process found = process(row.pid);
    if (!found.state) return true;  // no /proc, or no file descriptor left to read it
    return found.state != 'Z' && found.state != 'X' && found.started == row.started;
}

}  // namespace dovetail::shm
