// Contention: which ops compute and communicate on each rank, and how much they slow each other (a fluid model).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/clock.hpp"
#include "sim/simulate.hpp"

namespace dovetail::sim {

class Contention {
  public:
    Contention(Clock& clock, const Tables& tables);

    // Whether any op can be slowed; if not, nothing is counted.
    bool is_fluid() const { return fluid_; }

    // Starts `op`, which computes (or communicates) on `ranks`, for `seconds` if not slowed; `ranks` must outlive it.
    void start(std::int32_t op, double seconds, double slow, std::span<const std::int32_t> ranks, bool computing) {
        if (seconds <= 0) {
            clock_.at_once(op);
        } else if (!fluid_ || is_alone(seconds, ranks)) {
            clock_.at(op, clock_.now + seconds);
        } else {
            start_fluid(op, seconds, slow, ranks, computing);
        }
    }

    void stop(std::int32_t op) {
        if (fluid_ && slot_[op] >= 0) stop_fluid(op);
    }

    bool changed() const { return changed_; }

    // Ends the instant: sets the rates of new ops, and of ops that are slowed or no longer slowed from now on.
    void settle();

  private:
    struct Activity {
        std::int32_t op;
        std::span<const std::int32_t> ranks;
        double slow, remaining_s, since_s, factor;  // seconds left at full speed, at time since_s
        bool computing, rated, queued;
    };
    struct Side {  // one rank's compute lanes, or its network and copy activity
        std::int32_t count = 0;
        bool going_on = false;               // at the last settle()
        std::vector<std::int32_t> watchers;  // activities that this side can slow
    };

    // Whether nothing on these ranks is of the other side. Work too short for the clock waits for the instant's end.
    bool is_alone(double seconds, std::span<const std::int32_t> ranks) const {
        for (const std::int32_t rank : ranks)
            if (both_[rank]) return false;
        return clock_.now + seconds > clock_.now;
    }

    void start_fluid(std::int32_t op, double seconds, double slow, std::span<const std::int32_t> ranks, bool computing);
    void stop_fluid(std::int32_t op);
    void count(std::span<const std::int32_t> ranks, bool computing, int by);
    void queue(std::int32_t slot);
    void rate(Activity& activity);

    Clock& clock_;
    bool fluid_, changed_ = false;
    std::vector<bool> both_;  // per rank, whether it computes and has other work; elsewhere nothing slows anything
    std::vector<std::int32_t> slot_;  // per op: its activity, -1 for none
    std::vector<Activity> activities_;
    std::vector<std::int32_t> free_;
    std::vector<std::array<Side, 2>> sides_;  // by rank, then by whether computing
    std::vector<bool> touched_;
    std::vector<std::int32_t> touched_ranks_, affected_;
};

}  // namespace dovetail::sim
