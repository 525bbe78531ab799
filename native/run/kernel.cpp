// The matrix product of the executors.
#include "run/kernel.hpp"

#include <algorithm>
#include <cstring>

#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace dovetail::run {

namespace {

Matrix packed(std::byte* data, std::int64_t rows, std::int64_t cols, int dtype) {
    return {data, rows, cols, cols, std::max<std::int64_t>(rows, 1), rows * cols, dtype};
}

// Bytes of each block of a span, and from one block to the next, if both are the same for all; else 0.
std::pair<std::int64_t, std::int64_t> blocks_of(const Span& span) {
    if (span.contiguous()) return {span.num_bytes(), span.num_bytes()};
    if (!span.pieces) return {span.count, span.stride};
    const auto& pieces = *span.pieces;
    const auto size = pieces[0].count, stride = pieces[1].offset - pieces[0].offset;
    for (std::size_t i = 1; i < pieces.size(); ++i)
        if (pieces[i].count != size || pieces[i].offset - pieces[i - 1].offset != stride) return {0, 0};
    return {size, stride};
}

// The matrix in a span. Its `run` is 0 if a row is not contiguous, or rows are not in runs of equal size.
Matrix matrix_of(const Span& span, std::int64_t rows, std::int64_t cols) {
    Matrix found = packed(span.data(), rows, cols, span.dtype);
    const auto [block, stride] = blocks_of(span);
    const std::int64_t element = dtype_bytes(span.dtype), row = cols * element;
    if (rows * cols == 0) return found;
    if (block == 0 || block % row || stride < block) return found.run = 0, found;
    found.run = block / row, found.next = stride / element;
    if (found.run == 1) found.run = rows, found.ld = found.next;
    return found;
}

// The same, or a contiguous copy: if it must not be read in place, or its `run` is 0.
Matrix operand(const Span& span, std::int64_t rows, std::int64_t cols, bool copy, std::vector<std::byte>& copied) {
    const Matrix found = matrix_of(span, rows, cols);
    if (!copy && found.run) return found;
    copied.resize(static_cast<std::size_t>(span.num_bytes()));
    gather(span, copied.data());
    return packed(copied.data(), rows, cols, span.dtype);
}

Matrix part(const Matrix& whole, std::int64_t first, std::int64_t rows) {
    return {whole.row(first), rows, whole.cols, whole.ld, rows, 0, whole.dtype};
}

// Calls `f(row in memory, place in a packed matrix, elements)` for each run of contiguous rows.
template <class F>
void for_rows(const Matrix& matrix, F f) {
    for (std::int64_t i = 0; i < matrix.rows;) {
        const bool dense = matrix.ld == matrix.cols;
        const std::int64_t rows = dense ? std::min(matrix.left(i), matrix.rows - i) : 1;
        f(matrix.row(i), i * matrix.cols, rows * matrix.cols);
        i += rows;
    }
}

void widen_rows(const Matrix& from, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(from.rows * from.cols));
    for_rows(from, [&](std::byte* row, auto at, auto count) { widen(from.dtype, row, to.data() + at, count); });
}

void clear(const Matrix& matrix) {
    const auto bytes = dtype_bytes(matrix.dtype);
    for_rows(matrix,
             [&](std::byte* row, auto, auto count) { std::memset(row, 0, static_cast<std::size_t>(count * bytes)); });
}

// BLAS is column-major: the transposed product, C' = B' A', needs no copy.
template <class T>
void transposed(Gemm gemm, std::int64_t m, std::int64_t k, std::int64_t n, const void* a, std::int64_t lda,
                const void* b, std::int64_t ldb, void* c, std::int64_t ldc, bool accumulate) {
    char plain = 'N';
    T one = 1, beta = accumulate ? T{1} : T{0};
    int rows = static_cast<int>(m), deep = static_cast<int>(k), columns = static_cast<int>(n);
    int a_step = static_cast<int>(lda), b_step = static_cast<int>(ldb), c_step = static_cast<int>(ldc);
    gemm(&plain, &plain, &columns, &rows, &deep, &one, const_cast<void*>(b), &b_step, const_cast<void*>(a), &a_step,
         &beta, c, &c_step);
}

}  // namespace

std::byte* Matrix::row(std::int64_t i) const { return data + (i / run * next + i % run * ld) * dtype_bytes(dtype); }

void Matmul::operator()(const Op& op, bool fixed, std::int64_t block_rows, const std::function<void()>& between) {
    const auto& [m, k, n, accumulate] = op.product;
    const bool copy = overlap(op.reads, op.writes), half = op.writes[0].dtype < DT_FLOAT32;
    const Matrix a = operand(op.reads[0], m, k, copy, packed_a_);
    Matrix b = matrix_of(op.reads[1], k, n);
    const bool in_place = !copy && (half ? b.run > 0 : b.run >= k);
    if (!in_place) b = operand(op.reads[1], k, n, true, packed_b_);
    const float* wide_b = half && m > 0 && k > 0 && n > 0 ? widened(b, fixed && in_place) : nullptr;
    const Matrix c = operand(op.writes[0], m, n, false, packed_c_);
    const std::int64_t most = block_rows > 0 ? block_rows : std::max<std::int64_t>(m, 1);
    for (std::int64_t i = 0, since = 0; i < m;) {
        const std::int64_t rows = std::min({m - i, most - since, a.left(i), c.left(i)});
        const Matrix some = part(a, i, rows), result = part(c, i, rows);
        if (half && k > 0 && n > 0)
            halves(some, wide_b, result, accumulate);
        else
            multiply(some, b, result, accumulate);
        i += rows, since += rows;
        if (since < most && i < m) continue;
        since = 0;
        if (between) between();
    }
    if (m > 0 && n > 0 && c.data == packed_c_.data()) scatter(packed_c_.data(), op.writes[0]);
}

void Matmul::multiply(const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) const {
    if (c.cols == 0) return;
    if (a.cols == 0) return accumulate ? void() : clear(c);
    if (c.dtype == DT_FLOAT64)
        transposed<double>(blas_.dgemm, a.rows, a.cols, c.cols, a.data, a.ld, b.data, b.ld, c.data, c.ld, accumulate);
    else
        transposed<float>(blas_.sgemm, a.rows, a.cols, c.cols, a.data, a.ld, b.data, b.ld, c.data, c.ld, accumulate);
}

void Matmul::halves(const Matrix& a, const float* b, const Matrix& c, bool accumulate) {
    widen_rows(a, wide_a_);
    if (accumulate) widen_rows(c, wide_c_);
    wide_c_.resize(static_cast<std::size_t>(c.rows * c.cols));
    transposed<float>(blas_.sgemm, a.rows, a.cols, c.cols, wide_a_.data(), a.cols, b, c.cols, wide_c_.data(), c.cols,
                      accumulate);
    for_rows(c, [&](std::byte* row, auto at, auto count) { narrow(c.dtype, wide_c_.data() + at, row, count); });
}

const float* Matmul::widened(const Matrix& b, bool fixed) {
    const auto address = reinterpret_cast<std::intptr_t>(b.data);
    Wide& wide = fixed ? wide_b_[{address, b.rows, b.cols, b.ld, b.run, b.next}] : other_b_;
    if (!fixed || !wide.fresh) widen_rows(b, wide.values);
    wide.fresh = true;
    return wide.values.data();
}

void Matmul::forget() {
    for (auto& [where, wide] : wide_b_) wide.fresh = false;
}

}  // namespace dovetail::run
