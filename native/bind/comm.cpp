// Python bindings of native/run/comm: the call that a user's collective makes, and what it needs the first time.
#include "run/comm.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "bind/arrays.hpp"
#include "run/bound.hpp"
#include "run/door.h"
#include "shm/transport.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace dovetail::run;
using namespace dovetail::bind;

namespace {

// A communicator, which lives as long as the user's own.
struct Bound {
    Bound(const dt_mpi_table* mpi, int fortran, void (*ends)(void*), void (*freed)(void*))
        : comm(mpi, fortran, ends, freed) {}
    Communicator comm;
    std::atomic<bool> freed{false}, busy{false};
    bool has_begun = false;  // calls that were begun come before all others
    dt_door door{};
};
using Shared = std::shared_ptr<Bound>;

// The communicator of a Python object that was passed lately. It holds a reference to the object: otherwise another
// object could get the same address, and would be taken for it.
struct Known {
    PyObject* object = nullptr;
    Bound* bound = nullptr;
};

// Everything here is touched with the GIL held, and never destroyed: MPI may end after Python.
struct State {
    std::map<Communicator*, Shared> all;
    std::array<Known, 4> latest;
    std::size_t next = 0;
    bool one_thread = false;  // MPI was started for calls by the main thread only
    std::thread::id main_thread;
};
State& state() {
    static auto* kept = new State;
    return *kept;
}

void forget(Known& known) { Py_XDECREF(std::exchange(known, {}).object); }

// The calls that were begun end first: their communicator still serves them.
void on_end(void* owner) {
    const nb::gil_scoped_acquire gil;
    const auto found = state().all.find(static_cast<Communicator*>(owner));
    if (found == state().all.end() || !found->second->has_begun) return;
    const Shared kept = found->second;
    try {
        nb::module_::import_("dovetail.run.ranks.comm").attr("end_begun")(kept);
    } catch (nb::python_error& error) {
        if (error.matches(PyExc_KeyboardInterrupt)) return PyErr_SetInterrupt();  // raised when Python goes on
        error.discard_as_unraisable("a communicator is freed");
    }
}

void on_freed(void* owner) {
    const nb::gil_scoped_acquire gil;
    const auto found = state().all.find(static_cast<Communicator*>(owner));
    if (found == state().all.end()) return;
    for (auto& known : state().latest)
        if (known.bound == found->second.get()) forget(known);
    found->second->freed = true;
    found->second->comm.clear();
    state().all.erase(found);
}

Bound* known(PyObject* object) {
    for (const auto& entry : state().latest)
        if (entry.object == object) return entry.bound;
    return nullptr;
}

[[noreturn]] void raise_run_error(const std::string& message, const char* hint = nullptr) {
    const nb::object error = nb::module_::import_("dovetail.core").attr("RunError");
    const nb::object raised = hint ? error(message, "hint"_a = hint) : error(message);
    PyErr_SetObject(error.ptr(), raised.ptr());
    throw nb::python_error();
}

// Of what a board is asked: some rank may have died while it changed it.
template <class Ask>
auto asked(Ask ask) {
    try {
        return ask();
    } catch (const TransportError& error) {
        raise_run_error(error.message);
    }
}

std::string of_rank(const Bound& bound, const std::string& failure) {
    return failure.starts_with("rank ") ? failure : "rank " + std::to_string(bound.comm.rank()) + ": " + failure;
}

// After another rank failed before a transfer: raises its error.
[[noreturn]] void raise_fault(Bound& bound) {
    nb::module_::import_("dovetail.run.faults").attr("raise_fault")(nb::cast(bound, nb::rv_policy::reference));
    throw std::logic_error("raise_fault returned");
}

// Makes a call by `make`, which is false where an engine is needed, and returns what became of it (door.h). `failure`
// gets the cause.
template <class Make>
int attempt(Bound& bound, std::string& failure, Make make) {
    if (bound.freed) return failure = "the communicator was freed", DT_CALL_FAILED;
    if (bound.busy.exchange(true))
        return failure = "another thread is in a collective on this communicator", DT_CALL_FAILED;
    int outcome = DT_CALL_DONE;
    try {
        if (!make(bound.comm)) outcome = DT_CALL_NEEDS_ENGINE;
    } catch (const OtherRankFailed&) {
        outcome = DT_CALL_OTHER_FAILED;
    } catch (const TransportError& error) {
        outcome = DT_CALL_FAILED;
        failure = of_rank(bound, error.message);
    } catch (const std::exception& error) {
        outcome = DT_CALL_FAILED;
        failure = of_rank(bound, error.what());
    }
    bound.busy = false;
    return outcome;
}

// False where an engine has to be added first. MPI may wait long: other threads go on meanwhile.
bool run(Bound& bound, const Call& call) {
    std::string failure;
    int outcome = DT_CALL_DONE;
    {
        const nb::gil_scoped_release release;
        outcome = attempt(bound, failure, [&](Communicator& on) { return on.run(call); });
    }
    if (outcome == DT_CALL_OTHER_FAILED) raise_fault(bound);
    constexpr auto hint =
        "look at the output of the rank that failed; with DOVETAIL_CHECK_CALLS=1 ranks compare their arguments first";
    if (outcome == DT_CALL_FAILED) raise_run_error(failure, failure.starts_with("rank ") ? hint : nullptr);
    return outcome == DT_CALL_DONE;
}

Call call_of(const dt_asked& asked) {
    Call call;
    call.kind = asked.kind;
    call.src = static_cast<const std::byte*>(asked.src);
    call.dst = static_cast<std::byte*>(asked.dst);
    call.count = asked.count;
    call.dtype = asked.dtype;
    call.op = asked.op;
    call.root = asked.root;
    call.num_bytes = asked.num_bytes;
    return call;
}

int call_through_door(void* comm, const dt_asked* asked, char* text, int size) {
    std::string failure;
    const int outcome = attempt(*static_cast<Bound*>(comm), failure, [&](Communicator& on) {
        return asked->kind == DT_BARRIER ? (on.library(call_of(*asked)), true) : on.run(call_of(*asked));
    });
    std::snprintf(text, static_cast<std::size_t>(size), "%s", failure.c_str());
    return outcome;
}

int library_through_door(void* comm, const dt_asked* asked, char* text, int size) {
    std::string failure;
    const int outcome = attempt(*static_cast<Bound*>(comm), failure,
                                [&](Communicator& on) { return on.library(call_of(*asked)), true; });
    std::snprintf(text, static_cast<std::size_t>(size), "%s", failure.c_str());
    return outcome;
}

// A call that cannot begin is made later, and then says why it fails.
int begin_through_door(void* comm, const dt_asked* asked) {
    auto& bound = *static_cast<Bound*>(comm);
    try {
        return bound.freed ? -1 : bound.comm.begin(call_of(*asked));
    } catch (const std::exception&) {
        return -1;
    } catch (const TransportError&) {
        return -1;
    }
}

int finish_through_door(void* comm, const dt_asked* asked, int handle, char* text, int size) {
    std::string failure;
    const int outcome = attempt(*static_cast<Bound*>(comm), failure,
                                [&](Communicator& on) { return on.finish(call_of(*asked), handle), true; });
    std::snprintf(text, static_cast<std::size_t>(size), "%s", failure.c_str());
    return outcome;
}

void rest_through_door(void* comm, int number, int on) {
    static_cast<Bound*>(comm)->comm.transport()->rests = on != 0;
    if (number >= 0) dovetail::shm::rest(number, on != 0);
}

std::uintptr_t door_of(Bound& bound, int number) {
    bound.door = {
        DT_DOOR_VERSION,     &bound,           number, call_through_door, library_through_door, begin_through_door,
        finish_through_door, rest_through_door};
    return reinterpret_cast<std::uintptr_t>(&bound.door);
}

// The whole of a plain call. False where something is amiss, new or rare: the caller then looks closer.
bool call(int kind, nb::handle comm, nb::handle array, nb::handle out, nb::handle op, nb::handle root_rank) {
    Bound* bound = known(comm.ptr());
    if (!bound || bound->has_begun || (state().one_thread && std::this_thread::get_id() != state().main_thread))
        return false;
    const bool same = array.is(out);
    if (!is_array(array.ptr()) || !(same || is_array(out.ptr()))) return false;
    const View src(array.ptr(), same);
    if (!src) return false;
    std::optional<View> other;
    if (!same && !other.emplace(out.ptr(), true)) return false;
    const View& dst = same ? src : *other;
    const bool reduces = kind == DT_ALL_REDUCE || kind == DT_REDUCE_SCATTER;
    Call asked;
    asked.kind = kind;
    asked.op = reduces ? op_of(op.ptr()) : DT_SUM;
    asked.dtype = reduces ? dtype_of(*src.operator->()) : mover_of(*src.operator->());
    if (asked.dtype < 0 || (reduces && !may_reduce(asked.dtype, asked.op))) return false;
    if (!same && std::strcmp(src->format, dst->format) != 0) return false;
    asked.count = part_of(kind, *src.operator->(), *dst.operator->(), bound->comm.size());
    const long root = PyLong_CheckExact(root_rank.ptr()) ? PyLong_AsLong(root_rank.ptr()) : -1;
    if (asked.count < 0 || root < 0 || root >= bound->comm.size()) return PyErr_Clear(), false;
    asked.root = static_cast<int>(root);
    asked.num_bytes = std::max(src->len, dst->len);
    asked.src = src.data();
    asked.dst = dst.data();
    return run(*bound, asked);
}

Call call_of(int kind, std::uintptr_t src, std::uintptr_t dst, long long count, int dtype, int op, int root,
             long long num_bytes, std::vector<long long> counts, const nb::bytes& all_counts) {
    return {kind,
            reinterpret_cast<const std::byte*>(src),
            reinterpret_cast<std::byte*>(dst),
            count,
            dtype,
            op,
            root,
            num_bytes,
            std::move(counts),
            std::string(all_counts.c_str(), all_counts.size())};
}

bool run_words(Bound& bound, int kind, std::uintptr_t src, std::uintptr_t dst, long long count, int dtype, int op,
               int root, long long num_bytes, std::vector<long long> counts, const nb::bytes& all_counts) {
    return run(bound, call_of(kind, src, dst, count, dtype, op, root, num_bytes, std::move(counts), all_counts));
}

// For benchmarks: seconds of one of `times` equal calls, without Python between them.
double timed(Bound& bound, int kind, std::uintptr_t src, std::uintptr_t dst, long long count, int dtype, int op,
             int root, long long num_bytes, std::vector<long long> counts, const nb::bytes& all_counts, int times) {
    const Call asked = call_of(kind, src, dst, count, dtype, op, root, num_bytes, std::move(counts), all_counts);
    const nb::gil_scoped_release release;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) bound.comm.run(asked);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
}

