// verify: checks bounds, deadlock, races and results. Python checks limits of targets and the form of post-conditions.
#pragma once

#include <vector>

#include "ir/program.hpp"
#include "ir/races.hpp"
#include "ir/symbolic.hpp"

namespace dovetail::ir {

struct Verdict {
    std::int64_t unfit = -1;                 // first op out of bounds; if there is one, nothing else is checked
    std::int64_t mismatch = -1;              // first op whose message or call disagrees on sizes
    std::vector<std::int32_t> mismatch_ops;  // the ops that disagree
    bool complete = false, deep_enough = true;
    std::int64_t depth = 1;
    std::vector<std::int64_t> done;  // per queue: number of ops run; with the declared depths unless deep_enough
    std::int32_t unmatched = -1;
    bool has_result = false;  // whether races and results were checked
    Races races;
    Results results;
    Slice slice;   // of the first slot that breaks a post-condition of the program, or else differs from the reference
    Slice origin;  // of that slot in the reference
};

// If `num_sets` is 0, races and results are not checked. `reference`: null, or a program that passes every check, with
// buffers numbered as those of `program`.
Verdict verify(const Program& program, const Key& key, std::int32_t num_sets, const Program* reference);

// Which sets of post-conditions hold, for a program whose results `verify` has checked; checks nothing else.
Results ask(const Program& program, const Key& key, std::int32_t num_sets);

}  // namespace dovetail::ir
