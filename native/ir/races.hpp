// Races: conflicting accesses that are unordered in some timing, as in dovetail/ir/races.py, which explains the rules.
#pragma once

#include "ir/clocks.hpp"
#include "ir/greedy.hpp"
#include "ir/memory.hpp"
#include "ir/program.hpp"

namespace dovetail::ir {

struct Races {
    std::int64_t self = -1;  // the first op by row that touches a slot twice, at places that do not correspond
    Pair turns;              // the first unordered uses of one end of a channel, or of a member's place in a collective
    Pair slots;              // the first unordered conflicting accesses to a slot

    bool any() const { return self >= 0 || turns.first >= 0 || slots.first >= 0; }
};

// Looks for faults in this order, and stops at the first kind found.
Races find_races(const Program& program, const Queues& queues, const Run& run, const Layout& layout);

}  // namespace dovetail::ir
