// Sockets: requests, and how they are matched. See sockets.hpp.
#include "tcp/sockets.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "run/mpi_table.h"

namespace dovetail::tcp {

namespace {

constexpr std::chrono::seconds longest_farewell(5);
constexpr std::chrono::milliseconds longest_nap(5);

void set_option(int file, int level, int name, int value) { setsockopt(file, level, name, &value, sizeof value); }

// A host that does not answer any more counts as dead after about ten seconds.
void prepare(int file) {
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
    set_option(file, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(file, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(file, IPPROTO_TCP, TCP_KEEPIDLE, 3);
    set_option(file, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set_option(file, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(file, IPPROTO_TCP, TCP_USER_TIMEOUT, 10000);
}

}  // namespace

Sockets::Sockets(int rank, std::vector<int> files) : rank_(rank), process_(getpid()), peers_(files.size()) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (std::size_t r = 0; r < files.size(); ++r) {
        Peer& each = peers_[r];
        if ((each.file = files[r]) < 0) continue;
        prepare(each.file);
        each.is_open = true;
        epoll_event event{EPOLLIN, {.u64 = r}};
        epoll_ctl(epoll_, EPOLL_CTL_ADD, each.file, &event);
    }
    epoll_event event{EPOLLIN, {.u64 = files.size()}};
    if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event))
        throw std::system_error(errno, std::generic_category(), "no descriptors are left");
    sigset_t all, usual;  // signals go to threads of the program
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &usual);
    thread_ = std::thread([this] { loop(); });
    pthread_sigmask(SIG_SETMASK, &usual, nullptr);
    const std::lock_guard guard(open().lock);
    open().all.push_back(this);
}

// A process that is forked would keep connections open after its parent has died: it closes them.
Sockets::Open& Sockets::open() {
    static auto* kept = [] {
        pthread_atfork(nullptr, nullptr, [] {
            for (const Sockets* each : open().all)
                for (const Peer& with : each->peers_)
                    if (with.file >= 0) close(with.file);
        });
        return new Open;
    }();
    return *kept;
}

Sockets::~Sockets() {
    {
        const std::lock_guard guard(open().lock);
        std::erase(open().all, this);
    }
    if (getpid() != process_) {
        thread_.detach();
        return;
    }
    for (int channel = 0; channel < channels; ++channel) leave(channel, State::left, "");
    {
        const Lock lock(lock_);
        stops_ = true;
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
    thread_.join();
    for (Peer& each : peers_)
        if (each.file >= 0) close(each.file);
    close(epoll_), close(wake_);
}

int Sockets::make(Request::Use use, int channel, void* data, long long num_bytes, int peer, Label label) {
    if (unused_.empty()) {
        unused_.push_back(static_cast<int>(requests_.size()));
        requests_.emplace_back();
    }
    const int handle = unused_.back();
    unused_.pop_back();
    at(handle) = {use, false, false, 0, peer, channel, label, static_cast<std::byte*>(data), num_bytes};
    return handle;
}

void Sockets::free(int handle) {
    at(handle) = {};
    unused_.push_back(handle);
}

void Sockets::end(int handle, int code) {
    Request& request = at(handle);
    request.done = true;
    request.code = code;
    if (request.forgotten) return free(handle);
    ++num_ended_;
    ended_.notify_all();
}

int Sockets::isend(int channel, const void* data, long long num_bytes, int dst, Label label, bool matched) {
    const Lock lock(lock_);
    const int handle = make(Request::Use::send, channel, const_cast<void*>(data), num_bytes, dst, label);
    Peer& to = peer(dst);
    if (!to.is_open) return handle;
    const bool is_long = num_bytes > longest_short;
    Head head{Kind::whole, static_cast<std::uint16_t>(channel),  static_cast<std::uint32_t>(handle), label.context,
              label.tag,   static_cast<std::uint64_t>(num_bytes)};
    if (matched || (is_long && to.unanswered + num_bytes > credit)) {
        head.kind = Kind::ask;
        put(to, head);
    } else {
        if (is_long) to.unanswered += num_bytes;
        put(to, head, data, num_bytes, handle);
    }
    return handle;
}

int Sockets::irecv(int channel, void* data, long long num_bytes, int src, Label label) {
    const Lock lock(lock_);
    const int handle = make(Request::Use::receive, channel, data, num_bytes, src, label);
    Peer& from = peer(src);
    const auto found = std::find_if(from.early.begin(), from.early.end(), [&](const Early& early) {
        return early.taker < 0 && early.head.channel == channel && Label{early.head.context, early.head.tag} == label;
    });
    if (found == from.early.end()) return from.posted.push_back(handle), handle;
    if (found->head.kind == Kind::ask) {
        answer(from, {Kind::grant, found->head.channel, found->head.request, 0, static_cast<std::uint64_t>(handle), 0});
        from.early.erase(found);
    } else if (found->is_here) {
        take(handle, *found);
        from.early.erase(found);
    } else {
        found->taker = handle;
    }
    return handle;
}

// A message that was kept aside.
void Sockets::take(int handle, const Early& early) {
    const Request& taken = at(handle);
    const auto num_bytes = static_cast<long long>(early.head.num_bytes);
    if (taken.data && std::min(num_bytes, taken.num_bytes) > 0)
        std::memcpy(taken.data, early.data.get(), static_cast<std::size_t>(std::min(num_bytes, taken.num_bytes)));
    const bool fits = num_bytes == taken.num_bytes;
    Peer& from = peer(taken.peer);
    end(handle, fits ? 0 : DT_OTHER_SIZE);
    answer(from, early.head);
}

// Of a grant: sends it. Of a message that was taken: says so, if it counts towards the credit.
void Sockets::answer(Peer& to, const Head& head) {
    if (head.kind == Kind::grant) return put(to, head);
    if (head.kind == Kind::whole && static_cast<long long>(head.num_bytes) > longest_short)
        put(to, {Kind::taken, head.channel, 0, 0, 0, head.num_bytes});
}

int Sockets::code_for(const Request& request) const {
    const auto channel = static_cast<std::size_t>(request.channel);
    if (broken_[channel]) return broken_[channel];
    return peers_[static_cast<std::size_t>(request.peer)].code[channel];
}

// A request of a rank that has ended fails, but for messages from before that. If the lock is taken, bytes are moved.
bool Sockets::test(int handle, int& code, std::uint64_t& seen) {
    const Lock lock(lock_, std::try_to_lock);
    if (!lock) return false;
    const Request& request = at(handle);
    if (!request.done) {
        seen = num_ended_;
        if (!(code = code_for(request))) return false;
        forget(handle);
        return true;
    }
    code = request.code;
    free(handle);
    return true;
}

void Sockets::cancel(int handle) {
    const Lock lock(lock_);
    at(handle).done ? free(handle) : forget(handle);
}

// Of a request that has not ended: its memory is not touched any more. What was sent in part is sent to its end.
void Sockets::forget(int handle) {
    Request& request = at(handle);
    Peer& with = peer(request.peer);
    const auto posted = std::find(with.posted.begin(), with.posted.end(), handle);
    if (posted != with.posted.end()) {
        with.posted.erase(posted);
        return free(handle);
    }
    request.forgotten = true;
    request.data = nullptr;
    if (with.taker == handle) with.into = nullptr, with.fits = 0;
    for (Frame& frame : with.out)
        if (frame.request == handle) keep(frame);
    if (!with.is_open) free(handle);
}

int Sockets::peer_of(int handle) {
    const Lock lock(lock_);
    return at(handle).peer;
}

void Sockets::nap(std::uint64_t seen) {
    Lock lock(lock_);
    ended_.wait_for(lock, longest_nap, [&] { return num_ended_ != seen; });
}

int Sockets::broken(int channel) {
    const Lock lock(lock_);
    return broken_[static_cast<std::size_t>(channel)];
}

std::string Sockets::why(int code) {
    const Lock lock(lock_);
    const auto rank = static_cast<std::size_t>(shm::rank_of(code));
    if (shm::state_of(code) == State::failed && rank < peers_.size())
        for (const std::string& why : peers_[rank].why)
            if (!why.empty()) return why;
    return shm::text_of(code);
}

bool Sockets::is_written(int channel) const {
    return std::none_of(peers_.begin(), peers_.end(), [&](const Peer& each) {
        return each.is_open && std::any_of(each.out.begin(), each.out.end(),
                                           [&](const Frame& frame) { return frame.head.channel == channel; });
    });
}

void Sockets::leave(int channel, State how, const std::string& why) {
    if (getpid() != process_) return;
    Lock lock(lock_);
    const auto number = static_cast<std::size_t>(channel);
    if (std::exchange(has_left_[number], true)) return;
    const Head head{
        how == State::left ? Kind::left : Kind::failed, static_cast<std::uint16_t>(channel), 0, 0, 0, why.size()};
    for (Peer& each : peers_) {
        put(each, head, why.data(), static_cast<long long>(why.size()));
        if (!each.out.empty() && each.out.back().head.kind == head.kind) keep(each.out.back());
    }
    peer(rank_).why[number] = why;
    if (how == State::failed && !broken_[number]) broken_[number] = shm::code_of(how, rank_);
    ++num_ended_;
    const auto is_over = [&] { return broken_[number] || is_written(channel); };
    if (how == State::left) ended_.wait_for(lock, longest_farewell, is_over);
}

// The process of a rank has ended, or its connection has: what it has not left fails on all ranks.
void Sockets::lose(int rank) {
    Peer& lost = peer(rank);
    if (!std::exchange(lost.is_open, false)) return;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, lost.file, nullptr);
    for (std::size_t channel = 0; channel < channels; ++channel) {
        if (lost.code[channel]) continue;
        lost.code[channel] = shm::code_of(State::died, rank);
        if (shm::state_of(broken_[channel]) != State::died) broken_[channel] = lost.code[channel];
    }
    lost.out.clear();
    for (std::size_t handle = 0; handle < requests_.size(); ++handle)
        if (requests_[handle].forgotten && requests_[handle].peer == rank) free(static_cast<int>(handle));
    ++num_ended_;
    ended_.notify_all();
}

void Sockets::loop() {
    prctl(PR_SET_NAME, "dovetail hosts", 0UL, 0UL, 0UL);
    std::array<epoll_event, 64> events;
    while (true) {
        const int found = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
        const Lock lock(lock_);
        if (stops_) return;
        for (int i = 0; i < found; ++i) {
            const auto rank = static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.u64);
            const auto about = events[static_cast<std::size_t>(i)].events;
            if (rank >= peers_.size()) continue;
            if (about & EPOLLOUT) write(peers_[rank]);
            if (!peers_[rank].is_open || !(about & ~EPOLLOUT)) continue;
            try {
                read(static_cast<int>(rank));
            } catch (const std::exception&) {  // no memory for a message
                lose(static_cast<int>(rank));
            }
        }
    }
}

}  // namespace dovetail::tcp
