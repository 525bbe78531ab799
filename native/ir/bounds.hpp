// Bounds: every op has the regions, channels and call that its kind needs. Same results as dovetail/ir/bounds.py.
#pragma once

#include <vector>

#include "ir/greedy.hpp"
#include "ir/program.hpp"

namespace dovetail::ir {

// The first op by row whose regions, channels or call do not fit its kind; -1 if all do.
std::int64_t first_unfit(const Program& program);

// The first op, in the order of the run, whose message or collective call disagrees on sizes; -1 if none.
std::int64_t first_mismatch(const Program& program, const Run& run);

}  // namespace dovetail::ir
