// Element-wise reductions, for every dtype and operation. On x86-64, compiled a second time for AVX2 and F16C.
#include "run/reduce.hpp"

#include <algorithm>
#include <cstdint>

#include "run/mpi_table.h"
#include "run/scalar.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define DOVETAIL_WIDE __attribute__((target("avx2,f16c")))
#include <immintrin.h>
#endif

namespace dovetail::run {

namespace {

constexpr long long block = 512;  // halves widened at a time: the floats stay in the first-level cache

struct Plain {  // conversions that every processor has
    static DOVETAIL_INLINE void widen(int dtype, const Half* from, float* to, long long count) {
        if (dtype == DT_FLOAT16)
            for (long long i = 0; i < count; ++i) to[i] = half_to_float(from[i]);
        else
            for (long long i = 0; i < count; ++i) to[i] = bfloat_to_float(from[i]);
    }
    static DOVETAIL_INLINE void narrow(int dtype, const float* from, Half* to, long long count) {
        if (dtype == DT_FLOAT16)
            for (long long i = 0; i < count; ++i) to[i] = float_to_half(from[i]);
        else
            for (long long i = 0; i < count; ++i) to[i] = float_to_bfloat(from[i]);
    }
};

#ifdef DOVETAIL_WIDE
struct Wide {
    DOVETAIL_WIDE static void widen(int dtype, const Half* from, float* to, long long count) {
        long long i = 0;
        if (dtype == DT_FLOAT16)
            for (; i + 8 <= count; i += 8)
                _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
        Plain::widen(dtype, from + i, to + i, count - i);
    }
    DOVETAIL_WIDE static void narrow(int dtype, const float* from, Half* to, long long count) {
        long long i = 0;
        if (dtype == DT_FLOAT16)
            for (; i + 8 <= count; i += 8)
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                                 _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
        Plain::narrow(dtype, from + i, to + i, count - i);
    }
};
#endif

template <class F, class T>
DOVETAIL_INLINE void loop(const T* a, const T* b, T* dst, long long count) {
#pragma GCC ivdep
    for (long long i = 0; i < count; ++i) dst[i] = F::of(a[i], b[i]);
}

template <class Codec, class F>
DOVETAIL_INLINE void halves(int dtype, const Half* a, const Half* b, Half* dst, long long count) {
    float x[block], y[block];
    for (long long i = 0; i < count; i += block) {
        const long long n = std::min(block, count - i);
        Codec::widen(dtype, a + i, x, n);
        Codec::widen(dtype, b + i, y, n);
        loop<F>(x, y, x, n);
        Codec::narrow(dtype, x, dst + i, n);
    }
}

template <class F, class T>
DOVETAIL_INLINE void typed(const void* a, const void* b, void* dst, long long count) {
    loop<F>(static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(dst), count);
}

template <class Codec, class F>
DOVETAIL_INLINE void by_dtype(int dtype, const void* a, const void* b, void* dst, long long count) {
    switch (dtype) {
        case DT_FLOAT32:
            return typed<F, float>(a, b, dst, count);
        case DT_FLOAT64:
            return typed<F, double>(a, b, dst, count);
        case DT_INT8:
            return typed<F, std::int8_t>(a, b, dst, count);
        case DT_UINT8:
            return typed<F, std::uint8_t>(a, b, dst, count);
        case DT_INT32:
            return typed<F, std::int32_t>(a, b, dst, count);
        case DT_INT64:
            return typed<F, std::int64_t>(a, b, dst, count);
        case DT_INT16:
            return typed<F, std::int16_t>(a, b, dst, count);
        case DT_UINT16:
            return typed<F, std::uint16_t>(a, b, dst, count);
        case DT_UINT32:
            return typed<F, std::uint32_t>(a, b, dst, count);
        case DT_UINT64:
            return typed<F, std::uint64_t>(a, b, dst, count);
        default:
            halves<Codec, F>(dtype, static_cast<const Half*>(a), static_cast<const Half*>(b), static_cast<Half*>(dst),
                             count);
    }
}

template <class Codec>
DOVETAIL_INLINE void by_op(int dtype, int op, const void* a, const void* b, void* dst, long long count) {
    switch (op) {
        case DT_PROD:
            return by_dtype<Codec, Multiply>(dtype, a, b, dst, count);
        case DT_MIN:
            return by_dtype<Codec, Least>(dtype, a, b, dst, count);
        case DT_MAX:
            return by_dtype<Codec, Greatest>(dtype, a, b, dst, count);
        default:
            return by_dtype<Codec, Add>(dtype, a, b, dst, count);
    }
}

#ifdef DOVETAIL_WIDE
DOVETAIL_WIDE void combine_wide(int dtype, int op, const void* a, const void* b, void* dst, long long count) {
    by_op<Wide>(dtype, op, a, b, dst, count);
}
const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#endif

template <class T>
void divide_all(void* data, long long count, int divisor) {
    auto* x = static_cast<T*>(data);
    for (long long i = 0; i < count; ++i) x[i] /= static_cast<T>(divisor);
}

}  // namespace

void combine(int dtype, int op, const void* a, const void* b, void* dst, long long count) {
#ifdef DOVETAIL_WIDE
    if (has_wide) return combine_wide(dtype, op, a, b, dst, count);
#endif
    by_op<Plain>(dtype, op, a, b, dst, count);
}

void reduce(int dtype, int op, const void* src, void* dst, long long count) {
    combine(dtype, op, dst, src, dst, count);
}

void widen(int dtype, const void* from, float* to, long long count) {
    const auto* halves = static_cast<const Half*>(from);
#ifdef DOVETAIL_WIDE
    if (has_wide) return Wide::widen(dtype, halves, to, count);
#endif
    Plain::widen(dtype, halves, to, count);
}

void narrow(int dtype, const float* from, void* to, long long count) {
    auto* halves = static_cast<Half*>(to);
#ifdef DOVETAIL_WIDE
    if (has_wide) return Wide::narrow(dtype, from, halves, count);
#endif
    Plain::narrow(dtype, from, halves, count);
}

void divide(int dtype, void* data, long long count, int divisor) {
    if (is_integer(dtype)) return;
    if (dtype == DT_FLOAT32) return divide_all<float>(data, count, divisor);
    if (dtype == DT_FLOAT64) return divide_all<double>(data, count, divisor);
    auto* halves = static_cast<Half*>(data);
    float wide[block];
    for (long long i = 0; i < count; i += block) {
        const long long n = std::min(block, count - i);
        widen(dtype, halves + i, wide, n);
        divide_all<float>(wide, n, divisor);
        narrow(dtype, wide, halves + i, n);
    }
}

int dtype_bytes(int dtype) {
    static const int bytes[DT_NUM_TYPES] = {2, 2, 4, 8, 1, 1, 4, 8, 2, 2, 4, 8, 8, 16};
    return bytes[dtype];
}

bool is_integer(int dtype) { return dtype >= DT_INT8; }

}  // namespace dovetail::run
