// MessagePaths: the ops through which each message passes, as in dovetail/ir/message_paths.py, which explains the rule.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/greedy.hpp"
#include "ir/memory.hpp"
#include "ir/program.hpp"

namespace dovetail::ir {

class MessagePaths {
  public:
    MessagePaths(const Program& program, const Run& run, const Layout& layout);

    // Whether `second` comes after `first` on one path, and touches each slot in no earlier part of the message.
    bool in_step(std::int32_t first, std::int32_t second) const;

  private:
    bool follows(const Region& one, const Region& other) const;

    const Program& p_;
    const Layout& layout_;
    std::vector<std::int32_t> path_,
        ahead_;  // per op: the first send of its path (-1: none), and how many ops precede it
};

}  // namespace dovetail::ir
