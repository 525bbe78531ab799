// The greedy run that decides on deadlock: the same run as in dovetail/ir/greedy.py, which explains the rules.
#pragma once

#include <span>
#include <vector>

#include "ir/program.hpp"

namespace dovetail::ir {

// A queue for each (rank, lane) with ops: their rows in order.
struct Queues {
    std::vector<std::int64_t> start;  // queue q is rows[start[q]] to rows[start[q + 1]]
    std::vector<std::int32_t> rows, queue_of, position;

    explicit Queues(const Program& program);
    std::int32_t size() const { return static_cast<std::int32_t>(start.size()) - 1; }
};

struct Run {
    std::vector<std::int32_t> order;
    std::vector<std::int32_t> matched;  // for a receive or wait, the op that sent; for a collective, see members()
    std::vector<std::int32_t> seats;    // ops of all completed collective calls, call after call
    std::vector<std::int64_t> done;     // per queue: number of ops run
    std::int64_t depth = 1;
    bool complete = false;
    std::int32_t unmatched = -1;  // first op whose message or signal was never received

    // The ops of one completed collective call, in the order of its group.
    std::span<const std::int32_t> members(const Program& program, std::int32_t op) const {
        return std::span(seats).subspan(matched[op], program.group_size(program.call[op]));
    }
};

// Runs the program once: with the declared depths of its channels if `declared`, else with the least common depth that
// suffices, which it finds.
Run run_greedily(const Program& program, const Queues& queues, bool declared);

}  // namespace dovetail::ir
