// Memory: where the state of each slot is stored. Slots that every op touches together share one cell.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.hpp"

namespace dovetail::ir {

// The verifier groups slots: a cell is `grain` slots of a buffer that hold corresponding values, and every op that
// touches one of them touches all. In most buffers the slots of a cell are adjacent. A buffer whose slots a kernel
// takes as rows of `width` slots each, to sum over them, is that wide: there a cell is one slot of each of `grain`
// adjacent rows, and cell w + c of row group g is number g * width + c. Buffers between which slots move singly have
// one grain, which divides every offset, count and stride in them, in rows. Where regions cut across rows, or slots
// move between regions that have rows of different lengths, it is 1, and a cell is a slot.
class Layout {
  public:
    // `programs`: one program, or two with equally numbered buffers.
    explicit Layout(std::span<const Program* const> programs);

    std::int64_t grain(std::int32_t buffer) const { return grain_[buffer]; }
    std::int64_t cells() const { return start_.back(); }

    // A region in cells, counted from the start of its buffer.
    Region cells(const Region& r) const {
        const std::int64_t g = grain_[r.buffer], w = width_[r.buffer];
        if (g == 1) return r;
        if (is_part_of_rows(r, w)) return {r.buffer, r.offset / w / g * w + r.offset % w, r.count, w, r.blocks / g};
        return {r.buffer, r.offset / g, r.count / g, r.stride / g, r.blocks};
    }

    // How many cells of a region are in one row group: this determines how its cells and slots correspond.
    std::int64_t columns(const Region& r) const {
        const std::int64_t w = width_[r.buffer];
        if (grain_[r.buffer] == 1) return 1;
        return is_part_of_rows(r, w) ? r.count : w;
    }

    // The first slot of a cell, both counted from the start of the region.
    std::int64_t first_slot(const Region& r, std::int64_t place) const {
        const std::int64_t c = columns(r);
        return place / c * c * grain_[r.buffer] + place % c;
    }

    // The first slot of a cell, both counted from the start of the buffer.
    std::int64_t slot(std::int32_t buffer, std::int64_t cell) const {
        const std::int64_t w = width_[buffer];
        return cell / w * w * grain_[buffer] + cell % w;
    }

    // The cell of a slot, both counted from the start of the buffer.
    std::int64_t cell(std::int32_t buffer, std::int64_t slot) const {
        const std::int64_t w = width_[buffer];
        return slot / w / grain_[buffer] * w + slot % w;
    }

    // Where the cells of a buffer on a rank start, and where they end, among all cells.
    std::int64_t start(std::int32_t buffer, std::int32_t rank) const {
        return start_[std::int64_t{buffer} * num_ranks_ + rank];
    }
    std::int64_t end(std::int32_t buffer, std::int32_t rank) const {
        return start_[std::int64_t{buffer} * num_ranks_ + rank + 1];
    }

    // Whether a region is the same part of each of some rows of w slots.
    static bool is_part_of_rows(const Region& r, std::int64_t w) {
        return w > 1 && r.blocks > 1 && r.stride == w && r.offset % w + r.count <= w;
    }

  private:
    std::int32_t num_ranks_;
    std::vector<std::int64_t> grain_, width_, start_;
};

}  // namespace dovetail::ir
