// Python bindings of native/shm.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "shm/script.hpp"
#include "shm/segment.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using dovetail::shm::Segment;
using Place = std::pair<std::uint32_t, std::uint64_t>;

void bind_shm(nb::module_& m) {
    using dovetail::shm::Neighbours;
    using dovetail::shm::Script;
    nb::class_<Neighbours>(m, "Neighbours", "The ranks of a host, and the channels between them.")
        .def(
            "__init__",
            [](Neighbours* self, const Segment& memory, int rank, int size) {
                new (self)
                    Neighbours(memory.data(), rank, size, Neighbours::geometry(size, memory.size()), memory.file());
            },
            "memory"_a, "rank"_a, "size"_a, nb::keep_alive<1, 2>(), "In a segment of `neighbours_bytes`, zeroed.")
        .def_prop_ro("rank", &Neighbours::rank)
        .def_prop_ro("size", &Neighbours::size)
        .def(
            "place",
            [](const Neighbours& n, std::uintptr_t address, std::size_t num_bytes) -> std::optional<Place> {
                const auto found = n.regions.find(reinterpret_cast<std::byte*>(address), num_bytes, n.rank());
                return found.is_one ? std::optional(Place(found.region, found.offset)) : std::nullopt;
            },
            "address"_a, "num_bytes"_a,
            "Where bytes of this rank lie for all ranks: (region, offset in the rank's part), or None.")
        .def(
            "address",
            [](const Neighbours& n, Place place, int rank) {
                return reinterpret_cast<std::uintptr_t>(n.regions.at({place.first, 1, place.second}, rank));
            },
            "place"_a, "rank"_a, "Where that place of another rank's part lies in this process.");
    nb::class_<Script>(m, "Script", "One rank's share of a Program on channels in shared memory.")
        .def(
            "rebase",
            [](Script& s, int buffer, std::uintptr_t address) {
                s.rebase(buffer, reinterpret_cast<std::byte*>(address));
            },
            "buffer"_a, "address"_a, "From now on this row of the buffers lies at `address`.")
        .def(
            "run",
            [](Script& s, double stall_s, int reduce_op, int repeats) {
                const nb::gil_scoped_release release;
                std::string failure;
                for (int turn = 0; turn < repeats && failure.empty(); ++turn)
                    failure = s.run({stall_s, reduce_op, false, -1, nullptr});
                return failure;
            },
            "stall_s"_a, "reduce_op"_a, "repeats"_a = 1, "Runs this rank's share; an empty string, or why it stopped.")
        .def(
            "spans", [](const Script&) { return nb::make_tuple(nb::list(), nb::list(), nb::list()); },
            nb::sig("def spans(self) -> tuple[list[int], list[float], list[float]]"),
            "As an engine's; a script records none.");
    nb::class_<Segment>(m, "Segment", "Memory that processes of one host share; RuntimeError where there is none.")
        .def_static(
            "make",
            [](std::size_t num_bytes, bool named) {
                return Segment::make(num_bytes, named ? Segment::Kind::named : Segment::Kind::anonymous);
            },
            "num_bytes"_a, "named"_a = false,
            "Zeroed memory. `named`: for processes that cannot read each other's /proc.")
        .def_static("open", &Segment::open, "name"_a, "What another process made, and has not hidden yet.")
        .def("hide", &Segment::hide, "Nobody opens it any more; whoever has it open keeps it.")
        .def_prop_ro("name", &Segment::name, "What `open` takes.")
        .def_prop_ro("num_bytes", &Segment::size)
        .def_prop_ro("address", [](const Segment& s) { return reinterpret_cast<std::uintptr_t>(s.data()); });
    m.def(
        "neighbours_bytes",
        [](int size, std::size_t most_bytes) {
            return Neighbours::bytes(size, dovetail::shm::Geometry::within(size, most_bytes));
        },
        "size"_a, "most_bytes"_a, "Bytes of memory for `size` ranks, if their channels take `most_bytes` at most.");
}
