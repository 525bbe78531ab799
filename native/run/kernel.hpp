// Kernels that need no Python: matrix products on any regions, through a BLAS given as function pointers.
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

// A matrix in memory: rows `ld` elements apart in runs of `run` rows, each run `next` elements after the one before.
struct Matrix {
    std::byte* data = nullptr;
    std::int64_t rows = 0, cols = 0, ld = 0, run = 0, next = 0;
    int dtype = 0;
    std::byte* row(std::int64_t i) const;
    std::int64_t left(std::int64_t i) const { return run - i % run; }  // rows from row i to the end of its run
};

// C (m, n) = A (m, k) * B (k, n), or C += A * B: the operands of an op, whose elements in the order of their regions
// are matrices row after row. Rows that do not lie in even runs are multiplied in copies. Half types are computed in
// float and rounded once. Calls `between` after each block of `block_rows` rows (0: one block).
class Matmul {
  public:
    explicit Matmul(Blas blas) : blas_(blas) {}
    // B is `fixed` where nothing writes it in a run: its halves are then widened once.
    void operator()(const Op& op, bool fixed, std::int64_t block_rows, const std::function<void()>& between);
    void forget();  // what is fixed may have changed since

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
