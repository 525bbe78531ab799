// Symbolic execution: what each slot holds after a run. Same results as dovetail/ir/symbolic.py, but values are hashes.
#pragma once

#include <vector>

#include "ir/greedy.hpp"
#include "ir/memory.hpp"
#include "ir/program.hpp"
#include "ir/value.hpp"

namespace dovetail::ir {

// The first slot, by post-condition, rank and place in its region, that breaks its post-condition; post -1 for none.
struct Wrong {
    std::int64_t post = -1;
    std::int32_t rank = -1;
    std::int64_t place = -1;
};

// The first slot, by buffer, rank and place, that does not hold what the reference wrote to it; buffer -1 for none.
struct Difference {
    std::int32_t buffer = -1, rank = -1;
    std::int64_t slot = -1;
};

struct Results {
    std::vector<Wrong> wrong;  // for each set of post-conditions
    Difference differs;
    std::int64_t cells = 0;     // number of values in the state of a program
    std::int64_t work = 0;      // number of values that ops of both programs read and wrote
    bool by_induction = false;  // whether the result of all steps was proved from a few
};

// A program and its run; for a comparison also a correct reference program with equally numbered buffers.
struct Runs {
    const Program& program;
    const Run& run;
    const Program* reference = nullptr;
    const Run* reference_run = nullptr;
    bool races = false;  // whether the program has any
};

Results execute(const Runs& runs, const Layout& layout, const Key& key, std::int32_t num_sets);

// The ops that decide what one slot holds at the end, in the order of the run: those that write it, and those whose
// results reach them; for a collective, all members of the call. `matched`: for each op, the op that sent its message,
// or -1. Of each op, the slots from `first` to before `last` matter, counted from the start of its regions (-1: all).
struct Slice {
    std::vector<std::int32_t> ops, matched;
    std::vector<std::int64_t> first, last;
};

// The slice of a cell, which is counted from the start of the buffer.
Slice slice(const Program& program, const Run& run, const Layout& layout, std::int32_t buffer, std::int32_t rank,
            std::int64_t cell);

}  // namespace dovetail::ir
