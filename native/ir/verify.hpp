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
    Slice
        slice;  // where a post-condition of the program's own, or else the reference, is not met: what reaches the slot
    Slice origin;  // and what in the reference does
};

// Without sets of post-conditions neither races nor results are looked at. `reference`: a program that passes every
// check, its buffers numbered as those of the other, or none.
Verdict verify(const Program& program, const Key& key, std::int32_t num_sets, const Program* reference);

// Which sets of post-conditions hold, of a program for which `verify` has looked at results; nothing else is looked at.
Results ask(const Program& program, const Key& key, std::int32_t num_sets);

}  // namespace dovetail::ir
