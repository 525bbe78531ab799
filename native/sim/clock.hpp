// Clock: which op is next. Ops of the current instant go first in, first out; later events by (time, op).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/events.hpp"

namespace dovetail::sim {

class Clock {
  public:
    static constexpr double kNever = std::numeric_limits<double>::infinity();

    double now = 0.0;

    // Must be called before the time of any op changes: from then on, only the last time given for an op counts.
    void keep_due(std::size_t num_ops) {
        dues_.assign(num_ops, kNever);
        due_ = dues_.data();
    }

    void at(std::int32_t op, double time) {
        if (due_) due_[op] = time;
        events_.push(Event(time, op));
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

    bool instant_over() { return events_.empty() || events_.top().time() > now; }

    static constexpr std::int32_t kOverruled = -1, kAtRest = -2;

    // Advances the clock to the next event and returns its op; special values if the event is outdated or none is left.
    std::int32_t next_event() {
        Event event;
        if (!events_.pop(event)) return kAtRest;
        if (due_) {
            if (due_[event.op()] != event.time()) return kOverruled;
            due_[event.op()] = kNever;
        }
        now = event.time();
        return event.op();
    }

  private:
    EventQueue events_;
    std::vector<std::int32_t> instants_;
    std::size_t next_ = 0;
    std::vector<double> dues_;
    double* due_ = nullptr;  // of `dues_`, if they are kept
};

}  // namespace dovetail::sim