void add_words(Bound& bound, int kind, std::uintptr_t src, std::uintptr_t dst, long long count, int dtype, int op,
               int root, long long num_bytes, std::vector<long long> counts, const nb::bytes& all_counts,
               std::shared_ptr<BoundEngine> engine, const Options& options, bool in_place, int input, int output,
               std::vector<std::pair<int, std::size_t>> scratch, std::shared_ptr<dovetail::shm::Script> script) {
    std::shared_ptr<Engine> held;
    if (engine) held = {engine, engine->engine.get()};
    bound.comm.add(call_of(kind, src, dst, count, dtype, op, root, num_bytes, std::move(counts), all_counts),
                   {std::move(held), std::move(script), options, in_place, input, output, std::move(scratch), 0});
}

void by_library(Bound& bound, int kind, std::uintptr_t src, std::uintptr_t dst, long long num_bytes) {
    Call call;
    call.kind = kind;
    call.src = reinterpret_cast<const std::byte*>(src);
    call.dst = reinterpret_cast<std::byte*>(dst);
    call.count = num_bytes;
    call.num_bytes = num_bytes;
    call.dtype = DT_UINT8;
    try {
        const nb::gil_scoped_release release;
        return bound.comm.library(call);
    } catch (const TransportError& error) {
        raise_run_error(error.message);
    } catch (const OtherRankFailed&) {
    }
    raise_fault(bound);
}

