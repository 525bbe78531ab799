// Commands on streams: see streams.hpp.
#include "cuda/device/streams.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#include <utility>

namespace dovetail::cuda {

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Place piece(std::uintptr_t at, std::int64_t width, std::int64_t height, std::int64_t pitch, int element) {
    Place made;
    made.present = true, made.base = reinterpret_cast<std::byte*>(at), made.slot = element;
    made.count = width / element, made.blocks = height, made.stride = pitch / element;
    return made;
}

// A copy as a kernel does it, in elements as large as all its places allow.
Move as_move(const Copy& copy) {
    const auto all = copy.to | copy.from | static_cast<std::uintptr_t>(copy.width) |
                     (copy.height > 1 ? static_cast<std::uintptr_t>(copy.to_pitch | copy.from_pitch) : 0);
    const int element = all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
    Move made;
    made.to = piece(copy.to, copy.width, copy.height, copy.to_pitch, element);
    made.a = piece(copy.from, copy.width, copy.height, copy.from_pitch, element);
    made.dtype = element == 8 ? DT_UINT64 : element == 4 ? DT_UINT32 : element == 2 ? DT_UINT16 : DT_UINT8;
    return made;
}

}  // namespace

Streams::Streams(std::vector<Seat> seats, std::vector<int> seat_of, std::vector<Command> commands,
                 const StreamOptions& options)
    : seats_(std::move(seats)),
      seat_of_(std::move(seat_of)),
      commands_(std::move(commands)),
      options_(options),
      awaited_(commands_.size()) {
    for (const Seat& here : seats_)
        for (const Seat& other : seats_)
            if (here.device != other.device) here.device->reach(*other.device);
    for (const int each : seat_of_) {  // an event belongs to the device that was entered last, as a stream does
        streams_.emplace_back(*seats_[static_cast<std::size_t>(each)].device), joins_.emplace_back(false);
    }
    workspaces_.resize(streams_.size());
    for (const Command& command : commands_) {
        for (const auto other : command.waits) awaited_[static_cast<std::size_t>(other)] = true;
        auto& space = workspaces_[static_cast<std::size_t>(command.stream)];
        if (std::holds_alternative<Product>(command.action) && !space)
            space = std::make_unique<Block>(seat(command).device, Blas::workspace_bytes, false);
    }
    for (const Command& command : commands_) {
        seat(command).device->enter();
        done_.emplace_back(false);
        if (!options_.stamps) continue;
        began_.emplace_back(true), ended_.emplace_back(true);
    }
    for (const Seat& each : seats_) each.device->enter(), learnt_.emplace_back(true);
    origin_ = std::make_unique<Stream>(*seats_.front().device);
    start_ = std::make_unique<Event>(true), finish_ = std::make_unique<Event>(true),
    fork_ = std::make_unique<Event>(false);
    for (std::size_t each = 0; each < seats_.size(); ++each) warm_up(each);
}

const Seat& Streams::seat(const Command& command) const {
    return seats_[static_cast<std::size_t>(seat_of_[static_cast<std::size_t>(command.stream)])];
}

// The event from which a command's times are counted: on its own device.
const Event& Streams::beginning(const Command& command) const {
    const int where = seat_of_[static_cast<std::size_t>(command.stream)];
    return where == 0 ? *start_ : learnt_[static_cast<std::size_t>(where)];
}

// Launches each kernel once, and each product that differs from others in more than its places, with no effect: what is
// chosen and loaded at a first launch should not be within a graph.
void Streams::warm_up(std::size_t where) {
    const auto& [device, blas] = seats_[where];
    const Stream stream(*device);
    Move nothing;
    nothing.to.present = nothing.a.present = true;
    move(*device, nothing, 1, stream);
    std::map<std::pair<Blas::Form, bool>, std::pair<const Command*, Product>> met;
    std::int64_t most = 0;
    for (const Command& command : commands_)
        if (const auto* product = std::get_if<Product>(&command.action); product && seat(command).device == device) {
            const auto form = Blas::form_of(*product, options_.product_processors);
            met.try_emplace({form, product->accumulate}, &command, *product);
            most = std::max(most, element_bytes(product->dtype) * product->m * product->c.ld + 256);
        }
    const Block result(device, most, false);
    for (auto& [key, each] : met) {
        auto& [command, product] = each;
        product.c.address = result.address() + product.c.address % 256;
        blas->multiply(product, options_.product_processors, *workspaces_[static_cast<std::size_t>(command->stream)],
                       stream);
    }
    stream.synchronize();
}

Streams::~Streams() {
    for (const Seat& each : seats_) each.device->enter(), driver().cuCtxSynchronize();
    if (replayed_) driver().cuGraphExecDestroy(replayed_);
    if (graph_) driver().cuGraphDestroy(graph_);
}

void Streams::stamp(const Event& event, CUstream stream, bool captured) const {
    // Within a graph an event that is to be read from outside must be recorded as such.
    check(captured ? driver().cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL)
                   : driver().cuEventRecord(event, stream),
          "recording an event");
}

void Streams::enqueue(bool captured) {
    const Driver& cuda = driver();
    if (!captured) stamp(*start_, *origin_, false);
    check(cuda.cuEventRecord(*fork_, *origin_), "recording an event");
    for (const Stream& stream : streams_) check(cuda.cuStreamWaitEvent(stream, *fork_, 0), "waiting for an event");
    for (std::size_t i = seat_of_.size(); options_.stamps && i-- > 0;)  // the first stream of each seat stamps last
        if (seat_of_[i] > 0) stamp(learnt_[static_cast<std::size_t>(seat_of_[i])], streams_[i], captured);
    for (std::size_t i = 0; i < commands_.size(); ++i) enqueue(i, captured);
    seats_.front().device->enter();
    for (std::size_t i = 0; i < streams_.size(); ++i) {
        check(cuda.cuEventRecord(joins_[i], streams_[i]), "recording an event");
        check(cuda.cuStreamWaitEvent(*origin_, joins_[i], 0), "waiting for an event");
    }
    if (!captured) stamp(*finish_, *origin_, false);
}

