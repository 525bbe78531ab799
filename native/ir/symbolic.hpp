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
    bool is_exact = true;      // false where contributions were too many to count: ask the reference
};

Results execute(const Program& program, const Run& run, const Layout& layout, const Key& key, std::int32_t num_sets);

// The ops, in the order of the run, without which a slot of the final state can be told: its writers and all that
// reaches them. With an op of a collective come all members of its call.
std::vector<std::int32_t> slice(const Program& program, const Run& run, const Layout& layout, const Wrong& wrong);

}  // namespace dovetail::ir
