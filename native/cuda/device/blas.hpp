// Products by cuBLASLt, a library that is found when first used; its few types are declared here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "cuda/device/device.hpp"

namespace dovetail::cuda {

struct Matrix {  // row after row, `ld` elements apart
    std::uintptr_t address = 0;
    std::int64_t ld = 0;
};

struct Product {  // C (m, n) = A (m, k) * B (k, n), or C += A * B
    Matrix a, b, c;
    std::int64_t m = 0, k = 0, n = 0;
    std::int32_t dtype = 0;
    bool accumulate = false;
};

class Blas {
  public:
    // `paths`: names and places of the library to try, in turn. Throws DeviceFault where none loads.
    Blas(std::shared_ptr<const Device> device, const std::vector<std::string>& paths);
    ~Blas();
    Blas(const Blas&) = delete;
    Blas& operator=(const Blas&) = delete;

    const std::string& path() const { return path_; }
    std::int64_t version() const;
    // Enqueues a product; `processors`: as many are to be used (0: all). `workspace` is not shared with other streams.
    void multiply(const Product& product, int processors, const Block& workspace, CUstream stream);
    static constexpr std::int64_t workspace_bytes = 32 << 20;

    // What an algorithm is chosen by: m, k, n, the three lds, dtype, processors, and by what all places are divisible.
    using Form =
        std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, int, int>;
    static Form form_of(const Product& product, int processors);

  private:
    struct Calls;
    struct Chosen;
    const Chosen& chosen(const Product& product, int processors);

    std::shared_ptr<const Device> device_;
    std::unique_ptr<Calls> calls_;
    std::string path_;
    void* handle_ = nullptr;
    std::map<Form, std::unique_ptr<Chosen>> known_;
};

}  // namespace dovetail::cuda
