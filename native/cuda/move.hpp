// Move: bytes of regions copied, or combined with others, by the threads of a kernel; the same source on host threads.
#pragma once

#include "cuda/stretch.hpp"

namespace dovetail::cuda {

struct Move {
    Place to, a, b;  // to = a, or to = op(a, b); all of them are as many bytes
    bool combines = false;
    std::int32_t dtype = 0, reduce_op = 0;
    std::byte* tables = nullptr;  // that Place::starts are offsets into
};

// Those of a move whose regions all lie in one piece: how many units of 16 bytes were moved, by all threads together.
DOVETAIL_INLINE std::int64_t move_whole(const Move& move, const View& to, const View& a, const View& b,
                                        std::int64_t first, std::int64_t step) {
    const std::int64_t units = to.bytes() / 16;
    Unit *from = nullptr, *more = nullptr, *into = nullptr;
    if (units == 0 || !lies_whole(a, 0, 16 * units, from) || !lies_whole(to, 0, 16 * units, into)) return 0;
    if (move.combines && !lies_whole(b, 0, 16 * units, more)) return 0;
    move_stretches({from, more, into}, move.dtype, move.reduce_op, units, first, step);
    return units;
}

// Units `first`, `first + step`, … of 16 bytes.
DOVETAIL_INLINE void run_move(const Move& move, std::int64_t first, std::int64_t step) {
    Image whole;
    whole.base = move.tables;
    const View to(whole, move.to, 0), a(whole, move.a, 0);
    const View b = move.combines ? View(whole, move.b, 0) : View();
    const int element = element_bytes(move.dtype);
    const std::int64_t bytes = to.bytes(), units = (bytes + 15) / 16;
    constexpr int batch = 2;  // loads on their way at once
    const std::int64_t done = move_whole(move, to, a, b, first, step);
    for (std::int64_t begin = done + first; begin < units; begin += batch * step) {
        Unit data[batch], more[batch];
        DOVETAIL_UNROLL
        for (int i = 0; i < batch; ++i) {
            const std::int64_t place = 16 * (begin + i * step), left = bytes - place;
            if (left <= 0) continue;
            const int size = left < 16 ? static_cast<int>(left) : 16;
            data[i] = load(a, place, size, element);
            if (move.combines) more[i] = load(b, place, size, element);
        }
        DOVETAIL_UNROLL
        for (int i = 0; i < batch; ++i) {
            const std::int64_t place = 16 * (begin + i * step), left = bytes - place;
            if (left <= 0) continue;
            if (move.combines) data[i] = combine(move.dtype, move.reduce_op, data[i], more[i]);
            store(to, place, left < 16 ? static_cast<int>(left) : 16, element, data[i]);
        }
    }
}

}  // namespace dovetail::cuda
