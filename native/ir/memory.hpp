// Memory: where the state of each slot is kept. Slots that every op touches together are kept as one cell.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.hpp"

namespace dovetail::ir {

// In buffer b, each run of `grain[b]` slots is one cell. The grain divides every offset, count and stride in that
// buffer and in all buffers that exchange slots with it. So every op touches whole cells, and one value stands for one.
class Layout {
  public:
    explicit Layout(const Program& program);

    std::int64_t grain(std::int32_t buffer) const { return grain_[buffer]; }
    std::int64_t cells() const { return start_.back(); }

    // A region in cells, counted from the start of its buffer.
    Region cells(const Region& r) const {
        const std::int64_t g = grain_[r.buffer];
        if (g == 1) return r;
        return {r.buffer, r.offset / g, r.count / g, r.stride / g, r.blocks};
    }

    // Where the cells of a buffer on a rank start among all cells.
    std::int64_t start(std::int32_t buffer, std::int32_t rank) const {
        return start_[std::int64_t{buffer} * num_ranks_ + rank];
    }

  private:
    std::int32_t num_ranks_;
    std::vector<std::int64_t> grain_, start_;
};

}  // namespace dovetail::ir
