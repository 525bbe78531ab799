// Messages and collectives between threads of one process.
#include "run/local.hpp"

#include <algorithm>
#include <cstring>

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

void LocalHub::collective(int rank, int group, int kind, const void* src, void* dst, long long count, int dtype, int op,
                          Flag& flag) {
    Call ready;
    {
        const std::lock_guard lock(calls_lock_);
        const auto& members = groups_[static_cast<std::size_t>(group)].first;
        const std::pair key{group, sequence_[{rank, group}]++};
        Call& call = calls_[key];
        const std::size_t size = members.size();
        if (call.arrived++ == 0) {
            call.kind = kind, call.dtype = dtype, call.op = op, call.count = count;
            call.src.resize(size), call.dst.resize(size), call.flags.resize(size);
        }
        call.mixed = call.mixed || call.kind != kind || call.count != count || call.dtype != dtype;
        const auto at = static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
        call.src[at] = src, call.dst[at] = dst, call.flags[at] = &flag;
        if (call.arrived < static_cast<int>(size)) return;
        ready = std::move(call);
        calls_.erase(key);
    }
    if (!ready.mixed) carry_out(ready);
    for (auto* member : ready.flags) member->store(ready.mixed ? 2 : 1, std::memory_order_release);
}

void LocalHub::carry_out(const Call& call) {
    const auto size = call.src.size();
    const auto bytes = static_cast<std::size_t>(call.count * dtype_bytes(call.dtype));
    const auto piece = [&](const void* base, std::size_t i) { return static_cast<const std::byte*>(base) + i * bytes; };
    const auto room = [&](void* base, std::size_t i) { return static_cast<std::byte*>(base) + i * bytes; };
    const bool whole = call.kind == DT_ALL_REDUCE, scatter = call.kind == DT_REDUCE_SCATTER;
    std::vector<std::byte> sum(bytes);
    for (std::size_t to = 0; to < size; ++to) {
        if (bytes == 0) break;
        if (scatter || (whole && to == 0)) {
            std::memcpy(sum.data(), piece(call.src[0], scatter ? to : 0), bytes);
            for (std::size_t from = 1; from < size; ++from)
                reduce(call.dtype, call.op, piece(call.src[from], scatter ? to : 0), sum.data(), call.count);
        }
        if (scatter || whole) std::memmove(call.dst[to], sum.data(), bytes);
        for (std::size_t from = 0; from < size; ++from) {
            if (call.kind == DT_ALL_GATHER) std::memmove(room(call.dst[to], from), call.src[from], bytes);
            if (call.kind == DT_ALL_TO_ALL) std::memmove(room(call.dst[to], from), piece(call.src[from], to), bytes);
        }
        if (call.kind == DT_BROADCAST && to > 0) std::memmove(call.dst[to], call.dst[0], bytes);
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
