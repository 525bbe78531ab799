// Our kernels. Built into one image for several devices, which the module carries along.
#include "cuda/device.cuh"
#include "cuda/move.hpp"

using namespace dovetail::cuda;

// A threadblock for each lane; all must be resident at once.
template <class Wire>
__device__ void interpret(const Image& image) {
    __shared__ DeviceGroup::Shared shared;
    DeviceGroup group(image, shared);
    LaneRun<Wire, DeviceGroup>(image, group, static_cast<int>(blockIdx.x)).run();
}

extern "C" {

__global__ void __launch_bounds__(512, 1) dovetail_interpret_simple(const __grid_constant__ Image image) {
    interpret<Simple>(image);
}

__global__ void __launch_bounds__(512, 1) dovetail_interpret_ll(const __grid_constant__ Image image) {
    interpret<Ll>(image);
}

__global__ void __launch_bounds__(512, 1) dovetail_interpret_ll128(const __grid_constant__ Image image) {
    interpret<Ll128>(image);
}

// As many threadblocks as are to work at it.
__global__ void __launch_bounds__(512, 1) dovetail_move(const __grid_constant__ Move move) {
    run_move(move, std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, std::int64_t{gridDim.x} * blockDim.x);
}

// Holds its multiprocessor until the host sets the flag, or `limit_ns` are over. One thread asks, and not often: the
// flag lies in the host's memory, and copies beside this kernel share the way there.
__global__ void dovetail_spin(volatile unsigned* flag, std::uint64_t limit_ns) {
    const std::uint64_t begin = DeviceGroup::now_ns();
    bool over = false;
    do {
        __nanosleep(10000);
        if (threadIdx.x == 0) over = *flag != 0 || DeviceGroup::now_ns() - begin >= limit_ns;
    } while (!__syncthreads_or(over));
}

}  // extern "C"
