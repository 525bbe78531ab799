// Which copies run on copy engines: see engines.hpp.
#include "cuda/device/engines.hpp"

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "cuda/device/streams.hpp"

namespace dovetail::cuda {

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Variant {
    const char* name;
    bool from_host, to_host;
    int height;
    StreamOptions options;
};

std::vector<Variant> variants() {
    StreamOptions driver, overlapping, kernel;
    overlapping.overlapping = true, kernel.copy_blocks = 8;
    return {{"memcpy, device to device", false, false, 1, driver},
            {"memcpy of rows, device to device", false, false, 64, driver},
            {"memcpy asked to overlap, device to device", false, false, 1, overlapping},
            {"memcpy, host to device", true, false, 1, driver},
            {"memcpy, device to host", false, true, 1, driver},
            {"kernel, device to device", false, false, 1, kernel}};
}

// A kernel on every multiprocessor, with as many blocks and threads as leave room for no other.
class Spinner {
  public:
    Spinner(std::shared_ptr<Device> device, double limit_s)
        : device_(std::move(device)),
          stream_(*device_),
          flag_(device_, 128, true),
          limit_ns_(static_cast<std::uint64_t>(1e9 * limit_s)) {}
    void begin() {
        value() = 0;
        auto flag = flag_.address();
        void* arguments[] = {&flag, &limit_ns_};
        const int blocks = device_->resident_blocks("dovetail_spin", 1024);
        device_->launch("dovetail_spin", blocks, 1024, arguments, stream_);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until it is under way
    }
    void end() {
        value() = 1;
        stream_.synchronize();
    }

  private:
    volatile unsigned& value() { return *reinterpret_cast<volatile unsigned*>(flag_.address()); }
    std::shared_ptr<Device> device_;
    Stream stream_;
    Block flag_;
    std::uint64_t limit_ns_;
};

bool ends_beside(const std::shared_ptr<Device>& device, Spinner& spinner, const Variant& variant, std::int64_t bytes,
                 double limit_s) {
    const Block from(device, 2 * bytes, variant.from_host), to(device, 2 * bytes, variant.to_host);
    Copy copy{to.address(), from.address(), bytes};
    if (variant.height > 1)
        copy.height = variant.height, copy.width = bytes / variant.height,
        copy.to_pitch = copy.from_pitch = 2 * copy.width;
    Command command;
    command.action = copy;
    Streams streams({{device, nullptr}}, {0}, {command}, variant.options);
    streams.run();  // once alone: what is loaded when first used would wait for the kernel
    spinner.begin();
    streams.start();
    const double begin = now_s();
    while (!streams.ended() && now_s() - begin < limit_s / 2) std::this_thread::yield();
    const bool beside = streams.ended();
    spinner.end();
    streams.wait();
    return beside;
}

}  // namespace

std::vector<Verdict> try_engines(const std::shared_ptr<Device>& device, const std::vector<std::int64_t>& sizes,
                                 double limit_s) {
    std::vector<Verdict> found;
    device->enter();
    Spinner spinner(device, limit_s);
    for (const Variant& variant : variants())
        for (const std::int64_t bytes : sizes) {
            Verdict verdict{variant.name, bytes, false, ""};
            try {
                verdict.beside = ends_beside(device, spinner, variant, bytes, limit_s);
            } catch (const DeviceFault& fault) {
                spinner.end();
                verdict.failure = fault.what();
            }
            found.push_back(std::move(verdict));
        }
    return found;
}

}  // namespace dovetail::cuda
