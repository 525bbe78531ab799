// Vector clocks: which ops have ended, in every timing, when another op starts; computed only for the queues needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "ir/greedy.hpp"
#include "ir/program.hpp"

namespace dovetail::ir {

// Two ops of different queues, in the order of the run; -1 for none.
struct Pair {
    std::int32_t first = -1, second = -1;
};

// A pool of vectors of `width` counts.
class ClockStore {
  public:
    ClockStore(std::int64_t num_ops, std::int64_t width) : width_(width), place_(num_ops, -1) {}

    std::span<std::int32_t> take(std::int64_t op) {
        if (free_.empty()) {
            free_.push_back(static_cast<std::int32_t>(counts_.size() / width_));
            counts_.resize(counts_.size() + width_);
        }
        place_[op] = free_.back();
        free_.pop_back();
        return at(op);
    }

    void keep(std::int64_t op, std::span<const std::int32_t> clock) {
        std::copy(clock.begin(), clock.end(), take(op).begin());
    }

    std::span<std::int32_t> at(std::int64_t op) {
        return std::span(counts_).subspan(std::int64_t{place_[op]} * width_, width_);
    }

    void release(std::int64_t op) { free_.push_back(place_[op]); }

  private:
    std::int64_t width_;
    std::vector<std::int32_t> counts_, place_, free_;
};

// Order by the lanes and dependencies within each rank, without messages. Steps through the ops of a run.
class RankClocks {
  public:
    RankClocks(const Program& program, const Queues& queues);

    void step(std::int32_t op);
    // Whether the order within the rank proves that `first` ends before `second`, the last op of its queue, starts.
    bool ordered(std::int32_t first, std::int32_t second) const;

  private:
    const Program& p_;
    const Queues& q_;
    std::vector<std::int32_t> place_, width_;  // per queue: its index on its rank, and the number of the rank's queues
    std::vector<std::int64_t> start_;          // per queue: where its clock starts in counts_
    std::vector<std::int32_t> counts_;
    std::vector<std::int32_t> uses_;  // per op: dependents that have not run
    ClockStore kept_;                 // clocks of ops with uses left
};

// When the first op of a pair must have ended: when the second begins, before it has received its message (`begun`); or
// when it first touches a slot, after its message, if it receives one, has begun to arrive (`touched`).
enum class Moment { begun, touched };

// The index of the first pair that neither lanes, dependencies, messages, signals nor collectives order, and that is
// not `excused`; -1 if there is none. Pairs must be sorted by the position of their second ops in the run.
std::int64_t first_unordered(const Program& program, const Queues& queues, const Run& run, std::span<const Pair> pairs,
                             Moment moment, const std::function<bool(const Pair&)>& excused = nullptr);

}  // namespace dovetail::ir
