// Which copies run on copy engines: those that end while a kernel holds every multiprocessor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/device.hpp"

namespace dovetail::cuda {

struct Verdict {
    std::string variant;
    std::int64_t bytes;
    bool beside;          // ended beside the kernel: a copy engine did it
    std::string failure;  // why it could not be tried
};

// Tries each variant of a copy, at each size, beside a kernel that holds all multiprocessors for up to `limit_s`.
std::vector<Verdict> try_engines(const std::shared_ptr<Device>& device, const std::vector<std::int64_t>& sizes,
                                 double limit_s);

}  // namespace dovetail::cuda
