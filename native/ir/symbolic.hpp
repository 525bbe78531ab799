// Symbolic execution: what each slot holds after a run. Equals dovetail/ir/symbolic.py, up to the hash of Value.
#pragma once

#include <vector>

#include "ir/greedy.hpp"
#include "ir/memory.hpp"
#include "ir/program.hpp"
#include "ir/value.hpp"

namespace dovetail::ir {

// The first slot, by post-condition, rank and place in its region, that does not hold what was asked; post -1 for none.
struct Wrong {
    std::int64_t post = -1;
    std::int32_t rank = -1;
    std::int64_t place = -1;
};

struct Results {
    std::vector<Wrong> wrong;  // for each set of post-conditions
};

Results execute(const Program& program, const Run& run, const Layout& layout, const Key& key, std::int32_t num_sets);

// The ops, in the order of the run, by which a slot of the final state is told: its writers and all that reaches them,
// with an op of a collective all members of its call. Of each op: the one that sent it its message (-1 for none), and
// the slots, counted from the start of its regions, from `first` to before `last` that matter (-1: all).
struct Slice {
    std::vector<std::int32_t> ops, matched;
    std::vector<std::int64_t> first, last;
};

Slice slice(const Program& program, const Run& run, const Layout& layout, const Wrong& wrong);

}  // namespace dovetail::ir