Board& board_of(Bound& bound) {
    if (!bound.comm.board) raise_run_error("the ranks of this communicator share no memory");
    return *bound.comm.board;
}

// The next call that this rank owes the others before it raises a fault: its number (0: none), the ranks that have not
// come to it, and its kind, count, dtype, op, root, bytes, whether it goes by the rules, whether it was begun, and all
// counts; kind -1 where nobody recorded it.
nb::tuple owed(Bound& bound) {
    Board& board = board_of(bound);
    const std::uint64_t number = asked([&] { return board.owed(); });
    if (!number) return nb::make_tuple(number, nb::tuple(), -1);
    const auto found = asked([&] { return board.recorded(number); });
    const nb::object absent = nb::tuple(nb::cast(board.absent(number)));
    if (!found) return nb::make_tuple(number, absent, -1);
    const auto& [call, counts] = *found;
    return nb::make_tuple(number, absent, int{call.kind}, call.count, int{call.dtype}, int{call.op}, call.root,
                          call.num_bytes, bool{call.by_rules}, bool{call.begun},
                          nb::bytes(counts.data(), counts.size()));
}

// It waits for the other ranks, which may be threads of this process: those go on meanwhile.
Shared adopt(std::uintptr_t table, int fortran) {
    const auto* mpi = reinterpret_cast<const dt_mpi_table*>(table);
    const Shared made = asked([&] {
        const nb::gil_scoped_release release;
        return std::make_shared<Bound>(mpi, fortran, on_end, on_freed);
    });
    state().all[&made->comm] = made;
    return made;
}

