// RingMessages: see ring_messages.hpp.
#include "shm/ring_messages.hpp"

#include <sched.h>

#include <algorithm>
#include <stdexcept>

#include "run/mpi_table.h"

namespace dovetail::shm {

namespace {

constexpr std::size_t line = 128, least_ring = std::size_t{1} << 15, most_ring = std::size_t{1} << 18;
constexpr std::size_t piece = std::size_t{1} << 14;  // bytes that a receiver can take while the next are written
constexpr int codes_per_state = 1 << 24, misses_per_look = 256;
constexpr std::chrono::milliseconds look_every(50);
constexpr std::chrono::seconds longest_farewell(5);

std::size_t pairs(int size) { return static_cast<std::size_t>(size) * static_cast<std::size_t>(size); }

std::size_t padded(std::size_t num_bytes) { return (num_bytes + grain - 1) / grain * grain; }

}  // namespace

int code_of(State state, int rank) { return static_cast<int>(state) * codes_per_state + rank; }
int rank_of(int code) { return code % codes_per_state; }
State state_of(int code) { return static_cast<State>(code / codes_per_state); }

std::string text_of(int code) {
    if (code == DT_OTHER_SIZE) return "the message has another size than its receive";
    const std::string rank = "rank " + std::to_string(rank_of(code));
    switch (state_of(code)) {
        case State::left:
            return rank + " has ended, and was waited for";
        case State::failed:
            return rank + " has failed";
        case State::died:
            return rank + " has died";
        default:
            return "error " + std::to_string(code);
    }
}

std::size_t RingMessages::ring_bytes(int size, std::size_t budget) {
    std::size_t found = most_ring;
    while (found > least_ring && found * pairs(size) > budget) found /= 2;
    return found;
}

std::size_t RingMessages::bytes(int size, std::size_t ring_bytes) {
    return line + Peers::bytes(size) + pairs(size) * (sizeof(RingHead) + ring_bytes);
}

RingMessages::RingMessages(std::shared_ptr<Segment> memory, int rank, int size)
    : rank_(rank),
      size_(size),
      memory_(std::move(memory)),
      states_(memory_->data() + line, memory_->file(), rank),
      peers_(static_cast<std::size_t>(size)) {
    const std::size_t fixed = line + Peers::bytes(size);
    const std::size_t each = memory_->size() < fixed ? 0 : (memory_->size() - fixed) / pairs(size);
    if (each < sizeof(RingHead) + least_ring) throw std::runtime_error("the memory that the ranks share is too small");
    const std::size_t capacity = each - sizeof(RingHead);
    if (capacity & (capacity - 1)) throw std::runtime_error("the memory that the ranks share is of another size");
    auto* heads = reinterpret_cast<RingHead*>(memory_->data() + fixed);
    std::byte* data = memory_->data() + fixed + pairs(size) * sizeof(RingHead);
    const auto number = [size](int src, int dst) { return static_cast<std::size_t>(src * size + dst); };
    for (int r = 0; r < size; ++r) {
        peer(r).out = {heads + number(rank, r), data + number(rank, r) * capacity, capacity};
        peer(r).in = {heads + number(r, rank), data + number(r, rank) * capacity, capacity};
    }
    looked_ = std::chrono::steady_clock::now();
    states_.arrive();
}

int RingMessages::make(Request::Use use, void* data, long long num_bytes, int peer, Label label) {
    if (unused_.empty()) {
        unused_.push_back(static_cast<int>(requests_.size()));
        requests_.emplace_back();
    }
    const int handle = unused_.back();
    unused_.pop_back();
    Request& made = at(static_cast<std::size_t>(handle)) = {};
    made.use = use;
    made.data = static_cast<std::byte*>(data);
    made.num_bytes = num_bytes;
    made.peer = peer;
    made.label = label;
    return handle;
}

void RingMessages::free(int handle) {
    at(static_cast<std::size_t>(handle)).use = Request::Use::none;
    unused_.push_back(handle);
}

void RingMessages::end(Request& request, int handle, int code) {
    request.done = true;
    request.code = code;
    if (request.forgotten) free(handle);
}

int RingMessages::isend(const void* data, long long num_bytes, int dst, Label label, bool matched) {
    const int handle = make(Request::Use::send, const_cast<void*>(data), num_bytes, dst, label);
    Request& sent = at(static_cast<std::size_t>(handle));
    sent.matched = matched || num_bytes > static_cast<long long>(longest_short);
    if (dst == rank_) return send_to_self(handle), handle;
    Peer& to = peer(dst);
    if (!to.heads.empty() || !write_head(to, handle)) to.heads.push_back(handle);
    return handle;
}

int RingMessages::irecv(void* data, long long num_bytes, int src, Label label, const std::byte** lent) {
    const int handle = make(Request::Use::receive, data, num_bytes, src, label);
    at(static_cast<std::size_t>(handle)).lent = lent;
    if (lent) *lent = nullptr;
    Peer& from = peer(src);
    const auto found =
        std::find_if(from.early.begin(), from.early.end(), [&](const Early& early) { return early.label == label; });
    if (found == from.early.end()) return from.posted.push_back(handle), handle;
    if (!found->asks)
        take_whole(handle, found->num_bytes, found->data.data(), nullptr);
    else if (src == rank_)
        move_to_self(static_cast<int>(found->from), handle);
    else
        answer(handle, found->from, found->num_bytes, found->loan);
    from.early.erase(found);
    return handle;
}

void RingMessages::send_to_self(int handle) {
    Request& sent = at(static_cast<std::size_t>(handle));
    Peer& own = peer(rank_);
    const auto found = std::find_if(own.posted.begin(), own.posted.end(),
                                    [&](int taken) { return at(static_cast<std::size_t>(taken)).label == sent.label; });
    if (found != own.posted.end()) {
        const int taken = *found;
        own.posted.erase(found);
        return move_to_self(handle, taken);
    }
    Early early{sent.label, static_cast<std::uint32_t>(handle), sent.matched, sent.num_bytes, {}, {}};
    if (!sent.matched) {
        early.data.assign(sent.data, sent.data + sent.num_bytes);
        end(sent, handle);
    }
    own.early.push_back(std::move(early));
}

void RingMessages::move_to_self(int sent, int taken) {
    Request& from = at(static_cast<std::size_t>(sent));
    take_whole(taken, from.num_bytes, from.data, nullptr);
    end(from, sent);
}

// Of a receive, once its sender can see that it was taken: this rank may not look at its messages again for long.
bool RingMessages::is_over(const Request& request) {
    const Peer& with = peer(request.peer);
    return request.done && (request.use == Request::Use::send || with.answers.empty() || with.code);
}

bool RingMessages::test(int handle, int& code) {
    Request& request = at(static_cast<std::size_t>(handle));
    if (!is_over(request)) progress();
    if (!is_over(request) && ++misses_ % misses_per_look == 0) look();
    if (const int gone = broken_ ? broken_ : peer(request.peer).code; gone && !is_over(request)) {
        progress();  // messages from before that rank ended
        if (!request.done) {
            code = gone;
            cancel(handle);
            return true;
        }
    }
    if (!is_over(request)) return false;
    misses_ = 0;
    code = request.code;
    if (!request.is_lent()) free(handle);
    return true;
}

bool RingMessages::give_back(int handle) {
    const Request& taken = at(static_cast<std::size_t>(handle));
    Peer& to = peer(taken.peer);
    if (!to.out.has_room(sizeof(Head))) progress(), look();
    if (!to.code) {
        write(to);
        if (!to.answers.empty() || !to.out.has_room(sizeof(Head))) return false;
        to.answers.push_back({Kind::taken, taken.other, 0, 0, 0});
        write(to);
    }
    free(handle);
    return true;
}

bool RingMessages::look() {
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < look_every && !broken_) return false;
    looked_ = now;
    bool found = false, died = false;
    for (int r = 0; r < size_; ++r) {
        const State state = states_.look(r);
        if (state == State::absent || state == State::here || r == rank_) continue;
        found = true;
        peer(r).code = code_of(state, r);
        if (state == State::left) continue;
        if (!broken_ || (state == State::died && !died))
            broken_ = peer(r).code;  // others may have failed because of it
        died = died || state == State::died;
    }
    return found;
}

