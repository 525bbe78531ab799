// Python bindings of native/shm.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "shm/segment.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using dovetail::shm::Segment;

void bind_shm(nb::module_& m) {
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
}
