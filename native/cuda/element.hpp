// Sixteen bytes of elements at once, and what reducing ops make of two of them.
#pragma once

#include <cstring>

#include "run/mpi_table.h"
#include "run/scalar.hpp"
#ifdef __CUDA_ARCH__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace dovetail::cuda {

// May lie over elements of any type.
struct __attribute__((may_alias)) Unit {
    alignas(16) std::uint64_t word[2];
};

struct Float16 {
    static DOVETAIL_INLINE float widen(run::Half bits) {
#ifdef __CUDA_ARCH__
        return __half2float(__ushort_as_half(bits));
#else
        return run::half_to_float(bits);
#endif
    }
    static DOVETAIL_INLINE run::Half narrow(float value) {
#ifdef __CUDA_ARCH__
        return __half_as_ushort(__float2half_rn(value));
#else
        return run::float_to_half(value);
#endif
    }
};

struct Bfloat16 {
    static DOVETAIL_INLINE float widen(run::Half bits) { return run::bfloat_to_float(bits); }
    static DOVETAIL_INLINE run::Half narrow(float value) {
#ifdef __CUDA_ARCH__
        return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
        return run::float_to_bfloat(value);
#endif
    }
};

template <class F, class T>
DOVETAIL_INLINE Unit each(const Unit& a, const Unit& b) {
    constexpr int count = sizeof(Unit) / sizeof(T);
    T x[count], y[count];
    std::memcpy(x, &a, sizeof(Unit));
    std::memcpy(y, &b, sizeof(Unit));
    DOVETAIL_UNROLL
    for (int i = 0; i < count; ++i) x[i] = F::of(x[i], y[i]);
    Unit result;
    std::memcpy(&result, x, sizeof(Unit));
    return result;
}

template <class F, class Codec>
struct Widened {
    static DOVETAIL_INLINE run::Half of(run::Half a, run::Half b) {
        return Codec::narrow(F::of(Codec::widen(a), Codec::widen(b)));
    }
};

struct Same {
    static constexpr bool combines = false;
    static DOVETAIL_INLINE Unit of(const Unit& a, const Unit&) { return a; }
};

template <class F, class T>
struct Each {
    static constexpr bool combines = true;
    static DOVETAIL_INLINE Unit of(const Unit& a, const Unit& b) { return each<F, T>(a, b); }
};

// Calls `next` with what combines units of a dtype by F.
template <class F, class Next>
DOVETAIL_INLINE void with_dtype(int dtype, Next next) {
    switch (dtype) {
        case DT_FLOAT16:
            return next(Each<Widened<F, Float16>, run::Half>());
        case DT_BFLOAT16:
            return next(Each<Widened<F, Bfloat16>, run::Half>());
        case DT_FLOAT32:
            return next(Each<F, float>());
        case DT_FLOAT64:
            return next(Each<F, double>());
        case DT_INT8:
            return next(Each<F, std::int8_t>());
        case DT_UINT8:
            return next(Each<F, std::uint8_t>());
        case DT_INT16:
            return next(Each<F, std::int16_t>());
        case DT_UINT16:
            return next(Each<F, std::uint16_t>());
        case DT_INT32:
            return next(Each<F, std::int32_t>());
        case DT_UINT32:
            return next(Each<F, std::uint32_t>());
        case DT_INT64:
            return next(Each<F, std::int64_t>());
        default:
            return next(Each<F, std::uint64_t>());
    }
}

template <class Next>
DOVETAIL_INLINE void with_combination(int dtype, int op, Next next) {
    switch (op) {
        case DT_PROD:
            return with_dtype<run::Multiply>(dtype, next);
        case DT_MIN:
            return with_dtype<run::Least>(dtype, next);
        case DT_MAX:
            return with_dtype<run::Greatest>(dtype, next);
        default:
            return with_dtype<run::Add>(dtype, next);
    }
}

// op(a, b), as run::combine computes it: `a` is what the rank holds. Compiled once: copied into each of its callers, it
// would take most of the compiler's time, and of a device's registers.
DOVETAIL_APART Unit combine(int dtype, int op, Unit a, Unit b) {
    Unit result{};
    with_combination(dtype, op, [&](auto made) { result = made.of(a, b); });
    return result;
}

// The same where a call would take longer than all else that a thread does.
#ifdef __CUDACC__
DOVETAIL_INLINE Unit combine_at_once(int dtype, int op, const Unit& a, const Unit& b) {
    Unit result{};
    with_combination(dtype, op, [&](auto made) { result = made.of(a, b); });
    return result;
}
#else
inline Unit combine_at_once(int dtype, int op, Unit a, Unit b) { return combine(dtype, op, a, b); }
#endif

DOVETAIL_INLINE int element_bytes(int dtype) {
    switch (dtype) {
        case DT_INT8:
        case DT_UINT8:
            return 1;
        case DT_FLOAT32:
        case DT_INT32:
        case DT_UINT32:
            return 4;
        case DT_FLOAT64:
        case DT_INT64:
        case DT_UINT64:
            return 8;
        default:
            return 2;
    }
}

}  // namespace dovetail::cuda
