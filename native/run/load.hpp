// From the columns of a Program to the ops that one rank's engine runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "run/op.hpp"

namespace dovetail::run {

struct Regions {
    const std::int64_t* start;
    const std::int32_t* buffer;
    const std::int64_t *offset, *count, *stride, *blocks;
};

struct Columns {  // rows of the Program, as in dovetail.ir.COLUMNS
    std::int64_t num_ops;
    const std::uint8_t* kind;
    const std::int32_t *rank, *lane, *chan_in, *chan_out, *call;
    const std::int64_t *dep_start, *dep;
    Regions reads, writes;
};

struct Memory {  // one buffer of this rank
    std::byte* base;
    std::int64_t slot_bytes;
    int dtype;
    const std::int64_t* starts = nullptr;  // bytes at which each slot begins, and the last ends; null: equal slots
    bool scratch = false;                  // nobody looks at it after the run
};

struct ChannelRow {
    int src, dst, depth;
};

struct Quotient {  // where an average divides the sum
    Span where;
    int divisor;
};

struct QuotientRow {  // the same in slots
    int buffer;
    std::int64_t offset, count;
    int divisor;
};

struct PartsRow {  // `in_place` and `counts` of an op of a collective: see Op
    std::int64_t row;
    bool in_place;
    std::vector<long long> counts;
};

struct Share {
    Share() = default;
    Share(Share&&) = default;  // never copied: spans refer to `bases`
    Share& operator=(Share&&) = default;

    std::vector<Op> ops;
    std::vector<std::byte*> bases;  // by buffer; spans refer to its entries
    std::vector<bool> scratch;      // by buffer
    std::vector<Quotient> quotients;
    std::vector<std::pair<int, bool>> lanes;  // (lane of the Program, whether declared a net lane or with messages)
};

// Message tags: channels are numbered for each pair of ranks; a channel's signals have another tag than its messages.
Share load(int rank, const Columns& columns, const std::vector<bool>& lane_is_net,
           const std::vector<ChannelRow>& channels, const std::vector<Memory>& memory,
           const std::vector<QuotientRow>& quotients = {}, const std::vector<PartsRow>& parts = {});

}  // namespace dovetail::run
