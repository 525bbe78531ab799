// Python bindings of native/shm: communicators without MPI.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "shm/transport.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using dovetail::shm::Messages;
using dovetail::shm::Segment;

void bind_ranks(nb::module_& m) {
    m.def(
        "shared_table", [] { return reinterpret_cast<std::uintptr_t>(&dovetail::shm::shared_table); },
        "Address of the table of calls between the ranks of a host, without MPI.");
    m.def(
        "shared_bytes",
        [](int size, std::size_t budget) { return Messages::bytes(size, Messages::ring_bytes(size, budget)); },
        "size"_a, "budget"_a = std::size_t{32} << 20,
        "Of the memory that so many ranks share; `budget`: of its rings.");
    m.def(
        "shared_join",
        [](Segment& memory, int rank, int size) {
            return dovetail::shm::join(std::make_shared<Segment>(std::move(memory)), rank, size);
        },
        "memory"_a, "rank"_a, "size"_a, "Takes the memory. The number of the communicator, which all ranks join.");
    m.def(
        "shared_communicator",
        [](int number) { return reinterpret_cast<std::uintptr_t>(dovetail::shm::communicator(number)); }, "number"_a,
        "Address of the communicator; 0 where it was freed.");
    m.def("shared_hide", &dovetail::shm::hide, "number"_a, "Hides its memory, once all ranks have joined.");
    m.def("shared_part", &dovetail::shm::part, "number"_a, "Frees the communicator, and what was adopted for it.");
    m.def("shared_leave", &dovetail::shm::leave_all, "Says to all ranks that this process ends.");
}
