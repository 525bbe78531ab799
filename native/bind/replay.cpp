// Python bindings of native/sim/replay.hpp.
#include "sim/replay.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <string_view>

namespace nb = nanobind;
using namespace nb::literals;
using dovetail::sim::ReplayStep;
using dovetail::sim::StepKind;

namespace {

template <class T>
std::span<const T> column(nb::handle columns, const char* name) {
    using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    const auto found = nb::cast<Column>(columns.attr(name), false);  // `columns` keeps the array alive
    return {found.data(), found.size()};
}

// Reads kinds of steps, which are strings; Python has one object for each, so that most need no comparison.
class Kinds {
  public:
    StepKind of(PyObject* text) {
        for (std::size_t i = 0; i < names_.size(); ++i)
            if (seen_[i] == text) return static_cast<StepKind>(i);
        const auto found = nb::cast<std::string_view>(nb::handle(text));
        for (std::size_t i = 0; i < names_.size(); ++i)
            if (names_[i] == found) {
                seen_[i] = text;
                return static_cast<StepKind>(i);
            }
        throw nb::value_error("a step of unknown kind");
    }

  private:
    static constexpr std::array<std::string_view, 8> names_{"send", "recv",   "sent", "received",
                                                            "join", "joined", "own",  "end"};
    std::array<PyObject*, 8> seen_{};
};

std::vector<ReplayStep> read_steps(nb::handle steps, Kinds& kinds) {
    std::vector<ReplayStep> found;
    const Py_ssize_t count = PyTuple_Size(steps.ptr());
    if (count < 0) throw nb::python_error();
    found.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* step = PyTuple_GetItem(steps.ptr(), i);
        const auto part = [step](Py_ssize_t at) {
            PyObject* value = PyTuple_GetItem(step, at);
            if (!value) throw nb::python_error();
            return value;
        };
        const StepKind kind = kinds.of(part(1));
        found.push_back({PyFloat_AsDouble(part(0)), PyLong_AsLongLong(part(3)),
                         static_cast<std::int32_t>(PyLong_AsLong(part(2))), kind});
    }
    if (PyErr_Occurred()) throw nb::python_error();
    return found;
}

// Raises IndexError if a step names no message or collective.
void check(const std::vector<ReplayStep>& steps, std::size_t num_messages, std::size_t num_calls) {
    for (const ReplayStep& step : steps) {
        if (step.kind == StepKind::kOwn || step.kind == StepKind::kEnd) continue;
        const bool meets = step.kind == StepKind::kJoin || step.kind == StepKind::kJoined;
        if (step.number < 0 || static_cast<std::size_t>(step.number) >= (meets ? num_calls : num_messages))
            throw nb::index_error("a step of no message or collective");
    }
}

double makespan_s(nb::handle steps, nb::handle messages, nb::handle calls) {
    dovetail::sim::ReplayModel model;
    Kinds kinds;
    model.channel = column<std::int32_t>(messages, "channel");
    model.rendezvous = column<bool>(messages, "rendezvous");
    model.stalls = column<bool>(messages, "stalls");
    model.held = column<bool>(messages, "held");
    model.wire_s = column<double>(messages, "wire_s");
    model.latency_s = column<double>(messages, "latency_s");
    model.call = column<std::int32_t>(calls, "call");
    model.group = column<std::int32_t>(calls, "group");
    model.rooted = column<std::int32_t>(calls, "rooted");
    model.root = column<std::int32_t>(calls, "root");
    model.way = column<std::uint8_t>(calls, "way");
    model.quiet = column<bool>(calls, "quiet");
    model.seconds = column<double>(calls, "seconds");
    model.group_start = column<std::int64_t>(calls, "group_start");
    model.members = column<std::int32_t>(calls, "members");
    for (const nb::handle each : steps) {
        model.steps.push_back(read_steps(each, kinds));
        check(model.steps.back(), model.channel.size(), model.call.size());
    }
    const nb::gil_scoped_release release;
    return dovetail::sim::replay_makespan_s(model);
}

}  // namespace

void bind_replay(nb::module_& m) {
    m.def("replay_makespan_s", makespan_s, "steps"_a, "messages"_a, "calls"_a,
          "The end of the last op of a replayed model (dovetail.trace.replay_columns); NaN if its ranks wait for one "
          "another without end.");
}
