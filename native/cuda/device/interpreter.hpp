// The interpreter on a device: an image there, and the kernel that runs its lanes, a threadblock for each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/device.hpp"
#include "cuda/load.hpp"

namespace dovetail::cuda {

class DeviceInterpreter {
  public:
    // Throws DeviceFault, with the numbers, where not all lanes can be resident at once, or memory is too little.
    // `threads` of a lane; 0: as many as let all lanes be resident, of most_threads at most.
    DeviceInterpreter(std::shared_ptr<const Device> device, Loaded loaded, int threads);
    static constexpr int most_threads = 512, least_threads = 32;
    // Runs all lanes; an empty string, or what each lane waits for.
    std::string run(int reduce_op, double stall_s, bool stamps);
    std::vector<Span> spans() const;
    const Loaded& loaded() const { return loaded_; }
    double total_s() const { return total_s_; }  // of the kernel, on the device
    int threads() const { return threads_; }

  private:
    const char* kernel() const;
    int threads_for(int asked) const;
    std::vector<std::byte> fetched(std::int64_t from, std::int64_t bytes) const;

    std::shared_ptr<const Device> device_;
    Loaded loaded_;
    const int threads_;
    Stream stream_;
    Event begin_, end_;
    std::unique_ptr<Block> memory_;  // ends before the events, and so enters the device for them
    double total_s_ = 0;
    bool stalled_ = false;
};

}  // namespace dovetail::cuda
