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

// The ops that decide what one slot holds at the end, in the order of the run: those that write it, and those whose
// results reach them; of a collective all members of the call. `matched`: the op that sent each one's message, -1 for
// none. Of each op the slots from `first` to before `last` matter, counted from the start of its regions (-1: all).
struct Slice {
    std::vector<std::int32_t> ops, matched;
    std::vector<std::int64_t> first, last;
};

Slice slice(const Program& program, const Run& run, const Layout& layout, const Wrong& wrong);

}  // namespace dovetail::ir
