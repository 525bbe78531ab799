// Python bindings of native/cuda that need no device: the interpreter on host threads.
#include "bind/interpreter.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "cuda/host.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace dovetail;

namespace {

// An image in host memory.
class HostInterpreter {
  public:
    explicit HostInterpreter(cuda::Loaded loaded)
        : loaded_(std::move(loaded)), memory_(static_cast<std::size_t>(loaded_.num_bytes) + 128) {
        const auto place = reinterpret_cast<std::uintptr_t>(memory_.data());
        image().base = memory_.data() + (128 - place % 128) % 128;
        std::copy(loaded_.tables.begin(), loaded_.tables.end(), image().base);
    }

    std::string run(int reduce_op, double stall_s, int threads_of_lane, bool stamps) {
        const nb::gil_scoped_release release;
        image().reduce_op = reduce_op;
        image().stall_ns = static_cast<std::uint64_t>(stall_s * 1e9);
        image().stamps = stamps;
        static std::mutex one_run_at_a_time;
        static cuda::Crew& crew = *new cuda::Crew;  // its threads are kept for the next run, until the process ends
        const std::lock_guard lock(one_run_at_a_time);
        const bool good = cuda::run_on_threads(image(), loaded_.protocol, threads_of_lane, crew);
        image().first_round += static_cast<std::uint64_t>(image().rounds);
        return good ? "" : loaded_.explain(image());
    }

    bind::Spans spans() const { return bind::spans_of(image(), image().at<const cuda::Span>(image().spans)); }
    bind::Facts facts() const { return bind::facts_of(loaded_); }

  private:
    cuda::Image& image() { return loaded_.image; }
    const cuda::Image& image() const { return loaded_.image; }

    cuda::Loaded loaded_;
    std::vector<std::byte> memory_;
};

}  // namespace

void bind_interpreter(nb::module_& m) {
    nb::class_<HostInterpreter>(m, "HostInterpreter")
        .def("run", &HostInterpreter::run, "reduce_op"_a, "stall_s"_a, "threads_of_lane"_a, "stamps"_a,
             "Runs every lane on threads of its own; an empty string, or what each lane waits for.")
        .def("spans", &HostInterpreter::spans, "Rows, start and end seconds of the ops, in every round.")
        .def("facts", &HostInterpreter::facts,
             "Lanes, rounds, bytes of the image, of a tile and of a slice, and the protocol.");
    m.def(
        "host_interpreter",
        [](const bind::Table& columns, int num_ranks, const bind::Channels& channels, const bind::Memories& memory,
           const std::vector<std::int64_t>& order, int protocol, std::int64_t place_bytes, std::int64_t slice_bytes) {
            const cuda::Layout layout{static_cast<cuda::Protocol>(protocol), place_bytes, slice_bytes};
            return new HostInterpreter(bind::load(columns, num_ranks, channels, memory, order, layout));
        },
        nb::rv_policy::take_ownership, "columns"_a, "num_ranks"_a, "channels"_a, "memory"_a, "order"_a, "protocol"_a,
        "place_bytes"_a, "slice_bytes"_a);
}
