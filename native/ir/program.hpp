// Program in C++: the columns and tables of dovetail.ir.Program, checked by its check_columns.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>

namespace dovetail::ir {

// Numbers of dovetail.ir.types.Kind.
enum Kind : std::uint8_t {
    kNop,
    kCopy,
    kReduce,
    kSend,
    kRecv,
    kRecvReduce,
    kRecvCopySend,
    kRecvReduceSend,
    kRecvReduceCopySend,
    kPut,
    kSignal,
    kWait,
    kCompute,
    kCollective,
    kGet,
};

// Indices in dovetail.ir.collectives.OP_COLLECTIVES; kUnknown for any other collective.
enum CollectiveKind : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kUnknown };

// How a kernel uses an operand: numbers of dovetail/ir/native.py for the modes defined by dovetail.ir.types.Kernel.
enum Mode : std::uint8_t { kAll, kEach, kSum, kEachSum };

constexpr bool sends(std::uint8_t kind) {
    return kind == kSend || kind == kRecvCopySend || kind == kRecvReduceSend || kind == kRecvReduceCopySend;
}

constexpr bool receives(std::uint8_t kind) { return kind >= kRecv && kind <= kRecvReduceCopySend; }

// `blocks` blocks of `count` slots, their starts `stride` slots apart.
struct Region {
    std::int32_t buffer = 0;
    std::int64_t offset = 0, count = 0, stride = 0, blocks = 1;

    std::int64_t slots() const { return count * blocks; }
    std::int64_t end() const { return offset + count + stride * (blocks > 1 ? blocks - 1 : 0); }

    // Calls f(place, slot) for each slot in order; stops and returns false as soon as f returns false.
    template <class F>
    bool each(F f) const {
        std::int64_t place = 0;
        if (count == 0) return true;
        for (std::int64_t block = 0; block < blocks; ++block) {
            const std::int64_t start = offset + block * stride;
            for (std::int64_t j = 0; j < count; ++j, ++place)
                if (!f(place, start + j)) return false;
        }
        return true;
    }

    bool operator==(const Region&) const = default;
};

struct Regions {
    std::span<const std::int32_t> buffer;
    std::span<const std::int64_t> offset, count, stride, blocks;

    Region operator[](std::int64_t i) const { return {buffer[i], offset[i], count[i], stride[i], blocks[i]}; }
};

// Post-conditions: region i on ranks [rank_start[i], rank_start[i + 1]) holds the sum of its terms. They come in sets,
// numbered without gaps: set 0 is the program's own, others ask what it computes. Nested terms follow all others; if an
// operand is a nested term, its `arg_term` is that term's distance from the outer term in rows, else 0.
struct Posts {
    std::span<const std::int32_t> set;
    Regions region;
    std::span<const std::int64_t> rank_start, term_start, arg_start;
    std::span<const std::int32_t> rank, term_kernel, arg_rank;  // term_kernel: -1 for an input itself, or a sum
    std::span<const std::int32_t> arg_term;
    std::span<const std::uint8_t> is_inner;  // per term: whether it is nested in another
    Regions arg;

    std::int64_t size() const { return static_cast<std::int64_t>(set.size()); }

    // Whether two post-conditions require the same of equal regions, on any ranks.
    bool alike(std::int64_t one, std::int64_t other) const {
        const std::int64_t start = term_start[one], terms = term_start[one + 1] - start;
        if (region[one] != region[other] || term_start[other + 1] - term_start[other] != terms) return false;
        for (std::int64_t t = 0; t < terms; ++t)
            if (!same_term(start + t, term_start[other] + t)) return false;
        return true;
    }

  private:
    bool same_term(std::int64_t one, std::int64_t other) const {
        const std::int64_t a = arg_start[one], b = arg_start[other], args = arg_start[one + 1] - a;
        if (term_kernel[one] != term_kernel[other] || arg_start[other + 1] - b != args) return false;
        for (std::int64_t i = 0; i < args; ++i)
            if (arg_rank[a + i] != arg_rank[b + i] || arg_term[a + i] != arg_term[b + i] || arg[a + i] != arg[b + i])
                return false;
        return true;
    }
};

// The number of terms that each of the result's `slots` slots sums; operand i has size(i) slots.
template <class Size>
std::int64_t num_terms(std::span<const std::uint8_t> modes, std::int64_t slots, Size size) {
    std::int64_t terms = 1;
    for (std::int64_t i = std::ssize(modes) - 1; i >= 0; --i)
        if (modes[i] == kEachSum) terms = size(i) / (slots > 0 ? slots : 1);
    for (std::int64_t i = std::ssize(modes) - 1; i >= 0; --i)
        if (modes[i] == kSum) terms = size(i);
    return terms;
}

