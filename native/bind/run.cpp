// Python bindings of native/run.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "bind/columns.hpp"
#include "prober/exchange.h"
#include "run/bound.hpp"
#include "run/load.hpp"
#include "run/local.hpp"
#include "run/meet.hpp"
#include "run/mpi.hpp"
#include "run/mpi_table.h"
#include "run/order.hpp"
#include "run/reduce.hpp"
#include "shm/script.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace dovetail::run;
using dovetail::bind::column;
using dovetail::bind::read_columns;
using dovetail::bind::Table;

namespace {

using Transports = std::shared_ptr<Transport>;

using ChannelTuple = std::tuple<int, int, int, int>;      // src, dst, id, depth
using CollectiveRow = std::tuple<int, std::vector<int>>;  // kind, group
using Starts = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Address, slot bytes, dtype, where slots start, whether it is scratch.
using MemoryRow = std::tuple<std::uintptr_t, std::int64_t, int, std::optional<Starts>, bool>;
using QuotientTuple = std::tuple<int, std::int64_t, std::int64_t, int>;  // buffer, offset, count, divisor
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Texts = std::vector<std::string>;
using PartsTuple = std::tuple<std::int64_t, bool, std::vector<long long>>;         // row, in place, counts
using Products = nb::ndarray<const std::int64_t, nb::shape<-1, 5>, nb::c_contig>;  // row, m, k, n, accumulate

// Every row gets a group of its own: calls of different rows on the same ranks do not meet.
std::vector<Collective> bind_collectives(Transport& transport, int rank, const std::vector<CollectiveRow>& rows) {
    std::vector<Collective> calls;
    std::map<std::vector<int>, int> turns;
    for (const auto& [kind, group] : rows) {
        const int turn = turns[group]++;
        const bool member = std::find(group.begin(), group.end(), rank) != group.end();
        const int id = member ? transport.group(group, turn) : -1;
        calls.push_back({kind, id, static_cast<int>(group.size()), group.front() == rank});
    }
    return calls;
}

using Functions = nb::ndarray<const std::int64_t, nb::shape<-1, 10>, nb::c_contig>;  // row, address, sizes

void add_functions(Share& share, const Functions& functions) {
    auto op = share.ops.begin();
    for (std::size_t i = 0; i < functions.shape(0); ++i) {
        const std::int64_t* row = functions.data() + 10 * i;
        while (op->row != row[0]) ++op;
        op->function.call = reinterpret_cast<void (*)(const Rows*, const std::int64_t*)>(row[1]);
        std::copy(row + 2, row + 10, op->function.sizes.begin());
    }
}

// Both are in the order of rows.
void add_products(Share& share, const Products& products) {
    auto op = share.ops.begin();
    for (std::size_t i = 0; i < products.shape(0); ++i) {
        const std::int64_t* row = products.data() + 5 * i;
        while (op->row != row[0]) ++op;
        op->product = {row[1], row[2], row[3], row[4] != 0};
    }
}

// One rank's share of a Program on these buffers.
Share read_share(int rank, const Table& columns, const std::vector<bool>& lane_is_net,
                 const std::vector<ChannelTuple>& channels, const std::vector<MemoryRow>& memory,
                 const std::vector<QuotientTuple>& quotients, const std::vector<PartsTuple>& parts) {
    std::vector<ChannelRow> rows;
    for (const auto& [src, dst, id, depth] : channels) rows.push_back({src, dst, depth});
    std::vector<Memory> homes;
    for (const auto& [base, slot, dtype, starts, scratch] : memory)
        homes.push_back({reinterpret_cast<std::byte*>(base), slot, dtype, starts ? starts->data() : nullptr, scratch});
    std::vector<QuotientRow> divided;
    for (const auto& [buffer, offset, count, divisor] : quotients) divided.push_back({buffer, offset, count, divisor});
    std::vector<PartsRow> collective_parts;
    for (const auto& [row, in_place, counts] : parts) collective_parts.push_back({row, in_place, counts});
    return load(rank, read_columns(columns), lane_is_net, rows, homes, divided, collective_parts);
}

using dovetail::shm::Neighbours;
using dovetail::shm::Script;

// ValueError, with the reason, where it cannot be one. `slot_bytes`: of the largest slot on any rank.
std::shared_ptr<Script> make_script(std::shared_ptr<Neighbours> ranks, const Table& columns,
                                    const std::vector<bool>& lane_is_net, const std::vector<ChannelTuple>& channels,
                                    const std::vector<MemoryRow>& memory, const std::vector<QuotientTuple>& quotients,
                                    std::int64_t slot_bytes) {
    std::vector<Script::Starts> all_starts;
    for (const auto& [base, slot, dtype, starts, scratch] : memory)
        all_starts.push_back(starts ? Script::Starts(starts->data(), starts->data() + starts->size())
                                    : Script::Starts());
    Share share = read_share(ranks->rank(), columns, lane_is_net, channels, memory, quotients, {});
    const auto extent = dovetail::shm::extent_of(read_columns(columns), slot_bytes);
    return std::make_shared<Script>(std::move(ranks), std::move(share), all_starts, extent);
}

std::shared_ptr<BoundEngine> make_engine(
    Transports transport, int rank, const Table& columns, const std::vector<bool>& lane_is_net, bool in_order,
    const std::vector<ChannelTuple>& channels, const std::vector<CollectiveRow>& collectives,
    const std::vector<MemoryRow>& memory, const std::vector<QuotientTuple>& quotients,
    const std::vector<PartsTuple>& parts, const Products& products, std::tuple<std::uintptr_t, std::uintptr_t> blas,
    const Functions& functions, nb::object python, std::tuple<Texts, Texts, Texts> titles) {
    auto bound = std::make_shared<BoundEngine>();
    bound->transport = transport;
    Share share = read_share(rank, columns, lane_is_net, channels, memory, quotients, parts);
    add_products(share, products);
    const auto call_python = [python](std::int64_t row) {
        const nb::gil_scoped_acquire gil;
        python(row);
    };
    add_functions(share, functions);
    const Blas library{reinterpret_cast<Gemm>(std::get<0>(blas)), reinterpret_cast<Gemm>(std::get<1>(blas))};
    bound->engine = std::make_unique<Engine>(*transport, std::move(share), in_order,
                                             bind_collectives(*transport, rank, collectives), library, call_python);
    auto& [lanes, kernels, calls] = titles;
    bound->engine->titles = {std::move(lanes), std::move(kernels), std::move(calls)};
    return bound;
}

double steady_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double monotonic_s() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Runs engines on a thread each (one engine: on this thread); returns their failures, empty where all went well.
std::vector<std::string> run_engines(const std::vector<std::shared_ptr<BoundEngine>>& engines, const Options& options) {
    std::vector<std::string> failures(engines.size());
    std::vector<std::exception_ptr> thrown(engines.size());
    const nb::gil_scoped_release release;
    const auto run_one = [&](std::size_t i) {
        try {
            failures[i] = engines[i]->engine->run(options, steady_s);
        } catch (...) {
            thrown[i] = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < engines.size(); ++i) threads.emplace_back(run_one, i);
    if (!engines.empty()) run_one(0);
    for (auto& worker : threads) worker.join();
    for (const auto& error : thrown)
        if (error) {
            const nb::gil_scoped_acquire gil;
            std::rethrow_exception(error);
        }
    return failures;
}

std::string run_engine(BoundEngine& bound, const Options& options) {
    const nb::gil_scoped_release release;
    return bound.engine->run(options, steady_s);
}

void rebase(BoundEngine& bound, int buffer, std::uintptr_t address) {
    if (bound.engine->needs_python()) throw nb::value_error("an engine with kernels in Python cannot be rebased");
    bound.engine->rebase(buffer, reinterpret_cast<std::byte*>(address));
}

// Where an array's first element lies. The buffer protocol is five times as fast as NumPy's own attribute, which serves
// the types that the protocol does not know.
std::uintptr_t address_of(nb::handle array) {
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES) == 0) {
        const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
        PyBuffer_Release(&view);
        return address;
    }
    PyErr_Clear();
    return nb::cast<std::uintptr_t>(array.attr("ctypes").attr("data"));
}

