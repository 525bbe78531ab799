// Operations on single elements: conversions between half types and float, and reductions. CPUs and GPUs give the same
// bits, except those of a NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define DOVETAIL_INLINE __host__ __device__ __forceinline__
#define DOVETAIL_APART __host__ __device__ __noinline__ inline
#define DOVETAIL_UNROLL _Pragma("unroll")
#else
#define DOVETAIL_APART __attribute__((noinline)) inline
#ifndef DOVETAIL_INLINE  // a sanitizer build, which would compile too long, defines it as `inline`
#define DOVETAIL_INLINE inline __attribute__((always_inline))
#endif
#define DOVETAIL_UNROLL _Pragma("GCC unroll 16")
#endif

namespace dovetail::run {

using Half = std::uint16_t;

// Conversions have no branches, so that compilers vectorise loops of them: with a conditional expression, they do not.
DOVETAIL_INLINE std::uint32_t select(bool which, std::uint32_t yes, std::uint32_t no) {
    return no ^ ((yes ^ no) & (0u - static_cast<std::uint32_t>(which)));
}

DOVETAIL_INLINE float half_to_float(Half bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    // Exact for subnormals too: shift the fields into float's place, then scale the exponent by 2^112.
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
    const std::uint32_t special = 0x7f800000u | (magnitude << 13);
    return std::bit_cast<float>(sign | select(magnitude >= 0x7c00u, special, scaled));
}

DOVETAIL_INLINE Half float_to_half(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    // For a subnormal half: adding 0.5 leaves the rounded fraction in the low bits.
    const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    const std::uint32_t finite = select(magnitude < 0x38800000u, small, normal);
    const std::uint32_t large = select(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
    return static_cast<Half>(sign | select(magnitude >= 0x477ff000u, large, finite));
}

DOVETAIL_INLINE float bfloat_to_float(Half bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

DOVETAIL_INLINE Half float_to_bfloat(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, nan = (bits >> 16) | 0x40u;
    return static_cast<Half>(select((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded));
}

// Integers wrap around, as in MPI and NumPy: computed in an unsigned type at least as wide as int.
template <class T, class F>
DOVETAIL_INLINE T wrapped(T a, T b, F f) {
    using U = std::conditional_t<sizeof(T) < 4, std::uint32_t, std::make_unsigned_t<T>>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
}

struct Add {
    template <class T>
    static DOVETAIL_INLINE T of(T a, T b) {
        if constexpr (std::is_integral_v<T>)
            return wrapped(a, b, [](auto x, auto y) { return x + y; });
        else
            return a + b;
    }
};

struct Multiply {
    template <class T>
    static DOVETAIL_INLINE T of(T a, T b) {
        if constexpr (std::is_integral_v<T>)
            return wrapped(a, b, [](auto x, auto y) { return x * y; });
        else
            return a * b;
    }
};

struct Least {
    template <class T>
    static DOVETAIL_INLINE T of(T a, T b) {
        const T least = b < a ? b : a;
        return b != b ? b : least;
    }
};

struct Greatest {
    template <class T>
    static DOVETAIL_INLINE T of(T a, T b) {
        const T most = b > a ? b : a;
        return b != b ? b : most;
    }
};

}  // namespace dovetail::run
