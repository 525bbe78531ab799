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
    if (call.kind != DT_ALL_TO_ALL_V && call.kind != DT_REDUCE_SCATTER_V)
        return static_cast<long long>(to) * call.count;
    return std::accumulate(call.counts, call.counts + to, 0LL);
}

long long LocalHub::Call::taken_at(std::size_t to, std::size_t from) const {
    const LibraryCall& call = members[to];
    if (!call.counts) return static_cast<long long>(from) * call.count;
    const long long* taken = call.counts + (call.kind == DT_ALL_TO_ALL_V ? members.size() : 0);
    return std::accumulate(taken, taken + from, 0LL);
}

void LocalHub::carry_out(const Call& call) {
    const LibraryCall& first = call.members[0];
    const auto size = call.members.size();
    const long long width = dtype_bytes(first.dtype);
    const auto source = [&](std::size_t i, long long at) {
        return static_cast<const std::byte*>(call.members[i].src) + at * width;
    };
    const auto result = [&](std::size_t i, long long at) {
        return static_cast<std::byte*>(call.members[i].dst) + at * width;
    };
    const auto move = [&](std::byte* to, const std::byte* from, long long count) {
        if (count > 0) std::memmove(to, from, static_cast<std::size_t>(count * width));
    };
    const auto add_all = [&](long long at, long long count, std::vector<std::byte>& sum) {
        sum.resize(static_cast<std::size_t>(count * width));
        move(sum.data(), source(0, at), count);
        for (std::size_t from = 1; from < size && count > 0; ++from)
            reduce(first.dtype, first.op, source(from, at), sum.data(), count);
    };
    std::vector<std::byte> sum;
    if (first.kind == DT_ALL_REDUCE) add_all(0, first.count, sum);
    for (std::size_t to = 0; to < size; ++to) {
        switch (first.kind) {
            case DT_ALL_REDUCE:
                move(result(to, 0), sum.data(), first.count);
                break;
            case DT_REDUCE_SCATTER:
            case DT_REDUCE_SCATTER_V:
                add_all(call.sent_at(0, to), call.count(0, to), sum);
                move(result(to, 0), sum.data(), call.count(0, to));
                break;
            case DT_BROADCAST:
                if (to > 0) move(result(to, 0), result(0, 0), first.count);
                break;
            default:
                for (std::size_t from = 0; from < size; ++from) {
                    const bool gathers = first.kind == DT_ALL_GATHER || first.kind == DT_ALL_GATHER_V;
                    move(result(to, call.taken_at(to, from)), source(from, gathers ? 0 : call.sent_at(from, to)),
                         call.count(from, to));
                }
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
