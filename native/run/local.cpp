// Messages and collectives between threads of one process.
#include "run/local.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace dovetail::run {

void LocalHub::deliver(const Message& sent, const Message& posted) {
    const bool fits = sent.num_bytes == posted.num_bytes;
    if (fits && sent.num_bytes) std::memcpy(posted.to, sent.from, static_cast<std::size_t>(sent.num_bytes));
    posted.flag->store(fits ? 1 : 2, std::memory_order_release);
    sent.flag->store(fits ? 1 : 2, std::memory_order_release);
}

LocalHub::Flags& LocalHub::flags() {
    const std::lock_guard lock(calls_lock_);
    return flags_.emplace_back();
}

LocalHub::Channel& LocalHub::Inbox::channel(int src, int tag) {
    auto& by_tag = channels[static_cast<std::size_t>(src)];
    if (by_tag.size() <= static_cast<std::size_t>(tag)) by_tag.resize(static_cast<std::size_t>(tag) + 1);
    return by_tag[static_cast<std::size_t>(tag)];
}

void LocalHub::send(int src, int dst, int tag, const void* data, long long num_bytes, Flag& flag) {
    const Message message{data, nullptr, num_bytes, &flag};
    Message posted;
    Inbox& inbox = inboxes_[static_cast<std::size_t>(dst)];
    {
        const std::lock_guard lock(inbox.lock);
        Channel& channel = inbox.channel(src, tag);
        if (!channel.posted.size()) {
            channel.sent.push() = message;
            return;
        }
        posted = channel.posted[channel.posted.begin()];
        channel.posted.pop();
    }
    deliver(message, posted);
}

void LocalHub::receive(int src, int dst, int tag, void* data, long long num_bytes, Flag& flag) {
    const Message message{nullptr, data, num_bytes, &flag};
    Message sent;
    Inbox& inbox = inboxes_[static_cast<std::size_t>(dst)];
    {
        const std::lock_guard lock(inbox.lock);
        Channel& channel = inbox.channel(src, tag);
        if (!channel.sent.size()) {
            channel.posted.push() = message;
            return;
        }
        sent = channel.sent[channel.sent.begin()];
        channel.sent.pop();
    }
    deliver(sent, message);
}

int LocalHub::group(const std::vector<int>& ranks, int turn) {
    const std::lock_guard lock(calls_lock_);
    const std::pair key{ranks, turn};
    const auto known = std::find(groups_.begin(), groups_.end(), key);
    if (known != groups_.end()) return static_cast<int>(known - groups_.begin());
    groups_.push_back(key);
    return static_cast<int>(groups_.size()) - 1;
}

void LocalHub::stop(int rank) {
    int none = -1;
    stopped_.compare_exchange_strong(none, rank);
}

void LocalHub::collective(int rank, const LibraryCall& asked, Flag& flag) {
    Call ready;
    {
        const std::lock_guard lock(calls_lock_);
        const auto& members = groups_[static_cast<std::size_t>(asked.group)].first;
        const std::pair key{asked.group, sequence_[{rank, asked.group}]++};
        Call& call = calls_[key];
        const std::size_t size = members.size();
        if (call.arrived++ == 0) call.members.resize(size), call.flags.resize(size);
        const auto at = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
        call.members[at] = asked, call.flags[at] = &flag;
        if (call.arrived < static_cast<int>(size)) return;
        ready = std::move(call);
        calls_.erase(key);
    }
    const bool fits = ready.fits();
    if (fits) carry_out(ready);
    for (auto* member : ready.flags) member->store(fits ? 1 : 2, std::memory_order_release);
}

bool LocalHub::Call::fits() const {
    const LibraryCall& first = members[0];
    const auto size = members.size();
    for (const LibraryCall& other : members) {
        if (other.kind != first.kind || other.count != first.count || other.dtype != first.dtype) return false;
        if (first.counts && first.kind != DT_ALL_TO_ALL_V &&
            !std::equal(first.counts, first.counts + size, other.counts))
            return false;
    }
    for (std::size_t i = 0; first.kind == DT_ALL_TO_ALL_V && i < size; ++i)
        for (std::size_t j = 0; j < size; ++j)
            if (members[i].counts[j] != members[j].counts[size + i]) return false;
    return true;
}

