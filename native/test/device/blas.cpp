// The entry points of cuBLASLt that we call, over a pretended device: products by the definition.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "cuda/device/blaslt.hpp"
#include "run/scalar.hpp"
#include "test/device/world.hpp"

using namespace dovetail::cuda::blaslt;
using namespace dovetail::run;

extern "C" void pretended_enqueue(void* stream, std::function<void()>* run);

namespace {

struct Desc {
    Compute compute;
};
struct Layout {
    Type type;
    std::int64_t rows, columns, ld;  // columns first
};
struct Preference {
    std::uint32_t alignment = 256;
};

double element(const void* at, std::int64_t i, Type type) {
    if (type == real_64) return static_cast<const double*>(at)[i];
    if (type == real_32) return static_cast<const float*>(at)[i];
    const Half bits = static_cast<const Half*>(at)[i];
    return type == real_16 ? half_to_float(bits) : bfloat_to_float(bits);
}

void put(void* at, std::int64_t i, Type type, double value) {
    if (type == real_64)
        static_cast<double*>(at)[i] = value;
    else if (type == real_32)
        static_cast<float*>(at)[i] = static_cast<float>(value);
    else
        static_cast<Half*>(at)[i] =
            type == real_16 ? float_to_half(static_cast<float>(value)) : float_to_bfloat(static_cast<float>(value));
}

void multiply(const Layout& a, const void* at_a, const Layout& b, const void* at_b, const Layout& c, void* at_c,
              double beta) {
    for (std::int64_t i = 0; i < c.rows; ++i)
        for (std::int64_t j = 0; j < c.columns; ++j) {
            double sum = 0;
            for (std::int64_t k = 0; k < a.columns; ++k)
                sum += element(at_a, i + k * a.ld, a.type) * element(at_b, k + j * b.ld, b.type);
            const std::int64_t place = i + j * c.ld;
            put(at_c, place, c.type, beta ? sum + beta * element(at_c, place, c.type) : sum);
        }
}

}  // namespace

extern "C" {

int cublasLtCreate(Handle* handle) { return *handle = new int, 0; }
int cublasLtDestroy(Handle handle) { return delete static_cast<int*>(handle), 0; }
std::size_t cublasLtGetVersion() { return 130000; }
int cublasLtMatmulDescCreate(Handle* made, Compute compute, Type) { return *made = new Desc{compute}, 0; }
int cublasLtMatmulDescDestroy(Handle desc) { return delete static_cast<Desc*>(desc), 0; }
int cublasLtMatmulDescSetAttribute(Handle, int, const void*, std::size_t) { return 0; }
int cublasLtMatrixLayoutCreate(Handle* made, Type type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld) {
    if (ld < static_cast<std::int64_t>(rows)) return 7;
    *made = new Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), ld};
    return 0;
}
int cublasLtMatrixLayoutDestroy(Handle layout) { return delete static_cast<Layout*>(layout), 0; }
int cublasLtMatmulPreferenceCreate(Handle* made) { return *made = new Preference, 0; }
int cublasLtMatmulPreferenceDestroy(Handle preference) { return delete static_cast<Preference*>(preference), 0; }
int cublasLtMatmulPreferenceSetAttribute(Handle preference, int which, const void* value, std::size_t) {
    if (which == least_alignment_a) std::memcpy(&static_cast<Preference*>(preference)->alignment, value, 4);
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle a, Handle b, Handle c, Handle, Handle preference, int,
                                   Heuristic* best, int* found) {
    const auto &left = *static_cast<Layout*>(a), &right = *static_cast<Layout*>(b), &result = *static_cast<Layout*>(c);
    *found = left.rows == result.rows && left.columns == right.rows && right.columns == result.columns;
    best->algorithm.data[0] = static_cast<Preference*>(preference)->alignment;
    return *found ? 0 : 15;
}
// Refuses places that are not aligned as the algorithm was set up for, and, within a graph, what was never run before
// it: a kernel that is not loaded yet might have to be.
int cublasLtMatmul(Handle, Handle, const void*, const void* at_a, Handle a, const void* at_b, Handle b,
                   const void* beta, const void* at_c, Handle c, void* at_d, Handle, const Algorithm* algorithm, void*,
                   std::size_t, void* stream) {
    for (const void* at : {at_a, at_b, at_c})
        if (reinterpret_cast<std::uintptr_t>(at) % algorithm->data[0]) return 7;
    const Layout left = *static_cast<Layout*>(a), right = *static_cast<Layout*>(b), result = *static_cast<Layout*>(c);
    const double add = element(beta, 0, left.type == real_64 ? real_64 : real_32);
    static std::set<std::pair<const void*, double>> loaded;  // by the algorithm's layout, and whether it adds
    if (loaded.emplace(c, add).second && pretended::World::get().capturing()) return 13;
    static const bool idle = std::getenv("PRETENDED_IDLE") != nullptr;
    std::function<void()> run = [=] {
        if (idle)
            return pretended::World::get().pass(5e-6 + 2e0 * static_cast<double>(left.rows * left.columns) *
                                                           static_cast<double>(right.columns) / 7e14);
        multiply(left, at_a, right, at_b, result, at_d, add);
    };
    pretended_enqueue(stream, &run);
    return 0;
}

}  // extern "C"
