// Induction: compares two programs of many equal steps by running a few of the steps.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/execution.hpp"

namespace dovetail::ir {

using Compare = std::function<Difference(const Runs&, const Layout&, Execution&, Execution&)>;

// Whether an induction over a part that both programs repeat proves that they leave the same values. If false, they may
// still do so. The programs must be free of races, so that the order of ops that do not wait for one another does not
// matter.
//
// 1. Run both programs up to the first repetition. Put the places that hold the same value, in memory or in messages in
//    flight of either program, into one class.
// 2. Run one repetition from a state in which only these equalities are known (a symbol for each class).
// 3. If they hold again, they hold after any number of repetitions: run the rest from such a state, and compare the
//    results. Otherwise split the classes by the new values, and repeat from 2.
//
// The number of values that ops read and write meanwhile is added to `work`.
bool is_same_by_induction(const Runs& runs, const Layout& layout, const Key& key, const Compare& difference,
                          std::int64_t& work);

}  // namespace dovetail::ir
