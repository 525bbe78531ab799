// Trains: the ops that one message passes through. Equals dovetail/ir/message_paths.py, which explains the rule.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/greedy.hpp"
#include "ir/memory.hpp"
#include "ir/program.hpp"

namespace dovetail::ir {

class Trains {
  public:
    Trains(const Program& program, const Run& run, const Layout& layout);

    // Whether `second` follows `first` in one train, and touches no slot in an earlier part than `first` does.
    bool in_step(std::int32_t first, std::int32_t second) const;

  private:
    bool follows(const Region& one, const Region& other) const;

    const Program& p_;
    const Layout& layout_;
    std::vector<std::int32_t> train_, ahead_;  // of each op: the first send of its train, -1 for none; ops ahead of it
};

}  // namespace dovetail::ir
