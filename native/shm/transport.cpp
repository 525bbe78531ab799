// MessageTransport: see transport.hpp. Its collectives send each part to the ranks that need it. Reductions add in
// the order of ranks, so that all ranks get the same bits.
#include "shm/transport.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <complex>
#include <cstring>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "run/reduce.hpp"

namespace dovetail::shm {

namespace {

using run::LibraryCall;

constexpr int spins = 2000;  // polls, about 50 us, before a rank yields its core
constexpr int polls_per_clock = 256;
constexpr int polls_before_nap = 100;  // a few microseconds

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

int cores() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

template <class T>
void multiply(const void* a, const void* b, void* dst, long long count) {
    const auto *x = static_cast<const std::complex<T>*>(a), *y = static_cast<const std::complex<T>*>(b);
    auto* to = static_cast<std::complex<T>*>(dst);
    for (long long i = 0; i < count; ++i) to[i] = x[i] * y[i];
}

// As run::combine, also for complex numbers.
void combine(int dtype, int op, const void* a, const void* b, void* dst, long long count) {
    if (dtype < DT_COMPLEX64) return run::combine(dtype, op, a, b, dst, count);
    if (op != DT_PROD)
        return run::combine(dtype == DT_COMPLEX64 ? DT_FLOAT32 : DT_FLOAT64, DT_SUM, a, b, dst, 2 * count);
    dtype == DT_COMPLEX64 ? multiply<float>(a, b, dst, count) : multiply<double>(a, b, dst, count);
}

void move_bytes(void* to, const void* from, long long num_bytes) {
    if (num_bytes && to != from) std::memmove(to, from, static_cast<std::size_t>(num_bytes));
}

std::byte* bytes_of(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

std::uint64_t context_of(const std::vector<int>& ranks, int turn) {
    std::uint64_t mixed = 0xcbf29ce484222325u + static_cast<std::uint64_t>(turn);
    for (const int rank : ranks) mixed = (mixed ^ static_cast<std::uint64_t>(rank + 1)) * 0x9e3779b97f4a7c15u;
    return mixed | 2;  // 0: messages of the caller; 1: collectives of all ranks
}

}  // namespace

std::byte* MessageTransport::Collective::aside(std::size_t num_bytes) {
    if (room_bytes < num_bytes) {
        room.reset();
        room = std::make_unique_for_overwrite<std::byte[]>(num_bytes);
        room_bytes = num_bytes;
    }
    return room.get();
}

MessageTransport::MessageTransport(std::unique_ptr<Messages> messages)
    : messages_(std::move(messages)), is_shared_(messages_->are_ahead()), has_core_each_(cores() >= messages_->size()) {
    Group all;
    all.ranks.resize(static_cast<std::size_t>(size()));
    std::iota(all.ranks.begin(), all.ranks.end(), 0);
    all.own = rank();
    all.context = 1;
    groups_.push_back(std::move(all));
}

int MessageTransport::group(const std::vector<int>& ranks, int turn) {
    const auto guard = locked();
    if (turn == 0 && ranks == groups_.front().ranks) return -1;
    const auto known = known_.find({ranks, turn});
    if (known != known_.end()) return known->second;
    Group made;
    made.ranks = ranks;
    made.own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    made.context = context_of(ranks, turn);
    groups_.push_back(std::move(made));
    return known_[{ranks, turn}] = static_cast<int>(groups_.size()) - 1;
}

bool MessageTransport::test(int handle) {
    int code = 0;
    const bool done = test(handle, code);
    if (done && code) throw run::TransportError{messages_->text(code)};
    return done;
}

bool MessageTransport::test(int handle, int& code) {
    const auto guard = locked();
    if (handle % 2 == 0) return messages_->test(handle / 2, code);
    Collective& call = collectives_[static_cast<std::size_t>(handle / 2)];
    if (!advance(call, code)) return false;
    call.steps.clear();
    unused_.push_back(handle / 2);
    return true;
}

void MessageTransport::cancel(int handle) {
    const auto guard = locked();
    if (handle % 2 == 0) messages_->cancel(handle / 2);
}

int MessageTransport::result(int handle) {
    using Clock = std::chrono::steady_clock;
    int code = 0;
    Clock::time_point until;
    for (int polls = 1; !test(handle, code); ++polls) {
        const bool naps = polls > (rests ? polls_before_nap : spins) && (rests || messages_->move_alone());
        if (naps) {
            messages_->nap();
        } else {
            has_core_each_&& polls < spins ? relax() : static_cast<void>(sched_yield());
        }
        if (limit_s <= 0.0 || (!naps && polls % polls_per_clock)) continue;
        const auto now = Clock::now();
        if (until == Clock::time_point())
            until = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
        if (now >= until) give_up(handle);
    }
    return code;
}

// Messages of the call may still arrive, for memory that its caller uses for other things from now on: no call of this
// transport moves messages any more.
void MessageTransport::give_up(int handle) {
    std::ostringstream text;
    text << "timeout after " << limit_s << " s";
    const Collective& call = collectives_[static_cast<std::size_t>(handle / 2)];
    if (handle % 2 && !call.waits.empty()) text << ", waiting for rank " << messages_->peer_of(call.waits.back());
    fail(text.str());
    throw std::runtime_error(broken_);
}

void MessageTransport::fail(const std::string& why) {
    const auto guard = locked();
    if (broken_.empty()) broken_ = why;
    messages_->leave(State::failed, why);
}

void MessageTransport::collective(const LibraryCall& call) {
    if (const int code = result(icollective(call))) throw run::TransportError{messages_->text(code)};
}

int MessageTransport::icollective(const LibraryCall& call) {
    const auto guard = locked();
    if (!broken_.empty()) throw std::runtime_error("an earlier call failed: " + broken_);
    if (unused_.empty()) {
        unused_.push_back(static_cast<int>(collectives_.size()));
        collectives_.emplace_back();
    }
    const int place = unused_.back();
    unused_.pop_back();
    Collective& made = collectives_[static_cast<std::size_t>(place)];
    Group& group = groups_[call.group < 0 ? 0 : static_cast<std::size_t>(call.group)];
    made.group = &group;
    made.label = {group.context, group.calls++ << 1};
    made.waits.clear();
    plan(made, call);
    return 2 * place + 1;
}

MessageTransport::Parts MessageTransport::equal_parts(const void* data, long long length, const Collective& made) {
    Parts parts{bytes_of(data), {}, {}};
    for (int member = 0; member < made.size(); ++member) parts.add(length);
    return parts;
}

MessageTransport::Parts MessageTransport::whole_parts(const void* data, long long length, const Collective& made) {
    const auto n = static_cast<std::size_t>(made.size());
    return {bytes_of(data), std::vector<long long>(n, 0), std::vector<long long>(n, length)};
}

void MessageTransport::plan(Collective& made, const LibraryCall& call) {
    const long long one = run::dtype_bytes(call.dtype), num_bytes = call.count * one;
    const auto parts_of = [&](const void* data, const long long* counts) {
        if (!counts) return equal_parts(data, num_bytes, made);
        Parts parts{bytes_of(data), {}, {}};
        for (int member = 0; member < made.size(); ++member) parts.add(counts[member] * one);
        return parts;
    };
    switch (call.kind) {
        case DT_ALL_REDUCE:
        case DT_REDUCE:
            return reduce_array(made, call);
        case DT_REDUCE_SCATTER:
        case DT_REDUCE_SCATTER_V:
            return reduce_part(made, call, parts_of(call.src, call.counts), bytes_of(call.dst), true);
        case DT_ALL_GATHER:
        case DT_ALL_GATHER_V: {
            const Parts come = parts_of(call.dst, call.counts);
            return exchange(made, whole_parts(call.src, come.length(made.own()), made), come);
        }
        case DT_ALL_TO_ALL:
        case DT_ALL_TO_ALL_V:
            return exchange(made, parts_of(call.src, call.counts),
                            parts_of(call.dst, call.counts ? call.counts + made.size() : nullptr));
        case DT_BARRIER:
            return exchange(made, whole_parts(nullptr, 0, made), whole_parts(nullptr, 0, made));
        case DT_ALL_TO_NEXT:
            if (made.own() > 0) receive(made, call.dst, num_bytes, made.own() - 1);
            if (made.own() + 1 < made.size()) send(made, call.src, num_bytes, made.own() + 1);
            return;
        default:
            return move_rooted(made, call, num_bytes);
    }
}

void MessageTransport::move_rooted(Collective& made, const LibraryCall& call, long long num_bytes) {
    const bool is_root = made.own() == call.root;
    switch (call.kind) {
        case DT_BROADCAST:
            return is_root ? send_parts(made, whole_parts(call.dst, num_bytes, made))
                           : receive(made, call.dst, num_bytes, call.root);
        case DT_GATHER: {
            if (!is_root) return send(made, call.src, num_bytes, call.root);
            const Parts come = equal_parts(call.dst, num_bytes, made);
            receive_parts(made, come);
            return move_bytes(come.at(call.root), call.src, num_bytes);
        }
        default: {  // DT_SCATTER
            if (!is_root) return receive(made, call.dst, num_bytes, call.root);
            const Parts go = equal_parts(call.src, num_bytes, made);
            send_parts(made, go);
            return move_bytes(call.dst, go.at(call.root), num_bytes);
        }
    }
}

void MessageTransport::send(Collective& made, const void* data, long long num_bytes, int member) {
    const int to = made.group->ranks[static_cast<std::size_t>(member)];
    made.waits.push_back(messages_->isend(data, num_bytes, to, made.label, false));
}

void MessageTransport::receive(Collective& made, void* data, long long num_bytes, int member) {
    const int from = made.group->ranks[static_cast<std::size_t>(member)];
    made.waits.push_back(messages_->irecv(data, num_bytes, from, made.label));
}

// Each member begins with the next one, so that not all send to the same one first.
void MessageTransport::send_parts(Collective& made, const Parts& parts) {
    for (int away = 1; away < made.size(); ++away) {
        const int to = (made.own() + away) % made.size();
        send(made, parts.at(to), parts.length(to), to);
    }
}

void MessageTransport::receive_parts(Collective& made, const Parts& parts) {
    for (int away = 1; away < made.size(); ++away) {
        const int from = (made.own() + made.size() - away) % made.size();
        receive(made, parts.at(from), parts.length(from), from);
    }
}

void MessageTransport::exchange(Collective& made, const Parts& out, const Parts& in) {
    receive_parts(made, in);
    send_parts(made, out);
    move_bytes(in.at(made.own()), out.at(made.own()), out.length(made.own()));
}

// Reduces this rank's part of all members' `parts`, into `result`; null: into the place of this rank's part in
// `room`. If not `sends`, only this rank reduces.
void MessageTransport::reduce_part(Collective& made, const LibraryCall& call, const Parts& parts, std::byte* result,
                                   bool sends) {
    const int own = made.own(), n = made.size(), dtype = call.dtype, op = call.op;
    const long long length = parts.length(own);
    if (n == 1) return move_bytes(result, parts.at(0), length);
    const Parts come = equal_parts(made.aside(static_cast<std::size_t>(length * n)), length, made);
    receive_parts(made, come);
    if (sends) send_parts(made, parts);
    made.steps.push_back([=] {
        std::byte* between = come.at(own);  // the place that no message uses
        const std::byte* sum = own == 0 ? parts.at(0) : come.at(0);
        for (int member = 1; member < n; ++member) {
            std::byte* into = member == n - 1 && result ? result : between;
            const std::byte* next = member == own ? parts.at(own) : come.at(member);
            combine(dtype, op, sum, next, into, length / run::dtype_bytes(dtype));
            sum = into;
        }
    });
}

// An all_reduce or reduce. Of a short array, each rank with a result receives all arrays whole. Of a longer one, every
// member reduces a part, and then sends it to the ranks with a result.
void MessageTransport::reduce_array(Collective& made, const LibraryCall& call) {
    const long long one = run::dtype_bytes(call.dtype), num_bytes = call.count * one;
    const bool is_rooted = call.kind == DT_REDUCE, has_result = !is_rooted || made.own() == call.root;
    std::byte* const dst = bytes_of(call.dst);
    if (num_bytes <= messages_->whole_bytes() || made.size() == 1) {
        if (!has_result) return send(made, call.src, num_bytes, call.root);
        return reduce_part(made, call, whole_parts(call.src, num_bytes, made), dst, !is_rooted);
    }
    Parts parts{bytes_of(call.src), {}, {}};
    for (int member = 0; member < made.size(); ++member)
        parts.add((call.count * (member + 1) / made.size() - call.count * member / made.size()) * one);
    Parts results = parts;
    results.data = dst;
    reduce_part(made, call, parts, has_result ? results.at(made.own()) : nullptr, true);
    made.steps.push_back([=, this, &made, root = call.root] {
        const long long length = parts.length(made.own());
        ++made.label.tag;
        if (has_result) receive_parts(made, results);
        if (!is_rooted) return send_parts(made, whole_parts(results.at(made.own()), length, made));
        if (!has_result) send(made, made.room.get() + made.own() * length, length, root);
    });
}

// Returns whether it has ended; `code`: its result.
bool MessageTransport::advance(Collective& call, int& code) {
    while (true) {
        while (!call.waits.empty()) {
            if (!messages_->test(call.waits.back(), code)) return false;
            call.waits.pop_back();
            if (!code) continue;
            for (const int other : call.waits) messages_->cancel(other);
            call.waits.clear();
            return true;
        }
        if (call.steps.empty()) return true;
        const auto step = std::move(call.steps.front());
        call.steps.pop_front();
        step();
    }
}

}  // namespace dovetail::shm
