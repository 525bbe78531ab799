// Extent: what all ranks know of a Program's messages.
#pragma once

#include <cstdint>
#include <vector>

#include "run/load.hpp"

namespace dovetail::shm {

// A Program's messages, the same on all ranks: the most slots of one, the bytes of the largest slot, and whether all
// ranks send at once: none passes on what it receives, and each sends as many slots as it receives.
struct Extent {
    std::int64_t most_slots = 1, slot_bytes = 0;
    bool is_exchange = false;
    // By row: the rows that receive what the op sends, and that sent what it receives (-1: none), and its lane of all
    // ranks' lanes.
    std::vector<std::int64_t> receiver = {}, sender = {}, lane = {};
};

Extent extent_of(const run::Columns& columns, std::int64_t slot_bytes);

}  // namespace dovetail::shm
