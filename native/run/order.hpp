// Whether each rank's own lanes and dependencies order all its conflicting accesses, without messages of other ranks.
#pragma once

#include <vector>

#include "run/load.hpp"

namespace dovetail::run {

// True if any two ops of different lanes of a rank that touch the same slots (one of them writing), the same end of
// a channel or the same collective are ordered by lanes and dependencies of that rank, without messages. Then an op of
// a net lane may begin early: no other rank's progress has to imply that the ops ahead of it have ended.
bool ordered_locally(int num_ranks, const Columns& columns);

}  // namespace dovetail::run
