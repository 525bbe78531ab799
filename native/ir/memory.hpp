// Memory: where the state of each slot lies, slots that are always touched together taken as one.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.hpp"

namespace dovetail::ir {

// Slots are grained: in buffer b, `grain[b]` slots that follow one another are one cell. Buffers between which slots
// move one by one have one grain, which divides every offset, count and stride in them, so that each cell's slots
// share one fate: they hold corresponding values, and whatever touches one touches all.
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
