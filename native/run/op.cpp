// Moves and reduces the bytes of ops.
#include "run/op.hpp"

#include <cstring>

#include "run/reduce.hpp"

namespace dovetail::run {

const char* kind_name(Kind kind) {
    static const char* const names[] = {"nop",
                                        "copy",
                                        "reduce",
                                        "send",
                                        "recv",
                                        "recv_reduce",
                                        "recv_copy_send",
                                        "recv_reduce_send",
                                        "recv_reduce_copy_send",
                                        "put",
                                        "signal",
                                        "wait",
                                        "compute",
                                        "collective",
                                        "get"};
    return names[static_cast<int>(kind)];
}

bool receives(Kind kind) {
    return kind == Kind::recv || kind == Kind::wait ||
           (kind >= Kind::recv_reduce && kind <= Kind::recv_reduce_copy_send);
}

bool sends(Kind kind) {
    return kind == Kind::send || kind == Kind::signal ||
           (kind >= Kind::recv_copy_send && kind <= Kind::recv_reduce_copy_send);
}

bool adds(Kind kind) {
    return kind == Kind::recv_reduce || kind == Kind::recv_reduce_send || kind == Kind::recv_reduce_copy_send;
}

bool overlap(const Span& a, const Span& b) {
    if (a.buffer != b.buffer || a.num_bytes() == 0 || b.num_bytes() == 0) return false;
    return a.offset < b.end() && b.offset < a.end();
}

bool overlap(const std::vector<Span>& a, const std::vector<Span>& b) {
    for (const auto& x : a)
        for (const auto& y : b)
            if (overlap(x, y)) return true;
    return false;
}

bool conflict(const Op& a, const Op& b) {
    return overlap(a.writes, b.reads) || overlap(a.reads, b.writes) || overlap(a.writes, b.writes);
}

long long elements(const Span& span) { return span.num_bytes() / dtype_bytes(span.dtype); }

long long num_bytes(const std::vector<Span>& spans) {
    long long total = 0;
    for (const auto& span : spans) total += span.num_bytes();
    return total;
}

std::byte* in_one_piece(const std::vector<Span>& spans) {
    static std::byte nowhere;
    const Span *first = nullptr, *last = nullptr;
    for (const auto& span : spans) {
        if (span.num_bytes() == 0) continue;
        if (!span.contiguous()) return nullptr;
        if (last && (span.buffer != last->buffer || span.offset != last->end())) return nullptr;
        if (!first) first = &span;
        last = &span;
    }
    return first ? first->data() : &nowhere;
}

namespace {

// Calls `f(place in memory, place in the packed bytes, bytes)` for every block.
template <class F>
void for_blocks(const Span& span, F f) {
    if (span.num_bytes() == 0) return;
    if (!span.pieces) {
        for (std::int64_t i = 0; i < span.blocks; ++i)
            f(span.data() + i * span.stride, i * span.count, static_cast<std::size_t>(span.count));
        return;
    }
    std::int64_t at = 0;
    for (const auto& [offset, count] : *span.pieces) {
        f(*span.base + offset, at, static_cast<std::size_t>(count));
        at += count;
    }
}

}  // namespace

void gather(const Span& span, std::byte* to) {
    for_blocks(span, [&](std::byte* here, std::int64_t at, std::size_t size) { std::memcpy(to + at, here, size); });
}

void scatter(const std::byte* from, const Span& span) {
    for_blocks(span, [&](std::byte* here, std::int64_t at, std::size_t size) { std::memmove(here, from + at, size); });
}

void gather(const std::vector<Span>& spans, std::byte* to) {
    for (const auto& span : spans) {
        gather(span, to);
        to += span.num_bytes();
    }
}

void scatter(const std::byte* from, const std::vector<Span>& spans) {
    for (const auto& span : spans) {
        scatter(from, span);
        from += span.num_bytes();
    }
}

std::byte* packed_data(const Span& span, std::vector<std::byte>& packed) {
    if (span.contiguous()) return span.data();
    packed.resize(static_cast<std::size_t>(span.num_bytes()));
    gather(span, packed.data());
    return packed.data();
}

void unpack(const std::byte* from, const Span& dst) {
    if (!dst.contiguous()) return scatter(from, dst);
    if (dst.num_bytes()) std::memmove(dst.data(), from, static_cast<std::size_t>(dst.num_bytes()));
}

void call_function(const Op& op) {
    std::vector<Rows> rows;
    rows.reserve(op.reads.size() + op.writes.size());
    std::int64_t blocks = 1;
    for (const auto* spans : {&op.reads, &op.writes})
        for (const Span& span : *spans) blocks = std::max(blocks, span.blocks);
    for (const auto* spans : {&op.reads, &op.writes})
        for (const Span& span : *spans) {  // a contiguous span counts as the others' number of blocks
            const auto stride = span.blocks > 1 ? span.stride : span.count / blocks;
            rows.push_back({reinterpret_cast<char*>(span.data()), stride, blocks});
        }
    op.function.call(rows.data(), op.function.sizes.data());
}

void copy_spans(const Span& src, const Span& dst) {
    std::vector<std::byte> packed;
    const std::byte* from = packed_data(src, packed);
    if (packed.empty() && !dst.contiguous() && overlap(src, dst)) {  // else blocks would be read after a write
        packed.assign(from, from + src.num_bytes());
        from = packed.data();
    }
    unpack(from, dst);
}

void combine_spans(int op, const Span& src, const std::byte* message, const Span& dst) {
    std::vector<std::byte> left, right;
    const std::byte* a = packed_data(src, left);
    if (dst.contiguous() && (a == dst.data() || !left.empty() || !overlap(src, dst)))
        return combine(dst.dtype, op, a, message, dst.data(), elements(dst));
    right.resize(static_cast<std::size_t>(dst.num_bytes()));
    combine(dst.dtype, op, a, message, right.data(), elements(dst));
    unpack(right.data(), dst);
}

}  // namespace dovetail::run
