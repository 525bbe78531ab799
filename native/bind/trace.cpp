// Python bindings of native/trace: the calls of dovetail_trace.h under names of their own.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <utility>

#include "trace/dovetail_trace.h"
#include "trace/dovetail_trace_meet.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void spans(const Column<std::int32_t>& names, const Column<std::int64_t>& args, const Column<std::uint64_t>& begins,
           const Column<std::uint64_t>& ends) {
    for (std::size_t i = 0; i < names.shape(0); ++i)
        dovetail_trace_span(names.data()[i], args.data()[i], begins.data()[i], ends.data()[i]);
}

}  // namespace

void bind_trace(nb::module_& m) {
    m.def(
        "trace_init",
        [](const std::optional<std::string>& folder) {
            return dovetail_trace_init(folder ? folder->c_str() : nullptr);
        },
        "folder"_a.none(), "0, or an errno value.");
    m.def("trace_finalize", [] {
        const nb::gil_scoped_release release;
        dovetail_trace_finalize();
    });
    m.def("trace_name", [](const std::string& text) { return dovetail_trace_name(text.c_str()); }, "text"_a);
    m.def("trace_point", dovetail_trace_point, "name"_a, "arg"_a);
    m.def("trace_begin", dovetail_trace_begin, "name"_a, "arg"_a);
    m.def("trace_end", dovetail_trace_end, "name"_a, "arg"_a);
    m.def(
        "trace_lane",
        [](const std::string& text, const std::string& lane) {
            return dovetail_trace_lane(text.c_str(), lane.c_str());
        },
        "text"_a, "lane"_a);
    m.def("trace_spans", spans, "names"_a, "args"_a, "begins"_a, "ends"_a,
          "Intervals in lanes, from one reading of the event clock to another; as many of each.");
    m.def(
        "trace_moment",
        [] {
            std::uint64_t clock = 0;
            const std::int64_t now_ns = dovetail_trace_moment(&clock);
            return std::make_pair(clock, now_ns);
        },
        "The event clock, and the nanoseconds of CLOCK_MONOTONIC_RAW at the same moment.");
    m.def("trace_is_on", [] { return dovetail_trace_is_on() != 0; });
    m.def("trace_on", dovetail_trace_on);
    m.def("trace_off", dovetail_trace_off);
    m.def("trace_rank", dovetail_trace_rank, "rank"_a, "num_ranks"_a);
    m.def("trace_dropped", dovetail_trace_dropped);
    m.def("trace_clock_of", [] {
        char text[160];
        return std::string(dovetail_trace_clock_of(text, sizeof text));
    });
    m.def("trace_file", dovetail_trace_file, "Path of this process's file; empty where nothing is traced.");
}