struct Program {
    std::int32_t num_ranks = 0, num_lanes = 0, num_buffers = 0;
    std::span<const std::uint8_t> kind;
    std::span<const std::int32_t> rank, lane, chan_in, chan_out, call;
    std::span<const std::int64_t> read_start, write_start, dep_start, dep;
    Regions read, write;
    std::span<const std::int64_t> buffer_slots;  // [buffer * num_ranks + rank]
    std::span<const std::uint8_t> buffer_is_input, buffer_is_result;
    std::span<const std::int32_t> chan_src, chan_dst;
    std::span<const std::int64_t> chan_depth;
    std::span<const std::int64_t> mode_start;  // per kernel
    std::span<const std::uint8_t> mode;
    std::span<const std::uint8_t> accumulate;
    std::span<const std::int32_t> kernel_name;  // kernels of one name share a number
    std::span<const std::uint8_t> collective;   // CollectiveKind of each row
    std::span<const std::int64_t> group_start;
    std::span<const std::int32_t> group;
    Posts posts;

    std::int32_t num_ops() const { return static_cast<std::int32_t>(kind.size()); }
    std::int32_t num_channels() const { return static_cast<std::int32_t>(chan_src.size()); }
    std::int32_t group_size(std::int32_t row) const {
        return static_cast<std::int32_t>(group_start[row + 1] - group_start[row]);
    }
    std::int64_t num_reads(std::int64_t op) const { return read_start[op + 1] - read_start[op]; }
    std::int64_t num_writes(std::int64_t op) const { return write_start[op + 1] - write_start[op]; }
    // The mode of region i of those that a compute op reads.
    std::uint8_t mode_of(std::int64_t op, std::int64_t i) const { return mode[mode_start[call[op]] + i]; }
    // The modes of a kernel's operands.
    std::span<const std::uint8_t> modes(std::int32_t kernel) const {
        return mode.subspan(mode_start[kernel], mode_start[kernel + 1] - mode_start[kernel]);
    }
    // Whether a kernel reads an operand slot by slot of its result.
    bool is_by_slot(std::int32_t kernel) const {
        for (const std::uint8_t each : modes(kernel))
            if (each == kEach || each == kEachSum) return true;
        return false;
    }
    // How many terms are summed in each slot of a compute op's results.
    std::int64_t num_terms(std::int64_t op) const {
        const auto slots = num_writes(op) ? write[write_start[op]].slots() : 0;
        return ir::num_terms(modes(call[op]), slots, [&](std::int64_t i) { return read[read_start[op] + i].slots(); });
    }
    // The rank whose memory an op reads, and the rank whose memory it writes.
    std::int32_t source(std::int64_t op) const { return kind[op] == kGet ? chan_src[chan_in[op]] : rank[op]; }
    std::int32_t target(std::int64_t op) const { return kind[op] == kPut ? chan_dst[chan_out[op]] : rank[op]; }
    // Whether some members of an all_to_all name one region per member.
    bool in_parts(std::span<const std::int32_t> members) const {
        for (const std::int32_t op : members)
            if (num_reads(op) > 1) return true;
        return false;
    }
    // The slots that an op of an all_to_all moves to (or from) member `place`: those of that member's region, or an
    // even part of its only region.
    std::int64_t sent_slots(std::int64_t op, std::int64_t place) const {
        return part_slots(read, read_start[op], num_reads(op), place, group_size(call[op]));
    }
    std::int64_t taken_slots(std::int64_t op, std::int64_t place) const {
        return part_slots(write, write_start[op], num_writes(op), place, group_size(call[op]));
    }
    // Whether an op also reads the regions that it writes.
    bool adds(std::int64_t op) const { return kind[op] == kReduce || (kind[op] == kCompute && accumulate[call[op]]); }
    std::int64_t message_slots(std::int64_t op) const {
        return num_reads(op) ? read[read_start[op]].slots() : write[write_start[op]].slots();
    }

  private:
    static std::int64_t part_slots(const Regions& side, std::int64_t start, std::int64_t count, std::int64_t place,
                                   std::int64_t members) {
        return count == members ? side[start + place].slots() : side[start].slots() / members;
    }
};

}  // namespace dovetail::ir
