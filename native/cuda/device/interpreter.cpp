// The interpreter on a device: see interpreter.hpp.
#include "cuda/device/interpreter.hpp"

#include <utility>

namespace dovetail::cuda {

DeviceInterpreter::DeviceInterpreter(std::shared_ptr<const Device> device, Loaded loaded, int threads)
    : device_(std::move(device)),
      loaded_(std::move(loaded)),
      threads_(threads_for(threads)),
      stream_(*device_),
      begin_(true),
      end_(true) {
    memory_ = std::make_unique<Block>(device_, loaded_.num_bytes, false);
    loaded_.image.base = reinterpret_cast<std::byte*>(memory_->address());
    check(driver().cuMemsetD8Async(memory_->address(), 0, static_cast<std::size_t>(loaded_.zeros_end), stream_),
          "clearing memory");
    device_->copy(memory_->address(), reinterpret_cast<std::uintptr_t>(loaded_.tables.data()),
                  static_cast<std::int64_t>(loaded_.tables.size()), stream_);
    stream_.synchronize();
}

int DeviceInterpreter::threads_for(int asked) const {
    const int lanes = loaded_.image.num_lanes;
    int threads = asked ? asked : most_threads, held = device_->resident_blocks(kernel(), threads);
    while (!asked && lanes > held && threads > least_threads) held = device_->resident_blocks(kernel(), threads /= 2);
    if (lanes > held)
        throw DeviceFault("the program has " + std::to_string(lanes) + " lanes, and " + device_->facts().name +
                              " holds " + std::to_string(held) + " threadblocks of " + std::to_string(threads) +
                              " threads at once",
                          "use fewer instances, fewer ranks or fewer threads a lane");
    return threads;
}

const char* DeviceInterpreter::kernel() const {
    switch (loaded_.protocol) {
        case Protocol::ll:
            return "dovetail_interpret_ll";
        case Protocol::ll128:
            return "dovetail_interpret_ll128";
        default:
            return "dovetail_interpret_simple";
    }
}

std::vector<std::byte> DeviceInterpreter::fetched(std::int64_t from, std::int64_t bytes) const {
    std::vector<std::byte> held(static_cast<std::size_t>(bytes));
    device_->copy(reinterpret_cast<std::uintptr_t>(held.data()), memory_->address() + static_cast<std::uintptr_t>(from),
                  bytes, stream_);
    stream_.synchronize();
    return held;
}

std::string DeviceInterpreter::run(int reduce_op, double stall_s, bool stamps) {
    if (stalled_) throw DeviceFault("this run stalled before: its channels hold what was never taken", "bind it anew");
    Image& image = loaded_.image;
    if (image.num_lanes == 0) return "";
    device_->enter();
    image.reduce_op = reduce_op, image.stamps = stamps;
    image.stall_ns = static_cast<std::uint64_t>(stall_s * 1e9);
    void* arguments[] = {&image};
    check(driver().cuEventRecord(begin_, stream_), "recording an event");
    device_->launch(kernel(), image.num_lanes, threads_, arguments, stream_, true);
    check(driver().cuEventRecord(end_, stream_), "recording an event");
    stream_.synchronize();
    float milliseconds = 0;
    check(driver().cuEventElapsedTime(&milliseconds, begin_, end_), "reading an event");
    total_s_ = 1e-3 * static_cast<double>(milliseconds);
    image.first_round += static_cast<std::uint64_t>(image.rounds);
    const auto stop = fetched(image.stop, sizeof(Counter));
    stalled_ = reinterpret_cast<const Counter*>(stop.data())->value != 0;
    if (!stalled_) return "";
    auto held = fetched(0, image.sent);  // tables, and what each lane is at
    Image here = image;
    here.base = held.data();
    return loaded_.explain(here);
}

std::vector<Span> DeviceInterpreter::spans() const {
    const Image& image = loaded_.image;
    std::vector<Span> held(static_cast<std::size_t>(image.num_steps) * static_cast<std::size_t>(image.rounds));
    if (!image.stamps) return {};
    device_->enter();
    device_->copy(reinterpret_cast<std::uintptr_t>(held.data()),
                  memory_->address() + static_cast<std::uintptr_t>(image.spans),
                  static_cast<std::int64_t>(held.size() * sizeof(Span)), stream_);
    stream_.synchronize();
    return held;
}

}  // namespace dovetail::cuda
