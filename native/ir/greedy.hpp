// The greedy run that decides deadlock. Equals dovetail/ir/greedy.py, which explains each rule, op for op.
#pragma once

#include <span>
#include <vector>

#include "ir/program.hpp"

namespace dovetail::ir {

// Rows of each (rank, lane) that has any, in order.
struct Queues {
    std::vector<std::int64_t> start;  // queue q is rows[start[q]] to rows[start[q + 1]]
    std::vector<std::int32_t> rows, queue_of, position;

    explicit Queues(const Program& program);
    std::int32_t size() const { return static_cast<std::int32_t>(start.size()) - 1; }
};

struct Run {
    std::vector<std::int32_t> order;
    std::vector<std::int32_t>
        matched;                      // of an op that receives or waits: the op that sent; of a collective: see members
    std::vector<std::int32_t> seats;  // members of all completed collective calls, call after call
    std::vector<std::int64_t> done;   // ops run, for each queue
    std::int64_t depth = 1;
    bool complete = false;
    std::int32_t unmatched = -1;  // first op whose message or signal nobody took

    // The ops of one completed collective call, in the order of its group.
    std::span<const std::int32_t> members(const Program& program, std::int32_t op) const {
        return std::span(seats).subspan(matched[op], program.group_size(program.call[op]));
    }
};

// Runs the program once: at the depths of its channels if `declared`, else finding the least uniform depth.
Run run_greedily(const Program& program, const Queues& queues, bool declared);

}  // namespace dovetail::ir
