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

template <class F>
DOVETAIL_INLINE Unit by_dtype(int dtype, const Unit& a, const Unit& b) {
    switch (dtype) {
        case DT_FLOAT16:
            return each<Widened<F, Float16>, run::Half>(a, b);
        case DT_BFLOAT16:
            return each<Widened<F, Bfloat16>, run::Half>(a, b);
        case DT_FLOAT32:
            return each<F, float>(a, b);
        case DT_FLOAT64:
            return each<F, double>(a, b);
        case DT_INT8:
            return each<F, std::int8_t>(a, b);
        case DT_UINT8:
            return each<F, std::uint8_t>(a, b);
        case DT_INT16:
            return each<F, std::int16_t>(a, b);
        case DT_UINT16:
            return each<F, std::uint16_t>(a, b);
        case DT_INT32:
            return each<F, std::int32_t>(a, b);
        case DT_UINT32:
            return each<F, std::uint32_t>(a, b);
        case DT_INT64:
            return each<F, std::int64_t>(a, b);
        default:
            return each<F, std::uint64_t>(a, b);
    }
}

// op(a, b), as run::combine computes it: `a` is what the rank holds. On the host it is compiled once: copied into each
// of its callers, it would take most of the compiler's time.
#ifdef __CUDACC__
DOVETAIL_INLINE Unit combine(int dtype, int op, const Unit& a, const Unit& b) {
#else
__attribute__((noinline)) inline Unit combine(int dtype, int op, Unit a, Unit b) {
#endif
    switch (op) {
        case DT_PROD:
            return by_dtype<run::Multiply>(dtype, a, b);
        case DT_MIN:
            return by_dtype<run::Least>(dtype, a, b);
        case DT_MAX:
            return by_dtype<run::Greatest>(dtype, a, b);
        default:
            return by_dtype<run::Add>(dtype, a, b);
    }
}

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
