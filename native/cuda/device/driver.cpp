// Finds the CUDA driver: see driver.hpp.
#include "cuda/device/driver.hpp"

#include <dlfcn.h>

#include <cstdlib>

namespace dovetail::cuda {

namespace {

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

constexpr int needed_version = 12080;  // the first that has all entry points

void* entry(void* library, const char* name, int version) {
    void* found = dlsym(library, name);
    if (found) return found;
    const std::string has = version ? "CUDA " + version_text(version) : "an unknown version";
    throw DeviceFault("the CUDA driver is too old: it supports " + has + " and lacks " + name,
                      "install a driver that supports CUDA " + version_text(needed_version) + " or later");
}

Driver load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        throw DeviceFault(std::string("no CUDA driver: ") + dlerror(),
                          "install NVIDIA's driver; all else works without");
    Driver made;
    if (auto* version = reinterpret_cast<decltype(&cuDriverGetVersion)>(dlsym(library, "cuDriverGetVersion")))
        version(&made.version);
    if (made.version && made.version < needed_version) entry(library, "what CUDA 12.8 added", made.version);
#define DOVETAIL_TEXT_(name) #name
#define DOVETAIL_TEXT(name) DOVETAIL_TEXT_(name)
#define DOVETAIL_FIND(name) \
    made.name = reinterpret_cast<decltype(made.name)>(entry(library, DOVETAIL_TEXT(name), made.version));
    DOVETAIL_DRIVER(DOVETAIL_FIND)
#undef DOVETAIL_FIND
    made.copy_batch = reinterpret_cast<decltype(made.copy_batch)>(dlsym(library, "cuMemcpyBatchAsync_v2"));
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // else 8: streams that share one wait for each other
    const CUresult begun = made.cuInit(0);
    if (begun != CUDA_SUCCESS) {
        const char* text = "unknown error";
        made.cuGetErrorString(begun, &text);
        throw DeviceFault(std::string("the CUDA driver does not start: ") + text,
                          "run nvidia-smi to see whether there is a device");
    }
    return made;
}

}  // namespace

const Driver& driver() {
    static const Driver loaded = load();
    return loaded;
}

void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    const char *name = "?", *text = "?";
    driver().cuGetErrorName(result, &name);
    driver().cuGetErrorString(result, &text);
    throw DeviceFault(std::string(what) + ": " + text + " (" + name + ")", "");
}

}  // namespace dovetail::cuda