Shared find(std::uintptr_t table, int fortran) {
    void* owner = nullptr;
    reinterpret_cast<const dt_mpi_table*>(table)->find(fortran, &owner);
    const auto found = state().all.find(static_cast<Communicator*>(owner));
    return found == state().all.end() ? nullptr : found->second;
}

void remember(nb::handle object, const Shared& bound) {
    for (auto& entry : state().latest)
        if (entry.object == object.ptr()) return void(entry.bound = bound.get());
    auto& place = state().latest[state().next++ % state().latest.size()];
    forget(place);
    Py_INCREF(object.ptr());
    place = {object.ptr(), bound.get()};
}

// Called when Python ends: from then on nothing of Python's may be held.
void let_go() {
    for (auto& entry : state().latest) forget(entry);
    for (auto& [key, bound] : state().all) bound->comm.clear();
}

std::pair<int, bool> setup(std::uintptr_t table, std::uintptr_t reduce) {
    int provided = 0, is_main = 0;
    const auto* mpi = reinterpret_cast<const dt_mpi_table*>(table);
    const int code = mpi->setup(&provided, &is_main, reinterpret_cast<dt_reduce_fn>(reduce));
    if (code) raise_run_error("MPI refuses calls: has it begun, or ended?");
    constexpr int serialized = 2;                                      // as MPICH and Open MPI number it
    state().one_thread = state().one_thread || provided < serialized;  // ranks without MPI may come later
    if (is_main) state().main_thread = std::this_thread::get_id();
    return {provided, is_main != 0};
}

}  // namespace

