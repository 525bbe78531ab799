// One op of a rank's share of a Program, its regions in bytes, and functions that move those bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace dovetail::run {

enum class Kind : std::uint8_t {
    nop,
    copy,
    reduce,
    send,
    recv,
    recv_reduce,
    recv_copy_send,
    recv_reduce_send,
    recv_reduce_copy_send,
    put,
    signal,
    wait,
    compute,
    collective,
    get
};

const char* kind_name(Kind kind);

// `wait` receives a message of no bytes, `signal` sends one.
bool receives(Kind kind);
bool sends(Kind kind);
bool adds(Kind kind);  // receives, and reduces what it reads with the message

struct Piece {  // of a region whose blocks differ in size
    std::int64_t offset, count;
};

struct Span {                          // a region in bytes, in one buffer's memory
    std::byte* const* base = nullptr;  // the engine's entry for the buffer, which `rebase` changes
    std::int64_t offset = 0, count = 0, stride = 0, blocks = 1, slots = 0;
    int buffer = -1, dtype = 0;
    std::shared_ptr<const std::vector<Piece>> pieces;  // if any: `count` is their sum, and blocks is 1
    std::int64_t num_bytes() const { return count * blocks; }
    std::int64_t end() const {
        return pieces ? pieces->back().offset + pieces->back().count : offset + stride * (blocks - 1) + count;
    }
    bool contiguous() const { return !pieces && (blocks <= 1 || stride == count); }
    std::byte* data() const { return *base + offset; }
};

struct Product {  // see Matmul
    std::int64_t m = -1, k = 0, n = 0;
    bool accumulate = false;
};

// A kernel compiled from generated C: see ir/kernels.py, CFunction.
struct Rows {
    char* data;
    std::int64_t stride, blocks;
};

struct CFunction {
    void (*call)(const Rows*, const std::int64_t*) = nullptr;
    std::array<std::int64_t, 8> sizes{};
};

struct Op {
    Kind kind{};
    int lane = 0;          // index into Engine's lanes
    std::int64_t row = 0;  // row in the Program
    int in_peer = -1, in_tag = 0, out_peer = -1, out_tag = 0, out_depth = 0, in_depth = 0, call = -1;
    Product product;     // of a compute op that is a matrix product; else m is -1
    CFunction function;  // of a compute op that runs generated C
    std::vector<Span> reads, writes;
    std::vector<std::pair<int, std::int64_t>> after;  // (lane, index within the lane)
    std::vector<long long> counts;                    // of a collective in uneven parts: elements, as in dt_mpi_table
    bool in_place = false;                            // an all_gather whose parts are in their places on all members
};

// By bounding ranges: conservative for strided spans.
bool overlap(const Span& a, const Span& b);
bool overlap(const std::vector<Span>& a, const std::vector<Span>& b);
bool conflict(const Op& a, const Op& b);

long long elements(const Span& span);
long long num_bytes(const std::vector<Span>& spans);

// The address of the first of all spans if their bytes are contiguous, else null. Of no bytes: some address, so not
// null.
std::byte* in_one_piece(const std::vector<Span>& spans);
void gather(const Span& span, std::byte* to);
void scatter(const std::byte* from, const Span& span);
void gather(const std::vector<Span>& spans, std::byte* to);
void scatter(const std::byte* from, const std::vector<Span>& spans);
void unpack(const std::byte* from, const Span& dst);  // as `scatter`, in one move if `dst` is contiguous

// The span's bytes, contiguous: in place if they are so there, else gathered into `packed`.
std::byte* packed_data(const Span& span, std::vector<std::byte>& packed);

void call_function(const Op& op);
void copy_spans(const Span& src, const Span& dst);
void combine_spans(int op, const Span& src, const std::byte* message, const Span& dst);  // dst = op(src, message)

}  // namespace dovetail::run
