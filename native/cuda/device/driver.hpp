// The CUDA driver, found when first used, so that a module that needs it loads where there is none.
#pragma once

#include <cuda.h>

#include <stdexcept>
#include <string>

namespace dovetail::cuda {

// A fault of the machine, or of a request to it; `hint`: what the user can do.
struct DeviceFault : std::runtime_error {
    DeviceFault(const std::string& what, std::string hint_) : std::runtime_error(what), hint(std::move(hint_)) {}
    std::string hint;
};

// Every entry point that we call. Macros of cuda.h name the versions.
#define DOVETAIL_DRIVER(each)                                                                                          \
    each(cuInit) each(cuDriverGetVersion) each(cuGetErrorName) each(cuGetErrorString) each(cuDeviceGetCount)           \
        each(cuDeviceGet) each(cuDeviceGetName) each(cuDeviceGetAttribute) each(cuDeviceTotalMem)                      \
            each(cuDevicePrimaryCtxRetain) each(cuDevicePrimaryCtxRelease) each(cuCtxSetCurrent) each(cuCtxGetCurrent) \
                each(cuDeviceCanAccessPeer) each(cuCtxEnablePeerAccess) each(cuCtxSynchronize) each(cuMemGetInfo)      \
                    each(cuMemAlloc) each(cuMemFree) each(cuMemHostAlloc) each(cuMemFreeHost) each(cuMemcpyAsync)      \
                        each(cuMemcpy2DAsync) each(cuMemsetD8Async) each(cuStreamCreate) each(cuStreamDestroy)         \
                            each(cuStreamSynchronize) each(cuStreamWaitEvent) each(cuStreamBeginCapture)               \
                                each(cuStreamEndCapture) each(cuEventCreate) each(cuEventDestroy) each(cuEventRecord)  \
                                    each(cuEventRecordWithFlags) each(cuEventQuery) each(cuEventElapsedTime)           \
                                        each(cuGraphInstantiate) each(cuGraphLaunch) each(cuGraphDestroy)              \
                                            each(cuGraphExecDestroy) each(cuModuleLoadData) each(cuModuleUnload)       \
                                                each(cuModuleGetFunction) each(cuLaunchKernel)                         \
                                                    each(cuLaunchCooperativeKernel)                                    \
                                                        each(cuOccupancyMaxActiveBlocksPerMultiprocessor)

struct Driver {
#define DOVETAIL_ENTRY(name) decltype(&::name) name = nullptr;
    DOVETAIL_DRIVER(DOVETAIL_ENTRY)
#undef DOVETAIL_ENTRY
    // cuMemcpyBatchAsync as it is from CUDA 13 on, absent before; headers of 12.8 have another by that name.
    CUresult (*copy_batch)(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                           CUmemcpyAttributes*, std::size_t* attribute_of, std::size_t num_attributes,
                           CUstream) = nullptr;
    int version = 0;  // 1000 * major + 10 * minor
};

// Loads the driver once. Throws DeviceFault where there is none, or one that is too old.
const Driver& driver();

// Throws DeviceFault, naming what was tried, for a result that is no success.
void check(CUresult result, const char* what);

}  // namespace dovetail::cuda
