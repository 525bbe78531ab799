// Induction: two programs of many steps, in which each step does as the one before it, are compared by a few steps.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/execution.hpp"

namespace dovetail::ir {

using Compare = std::function<Difference(const Runs&, const Layout&, Execution&, Execution&)>;

// Whether both programs leave the same values, proved by induction over a part that both repeat. False where there is
// no such proof; it may be true none the less. For a program without races, in which the order of ops that do not wait
// for one another makes no difference.
//
// Both programs are done up to the first repetition. What places hold the same value then, of either program, is noted:
// memory, and messages on their way. One repetition is done from a state of which nothing is known but that. If the
// same places hold the same again, they do so after any number of repetitions; what is left is done from such a state,
// and the results are compared. Where fewer places do, those are noted instead, and it is tried again. `work`: values
// that ops read and write meanwhile are added to it.
bool is_same_by_induction(const Runs& runs, const Layout& layout, const Key& key, const Compare& difference,
                          std::int64_t& work);

}  // namespace dovetail::ir
