// Element-wise reductions of the executors: half types are computed in float, each step rounded.
#pragma once

namespace dovetail::run {

// dst = op(a, b) over `count` elements. dtype and op are those of mpi_table.h (DT_AVG adds). `dst` is `a`, or `b`, or
// overlaps neither. Integers wrap around. A minimum or maximum is NaN if one is, and `a` if they are equal (+0 and -0).
void combine(int dtype, int op, const void* a, const void* b, void* dst, long long count);

// dst = op(dst, src).
void reduce(int dtype, int op, const void* src, void* dst, long long count);

// data = data / divisor, rounded once. Integers are not changed.
void divide(int dtype, void* data, long long count, int divisor);

int dtype_bytes(int dtype);
bool is_integer(int dtype);

// `count` halves (DT_FLOAT16 or DT_BFLOAT16) to floats, and floats to halves, rounded to nearest, ties to even.
void widen(int dtype, const void* from, float* to, long long count);
void narrow(int dtype, const float* from, void* to, long long count);

}  // namespace dovetail::run
