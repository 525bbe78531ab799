// Python bindings of native/shm and native/tcp: communicators without MPI.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>

#include "shm/neighbours.hpp"
#include "shm/ring_messages.hpp"
#include "shm/transport.hpp"
#include "tcp/host_messages.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using dovetail::shm::Lease;
using dovetail::shm::Region;
using dovetail::shm::RingMessages;
using dovetail::shm::Segment;

namespace {

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>;

// The part of `rank`. Its memory stays as long as some array on it does.
Bytes bytes_of(nb::handle self, int rank) {
    const Region& region = *nb::cast<const Lease&>(self).region;
    return Bytes(region.part(rank), {region.length(rank)}, self);
}

std::unique_ptr<RingMessages> rings_of(int number) {
    auto taken = dovetail::shm::taken(number);
    if (auto* rings = dynamic_cast<RingMessages*>(taken.get()))
        return taken.release(), std::unique_ptr<RingMessages>(rings);
    throw std::runtime_error("no communicator of one host");
}

int join_hosts(int near, int spare, const std::vector<int>& here, int rank, const std::vector<int>& files) {
    const auto size = static_cast<int>(files.size());
    auto far = std::make_shared<dovetail::tcp::Sockets>(rank, files);
    return dovetail::shm::join(std::make_unique<dovetail::tcp::HostMessages>(rank, here, rings_of(near),
                                                                             rings_of(spare), std::move(far), size));
}

}  // namespace

void bind_ranks(nb::module_& m) {
    m.def(
        "shared_table", [] { return reinterpret_cast<std::uintptr_t>(&dovetail::shm::shared_table); },
        "Address of the table of calls between the ranks of a host, without MPI.");
    m.def(
        "shared_bytes",
        [](int size, std::size_t budget) { return RingMessages::bytes(size, RingMessages::ring_bytes(size, budget)); },
        "size"_a, "budget"_a = std::size_t{32} << 20,
        "Bytes of the memory that `size` ranks share. `budget`: most bytes of its rings.");
    m.def(
        "shared_join",
        [](Segment& memory, int rank, int size) {
            return dovetail::shm::join(
                std::make_unique<RingMessages>(std::make_shared<Segment>(std::move(memory)), rank, size));
        },
        "memory"_a, "rank"_a, "size"_a, "Takes the memory. The number of the communicator, which all ranks join.");
    m.def(
        "hosts_table", [] { return reinterpret_cast<std::uintptr_t>(&dovetail::shm::hosts_table); },
        "Address of the table of calls between the ranks of several hosts, without MPI.");
    m.def("hosts_join", &join_hosts, "near"_a, "spare"_a, "here"_a, "rank"_a, "files"_a,
          "Takes two communicators of the ranks of this host, `here`, and connected sockets, by rank; -1: none. The "
          "number of the communicator, which all ranks join.");
    m.def(
        "shared_communicator",
        [](int number) { return reinterpret_cast<std::uintptr_t>(dovetail::shm::communicator(number)); }, "number"_a,
        "Address of the communicator; 0 where it was freed.");
    m.def("shared_hide", &dovetail::shm::hide, "number"_a, "Hides its memory, once all ranks have joined.");
    m.def("shared_limit", &dovetail::shm::limit, "number"_a, "seconds"_a,
          "How long its collectives wait for a rank that lives; 0: without a limit.");
    m.def("shared_rest", &dovetail::shm::rest, "number"_a, "on"_a,
          "Whether its collectives sleep between polls, for the user's thread computes.");
    m.def("shared_fail", &dovetail::shm::fail, "number"_a, "why"_a,
          "From now on the collectives of all its ranks fail: these are no longer in step.");
    m.def("shared_part", &dovetail::shm::part, "number"_a, "Frees the communicator, and what was adopted for it.");
    nb::class_<Lease>(m, "Region", "Memory of all ranks, a part each, which this rank gives back when it is deleted.")
        .def_static("num_bytes", &Region::bytes, "lengths"_a, "Of the memory for parts of these bytes.")
        .def_static(
            "of",
            [](Segment& memory, int rank, const std::vector<std::size_t>& lengths) {
                return std::make_shared<Lease>(
                    std::make_shared<Region>(std::make_shared<Segment>(std::move(memory)), rank, lengths));
            },
            "memory"_a, "rank"_a, "lengths"_a, "Takes the memory, which all ranks do together.")
        .def(
            "hide", [](Lease& self) { self.region->hide(); }, "Hides the memory, once all ranks have it.")
        .def("part", &bytes_of, "rank"_a, nb::sig("def part(self, rank: int) -> typing.Any"),
             "The bytes of a rank's part.")
        .def(
            "lend",
            [](Lease& self, std::uintptr_t comm) {
                dovetail::shm::add_region(reinterpret_cast<dt_comm*>(comm), self.region);
            },
            "communicator"_a,
            "All ranks of the communicator, which has no MPI, take messages from where they lie in it.")
        .def(
            "add_to", [](Lease& self, dovetail::shm::Neighbours& ranks) { ranks.regions.add(self.region); }, "ranks"_a,
            "All of these ranks read arrays in it where they lie.");
    m.def("shared_leave", &dovetail::shm::leave_all, "Says to all ranks that this process ends.");
}
