// Python bindings of native/sim.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "sim/simulate.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> span(const Column<T>& column) {
    return {column.data(), column.size()};
}

template <class T>
std::span<const T> read(nb::handle object, const char* name) {
    return span(nb::cast<Column<const T>>(object.attr(name), false));  // `object` keeps the array alive
}

dovetail::sim::Tables read_tables(nb::handle tables) {
    const nb::object prices = tables.attr("prices");
    dovetail::sim::Tables t;
    t.num_ranks = nb::cast<std::int32_t>(tables.attr("num_ranks"));
    t.num_lanes = nb::cast<std::int32_t>(tables.attr("num_lanes"));
    t.num_links = nb::cast<std::int32_t>(tables.attr("num_links"));
    t.task = read<std::uint8_t>(tables, "task");
    t.rank = read<std::int32_t>(tables, "rank");
    t.lane = read<std::int32_t>(tables, "lane");
    t.chan_in = read<std::int32_t>(tables, "chan_in");
    t.chan_out = read<std::int32_t>(tables, "chan_out");
    t.call = read<std::int32_t>(tables, "call");
    t.dep_start = read<std::int64_t>(tables, "dep_start");
    t.dep = read<std::int64_t>(tables, "dep");
    t.computes = read<bool>(tables, "computes");
    t.chan_src = read<std::int32_t>(tables, "chan_src");
    t.chan_dst = read<std::int32_t>(tables, "chan_dst");
    t.depth = read<std::int32_t>(tables, "depth");
    t.group_start = read<std::int64_t>(tables, "group_start");
    t.group = read<std::int32_t>(tables, "group");
    t.work_s = read<double>(prices, "work_s");
    t.wire_s = read<double>(prices, "wire_s");
    t.latency_s = read<double>(prices, "latency_s");
    t.rendezvous = read<bool>(prices, "rendezvous");
    t.slow_by_net = read<double>(prices, "slow_by_net");
    t.slow_by_compute = read<double>(prices, "slow_by_compute");
    t.route_start = read<std::int64_t>(prices, "route_start");
    t.route = read<std::int64_t>(prices, "route");
    t.uplinks = read<std::int64_t>(prices, "uplinks");
    return t;
}

}  // namespace

void bind_sim(nb::module_& m) {
    m.def(
        "simulate",
        [](nb::handle tables, Column<double> start_s, Column<double> end_s, Column<std::uint8_t> state) {
            const dovetail::sim::Tables input = read_tables(tables);
            const dovetail::sim::Result result{span(start_s), span(end_s), span(state)};
            const nb::gil_scoped_release release;
            return dovetail::sim::simulate(input, result);
        },
        "tables"_a, "start_s"_a.noconvert(), "end_s"_a.noconvert(), "state"_a.noconvert(),
        "Simulate a dovetail.sim.tables.Tables; fills the three columns, as reference.run returns them. Returns False, "
        "without that, if the columns of ops do not fit the other tables.");
}
