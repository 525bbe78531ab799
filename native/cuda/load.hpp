// From the columns of a Program to an Image: all ranks' lanes, with their memory, channels and rings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/image.hpp"
#include "run/load.hpp"

namespace dovetail::cuda {

struct Layout {  // choices that change no result
    Protocol protocol = Protocol::simple;
    std::int64_t place_bytes = 0;  // of a message in one round, about: slots are cut so that it is no longer (0: whole)
    std::int64_t slice_bytes = 0;  // of a message that travel as one (0: whole)
};

// An image with its tables, before its buffers have addresses: `place` sets them.
struct Loaded {
    Image image;
    Protocol protocol = Protocol::simple;
    std::vector<std::byte> tables;  // the first bytes of the image; all others begin as zero
    std::int64_t zeros_end = 0;     // up to here they must: beyond lie the rings of Simple
    std::int64_t num_bytes = 0;
    std::vector<run::ChannelRow> ends;

    // What each lane that has not come to its end waits for, once all have stopped; `watch` and `lanes` as copied back.
    std::string explain(const Image& image) const;
};

// `memory` has a row for each rank and buffer: [rank * buffers + buffer]. `order`: rows of the Program in an order in
// which it may run. `layout` is followed where the program allows it: see `careful`. Throws std::invalid_argument for
// what the interpreter cannot run.
Loaded load(const run::Columns& columns, int num_ranks, const std::vector<run::ChannelRow>& channels,
            const std::vector<run::Memory>& memory, const std::vector<std::int64_t>& slots,
            const std::vector<std::int64_t>& order, const Layout& layout);

}  // namespace dovetail::cuda
