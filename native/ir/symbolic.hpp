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

// The first slot, by buffer, rank and place, that does not hold what the reference wrote to it; buffer -1 for none.
struct Difference {
    std::int32_t buffer = -1, rank = -1;
    std::int64_t slot = -1;
};

struct Results {
    std::vector<Wrong> wrong;  // for each set of post-conditions
    Difference differs;
    std::int64_t cells = 0;     // how many values the state of a program has
    std::int64_t work = 0;      // values that ops have read and written, of both programs
    bool by_induction = false;  // whether the result of all follows from a few steps
};

// A program, how it ran, and beside it, if it is to be compared, another that is right, with buffers numbered alike.
struct Runs {
    const Program& program;
    const Run& run;
    const Program* reference = nullptr;
    const Run* reference_run = nullptr;
    bool races = false;  // whether the program has any
};

Results execute(const Runs& runs, const Layout& layout, const Key& key, std::int32_t num_sets);

// The ops that decide what one slot holds at the end, in the order of the run: those that write it, and those whose
// results reach them; of a collective all members of the call. `matched`: the op that sent each one's message, -1 for
// none. Of each op the slots from `first` to before `last` matter, counted from the start of its regions (-1: all).
struct Slice {
    std::vector<std::int32_t> ops, matched;
    std::vector<std::int64_t> first, last;
};

// Of a cell, counted from the start of the buffer.
Slice slice(const Program& program, const Run& run, const Layout& layout, std::int32_t buffer, std::int32_t rank,
            std::int64_t cell);

}  // namespace dovetail::ir