int RingMessages::broken() {
    if (!broken_) look();
    return broken_;
}

void RingMessages::cancel(int handle) {
    Request& request = at(static_cast<std::size_t>(handle));
    if (request.done && request.is_lent() && give_back(handle)) return;
    if (request.done) return free(handle);
    Peer& with = peer(request.peer);
    const auto queued = [&](auto& list) {
        const auto found = std::find(list.begin(), list.end(), handle);
        return found != list.end() && (list.erase(found), true);
    };
    if (queued(with.posted) || queued(with.heads)) return free(handle);
    request.forgotten = true;  // the other end knows the request: data received are dropped, data are not sent
    request.num_bytes = 0;
    request.data = nullptr;
    if (request.use == Request::Use::send) queued(with.streams);
}

void RingMessages::progress() {
    for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        Peer& each = peer(r);
        if (each.in.has_record()) read(r);
        if (!each.answers.empty() || !each.heads.empty() || !each.streams.empty()) write(each);
    }
}

void RingMessages::read(int src) {
    Peer& from = peer(src);
    do {
        const Head head = from.in.head<Head>();
        if (head.kind == Kind::data) {
            take_piece(from, head);
        } else if (head.kind == Kind::grant) {
            Request& sent = at(head.request);
            sent.other = static_cast<std::uint32_t>(head.tag);
            if (sent.forgotten || sent.num_bytes == 0)
                end(sent, static_cast<int>(head.request));
            else
                from.streams.push_back(static_cast<int>(head.request));
        } else if (head.kind == Kind::taken) {
            end(at(head.request), static_cast<int>(head.request));
        } else {
            arrived(src, head);
        }
        from.in.release();
    } while (from.in.has_record());
}

