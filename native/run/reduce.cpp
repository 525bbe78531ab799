// Element-wise reductions of the executors, for every dtype and operation.
#include "run/reduce.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "run/mpi_table.h"

namespace dovetail::run {

float half_to_float(unsigned short bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    // Exact for subnormals too: shift the fields into float's place, then scale the exponent by 2^112.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

unsigned short float_to_half(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<unsigned short>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // a subnormal half: adding 0.5 leaves the rounded fraction in the low bits
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<unsigned short>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<unsigned short>(sign | ((rounded - 0x38000000u) >> 13));
}

float bfloat_to_float(unsigned short bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

unsigned short float_to_bfloat(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>((bits >> 16) | 0x40u);
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

namespace {

struct Half {
    using Wide = float;
    static float load(unsigned short bits) { return half_to_float(bits); }
    static unsigned short store(float value) { return float_to_half(value); }
};

struct Bfloat {
    using Wide = float;
    static float load(unsigned short bits) { return bfloat_to_float(bits); }
    static unsigned short store(float value) { return float_to_bfloat(value); }
};

template <class T>
struct Plain {
    using Wide = T;
    static T load(T value) { return value; }
    static T store(T value) { return value; }
};

// Integers wrap around, as in MPI and NumPy: the sum is taken in the unsigned type.
template <class T>
T add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
        return a + b;
    }
}

template <class T>
T multiply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
        return a * b;
    }
}

template <class Codec, class T, class F>
void loop(const T* a, const T* b, T* dst, long long count, F f) {
    for (long long i = 0; i < count; ++i) dst[i] = Codec::store(f(Codec::load(a[i]), Codec::load(b[i])));
}

template <class Codec, class T>
void dispatch(int op, const void* a, const void* b, void* dst, long long count) {
    using W = typename Codec::Wide;
    const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
    T* z = static_cast<T*>(dst);
    switch (op) {
        case DT_SUM:
            return loop<Codec>(x, y, z, count, [](W p, W q) { return add<W>(p, q); });
        case DT_PROD:
            return loop<Codec>(x, y, z, count, [](W p, W q) { return multiply<W>(p, q); });
        case DT_MIN:
            return loop<Codec>(x, y, z, count, [](W p, W q) { return q < p ? q : p; });
        default:
            return loop<Codec>(x, y, z, count, [](W p, W q) { return q > p ? q : p; });
    }
}

}  // namespace

void combine(int dtype, int op, const void* a, const void* b, void* dst, long long count) {
    switch (dtype) {
        case DT_FLOAT16:
            return dispatch<Half, unsigned short>(op, a, b, dst, count);
        case DT_BFLOAT16:
            return dispatch<Bfloat, unsigned short>(op, a, b, dst, count);
        case DT_FLOAT32:
            return dispatch<Plain<float>, float>(op, a, b, dst, count);
        case DT_FLOAT64:
            return dispatch<Plain<double>, double>(op, a, b, dst, count);
        case DT_INT8:
            return dispatch<Plain<std::int8_t>, std::int8_t>(op, a, b, dst, count);
        case DT_UINT8:
            return dispatch<Plain<std::uint8_t>, std::uint8_t>(op, a, b, dst, count);
        case DT_INT32:
            return dispatch<Plain<std::int32_t>, std::int32_t>(op, a, b, dst, count);
        default:
            return dispatch<Plain<std::int64_t>, std::int64_t>(op, a, b, dst, count);
    }
}

void reduce(int dtype, int op, const void* src, void* dst, long long count) {
    combine(dtype, op, dst, src, dst, count);
}

int dtype_bytes(int dtype) {
    static const int bytes[] = {2, 2, 4, 8, 1, 1, 4, 8};
    return bytes[dtype];
}

}  // namespace dovetail::run
