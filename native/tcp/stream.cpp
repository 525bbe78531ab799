// Sockets: how the bytes of messages are written and read. See sockets.hpp.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "run/mpi_table.h"
#include "tcp/sockets.hpp"

namespace dovetail::tcp {

namespace {

constexpr std::size_t stage = std::size_t{1} << 14;  // bytes that are read at once where a head may come
constexpr long long most_awaited = 1LL << 17;        // bytes that wake the thread, if more are to come
constexpr int most_reads = 16;                       // in a row from one rank, before others get their turn

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

void Sockets::put(Peer& to, Head head, const void* data, long long num_bytes, int request) {
    if (!to.is_open) return;
    to.out.push_back({head, static_cast<const std::byte*>(data), num_bytes, 0, request, nullptr});
    if (to.out.size() == 1) write(to);
}

// The caller's array is not read any more.
void Sockets::keep(Frame& frame) {
    if (frame.kept) return;
    frame.kept = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(frame.num_bytes));
    std::copy_n(frame.data, frame.num_bytes, frame.kept.get());
    frame.data = frame.kept.get();
}

void Sockets::write(Peer& to) {
    bool has_room = true;
    while (!to.out.empty() && has_room && to.is_open) has_room = write_some(to);
    watch_room(to, to.is_open && !to.out.empty());
    if (to.out.empty()) ended_.notify_all();  // a rank may wait for that before it leaves
}

// Writes heads and payloads together. Returns whether there may be room for more.
bool Sockets::write_some(Peer& to) {
    std::array<iovec, 16> parts;
    std::size_t used = 0;
    for (auto& frame : to.out) {
        if (used + 2 > parts.size()) break;
        const auto sent_of_head = std::min<long long>(frame.moved, sizeof(Head));
        const long long sent = frame.moved - sent_of_head;
        if (sent_of_head < static_cast<long long>(sizeof(Head)))
            parts[used++] = {reinterpret_cast<char*>(&frame.head) + sent_of_head,
                             sizeof(Head) - static_cast<std::size_t>(sent_of_head)};
        if (sent < frame.num_bytes)
            parts[used++] = {const_cast<std::byte*>(frame.data) + sent,
                             static_cast<std::size_t>(frame.num_bytes - sent)};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = used;
    const ssize_t written = sendmsg(to.file, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
        if (!would_block()) shutdown(to.file, SHUT_RDWR);  // the thread reads what has come, and then its end
        return errno == EINTR;
    }
    for (long long left = written; left > 0;) {
        Frame& frame = to.out.front();
        const long long all = static_cast<long long>(sizeof(Head)) + frame.num_bytes;
        const long long here = std::min(left, all - frame.moved);
        frame.moved += here;
        left -= here;
        if (frame.moved < all) return left > 0;
        if (frame.request >= 0) end(frame.request);
        to.out.pop_front();
    }
    return true;
}

void Sockets::watch_room(Peer& to, bool on) {
    if (to.awaits_room == on || !to.is_open) return;
    to.awaits_room = on;
    epoll_event event{EPOLLIN | (on ? static_cast<std::uint32_t>(EPOLLOUT) : 0U),
                      {.u64 = static_cast<std::uint64_t>(&to - peers_.data())}};
    epoll_ctl(epoll_, EPOLL_CTL_MOD, to.file, &event);
}

void Sockets::read(int src) {
    Peer& from = peer(src);
    bool may_have_more = true;
    for (int reads = 0; reads < most_reads && may_have_more && from.is_open; ++reads) {
        may_have_more = fill(from);
        use_staged(src);
    }
    if (from.is_open) set_low_water(from);
}

// Reads into the array of a receive, and what follows into the stage. Returns whether more may be there.
bool Sockets::fill(Peer& from) {
    const bool is_direct = from.has_head && from.fits > 0;
    if (!from.staged) from.staged = std::make_unique_for_overwrite<std::byte[]>(stage);
    std::memmove(from.staged.get(), from.staged.get() + from.begin, from.end - from.begin);
    from.end -= std::exchange(from.begin, 0);
    std::array<iovec, 2> parts;
    parts[0] = {from.into, static_cast<std::size_t>(from.fits)};
    parts[1] = {from.staged.get() + from.end, stage - from.end};
    msghdr message{};
    message.msg_iov = is_direct ? parts.data() : parts.data() + 1;
    message.msg_iovlen = is_direct ? 2 : 1;
    const ssize_t found = recvmsg(from.file, &message, MSG_DONTWAIT);
    if (found < 0 && would_block()) return errno == EINTR;
    if (found <= 0) return lose(static_cast<int>(&from - peers_.data())), false;
    const long long taken = is_direct ? std::min<long long>(found, from.fits) : 0;
    from.into += taken;
    from.fits -= taken;
    from.rest -= taken;
    from.end += static_cast<std::size_t>(found - taken);
    return from.end == stage;  // else all was read that had come
}

// Uses what was read: the end of a payload, whole messages, the beginning of the next.
void Sockets::use_staged(int src) {
    Peer& from = peer(src);
    while (true) {
        if (!from.has_head) {
            if (from.end - from.begin < sizeof(Head)) return;
            std::memcpy(&from.head, from.staged.get() + from.begin, sizeof(Head));
            from.begin += sizeof(Head);
            from.has_head = true;
            begin_payload(src);
        }
        const auto here = std::min<long long>(from.rest, static_cast<long long>(from.end - from.begin));
        const long long fits = std::min(here, from.fits);
        if (fits > 0) std::memcpy(from.into, from.staged.get() + from.begin, static_cast<std::size_t>(fits));
        from.into += fits;
        from.fits -= fits;
        from.rest -= here;
        from.begin += static_cast<std::size_t>(here);
        if (from.rest > 0) return;
        from.has_head = false;
        end_payload(src);
    }
}

void Sockets::begin_payload(int src) {
    Peer& from = peer(src);
    const Head& head = from.head;
    const Label label{head.context, head.tag};
    from.taker = -1;
    from.into = nullptr;
    from.fits = from.rest = 0;
    if (head.kind == Kind::left || head.kind == Kind::failed) {
        from.rest = from.fits = static_cast<long long>(head.num_bytes);
        from.text.resize(head.num_bytes);
        from.into = reinterpret_cast<std::byte*>(from.text.data());
    } else if (head.kind == Kind::data) {
        from.taker = static_cast<int>(head.request);
    } else if (head.kind == Kind::whole || head.kind == Kind::ask) {
        const auto found = std::find_if(from.posted.begin(), from.posted.end(), [&](int taken) {
            return at(taken).channel == head.channel && at(taken).label == label;
        });
        if (found != from.posted.end()) {
            from.taker = *found;
            from.posted.erase(found);
        } else {
            from.early.push_back({head, nullptr, head.kind == Kind::ask, -1});
            from.place = std::prev(from.early.end());
        }
    }
    if (head.kind != Kind::whole && head.kind != Kind::data) return;
    from.rest = static_cast<long long>(head.num_bytes);
    if (from.taker < 0) {
        from.place->data = std::make_unique_for_overwrite<std::byte[]>(head.num_bytes);
        from.into = from.place->data.get();
        from.fits = from.rest;
    } else if ((from.into = at(from.taker).data)) {
        from.fits = std::min(from.rest, at(from.taker).num_bytes);
    }
}

void Sockets::end_payload(int src) {
    Peer& from = peer(src);
    const Head head = from.head;
    const auto channel = static_cast<std::size_t>(head.channel);
    switch (head.kind) {
        case Kind::grant: {
            const int sent = static_cast<int>(head.request);
            const Request& request = at(sent);
            const Head about{Kind::data,
                             head.channel,
                             static_cast<std::uint32_t>(head.tag),
                             0,
                             0,
                             static_cast<std::uint64_t>(request.data ? request.num_bytes : 0)};
            return put(from, about, request.data, static_cast<long long>(about.num_bytes), sent);
        }
        case Kind::ask:
            if (from.taker >= 0)
                put(from, {Kind::grant, head.channel, head.request, 0, static_cast<std::uint64_t>(from.taker), 0});
            break;
        case Kind::taken:
            from.unanswered -= static_cast<long long>(head.num_bytes);
            break;
        case Kind::left:
        case Kind::failed: {
            const State how = head.kind == Kind::left ? State::left : State::failed;
            from.code[channel] = shm::code_of(how, src);
            from.why[channel] = from.text;
            if (how == State::failed && !broken_[channel]) broken_[channel] = from.code[channel];
            ++num_ended_;
            ended_.notify_all();
            break;
        }
        case Kind::whole:
        case Kind::data:
            if (from.taker >= 0) {
                const bool fits = static_cast<long long>(head.num_bytes) == at(from.taker).num_bytes;
                end(from.taker, fits ? 0 : DT_OTHER_SIZE);
                answer(from, head);
            } else if (from.place->is_here = true; from.place->taker >= 0) {
                take(from.place->taker, *from.place);
                from.early.erase(from.place);
            }
    }
    from.taker = -1;
}

// The thread wakes once so much of a long payload has come, and not for each packet: it uses a core that computes.
void Sockets::set_low_water(Peer& from) {
    const long long awaited = from.has_head && from.rest > 0 ? std::min(from.rest, most_awaited) : 1;
    if (awaited == from.low_water) return;
    from.low_water = static_cast<int>(awaited);
    setsockopt(from.file, SOL_SOCKET, SO_RCVLOWAT, &from.low_water, sizeof from.low_water);
}

}  // namespace dovetail::tcp
