// Vector clocks: which ops have ended, in every timing, when another op starts; only for queues that are asked about.
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

// Two ops of different queues, the earlier one of the run first; -1 for none.
struct Pair {
    std::int32_t first = -1, second = -1;
};

// Vectors of `width` counts, reused once nobody needs them.
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

// Order by the lanes and dependencies of each rank, without messages. Takes the ops of a run one by one.
class RankClocks {
  public:
    RankClocks(const Program& program, const Queues& queues);

    void step(std::int32_t op);
    // Whether the rank alone shows that `first` has ended before `second`, the last op stepped in its queue, starts.
    bool ordered(std::int32_t first, std::int32_t second) const;

  private:
    const Program& p_;
    const Queues& q_;
    std::vector<std::int32_t> place_, width_;  // of each queue: its place among its rank's, and how many these are
    std::vector<std::int64_t> start_;          // of each queue: where its clock starts in counts_
    std::vector<std::int32_t> counts_;
    std::vector<std::int32_t> uses_;  // of each op: dependents that have not run
    ClockStore kept_;                 // clocks of ops that have uses
};

// By when the first op of a pair must have ended: by the time the second begins, before it has received its message; or
// by the time it first touches a slot, when its message, if it receives one, has begun to arrive.
enum class Moment { begun, touched };

// The first pair of the list that neither lanes, dependencies, messages, signals nor collectives order, and that is not
// `excused`; -1 where there is none. The list must be in the order in which the run has the second ops.
std::int64_t first_unordered(const Program& program, const Queues& queues, const Run& run, std::span<const Pair> pairs,
                             Moment moment, const std::function<bool(const Pair&)>& excused = nullptr);

}  // namespace dovetail::ir
