// Image: a collective Program as lanes run it, in flat tables that lie in host memory or on a device.
//
// Every slot is cut into tiles, and lanes go through their ops once for each tile (a round), so that messages fit into
// the places of their channels. A message travels in slices, which forwarding ops pass on while the rest is to come.
#pragma once

#include <cstddef>
#include <cstdint>

#include "run/scalar.hpp"

namespace dovetail::cuda {

enum class Protocol : int { simple, ll, ll128 };

// What a lane does when it has nothing to do but wait.
enum class Wait : std::uint32_t { nothing, op, message, place, signal };

struct Place {  // a region: `blocks` blocks of `count` slots each
    bool present = false;
    std::byte* base = nullptr;
    std::int64_t starts = -1;  // of slots that differ in size: offset of the table of their begins, in bytes
    std::int64_t slot = 0;     // bytes of a slot, where all are alike
    std::int64_t offset = 0, count = 0, stride = 0, blocks = 0;
};

struct Channel {
    std::int64_t ring = 0;       // where in the image its slices lie
    std::int64_t capacity = 0;   // in slices
    std::int64_t per_round = 0;  // slices that it carries in a round
    std::int64_t signals = 0;    // in a round
};

struct Step {  // an op of a lane
    std::uint8_t kind = 0, dtype = 0;
    bool publishes = false;  // some other lane waits for it
    std::int32_t row = 0;    // in the Program
    std::int32_t in = -1, out = -1;
    std::int32_t slices = 1;                   // of its message in every round; the last ones may be empty
    std::int64_t in_first = 0, out_first = 0;  // number of the first within its channel's round (of a signal: its own)
    std::int32_t dep = 0, num_deps = 0;
    Place from, to;
    Channel by, through;  // those of `in` and `out`
};

struct Dep {  // of an op on another lane of its rank, which has `count` steps
    std::int32_t lane, index, count;
};

struct Lane {
    std::int32_t first, count;  // of its steps
    std::int32_t rank, id;
};

struct Counter {  // on a line of its own
    alignas(128) std::uint64_t value;
};

struct Watch {  // what a lane is at: written by it, read once all have stopped, and by whoever waits long
    alignas(128) std::uint64_t at;  // step + 1 (high half), what it waits for (low half)
    std::uint64_t moves;            // counts what it did
};

struct Patience {  // of who waits: since when, and what all lanes' moves came to when it last looked
    std::uint64_t begin_ns = 0, moves = 0;
};

struct Span {
    std::uint64_t begin_ns, end_ns;
};

struct Image {
    std::byte* base = nullptr;  // of all offsets
    std::int64_t lanes = 0, steps = 0, deps = 0;
    std::int64_t done = 0, sent = 0, taken = 0, signals = 0, watch = 0, stop = 0, spans = 0;
    std::int32_t num_lanes = 0, num_steps = 0, num_channels = 0;
    std::int32_t rounds = 1;       // tiles of the longest slot
    std::int64_t tile_bytes = 0;   // of a slot in one round; with one round no slot is longer
    std::int64_t slice_bytes = 0;  // of a message
    std::int64_t pitch = 0;        // bytes that a slice takes in a ring
    std::int32_t reduce_op = 0;
    std::uint64_t stall_ns = 0;
    std::uint64_t first_round = 0;  // rounds that were run before: counters go on from there
    bool stamps = false;

    template <class T>
    DOVETAIL_INLINE T* at(std::int64_t offset) const {
        return reinterpret_cast<T*>(base + offset);
    }
};

}  // namespace dovetail::cuda
