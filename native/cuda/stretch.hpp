// Whole units of 16 bytes that lie one after the other wherever they lie: nearly all that is ever moved. What view.hpp
// finds unit by unit is found once here, and the element's type and the operation are chosen before the loop.
#pragma once

#include "cuda/view.hpp"

namespace dovetail::cuda {

struct Stretches {  // to = a, or to = op(a, b); and the same to `also`, where there is one
    const Unit *a = nullptr, *b = nullptr;
    Unit *to = nullptr, *also = nullptr;
};

// The units of a region from a place on, where it holds `bytes` more in one piece that begins where vectors may.
DOVETAIL_INLINE bool lies_whole(const View& view, std::int64_t place, std::int64_t bytes, Unit*& found) {
    const Stretch from = view.at(place);
    found = reinterpret_cast<Unit*>(from.at);
    return from.bytes >= bytes && reinterpret_cast<std::uintptr_t>(from.at) % sizeof(Unit) == 0;
}

// One load of 16 bytes: for elements of 8 bits nvcc would make it sixteen.
DOVETAIL_INLINE Unit load_unit(const Unit* from) {
#ifdef __CUDA_ARCH__
    Unit unit;
    asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(unit.word[0]), "=l"(unit.word[1]) : "l"(from) : "memory");
    return unit;
#else
    return *from;
#endif
}

// Units `first`, `first + step`, …; several are on their way at once.
template <class F>
DOVETAIL_INLINE void move_units(const Stretches& s, std::int64_t units, std::int64_t first, std::int64_t step) {
    constexpr int batch = F::combines ? 4 : 8;
    const Unit *const a = s.a, *const b = s.b;
    Unit *const to = s.to, *const also = s.also;
    std::int64_t at = first;
    for (; at + (batch - 1) * step < units; at += batch * step) {
        Unit data[batch], more[batch];
        DOVETAIL_UNROLL
        for (int i = 0; i < batch; ++i) {
            data[i] = load_unit(a + at + i * step);
            if (F::combines) more[i] = load_unit(b + at + i * step);
        }
        DOVETAIL_UNROLL
        for (int i = 0; i < batch; ++i) {
            const Unit made = F::of(data[i], F::combines ? more[i] : data[i]);
            if (to) to[at + i * step] = made;
            if (also) also[at + i * step] = made;
        }
    }
    for (; at < units; at += step) {
        const Unit made = F::of(load_unit(a + at), load_unit(F::combines ? b + at : a + at));
        if (to) to[at] = made;
        if (also) also[at] = made;
    }
}

// Compiled once, not into each of its callers: its loops need registers of their own.
DOVETAIL_APART void move_stretches(const Stretches& s, int dtype, int op, std::int64_t units, std::int64_t first,
                                   std::int64_t step) {
    if (!s.b) return move_units<Same>(s, units, first, step);
    with_combination(dtype, op, [&](auto made) { move_units<decltype(made)>(s, units, first, step); });
}

}  // namespace dovetail::cuda
