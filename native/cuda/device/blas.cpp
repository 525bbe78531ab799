// Products by cuBLASLt: see blas.hpp.
#include "cuda/device/blas.hpp"

#include <dlfcn.h>

#include <algorithm>

#include "cuda/device/blaslt.hpp"
#include "run/mpi_table.h"

namespace dovetail::cuda {

struct Blas::Calls {
    void* library = nullptr;
    blaslt::Create *create = nullptr, *create_preference = nullptr;
    blaslt::Destroy *destroy = nullptr, *destroy_desc = nullptr, *destroy_layout = nullptr,
                    *destroy_preference = nullptr;
    blaslt::Version* version = nullptr;
    blaslt::DescCreate* create_desc = nullptr;
    blaslt::LayoutCreate* create_layout = nullptr;
    blaslt::SetAttribute *set_desc = nullptr, *set_preference = nullptr;
    blaslt::Choose* choose = nullptr;
    blaslt::Multiply* multiply = nullptr;

    explicit Calls(void* from) : library(from) {
        find(create, "cublasLtCreate"), find(destroy, "cublasLtDestroy"), find(version, "cublasLtGetVersion");
        find(create_desc, "cublasLtMatmulDescCreate"), find(destroy_desc, "cublasLtMatmulDescDestroy");
        find(set_desc, "cublasLtMatmulDescSetAttribute");
        find(create_layout, "cublasLtMatrixLayoutCreate"), find(destroy_layout, "cublasLtMatrixLayoutDestroy");
        find(create_preference, "cublasLtMatmulPreferenceCreate");
        find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
        find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
        find(choose, "cublasLtMatmulAlgoGetHeuristic"), find(multiply, "cublasLtMatmul");
    }
    template <class F>
    void find(F*& call, const char* name) {
        call = reinterpret_cast<F*>(dlsym(library, name));
        if (!call) throw DeviceFault(std::string("the cuBLASLt found lacks ") + name, "install a later cuBLAS");
    }
};

namespace {

void good(int status, const char* what) {
    if (status)
        throw DeviceFault(std::string("cuBLASLt: ") + what + " failed with status " + std::to_string(status), "");
}

blaslt::Type type_of(int dtype) {
    switch (dtype) {
        case DT_FLOAT16:
            return blaslt::real_16;
        case DT_BFLOAT16:
            return blaslt::bfloat_16;
        case DT_FLOAT64:
            return blaslt::real_64;
        default:
            return blaslt::real_32;
    }
}

// The greatest power of two, up to 256, that divides an address.
int alignment(std::uintptr_t address) {
    return static_cast<int>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

int common_alignment(const Product& product) {
    return alignment(product.a.address | product.b.address | product.c.address | 256);
}

}  // namespace

// The library counts columns first: it is asked for the transposes, C' = B' A'.
struct Blas::Chosen {
    Chosen(const Calls& calls, void* handle, const Product& product, int processors) : calls_(calls) {
        const auto type = type_of(product.dtype);
        const bool wide = type == blaslt::real_64;
        good(calls.create_desc(&desc, wide ? blaslt::in_64 : blaslt::in_32, wide ? type : blaslt::real_32),
             "a product");
        const std::int32_t target = processors;
        if (target > 0)
            good(calls.set_desc(desc, blaslt::sm_count_target, &target, sizeof target), "a limit of processors");
        const auto layout = [&](void*& made, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
            good(calls.create_layout(&made, type, static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                                     ld),
                 "a matrix");
        };
        layout(a, product.m, product.k, product.a.ld);
        layout(b, product.k, product.n, product.b.ld);
        layout(c, product.m, product.n, product.c.ld);
        good(calls.create_preference(&preference), "a choice");
        const auto bytes = static_cast<std::uint64_t>(workspace_bytes);
        good(calls.set_preference(preference, blaslt::max_workspace_bytes, &bytes, sizeof bytes), "a choice");
        const auto least = static_cast<std::uint32_t>(common_alignment(product));
        for (int i = 0; i < 4; ++i)
            good(calls.set_preference(preference, blaslt::least_alignment_a + i, &least, sizeof least), "a choice");
        int found = 0;
        blaslt::Heuristic best{};
        const int status = calls.choose(handle, desc, b, a, c, c, preference, 1, &best, &found);
        if (status || !found)
            throw DeviceFault("cuBLASLt has no product of " + std::to_string(product.m) + "x" +
                                  std::to_string(product.k) + "x" + std::to_string(product.n),
                              "use another dtype or shape");
        algorithm = best.algorithm;
    }
    ~Chosen() {
        calls_.destroy_preference(preference);
        for (void* each : {a, b, c}) calls_.destroy_layout(each);
        calls_.destroy_desc(desc);
    }
    const Calls& calls_;
    void *desc = nullptr, *a = nullptr, *b = nullptr, *c = nullptr, *preference = nullptr;
    blaslt::Algorithm algorithm{};
};

Blas::Blas(std::shared_ptr<const Device> device, const std::vector<std::string>& paths) : device_(std::move(device)) {
    void* library = nullptr;
    for (const auto& path : paths) {
        library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library) {
            path_ = path;
            break;
        }
    }
    if (!library) throw DeviceFault("no cuBLASLt found", "install the CUDA toolkit, or pip install nvidia-cublas");
    calls_ = std::make_unique<Calls>(library);
    device_->enter();
    good(calls_->create(&handle_), "its start");
}

Blas::~Blas() {
    device_->enter();
    known_.clear();
    if (handle_) calls_->destroy(handle_);
}

std::int64_t Blas::version() const { return static_cast<std::int64_t>(calls_->version()); }

Blas::Form Blas::form_of(const Product& p, int processors) {
    return {p.m, p.k, p.n, p.a.ld, p.b.ld, p.c.ld, p.dtype, processors, common_alignment(p)};
}

const Blas::Chosen& Blas::chosen(const Product& p, int processors) {
    auto& found = known_[form_of(p, processors)];
    if (!found) found = std::make_unique<Chosen>(*calls_, handle_, p, processors);
    return *found;
}

void Blas::multiply(const Product& product, int processors, const Block& workspace, CUstream stream) {
    const Chosen& how = chosen(product, processors);
    const double one = 1, beta = product.accumulate ? 1 : 0;
    const float one_float = 1, beta_float = product.accumulate ? 1 : 0;
    const bool wide = product.dtype == DT_FLOAT64;
    const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
    good(calls_->multiply(handle_, how.desc, wide ? static_cast<const void*>(&one) : &one_float, at(product.b.address),
                          how.b, at(product.a.address), how.a, wide ? static_cast<const void*>(&beta) : &beta_float,
                          at(product.c.address), how.c, at(product.c.address), how.c, &how.algorithm,
                          at(workspace.address()), static_cast<std::size_t>(workspace.bytes()), stream),
         "a product");
}

}  // namespace dovetail::cuda
