// Kernels that need no Python: matrix products on any regions, by a BLAS given as function pointers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "run/op.hpp"

namespace dovetail::run {

using Gemm = void (*)(char*, char*, int*, int*, int*, void*, void*, int*, void*, int*, void*, void*, int*);

struct Blas {
    Gemm sgemm = nullptr;
    Gemm dgemm = nullptr;
};

// A matrix in memory: rows, `ld` elements apart, in runs of `run` rows. Each run begins `next` elements after the last.
struct Matrix {
    std::byte* data = nullptr;
    std::int64_t rows = 0, cols = 0, ld = 0, run = 0, next = 0;
    int dtype = 0;
    std::byte* row(std::int64_t i) const;
    std::int64_t left(std::int64_t i) const { return run - i % run; }  // rows from row i to the end of its run
};

// C (m, n) = A (m, k) * B (k, n), or C += A * B, of the operands of an op. Elements, in the order of their regions,
// are matrices row by row. Rows that are not in runs of equal size are copied first. Half types are computed in
// float and rounded once. Calls `between` after each block of `block_rows` rows (0: one block).
class Matmul {
  public:
    explicit Matmul(Blas blas) : blas_(blas) {}
    // B is `fixed` if no op writes it: half types are then widened once in a run.
    void operator()(const Op& op, bool fixed, std::int64_t block_rows, const std::function<void()>& between);
    void forget();  // the fixed operands may have changed

  private:
    struct Wide {
        std::vector<float> values;
        bool fresh = false;
    };

    void halves(const Matrix& a, const float* b, const Matrix& c, bool accumulate);
    const float* widened(const Matrix& b, bool fixed);
    void multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) const;

    Blas blas_;
    std::map<std::array<std::int64_t, 6>, Wide> wide_b_;  // by address and layout
    Wide other_b_;
    std::vector<float> wide_a_, wide_c_;
    std::vector<std::byte> packed_a_, packed_b_, packed_c_;
};

}  // namespace dovetail::run