std::vector<std::uintptr_t> addresses(const nb::list& arrays) {
    std::vector<std::uintptr_t> found;
    for (const auto array : arrays) found.push_back(address_of(array));
    return found;
}

using Spans = std::tuple<std::vector<std::int64_t>, std::vector<double>, std::vector<double>>;

Spans spans_of(const BoundEngine& bound) {
    std::vector<std::int64_t> rows;
    for (const auto& op : bound.engine->ops()) rows.push_back(op.row);
    auto [start_s, end_s] = bound.engine->spans();
    return {rows, std::move(start_s), std::move(end_s)};
}

}  // namespace

void bind_run(nb::module_& m) {
    nb::class_<Transport>(m, "Transport")
        .def_rw("begun", &Transport::begun, "Whether what runs is a call that the user has begun.")
        .def_prop_rw(
            "rests", [](const Transport& t) { return t.rests.load(); }, [](Transport& t, bool on) { t.rests = on; },
            "Whether whoever waits sleeps between polls, for the user's thread computes.")
        .def_rw("polls", &Transport::polls, "Whether blocking collectives are polled, so that `fail` ends them.")
        .def_rw("limit_s", &Transport::limit_s, "Seconds that a polled collective waits for other ranks; 0: no limit.")
        .def("fail", &Transport::fail, "why"_a, "Let this rank's calls fail from now on, also one under way.");
    nb::class_<LocalHub>(m, "LocalHub").def(nb::init<int>(), "num_ranks"_a);
    nb::class_<Options>(m, "EngineOptions")
        .def(nb::init<bool, double, std::int64_t, int, double, int, int, bool, bool, std::int64_t>(), "thread"_a,
             "poll_s"_a, "block_rows"_a, "window"_a, "stall_s"_a, "reduce_op"_a, "repeats"_a, "spans"_a, "blocking"_a,
             "slice_bytes"_a);
    nb::class_<BoundEngine>(m, "Engine")
        .def("run", &run_engine, "options"_a, "Runs this rank's share on this thread; an empty string, or why not.")
        .def("rebase", &rebase, "buffer"_a, "address"_a, "From now on this row of the buffers lies at `address`.")
        .def_prop_ro(
            "needs_python", [](const BoundEngine& bound) { return bound.engine->needs_python(); },
            "Whether some kernel runs in Python, on arrays of its own.")
        .def("spans", &spans_of, "Rows, start and end seconds of this rank's ops.");
    m.def("addresses", &addresses, "arrays"_a, nb::sig("def addresses(arrays: list[typing.Any]) -> list[int]"),
          "Where the first element of each NumPy array lies.");
    m.def(
        "local_transport",
        [](std::shared_ptr<LocalHub> hub, int rank) -> Transports {
            return std::make_shared<LocalTransport>(std::move(hub), rank);
        },
        "hub"_a, "rank"_a);
    m.def(
        "mpi_transport",
        [](std::uintptr_t table, std::uintptr_t comm) -> Transports {
            return std::make_shared<MpiTransport>(reinterpret_cast<const dt_mpi_table*>(table),
                                                  reinterpret_cast<dt_comm*>(comm));
        },
        "table"_a, "comm"_a);
    m.attr("mpi_table_version") = DOVETAIL_MPI_TABLE_VERSION;
    m.def(
        "mpi_reduce_function", [] { return reinterpret_cast<std::uintptr_t>(&reduce); },
        "Address of the dt_reduce_fn that the MPI shim uses for half types.");
    m.def("make_engine", &make_engine, "transport"_a, "rank"_a, "columns"_a, "lane_is_net"_a, "in_order"_a,
          "channels"_a, "collectives"_a, "memory"_a, "quotients"_a, "parts"_a, "products"_a, "blas"_a, "functions"_a,
          "python"_a, "titles"_a);
    m.def("make_script", &make_script, "neighbours"_a, "columns"_a, "lane_is_net"_a, "channels"_a, "memory"_a,
          "quotients"_a, "slot_bytes"_a,
          "One rank's share as a Script; ValueError with the reason where it cannot be one.");
    m.def(
        "ordered_locally",
        [](int num_ranks, const Table& columns) { return ordered_locally(num_ranks, read_columns(columns)); },
        "num_ranks"_a, "columns"_a,
        "Whether each rank alone orders its conflicting ops: ops of a net lane may then begin early.");
    m.def("run_engines", &run_engines, "engines"_a, "options"_a);
    m.def(
        "meet",
        [](const Transports& transport, int tag, double limit_s) {
            const nb::gil_scoped_release release;
            try {
                const auto met = meet(*transport, tag, limit_s);
                return std::tuple(met.mine_ns, met.peer_ns, met.half_trip_ns);
            } catch (const TransportError& error) {
                throw std::runtime_error(error.message);
            }
        },
        "transport"_a, "tag"_a, "limit_s"_a, "This rank's clock, its parent's, and half the round trip: nanoseconds.");
    m.def("monotonic_s", &monotonic_s, "Seconds of CLOCK_MONOTONIC_RAW, the clock of spans.");
    m.def(
        "exchange_s",
        [](Bytes memory, int me, int count, double limit_s) {
            if (memory.size() < DT_EXCHANGE_BYTES || count < 1 || me < 0 || me > 1)
                throw std::invalid_argument("an exchange needs 256 bytes, a count, and a place of 0 or 1");
            const nb::gil_scoped_release release;
            return dt_exchange_s(memory.data(), me, count, limit_s);
        },
        "memory"_a, "me"_a, "count"_a, "limit_s"_a,
        "Seconds of an exchange of a word between two processes that map this memory; below 0 without the other.");
}
