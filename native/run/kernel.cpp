// The row-tile matrix product of the executors.
#include "run/kernel.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace dovetail::run {

void Matmul::operator()(const void* a, const void* b, bool fixed, void* c, std::int64_t rows, std::int64_t block_rows,
                        const std::function<void()>& between) {
    if (!fixed) forget();
    const auto* row = static_cast<const std::byte*>(a);
    auto* out = static_cast<std::byte*>(c);
    const std::int64_t bytes = dtype_bytes(dtype_),
                       step = block_rows > 0 ? block_rows : std::max<std::int64_t>(rows, 1);
    for (std::int64_t first = 0; first < rows; first += step) {
        block(row + first * k_ * bytes, b, out + first * n_ * bytes, std::min(step, rows - first));
        if (between) between();
    }
}

void Matmul::block(const void* a, const void* b, void* c, std::int64_t rows) {
    if (rows == 0 || n_ == 0) return;
    if (k_ == 0) {
        std::memset(c, 0, static_cast<std::size_t>(rows * n_ * dtype_bytes(dtype_)));
    } else if (dtype_ == DT_FLOAT64) {
        double one = 1.0, zero = 0.0;
        multiply(blas_.dgemm, &one, &zero, a, b, c, rows);
    } else if (dtype_ == DT_FLOAT32) {
        float one = 1.0F, zero = 0.0F;
        multiply(blas_.sgemm, &one, &zero, a, b, c, rows);
    } else {
        half_block(a, b, c, rows);
    }
}

void Matmul::half_block(const void* a, const void* b, void* c, std::int64_t rows) {
    if (b_ != b) {
        b_ = b;
        wide_b_.resize(static_cast<std::size_t>(k_ * n_));
        widen(dtype_, b, wide_b_.data(), k_ * n_);
    }
    wide_a_.resize(static_cast<std::size_t>(rows * k_));
    wide_c_.resize(static_cast<std::size_t>(rows * n_));
    widen(dtype_, a, wide_a_.data(), rows * k_);
    float one = 1.0F, zero = 0.0F;
    multiply(blas_.sgemm, &one, &zero, wide_a_.data(), wide_b_.data(), wide_c_.data(), rows);
    narrow(dtype_, wide_c_.data(), c, rows * n_);
}

// BLAS is column-major: the transposed product, C' = B' A', needs no copy.
void Matmul::multiply(Gemm gemm, void* alpha, void* beta, const void* a, const void* b, void* c,
                      std::int64_t rows) const {
    char plain = 'N';
    int n = static_cast<int>(n_), m = static_cast<int>(rows), k = static_cast<int>(k_);
    gemm(&plain, &plain, &n, &m, &k, alpha, const_cast<void*>(b), &n, const_cast<void*>(a), &k, beta, c, &n);
}

}  // namespace dovetail::run
