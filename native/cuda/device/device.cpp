// One GPU: see device.hpp.
#include "cuda/device/device.hpp"

#include <utility>

// Our kernels, compiled for several devices: put here when the module is built.
extern "C" const unsigned char dovetail_kernels[];

namespace dovetail::cuda {

Device::Device(int index) : index_(index) {
    const Driver& cuda = driver();
    int count = 0;
    check(cuda.cuDeviceGetCount(&count), "counting devices");
    if (index < 0 || index >= count)
        throw DeviceFault("no CUDA device " + std::to_string(index) + ": there are " + std::to_string(count),
                          "nvidia-smi lists them");
    check(cuda.cuDeviceGet(&device_, index), "opening a device");
    char name[128] = "";
    check(cuda.cuDeviceGetName(name, sizeof name, device_), "asking a device");
    const auto attribute = [&](CUdevice_attribute which) {
        int value = 0;
        check(cuda.cuDeviceGetAttribute(&value, which, device_), "asking a device");
        return value;
    };
    std::size_t bytes = 0;
    check(cuda.cuDeviceTotalMem(&bytes, device_), "asking a device");
    facts_ = {name,
              cuda.version,
              attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
              attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
              attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
              attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
              attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
              static_cast<std::int64_t>(bytes),
              attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)};
    check(cuda.cuDevicePrimaryCtxRetain(&context_, device_), "opening a device");
    enter();
    const CUresult loaded = cuda.cuModuleLoadData(&module_, dovetail_kernels);
    if (loaded != CUDA_SUCCESS) cuda.cuDevicePrimaryCtxRelease(device_);
    if (loaded == CUDA_ERROR_NO_BINARY_FOR_GPU || loaded == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        throw DeviceFault("our kernels are not compiled for " + facts_.name,
                          "build with CMake's DOVETAIL_CUDA_TARGETS");
    check(loaded, "loading our kernels");
}

Device::~Device() {
    enter();
    driver().cuModuleUnload(module_);
    driver().cuDevicePrimaryCtxRelease(device_);
}

void Device::enter() const { driver().cuCtxSetCurrent(context_); }

void Device::reach(const Device& other) const {
    int possible = 0;
    check(driver().cuDeviceCanAccessPeer(&possible, device_, other.device_), "asking a device for its peers");
    if (!possible)
        throw DeviceFault("CUDA device " + std::to_string(index_) + " cannot reach the memory of device " +
                              std::to_string(other.index_),
                          "use devices that are peers: nvidia-smi topo -p2p r lists them");
    enter();
    const CUresult enabled = driver().cuCtxEnablePeerAccess(other.context_, 0);
    if (enabled != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) check(enabled, "reaching another device");
}

std::int64_t Device::free_bytes() const {
    enter();
    std::size_t available = 0, total = 0;
    check(driver().cuMemGetInfo(&available, &total), "asking a device for its memory");
    return static_cast<std::int64_t>(available);
}

CUfunction Device::kernel(const std::string& name) const {
    auto& found = kernels_[name];
    if (!found) check(driver().cuModuleGetFunction(&found, module_, name.c_str()), ("finding kernel " + name).c_str());
    return found;
}

void Device::synchronize() const {
    enter();
    check(driver().cuCtxSynchronize(), "waiting for a device");
}

int Device::resident_blocks(const std::string& name, int threads) const {
    enter();
    int each = 0;
    check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel(name), threads, 0), "asking a kernel");
    return each * facts_.processors;
}

void Device::launch(const std::string& name, int blocks, int threads, void** arguments, CUstream stream,
                    bool together) const {
    const auto grid = static_cast<unsigned>(blocks), block = static_cast<unsigned>(threads);
    const auto what = "launching " + name;
    if (together)
        check(driver().cuLaunchCooperativeKernel(kernel(name), grid, 1, 1, block, 1, 1, 0, stream, arguments),
              what.c_str());
    else
        check(driver().cuLaunchKernel(kernel(name), grid, 1, 1, block, 1, 1, 0, stream, arguments, nullptr),
              what.c_str());
}

void Device::copy(std::uintptr_t to, std::uintptr_t from, std::int64_t bytes, CUstream stream) const {
    if (bytes > 0) check(driver().cuMemcpyAsync(to, from, static_cast<std::size_t>(bytes), stream), "copying");
}

Block::Block(std::shared_ptr<const Device> device, std::int64_t bytes, bool on_host)
    : device_(std::move(device)), bytes_(bytes), on_host_(on_host) {
    device_->enter();
    const auto size = static_cast<std::size_t>(bytes > 0 ? bytes : 1);
    CUresult made = CUDA_SUCCESS;
    if (on_host) {
        void* found = nullptr;
        made = driver().cuMemHostAlloc(&found, size, CU_MEMHOSTALLOC_PORTABLE);
        address_ = reinterpret_cast<std::uintptr_t>(found);
    } else {
        CUdeviceptr found = 0;
        made = driver().cuMemAlloc(&found, size);
        address_ = static_cast<std::uintptr_t>(found);
    }
    if (made == CUDA_ERROR_OUT_OF_MEMORY)
        throw DeviceFault("too little memory " + std::string(on_host ? "of the host" : "on " + device_->facts().name) +
                              " for " + std::to_string(bytes) + " bytes" +
                              (on_host ? "" : ": " + std::to_string(device_->free_bytes()) + " are free"),
                          "make the buffers smaller, or free what other programs hold");
    check(made, "taking memory");
}

Block::~Block() {
    device_->enter();
    if (on_host_)
        driver().cuMemFreeHost(reinterpret_cast<void*>(address_));
    else
        driver().cuMemFree(static_cast<CUdeviceptr>(address_));
}

Stream::Stream(const Device& device) {
    device.enter();
    check(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "making a stream");
}

Stream::~Stream() {
    if (stream_) driver().cuStreamDestroy(stream_);
}

Event::Event(bool timed) {
    check(driver().cuEventCreate(&event_, timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING), "making an event");
}

Event::~Event() {
    if (event_) driver().cuEventDestroy(event_);
}

}  // namespace dovetail::cuda
