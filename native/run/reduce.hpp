// Element-wise reductions of the executors: half types are added in float and rounded once.
#pragma once

namespace dovetail::run {

// dst = op(dst, src) over `count` elements; dtype and op are those of mpi_table.h.
void reduce(int dtype, int op, const void* src, void* dst, long long count);

// dst = op(a, b) over `count` elements.
void combine(int dtype, int op, const void* a, const void* b, void* dst, long long count);

int dtype_bytes(int dtype);

float half_to_float(unsigned short bits);
unsigned short float_to_half(float value);
float bfloat_to_float(unsigned short bits);
unsigned short float_to_bfloat(float value);

}  // namespace dovetail::run
