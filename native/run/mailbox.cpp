// Mailbox: see mailbox.hpp.
#include "run/mailbox.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace dovetail::run {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int head_tag = 20001;
constexpr std::int64_t first_data_tag = 1 << 24, data_tags = 1 << 24;
// A rank that waits polls, then naps between polls: shortly while data move, else for a share of the time waited.
constexpr double spin_s = 50e-6, idle_s = 200e-6, share = 1.0 / 8;
constexpr std::chrono::microseconds nap(5), longest_nap(1000);
constexpr std::chrono::microseconds moving_nap(200);  // in the background: each poll moves what a ring holds

int data_tag(std::int64_t number) { return static_cast<int>(first_data_tag + number % data_tags); }

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Transport> transport)
    : transport_(std::move(transport)), sent_(static_cast<std::size_t>(transport_->size())) {
    for (int source = 0; source < transport_->size(); ++source)
        if (source != transport_->rank()) await_head(source);
    thread_ = std::thread([this] { progress(); });
}

void Mailbox::send(const void* data, long long num_bytes, int target, long long tag, Done done) {
    Lock held(lock_);
    auto head = std::make_shared<Head>();
    head->tag = tag, head->num_bytes = num_bytes, head->number = sent_[static_cast<std::size_t>(target)]++;
    const bool fits = num_bytes <= Head::longest;
    if (fits && num_bytes) std::memcpy(head->data.data(), data, static_cast<std::size_t>(num_bytes));
    auto ended = [this, done = std::move(done)](const Fault& fault) {
        calls_.push_back([done, fault, rank = transport_->rank()] { done(fault, rank); });
    };
    Head* at = head.get();
    begin(true, at, sizeof(Head), target, head_tag,
          fits ? ended : std::function<void(const Fault&)>([](const Fault&) {}), head);
    if (!fits) begin(true, const_cast<void*>(data), num_bytes, target, data_tag(at->number), std::move(ended), nullptr);
    poll();
    leave(held);
}

void Mailbox::receive(void* data, long long num_bytes, int source, long long tag, Done done) {
    Lock held(lock_);
    Receive asked{static_cast<std::byte*>(data), num_bytes, source, tag, std::move(done)};
    poll();
    const auto found = std::find_if(arrived_.begin(), arrived_.end(),
                                    [&](const auto& each) { return asked.takes(each.first, each.second.tag); });
    if (found != arrived_.end()) {
        const auto [from, head] = *found;
        arrived_.erase(found);
        take(asked, from, head);
    } else {
        receives_.push_back(std::move(asked));
        fail_unanswerable();
    }
    leave(held);
}

// Unlocks, wakes the thread if there is something to do, and makes the calls of `Done` that have come up.
void Mailbox::leave(Lock& held) {
    const bool wakes = is_busy() && !num_waiting_;
    decltype(calls_) calls;
    calls.swap(calls_);
    held.unlock();
    if (wakes) wake_.notify_one();
    for (const auto& each : calls) each();
}

bool Mailbox::wait(const std::function<bool()>& has_ended, double limit_s) {
    if (has_ended()) return true;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    const auto began = Clock::now();
    auto moved = began;  // when a message last came or went
    const auto seconds = [](Clock::duration each) { return std::chrono::duration<double>(each).count(); };
    ++num_waiting_;
    while (!has_ended()) {
        Lock held(lock_);
        const bool has_moved = poll(), is_moving = !active_.empty(), is_closed = is_closed_;
        leave(held);
        if (has_ended() || is_closed) break;
        const auto now = Clock::now();
        if (limit_s > 0 && seconds(now - began) > limit_s) break;
        if (has_moved) moved = now;
        const double waited_s = seconds(now - moved);
        if (waited_s < spin_s)
            std::this_thread::yield();
        else if (is_moving || waited_s < idle_s)
            std::this_thread::sleep_for(nap);
        else
            std::this_thread::sleep_for(
                std::min<std::chrono::duration<double>>(std::chrono::duration<double>(share * waited_s), longest_nap));
    }
    --num_waiting_;
    Lock held(lock_);
    leave(held);  // from here on the thread makes progress, also with what a call of `Done` has begun meanwhile
    return has_ended();
}

void Mailbox::lose(int rank, const std::string& why) {
    Lock held(lock_);
    if (is_closed_ || gone_.contains(rank)) return;
    const Fault fault = gone_[rank] = {true, false, why, ""};
    if (const auto head = heads_.find(rank); head != heads_.end()) {
        transport_->cancel(head->second.handle);
        lost_.push_back(head->second.head);
        heads_.erase(head);
    }
    active_.remove_if([&](Active& each) {  // their requests stay: the transport may still use their memory
        if (each.peer != rank) return false;
        if (each.kept) lost_.push_back(each.kept);
        each.ended(fault);
        return true;
    });
    fail_unanswerable();
    leave(held);
}

