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

LocalHub::Flag LocalHub::send(int src, int dst, int tag, const void* data, long long num_bytes) {
    Message message{data, nullptr, num_bytes, std::make_shared<std::atomic<int>>(0)};
    Message posted{};
    Inbox& inbox = inboxes_[static_cast<std::size_t>(dst)];
    {
        const std::lock_guard lock(inbox.lock);
        Channel& channel = inbox.channels[{src, tag}];
        if (channel.posted.empty()) {
            channel.sent.push_back(message);
            return message.flag;
        }
        posted = channel.posted.front();
        channel.posted.pop_front();
    }
    deliver(message, posted);
    return message.flag;
}

LocalHub::Flag LocalHub::receive(int src, int dst, int tag, void* data, long long num_bytes) {
    Message message{nullptr, data, num_bytes, std::make_shared<std::atomic<int>>(0)};
    Message sent{};
    Inbox& inbox = inboxes_[static_cast<std::size_t>(dst)];
    {
        const std::lock_guard lock(inbox.lock);
        Channel& channel = inbox.channels[{src, tag}];
        if (channel.sent.empty()) {
            channel.posted.push_back(message);
            return message.flag;
        }
        sent = channel.sent.front();
        channel.sent.pop_front();
    }
    deliver(sent, message);
    return message.flag;
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

LocalHub::Flag LocalHub::collective(int rank, int group, int kind, const void* src, void* dst, long long count,
                                    int dtype, int op) {
    auto flag = std::make_shared<std::atomic<int>>(0);
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
        call.src[at] = src, call.dst[at] = dst, call.flags[at] = flag;
        if (call.arrived < static_cast<int>(size)) return flag;
        ready = std::move(call);
        calls_.erase(key);
    }
    if (!ready.mixed) carry_out(ready);
    for (const auto& member : ready.flags) member->store(ready.mixed ? 2 : 1, std::memory_order_release);
    return flag;
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

int LocalTransport::keep(LocalHub::Flag flag) {
    if (free_.empty()) {
        pending_.push_back(std::move(flag));
        return static_cast<int>(pending_.size()) - 1;
    }
    const int handle = free_.back();
    free_.pop_back();
    pending_[static_cast<std::size_t>(handle)] = std::move(flag);
    return handle;
}

bool LocalTransport::test(int handle) {
    const int state = pending_[static_cast<std::size_t>(handle)]->load(std::memory_order_acquire);
    if (state == 2) throw TransportError{"the two sides of a message, or the members of a collective, differ in size"};
    const int culprit = hub_->stopped();
    if (culprit >= 0 && culprit != rank_)
        throw TransportError{"stopped because rank " + std::to_string(culprit) + " failed"};
    if (state == 0) return false;
    pending_[static_cast<std::size_t>(handle)].reset();
    free_.push_back(handle);
    return true;
}

}  // namespace dovetail::run
