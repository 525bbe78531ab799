// Random matrix products on regions of all kinds, for sanitizers, against three loops over gathered operands.
// Usage: products SEED COUNT.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "run/kernel.hpp"
#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace {

using namespace dovetail::run;

template <class T>
void gemm(char*, char*, int* m, int* n, int* k, void*, void* a, int* lda, void* b, int* ldb, void* beta, void* c,
          int* ldc) {
    const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
    for (int j = 0; j < *n; ++j)
        for (int i = 0; i < *m; ++i) {
            T& out = static_cast<T*>(c)[i + static_cast<long>(j) * *ldc];
            T sum = *static_cast<T*>(beta) == 0 ? T{0} : out;
            for (int l = 0; l < *k; ++l) sum += x[i + static_cast<long>(l) * *lda] * y[l + static_cast<long>(j) * *ldb];
            out = sum;
        }
}

std::minstd_rand dice;
int pick(int below) { return static_cast<int>(dice() % static_cast<unsigned>(below)); }

// A matrix in memory that ends where its last block ends.
struct Operand {
    Operand(int index, std::int64_t rows, std::int64_t cols, int dtype) : count(rows * cols) {
        const std::int64_t element = dtype_bytes(dtype), gap = pick(3) * element;
        span.buffer = index, span.dtype = dtype, span.offset = pick(3) * element;
        const int kind = pick(4);
        if (kind == 0) {
            span.count = count * element;
        } else if (kind == 1) {  // blocks of rows
            const std::int64_t run = rows % 2 == 0 ? 2 : 1;
            span.count = run * cols * element, span.stride = span.count + gap, span.blocks = rows / run;
        } else if (kind == 2) {  // blocks of elements
            span.count = element, span.stride = element + gap, span.blocks = count;
        } else {
            place_pieces(rows, cols * element, gap);
        }
        if (span.num_bytes() == 0) span.count = 0, span.blocks = 1, span.pieces = nullptr;
        fill(dtype);
        span.base = &base;
    }

    void place_pieces(std::int64_t rows, std::int64_t row, std::int64_t gap) {  // rows at distances that may differ
        auto pieces = std::make_shared<std::vector<Piece>>();
        for (std::int64_t i = 0, at = span.offset; i < rows && row > 0; ++i, at += row + gap + 8 * pick(2))
            pieces->push_back({at, row});
        span.count = rows * row;
        if (pieces->size() > 1) span.pieces = pieces;
    }

    void fill(int dtype) {
        memory.reset(new std::byte[static_cast<std::size_t>(span.end())]);
        std::vector<float> values(static_cast<std::size_t>(span.end() / dtype_bytes(dtype)));
        for (auto& value : values) value = static_cast<float>(pick(5) - 2);
        if (dtype < DT_FLOAT32) narrow(dtype, values.data(), memory.get(), static_cast<long long>(values.size()));
        if (dtype == DT_FLOAT32) std::copy(values.begin(), values.end(), reinterpret_cast<float*>(memory.get()));
        if (dtype == DT_FLOAT64) std::copy(values.begin(), values.end(), reinterpret_cast<double*>(memory.get()));
        base = memory.get();
    }

    std::vector<double> values() const {
        std::vector<std::byte> packed(static_cast<std::size_t>(span.num_bytes()));
        gather(span, packed.data());
        std::vector<float> wide(static_cast<std::size_t>(count));
        if (span.dtype < DT_FLOAT32) widen(span.dtype, packed.data(), wide.data(), count);
        std::vector<double> found(wide.begin(), wide.end());
        if (span.dtype == DT_FLOAT32) std::copy_n(reinterpret_cast<const float*>(packed.data()), count, found.begin());
        if (span.dtype == DT_FLOAT64) std::copy_n(reinterpret_cast<const double*>(packed.data()), count, found.begin());
        return found;
    }

    std::int64_t count;
    Span span;
    std::unique_ptr<std::byte[]> memory;
    std::byte* base = nullptr;
};

bool right(Matmul& matmul) {
    const std::int64_t m = pick(7), k = pick(7), n = pick(7), block = pick(4);
    const int dtypes[] = {DT_FLOAT16, DT_BFLOAT16, DT_FLOAT32, DT_FLOAT64}, dtype = dtypes[pick(4)];
    const Operand a(0, m, k, dtype), b(1, k, n, dtype), c(2, m, n, dtype);
    Op op;
    op.product = {m, k, n, pick(2) == 0};
    op.reads = {a.span, b.span}, op.writes = {c.span};
    const auto x = a.values(), y = b.values();
    auto expected = c.values();
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
            double& out = expected[static_cast<std::size_t>(i * n + j)];
            if (!op.product.accumulate) out = 0;
            for (std::int64_t l = 0; l < k; ++l)
                out += x[static_cast<std::size_t>(i * k + l)] * y[static_cast<std::size_t>(l * n + j)];
        }
    std::int64_t polls = 0;
    matmul.forget();  // memory of operands long gone may be used again
    matmul(op, pick(2) == 0, block, [&] { ++polls; });
    return c.values() == expected && polls == (block ? (m + block - 1) / block : m > 0);
}

}  // namespace

int main(int argc, char** argv) {
    const int seed = argc > 1 ? std::atoi(argv[1]) : 1, count = argc > 2 ? std::atoi(argv[2]) : 1000;
    dice.seed(static_cast<unsigned>(seed));
    Matmul matmul({gemm<float>, gemm<double>});
    for (int i = 0; i < count; ++i)
        if (!right(matmul)) return std::printf("product %d is wrong\n", i), 1;
    std::printf("%d products, all as expected\n", count);
}
