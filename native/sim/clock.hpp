// Clock: which op is next. Ops of the current instant go first in, first out; later events by (time, op).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace dovetail::sim {

// A time (never negative) and an op, packed into one integer that sorts by time, then by op, without branches.
class Event {
  public:
    Event(double time, std::int32_t op)
        : key_(static_cast<Key>(std::bit_cast<std::uint64_t>(time)) << 64 | static_cast<std::uint32_t>(op)) {}

    double time() const { return std::bit_cast<double>(static_cast<std::uint64_t>(key_ >> 64)); }
    std::int32_t op() const { return static_cast<std::int32_t>(key_); }
    bool before(const Event& other) const { return key_ < other.key_; }

  private:
    using Key = unsigned __int128;
    Key key_;
};

// A 4-ary heap that keeps a hole where its top was removed until the next access: most events add exactly one
// successor, which fills the hole and saves a pass.
class EventHeap {
  public:
    bool empty() {
        fill_hole();
        return events_.empty();
    }

    // The earliest event; the heap must not be empty.
    const Event& top() {
        fill_hole();
        return events_.front();
    }

    Event pop() {
        fill_hole();
        hole_ = true;
        return events_.front();
    }

    void push(Event event) {
        if (hole_) {
            hole_ = false;
            sink(event);
            return;
        }
        std::size_t at = events_.size();
        events_.push_back(event);
        while (at > 0) {
            const std::size_t parent = (at - 1) / 4;
            if (!event.before(events_[parent])) break;
            events_[at] = events_[parent];
            at = parent;
        }
        events_[at] = event;
    }

  private:
    void fill_hole() {
        if (!hole_) return;
        hole_ = false;
        const Event last = events_.back();
        events_.pop_back();
        if (!events_.empty()) sink(last);
    }

    void sink(Event event) {
        Event* const events = events_.data();
        const std::size_t size = events_.size();
        std::size_t at = 0;
        for (std::size_t child = 1; child < size; child = 4 * at + 1) {
            const std::size_t end = child + 4 < size ? child + 4 : size;
            std::size_t least = child;
            for (std::size_t i = child + 1; i < end; ++i) least = events[i].before(events[least]) ? i : least;
            if (!events[least].before(event)) break;
            events[at] = events[least];
            at = least;
        }
        events[at] = event;
    }

    std::vector<Event> events_;
    bool hole_ = false;
};

class Clock {
  public:
    static constexpr double kNever = std::numeric_limits<double>::infinity();

    double now = 0.0;

    // Must be called before the time of any op changes: from then on, only the last time given for an op counts.
    void keep_due(std::size_t num_ops) { due_.assign(num_ops, kNever); }

    void at(std::int32_t op, double time) {
        if (!due_.empty()) due_[op] = time;
        heap_.push(Event(time, op));
    }

    void at_once(std::int32_t op) { instants_.push_back(op); }

    void at_once_or_at(std::int32_t op, double time) { time > now ? at(op, time) : at_once(op); }

    // The next op of the current instant, or -1.
    std::int32_t next_instant() {
        if (next_ < instants_.size()) return instants_[next_++];
        instants_.clear();
        next_ = 0;
        return -1;
    }

    bool instant_over() { return heap_.empty() || heap_.top().time() > now; }

    static constexpr std::int32_t kOverruled = -1, kAtRest = -2;

    // Advances the clock to the next event and returns its op; special values if the event is outdated or none is left.
    std::int32_t next_event() {
        if (heap_.empty()) return kAtRest;
        const Event event = heap_.pop();
        if (!due_.empty()) {
            if (due_[event.op()] != event.time()) return kOverruled;
            due_[event.op()] = kNever;
        }
        now = event.time();
        return event.op();
    }

  private:
    EventHeap heap_;
    std::vector<std::int32_t> instants_;
    std::size_t next_ = 0;
    std::vector<double> due_;
};

}  // namespace dovetail::sim
