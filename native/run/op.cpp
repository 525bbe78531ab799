// Moving and adding the bytes of ops.
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

void gather(const Span& span, std::byte* to) {
    if (span.num_bytes() == 0) return;
    for (std::int64_t i = 0; i < span.blocks; ++i)
        std::memcpy(to + i * span.count, span.data() + i * span.stride, static_cast<std::size_t>(span.count));
}

void scatter(const std::byte* from, const Span& span) {
    if (span.num_bytes() == 0) return;
    for (std::int64_t i = 0; i < span.blocks; ++i)
        std::memmove(span.data() + i * span.stride, from + i * span.count, static_cast<std::size_t>(span.count));
}

std::byte* packed_data(const Span& span, std::vector<std::byte>& packed) {
    if (span.contiguous()) return span.data();
    packed.resize(static_cast<std::size_t>(span.num_bytes()));
    gather(span, packed.data());
    return packed.data();
}

void copy_spans(const Span& src, const Span& dst) {
    std::vector<std::byte> packed;
    const std::byte* from = packed_data(src, packed);
    if (packed.empty() && !dst.contiguous() && overlap(src, dst)) {  // blocks would be read after they were written
        packed.assign(from, from + src.num_bytes());
        from = packed.data();
    }
    scatter(from, dst.contiguous() ? Span{dst.base, dst.offset, dst.num_bytes(), 0, 1} : dst);
}

void combine_spans(int op, const Span& src, const std::byte* message, const Span& dst) {
    std::vector<std::byte> left, right;
    const std::byte* a = packed_data(src, left);
    if (dst.contiguous() && (a == dst.data() || !left.empty() || !overlap(src, dst)))
        return combine(dst.dtype, op, a, message, dst.data(), elements(dst));
    right.resize(static_cast<std::size_t>(dst.num_bytes()));
    combine(dst.dtype, op, a, message, right.data(), elements(dst));
    scatter(right.data(), dst.contiguous() ? Span{dst.base, dst.offset, dst.num_bytes(), 0, 1} : dst);
}

}  // namespace dovetail::run
