// Device: one GPU, its memory, streams and our kernels on it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/driver.hpp"

namespace dovetail::cuda {

struct DeviceFacts {
    std::string name;
    int driver_version = 0, major = 0, minor = 0, processors = 0, copy_engines = 0, clock_khz = 0;
    std::int64_t memory_bytes = 0, cache_bytes = 0;
};

// Gives the calling thread the context back, at its end, that it had: PyTorch and others know their device by it.
class CallersContext {
  public:
    CallersContext() { check(driver().cuCtxGetCurrent(&before_), "asking for the thread's context"); }
    ~CallersContext() { driver().cuCtxSetCurrent(before_); }
    CallersContext(const CallersContext&) = delete;
    CallersContext& operator=(const CallersContext&) = delete;

  private:
    CUcontext before_{};
};

class Device : public std::enable_shared_from_this<Device> {
  public:
    // Throws DeviceFault where there is no such device.
    explicit Device(int index);
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    void enter() const;  // makes it the calling thread's; see CallersContext
    // Lets kernels here read and write the other's memory; throws DeviceFault where no link joins them.
    void reach(const Device& other) const;
    const DeviceFacts& facts() const { return facts_; }
    int index() const { return index_; }
    std::int64_t free_bytes() const;
    CUfunction kernel(const std::string& name) const;
    void synchronize() const;
    // Blocks of a kernel that the device holds at once.
    int resident_blocks(const std::string& name, int threads) const;
    void launch(const std::string& name, int blocks, int threads, void** arguments, CUstream stream,
                bool together = false) const;
    void copy(std::uintptr_t to, std::uintptr_t from, std::int64_t bytes, CUstream stream) const;

  private:
    int index_;
    CUdevice device_{};
    CUcontext context_{};
    CUmodule module_{};
    DeviceFacts facts_;
    mutable std::map<std::string, CUfunction> kernels_;
};

// Memory on a device, or of the host where copies by the device find it in place.
class Block {
  public:
    // Throws DeviceFault, with the numbers, where there is too little.
    Block(std::shared_ptr<const Device> device, std::int64_t bytes, bool on_host);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    std::uintptr_t address() const { return address_; }
    std::int64_t bytes() const { return bytes_; }
    bool on_host() const { return on_host_; }
    const Device& device() const { return *device_; }

  private:
    std::shared_ptr<const Device> device_;
    std::uintptr_t address_ = 0;
    std::int64_t bytes_;
    bool on_host_;
};

class Stream {
  public:
    explicit Stream(const Device& device);
    ~Stream();
    Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    operator CUstream() const { return stream_; }
    void synchronize() const { check(driver().cuStreamSynchronize(stream_), "waiting for a stream"); }

  private:
    CUstream stream_{};
};

class Event {
  public:
    explicit Event(bool timed);
    ~Event();
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    operator CUevent() const { return event_; }

  private:
    CUevent event_{};
};

}  // namespace dovetail::cuda
