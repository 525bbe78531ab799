// verify: bounds, deadlock, races and results. Python checks the limits of targets, and whether posts are well formed.
#pragma once

#include <vector>

#include "ir/program.hpp"
#include "ir/races.hpp"
#include "ir/symbolic.hpp"

namespace dovetail::ir {

struct Verdict {
    std::int64_t unfit = -1;                 // first op out of bounds; then nothing else was looked at
    std::int64_t mismatch = -1;              // first op whose message or call disagrees on sizes
    std::vector<std::int32_t> mismatch_ops;  // the ops that disagree
    bool complete = false, deep_enough = true;
    std::int64_t depth = 1;
    std::vector<std::int64_t> done;  // of each queue: ops run; at the declared depths unless deep_enough
    std::int32_t unmatched = -1;
    bool has_result = false;  // whether races and results were looked at
    Races races;
    Results results;
    Slice slice;  // for the program's own post-conditions, when one is wrong: what reaches the slot
};

// Without sets of post-conditions neither races nor results are looked at.
Verdict verify(const Program& program, const Key& key, std::int32_t num_sets);

}  // namespace dovetail::ir