long long LocalHub::Call::count(std::size_t from, std::size_t to) const {
    const LibraryCall& call = members[from];
    return !call.counts ? call.count : call.counts[call.kind == DT_ALL_GATHER_V ? from : to];
}

long long LocalHub::Call::sent_at(std::size_t from, std::size_t to) const {
    const LibraryCall& call = members[from];
    if (call.kind == DT_ALL_GATHER || call.kind == DT_ALL_GATHER_V) return 0;
    return call.counts ? std::accumulate(call.counts, call.counts + to, 0LL) : static_cast<long long>(to) * call.count;
}

long long LocalHub::Call::taken_at(std::size_t to, std::size_t from) const {
    const LibraryCall& call = members[to];
    if (!call.counts) return static_cast<long long>(from) * call.count;
    const long long* taken = call.counts + (call.kind == DT_ALL_TO_ALL_V ? members.size() : 0);
    return std::accumulate(taken, taken + from, 0LL);
}

const std::byte* LocalHub::Call::source(std::size_t member, long long at) const {
    return static_cast<const std::byte*>(members[member].src) + at * dtype_bytes(members[member].dtype);
}

std::byte* LocalHub::Call::result(std::size_t member, long long at) const {
    return static_cast<std::byte*>(members[member].dst) + at * dtype_bytes(members[member].dtype);
}

void LocalHub::Call::move(std::byte* to, const std::byte* from, long long count) const {
    if (count > 0) std::memmove(to, from, static_cast<std::size_t>(count * dtype_bytes(members[0].dtype)));
}

const std::byte* LocalHub::Call::total(long long at, long long count, std::vector<std::byte>& room) const {
    room.resize(static_cast<std::size_t>(count * dtype_bytes(members[0].dtype)));
    move(room.data(), source(0, at), count);
    for (std::size_t from = 1; from < members.size() && count > 0; ++from)
        reduce(members[0].dtype, members[0].op, source(from, at), room.data(), count);
    return room.data();
}

void LocalHub::carry_out(const Call& call) {
    const LibraryCall& first = call.members[0];
    std::vector<std::byte> room;
    const std::byte* sum = first.kind == DT_ALL_REDUCE ? call.total(0, first.count, room) : nullptr;
    for (std::size_t to = 0; to < call.members.size(); ++to) {
        if (sum) {
            call.move(call.result(to, 0), sum, first.count);
        } else if (first.kind == DT_REDUCE_SCATTER || first.kind == DT_REDUCE_SCATTER_V) {
            const long long count = call.count(0, to);
            call.move(call.result(to, 0), call.total(call.sent_at(0, to), count, room), count);
        } else if (first.kind == DT_BROADCAST) {
            if (to > 0) call.move(call.result(to, 0), call.result(0, 0), first.count);
        } else {
            for (std::size_t from = 0; from < call.members.size(); ++from)
                call.move(call.result(to, call.taken_at(to, from)), call.source(from, call.sent_at(from, to)),
                          call.count(from, to));
        }
    }
}

int LocalTransport::take() {
    if (free_.empty()) {
        flags_.emplace_back(0);
        return static_cast<int>(flags_.size()) - 1;
    }
    const int handle = free_.back();
    free_.pop_back();
    flags_[static_cast<std::size_t>(handle)].store(0, std::memory_order_relaxed);
    return handle;
}

bool LocalTransport::test(int handle) {
    const int state = flags_[static_cast<std::size_t>(handle)].load(std::memory_order_acquire);
    if (state == 2) throw TransportError{"the two sides of a message, or the members of a collective, differ in size"};
    const int culprit = hub_->stopped();
    if (culprit >= 0 && culprit != rank_)
        throw TransportError{"stopped because rank " + std::to_string(culprit) + " failed"};
    if (state == 0) return false;
    free_.push_back(handle);
    return true;
}

}  // namespace dovetail::run
