// Contention: who computes and who communicates on which rank, and how much each slows the other (a fluid model).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/clock.hpp"

namespace dovetail::sim {

class Contention {
  public:
    // Without anything that can be slowed (`fluid` false) it keeps no counts at all.
    Contention(Clock& clock, bool fluid, std::int32_t num_ranks, std::int32_t num_ops);

    // `op` computes (or communicates) on `ranks` for `seconds` of undisturbed time; `ranks` must outlive it.
    void start(std::int32_t op, double seconds, double slow, std::span<const std::int32_t> ranks, bool computing) {
        if (seconds <= 0) {
            clock_.at_once(op);
        } else if (!fluid_) {
            clock_.at(op, clock_.now + seconds);
        } else {
            start_fluid(op, seconds, slow, ranks, computing);
        }
    }

    void stop(std::int32_t op) {
        if (fluid_ && slot_[op] >= 0) stop_fluid(op);
    }

    bool changed() const { return changed_; }

    // The instant is over: rate what is new and what is slowed or freed from now on.
    void settle();

  private:
    struct Activity {
        std::int32_t op;
        std::span<const std::int32_t> ranks;
        double slow, remaining_s, since_s, factor;  // remaining at full speed as of since_s
        bool computing, rated, queued;
    };
    struct Side {  // of a rank: its compute lanes, or its net and copy activity
        std::int32_t count = 0;
        bool going_on = false;               // as last settled
        std::vector<std::int32_t> watchers;  // activities that this side can slow
    };

    void start_fluid(std::int32_t op, double seconds, double slow, std::span<const std::int32_t> ranks, bool computing);
    void stop_fluid(std::int32_t op);
    void count(std::span<const std::int32_t> ranks, bool computing, int by);
    void queue(std::int32_t slot);
    void rate(Activity& activity);

    Clock& clock_;
    bool fluid_, changed_ = false;
    std::vector<std::int32_t> slot_;  // of each op's activity, -1 for none
    std::vector<Activity> activities_;
    std::vector<std::int32_t> free_;
    std::vector<std::array<Side, 2>> sides_;  // by rank, then by whether computing
    std::vector<bool> touched_;
    std::vector<std::int32_t> touched_ranks_, affected_;
};

}  // namespace dovetail::sim