void RingMessages::arrived(int src, const Head& head) {
    Peer& from = peer(src);
    const Label label{head.context, head.tag};
    const auto num_bytes = static_cast<long long>(head.num_bytes);
    const Loan loan = head.kind == Kind::lend ? from.in.head<Lent>().loan : Loan{};
    const auto found = std::find_if(from.posted.begin(), from.posted.end(),
                                    [&](int taken) { return at(static_cast<std::size_t>(taken)).label == label; });
    if (found != from.posted.end()) {
        const int handle = *found;
        from.posted.erase(found);
        if (head.kind != Kind::whole) return answer(handle, head.request, num_bytes, loan);
        return take_whole(handle, num_bytes, nullptr, &from.in);
    }
    Early early{label, head.request, head.kind != Kind::whole, num_bytes, loan, {}};
    if (!early.asks) {
        early.data.resize(head.num_bytes);
        from.in.take(early.data.data(), early.data.size());
    }
    from.early.push_back(std::move(early));
}

// Takes a whole message, from memory or from a ring.
void RingMessages::take_whole(int handle, long long num_bytes, const std::byte* data, RingReader* ring) {
    Request& taken = at(static_cast<std::size_t>(handle));
    const auto all = static_cast<std::size_t>(num_bytes);
    const auto fits = static_cast<std::size_t>(std::min(num_bytes, taken.num_bytes));
    if (ring) {
        ring->take(taken.data, fits);
        ring->skip(all - fits);
    } else if (fits) {
        std::memcpy(taken.data, data, fits);
    }
    end(taken, handle, num_bytes == taken.num_bytes ? 0 : DT_OTHER_SIZE);
}

// Answers a sender that asked: with a grant, or that the message was copied from its array.
void RingMessages::answer(int handle, std::uint32_t from, long long num_bytes, const Loan& loan) {
    Request& taken = at(static_cast<std::size_t>(handle));
    Peer& to = peer(taken.peer);
    if (loan.is_one) {
        const std::byte* lent = regions_.at(loan, taken.peer);
        if (taken.lent && num_bytes == taken.num_bytes) {
            *taken.lent = lent;
            taken.other = from;
            return end(taken, handle);
        }
        take_whole(handle, num_bytes, lent, nullptr);
        to.answers.push_back({Kind::taken, from, 0, 0, 0});
        return write(to);
    }
    taken.total = num_bytes;
    to.answers.push_back({Kind::grant, from, 0, static_cast<std::uint64_t>(handle), 0});
    write(to);
    if (num_bytes == 0) end(taken, handle, taken.num_bytes == 0 ? 0 : DT_OTHER_SIZE);
}

