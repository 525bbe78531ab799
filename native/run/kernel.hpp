// Kernels that need no Python: the matrix product of a row tile, through a BLAS given as function pointers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace dovetail::run {

using Gemm = void (*)(char*, char*, int*, int*, int*, void*, void*, int*, void*, int*, void*, void*, int*);

struct Blas {
    Gemm sgemm = nullptr;
    Gemm dgemm = nullptr;
};

// C[rows, n] = A[rows, k] * B[k, n], all row-major and packed; half types are computed in float.
// Calls `between` after each block of `block_rows` rows (0: one block). B is `fixed` where nothing writes it in a run.
class Matmul {
  public:
    Matmul(Blas blas, std::int64_t k, std::int64_t n, int dtype) : blas_(blas), k_(k), n_(n), dtype_(dtype) {}
    void operator()(const void* a, const void* b, bool fixed, void* c, std::int64_t rows, std::int64_t block_rows,
                    const std::function<void()>& between);
    void forget() { b_ = nullptr; }  // B may have changed: widen it again at the next call

  private:
    void block(const void* a, const void* b, void* c, std::int64_t rows);
    void half_block(const void* a, const void* b, void* c, std::int64_t rows);
    void multiply(Gemm gemm, void* alpha, void* beta, const void* a, const void* b, void* c, std::int64_t rows) const;

    Blas blas_;
    std::int64_t k_, n_;
    int dtype_;
    const void* b_ = nullptr;  // what wide_b_ was made from
    std::vector<float> wide_a_, wide_b_, wide_c_;
};

}  // namespace dovetail::run