void Streams::enqueue(std::size_t index, bool captured) {
    const Command& command = commands_[index];
    const Stream& stream = streams_[static_cast<std::size_t>(command.stream)];
    for (const auto other : command.waits)
        check(driver().cuStreamWaitEvent(stream, done_[static_cast<std::size_t>(other)], 0), "waiting for an event");
    if (options_.stamps) stamp(began_[index], stream, captured);
    perform(command, stream);
    if (options_.stamps) stamp(ended_[index], stream, captured);
    if (awaited_[index]) check(driver().cuEventRecord(done_[index], stream), "recording an event");
}

void Streams::perform(const Command& command, CUstream stream) {
    const auto& [device, blas] = seat(command);
    device->enter();
    if (const auto* what = std::get_if<Copy>(&command.action)) {
        copy(*device, *what, stream);
    } else if (const auto* what = std::get_if<Move>(&command.action)) {
        move(*device, *what, options_.move_blocks, stream);
    } else if (const auto* what = std::get_if<Product>(&command.action)) {
        blas->multiply(*what, options_.product_processors, *workspaces_[static_cast<std::size_t>(command.stream)],
                       stream);
    } else if (const auto* what = std::get_if<Clear>(&command.action)) {
        check(driver().cuMemsetD8Async(what->at, 0, static_cast<std::size_t>(what->bytes), stream), "clearing memory");
    }
}

void Streams::copy(const Device& device, const Copy& copy, CUstream stream) {
    if (copy.width * copy.height == 0) return;
    if (options_.copy_blocks > 0) return move(device, as_move(copy), options_.copy_blocks, stream);
    if (copy.height == 1 && options_.overlapping && driver().copy_batch) {
        CUdeviceptr to = copy.to, from = copy.from;
        std::size_t bytes = static_cast<std::size_t>(copy.width), first = 0;
        CUmemcpyAttributes how{};
        how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        how.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
        check(driver().copy_batch(&to, &from, &bytes, 1, &how, &first, 1, stream), "copying");
        return;
    }
    if (copy.height == 1) return device.copy(copy.to, copy.from, copy.width, stream);
    CUDA_MEMCPY2D how{};
    how.srcMemoryType = how.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    how.srcDevice = copy.from, how.dstDevice = copy.to;
    how.srcPitch = static_cast<std::size_t>(copy.from_pitch), how.dstPitch = static_cast<std::size_t>(copy.to_pitch);
    how.WidthInBytes = static_cast<std::size_t>(copy.width), how.Height = static_cast<std::size_t>(copy.height);
    check(driver().cuMemcpy2DAsync(&how, stream), "copying rows");
}

void Streams::move(const Device& device, const Move& move, int blocks, CUstream stream) {
    void* arguments[] = {const_cast<Move*>(&move)};
    device.launch("dovetail_move", blocks, 512, arguments, stream);
}

void Streams::start() {
    seats_.front().device->enter();
    const double begin = now_s();
    enqueue(false);
    enqueue_s_ = now_s() - begin;
}

bool Streams::ended() const {
    const CUresult found = driver().cuEventQuery(*finish_);
    if (found != CUDA_ERROR_NOT_READY) check(found, "asking an event");
    return found == CUDA_SUCCESS;
}

void Streams::wait() { origin_->synchronize(); }

void Streams::capture() {
    if (replayed_) return;
    if (options_.overlapping && options_.copy_blocks == 0)
        throw DeviceFault("copies that ask for a copy engine cannot be captured", "run them without a graph");
    seats_.front().device->enter();
    check(driver().cuStreamBeginCapture(*origin_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "beginning a graph");
    try {
        enqueue(true);
    } catch (...) {
        CUgraph broken{};
        driver().cuStreamEndCapture(*origin_, &broken);
        if (broken) driver().cuGraphDestroy(broken);
        throw;
    }
    check(driver().cuStreamEndCapture(*origin_, &graph_), "ending a graph");
    check(driver().cuGraphInstantiate(&replayed_, graph_, 0), "making a graph ready");
}

void Streams::replay() {
    capture();
    seats_.front().device->enter();
    const double begin = now_s();
    stamp(*start_, *origin_, false);
    check(driver().cuGraphLaunch(replayed_, *origin_), "launching a graph");
    stamp(*finish_, *origin_, false);
    enqueue_s_ = now_s() - begin;
    origin_->synchronize();
}

void Streams::spans(std::vector<std::int64_t>& rows, std::vector<double>& begin_s, std::vector<double>& end_s) const {
    if (!options_.stamps) return;
    const auto since = [&](const Event& begin, const Event& event) {
        float milliseconds = 0;
        check(driver().cuEventElapsedTime(&milliseconds, begin, event), "reading an event");
        return 1e-3 * static_cast<double>(milliseconds);
    };
    for (std::size_t i = 0; i < commands_.size(); ++i) {
        if (commands_[i].row < 0) continue;
        seat(commands_[i]).device->enter();
        const Event& begin = beginning(commands_[i]);
        rows.push_back(commands_[i].row);
        begin_s.push_back(since(begin, began_[i])), end_s.push_back(since(begin, ended_[i]));
    }
}

double Streams::total_s() const {
    seats_.front().device->enter();
    float milliseconds = 0;
    check(driver().cuEventElapsedTime(&milliseconds, *start_, *finish_), "reading an event");
    return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace dovetail::cuda