void RingMessages::take_piece(Peer& from, const Head& head) {
    const int handle = static_cast<int>(head.request);
    Request& taken = at(head.request);
    const auto all = static_cast<long long>(head.num_bytes);
    const long long fits = std::clamp(taken.num_bytes - taken.moved, 0LL, all);
    const Turn turn{static_cast<Way>(head.context), static_cast<std::uint32_t>(head.tag)};
    if (fits) from.in.take(taken.data + taken.moved, static_cast<std::size_t>(fits), turn);
    from.in.skip(static_cast<std::size_t>(all - fits));
    taken.moved += all;
    if (taken.moved == taken.total) end(taken, handle, taken.total == taken.num_bytes ? 0 : DT_OTHER_SIZE);
}

void RingMessages::write(Peer& to) {
    for (; !to.answers.empty() && to.out.has_room(sizeof(Head)); to.answers.pop_front()) {
        to.out.put(&to.answers.front(), sizeof(Head));
        to.out.publish();
    }
    while (!to.heads.empty() && write_head(to, to.heads.front())) to.heads.pop_front();
    while (!to.streams.empty() && write_pieces(to, to.streams.front())) to.streams.pop_front();
}

// Returns whether there was room.
bool RingMessages::write_head(Peer& to, int handle) {
    Request& sent = at(static_cast<std::size_t>(handle));
    const Loan loan = loan_of(sent);
    const auto here = sent.matched ? std::size_t{0} : static_cast<std::size_t>(sent.num_bytes);
    if (!to.out.has_room(sizeof(Head) + (loan.is_one ? sizeof(Lent) : padded(here)))) return false;
    const Kind kind = loan.is_one ? Kind::lend : sent.matched ? Kind::ask : Kind::whole;
    const Head head{kind, static_cast<std::uint32_t>(handle), sent.label.context, sent.label.tag,
                    static_cast<std::uint64_t>(sent.num_bytes)};
    to.out.put(&head, sizeof head);
    const Lent lent{loan, {}};
    loan.is_one ? to.out.put(&lent, sizeof lent) : to.out.put(sent.data, here);
    to.out.publish();
    if (!sent.matched) end(sent, handle);
    return true;
}

// Returns whether all of the message is written.
bool RingMessages::write_pieces(Peer& to, int handle) {
    Request& sent = at(static_cast<std::size_t>(handle));
    while (sent.moved < sent.num_bytes) {
        const auto here = std::min(piece, static_cast<std::size_t>(sent.num_bytes - sent.moved));
        if (!to.out.has_room(sizeof(Head) + padded(here))) return false;
        const Turn turn = to.out.turn(here);
        const Head head{Kind::data, sent.other, static_cast<std::uint64_t>(turn.way), turn.is_timed, here};
        to.out.put(&head, sizeof head);
        to.out.put(sent.data + sent.moved, here, turn);
        to.out.publish();
        sent.moved += static_cast<long long>(here);
    }
    end(sent, handle);
    return true;
}

Loan RingMessages::loan_of(const Request& sent) const {
    return sent.matched ? regions_.find(sent.data, static_cast<std::size_t>(sent.num_bytes), rank_) : Loan{};
}

bool RingMessages::has_to_send() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const Peer& each) {
        return !each.code && (!each.answers.empty() || !each.heads.empty() || !each.streams.empty());
    });
}

void RingMessages::leave(State how, const std::string&) {
    if (has_left_) return;
    has_left_ = true;
    const auto until = std::chrono::steady_clock::now() + longest_farewell;
    while (how == State::left && !broken_ && has_to_send() && std::chrono::steady_clock::now() < until) {
        progress();
        look();
        sched_yield();
    }
    states_.leave(how);
}

}  // namespace dovetail::shm