void bind_comm(nb::module_& m) {
    nb::class_<Bound>(m, "Communicator")
        .def_prop_ro("key", [](const Bound& b) { return reinterpret_cast<std::uintptr_t>(&b); })
        .def_prop_ro("address", [](const Bound& b) { return reinterpret_cast<std::uintptr_t>(b.comm.comm()); })
        .def_prop_ro("rank", [](const Bound& b) { return b.comm.rank(); })
        .def_prop_ro("size", [](const Bound& b) { return b.comm.size(); })
        .def_prop_ro("freed", [](const Bound& b) { return b.freed.load(); })
        .def_prop_ro("num_engines", [](const Bound& b) { return b.comm.num_engines(); })
        .def(
            "keep",
            [](Bound& b, std::size_t engines, long long bytes) {
                b.comm.most_engines = engines;
                b.comm.most_bytes = bytes;
            },
            "engines"_a, "num_bytes"_a, "How many engines are kept, and of how many bytes of calls.")
        .def_prop_ro("transport", [](const Bound& b) -> std::shared_ptr<Transport> { return b.comm.transport(); })
        .def(
            "set_rules",
            [](Bound& b, int kind, const std::vector<std::pair<long long, int>>& rules, int dtype) {
                std::vector<Rule> found;
                for (const auto& [least, choice] : rules) found.push_back({least, choice});
                b.comm.set_rules(kind, std::move(found), dtype);
            },
            "kind"_a, "rules"_a, "dtype"_a = -1,
            "(least bytes, choice) each, for one dtype or (-1) any; choice -1 is the library's own call.")
        .def(
            "choice",
            [](const Bound& b, int kind, long long bytes, int dtype) { return b.comm.choice(kind, bytes, dtype); },
            "kind"_a, "num_bytes"_a, "dtype"_a = -1)
        .def(
            "clear", [](Bound& b) { b.comm.clear(); }, "Forgets its engines.")
        .def_prop_ro("has_board", [](const Bound& b) { return b.comm.board != nullptr; })
        .def(
            "share", [](Bound& b, dovetail::shm::Segment& memory) { b.comm.share(std::move(memory)); }, "memory"_a,
            "Takes a segment of `comm_shared_bytes` that all ranks have mapped.")
        .def("hide", [](const Bound& b) { b.comm.hide(); })
        .def("unshare", [](Bound& b) { b.comm.unshare(); })
        .def_prop_ro(
            "neighbours", [](const Bound& b) { return b.comm.neighbours(); }, "Channels between all ranks, or None.")
        .def(
            "post",
            [](Bound& b, const std::string& kind, const std::string& text) {
                return b.comm.board && asked([&] { return board_of(b).post(kind, text); });
            },
            "kind"_a, "text"_a,
            "Whether the other ranks raise this rank's error, or this rank its own in place of theirs.")
        .def(
            "fault",
            [](Bound& b) {
                const Posted found = asked([&] { return board_of(b).fault(); });
                return nb::make_tuple(found.rank, found.kind, nb::bytes(found.text.data(), found.text.size()));
            },
            nb::sig("def fault(self) -> tuple[int, str, bytes]"))
        .def("owed", &owed, nb::sig("def owed(self) -> typing.Any"))
        .def_prop_rw(
            "standing_in", [](const Bound& b) { return b.comm.standing_in; },
            [](Bound& b, bool on) { b.comm.standing_in = on; })
        .def_rw("has_begun", &Bound::has_begun,
                "Whether calls were begun that have not ended: `comm_call` leaves all to others.")
        .def("acknowledge", [](Bound& b) { board_of(b).acknowledge(); })
        .def("door", &door_of, "number"_a = -1,
             "Address of a `dt_door` (run/door.h), valid as long as this. `number`: of the communicator of one host.")
        .def("library", &by_library, "kind"_a, "src"_a, "dst"_a, "num_bytes"_a, "By the library, without rules.")
        .def("run", &run_words, "kind"_a, "src"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, "root"_a, "num_bytes"_a,
             "counts"_a, "all_counts"_a, "Returns False if the caller must add an engine first.")
        .def("timed", &timed, "kind"_a, "src"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, "root"_a, "num_bytes"_a,
             "counts"_a, "all_counts"_a, "times"_a, "Make `times` equal calls from C++; return the seconds of one.")
        .def("add", &add_words, "kind"_a, "src"_a, "dst"_a, "count"_a, "dtype"_a, "op"_a, "root"_a, "num_bytes"_a,
             "counts"_a, "all_counts"_a, "engine"_a.none(), "options"_a, "in_place"_a, "input"_a, "output"_a,
             "scratch"_a, "script"_a.none() = nb::none(),
             "The engine or script for such calls from now on; without one, the library's call.");
    m.def("comm_setup", &setup, "table"_a, "reduce"_a, "The thread level of MPI, and whether this is its main thread.");
    m.def("comm_adopt", &adopt, "table"_a, "fortran"_a, "Collective over the user's communicator.");
    m.def("comm_shared_bytes", &Communicator::shared_bytes, "size"_a, "most_bytes"_a,
          "Bytes of the memory that `size` ranks share, if their channels take `most_bytes` at most.");
    m.def("comm_find", &find, "table"_a, "fortran"_a, "What was adopted for the user's communicator, or None.");
    m.def("comm_remember", &remember, "object"_a, "communicator"_a, "`call` knows this Python object from now on.");
    m.def("comm_let_go", &let_go, "Forgets all that is Python's, at its end.");
    m.def("comm_call", &call, "kind"_a, "comm"_a.none(), "array"_a.none(), "out"_a.none(), "op"_a.none(),
          "root"_a.none(), "Does a plain call whole, or returns False.");
}
