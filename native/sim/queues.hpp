// queues: what the simulator keeps of each op, channel and link while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/simulate.hpp"

namespace dovetail::sim {

// What changes of an op while it runs, and what every step asks of it; 16 bytes, so that a step reads one cache line.
struct Op {
    std::int32_t queue_next;  // the next op of its queue; -1: none
    std::int32_t missing;     // number of ops that must end before it begins
    std::int32_t list_next;   // the next op of the list that it is in
    std::uint16_t blocked;    // number of links in whose queue another message is first
    Task task;
    State state;
};
static_assert(sizeof(Op) == 16);

// A first-in, first-out list of ops; an op is in one list at a time.
struct List {
    std::int32_t head = -1, tail = -1;

    bool empty() const { return head < 0; }

    void push(Op* ops, std::int32_t op) {
        (empty() ? head : ops[tail].list_next) = op;
        ops[op].list_next = -1;
        tail = op;
    }

    std::int32_t pop(const Op* ops) {
        const std::int32_t op = head;
        head = ops[op].list_next;
        return op;
    }
};

// Messages in order: a send waits for a place, then is in flight until received; a receive waits for the oldest one.
struct alignas(64) Channel {
    List posted, senders, flying, signals, waiters;
    std::int32_t room = 0;   // free places
    std::int32_t spare = 0;  // receives that were posted, less messages that got a place
    std::span<const std::int64_t> route;
};

// The messages that want a link, in order; most often there is one at most.
class LinkQueue {
  public:
    // Adds an op; returns whether it must wait.
    bool push(std::int32_t op) {
        if (first_ < 0) {
            first_ = op;
            return false;
        }
        waiting_.push_back(op);
        return true;
    }

    // Removes the first op; returns the one that is first now, -1 for none.
    std::int32_t pop() {
        if (waiting_.empty()) return first_ = -1;
        first_ = waiting_[next_++];
        if (next_ == waiting_.size()) {
            waiting_.clear();
            next_ = 0;
        }
        return first_;
    }

  private:
    std::int32_t first_ = -1;
    std::size_t next_ = 0;
    std::vector<std::int32_t> waiting_;
};

}  // namespace dovetail::sim