void Mailbox::close() {
    {
        Lock held(lock_);
        if (!is_closed_) {
            is_closed_ = true;
            for (const auto& [source, head] : heads_) transport_->cancel(head.handle);
            const Fault closed{true, false, "the group was closed before a message came", ""};
            for (const auto& each : active_) {
                transport_->cancel(each.handle);
                each.ended(closed);
            }
            heads_.clear();
            active_.clear();
            for (const auto& each : receives_) calls_.push_back([done = each.done, closed] { done(closed, -1); });
            receives_.clear();
        }
        leave(held);
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void Mailbox::progress() {
    Lock held(lock_);
    while (!is_closed_) {
        if (!is_busy()) wake_.wait(held, [this] { return is_busy() || is_closed_; });
        const bool is_idle = active_.empty() || num_waiting_;
        wake_.wait_for(held, is_idle ? longest_nap : moving_nap, [this] { return is_closed_; });
        if (is_closed_ || num_waiting_) continue;  // else the thread that waits polls
        poll();
        leave(held);
        held.lock();
    }
}

void Mailbox::begin(bool sends, void* data, long long num_bytes, int peer, int tag,
                    std::function<void(const Fault&)> ended, std::shared_ptr<void> kept) {
    try {
        const int handle = sends ? transport_->isend(data, num_bytes, peer, tag, false)
                                 : transport_->irecv(data, num_bytes, peer, tag);
        active_.push_back({handle, peer, std::move(ended), std::move(kept)});
    } catch (const TransportError& error) {
        ended(fault_of(error));
    }
}

void Mailbox::await_head(int source) {
    auto head = std::make_shared<Head>();
    const int handle = transport_->irecv(head.get(), sizeof(Head), source, head_tag);
    heads_[source] = {handle, std::move(head)};
}

// Makes progress. Returns whether something has ended.
bool Mailbox::poll() {
    if (is_closed_) return false;
    bool has_moved = false;
    for (int source = 0; source < transport_->size(); ++source)
        while (look_for_head(source)) has_moved = true;
    for (auto each = active_.begin(); each != active_.end();) {
        Fault fault;
        try {
            if (!transport_->test(each->handle)) {
                ++each;
                continue;
            }
        } catch (const TransportError& error) {
            fault = fault_of(error);
        }
        each->ended(fault);
        each = active_.erase(each);
        has_moved = true;
    }
    return has_moved;
}

// Matches the next head of a rank if it has come, and awaits the one after it; after a fault no more come.
bool Mailbox::look_for_head(int source) {
    const auto found = heads_.find(source);
    if (found == heads_.end()) return false;
    const auto head = found->second.head;
    try {
        if (!transport_->test(found->second.handle)) return false;
        heads_.erase(found);
        await_head(source);
    } catch (const TransportError& error) {
        heads_.erase(source);
        gone_[source] = fault_of(error);
        fail_unanswerable();
        return true;
    }
    match(source, *head);
    return true;
}

void Mailbox::match(int source, const Head& head) {
    const auto asked = std::find_if(receives_.begin(), receives_.end(),
                                    [&](const Receive& each) { return each.takes(source, head.tag); });
    if (asked == receives_.end()) return arrived_.emplace_back(source, head), void();
    const Receive taker = std::move(*asked);
    receives_.erase(asked);
    take(taker, source, head);
}

// Receives the data of a message whose head has come. If its size is wrong, they go elsewhere.
void Mailbox::take(const Receive& asked, int source, const Head& head) {
    Fault wrong;
    std::byte* data = asked.data;
    std::shared_ptr<std::byte[]> aside;
    if (head.num_bytes != asked.num_bytes) {
        wrong = {true, false,
                 "rank " + std::to_string(source) + " sends " + std::to_string(head.num_bytes) + " bytes with tag " +
                     std::to_string(asked.tag),
                 "rank " + std::to_string(transport_->rank()) + " expects " + std::to_string(asked.num_bytes)};
        aside.reset(new std::byte[static_cast<std::size_t>(head.num_bytes) + 1]);
        data = aside.get();
    }
    auto ended = [this, done = asked.done, wrong, source](const Fault& fault) {
        calls_.push_back([done, source, fault = fault.is_any ? fault : wrong] { done(fault, source); });
    };
    if (head.num_bytes > Head::longest)
        return begin(false, data, head.num_bytes, source, data_tag(head.number), std::move(ended), aside);
    if (head.num_bytes) std::memcpy(data, head.data.data(), static_cast<std::size_t>(head.num_bytes));
    ended({});
}

void Mailbox::fail_unanswerable() {
    receives_.remove_if([&](const Receive& each) {
        auto gone = gone_.find(each.source);
        if (each.source < 0 && static_cast<int>(gone_.size()) >= transport_->size() - 1) gone = gone_.begin();
        if (gone == gone_.end()) return false;
        calls_.push_back([done = each.done, fault = gone->second] { done(fault, -1); });
        return true;
    });
}

}  // namespace dovetail::run
