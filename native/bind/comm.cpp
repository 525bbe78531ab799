// Python bindings of native/run/comm: the call that a user's collective makes, and what it needs the first time.
#include "run/comm.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <thread>

#include "run/bound.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace dovetail::run;

namespace {

// A communicator, which lives as long as the user's own.
struct Bound {
    Bound(const dt_mpi_table* mpi, int fortran, void (*ends)(void*), void (*freed)(void*))
        : comm(mpi, fortran, ends, freed) {}
    Communicator comm;
    bool freed = false, busy = false;
    bool has_begun = false;  // calls that were begun come before all others
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

// False where an engine has to be added first. MPI may wait long: other threads go on meanwhile.
bool run(Bound& bound, const Call& call) {
    if (bound.freed) raise_run_error("the communicator was freed");
    if (std::exchange(bound.busy, true)) raise_run_error("another thread is in a collective on this communicator");
    std::string failure;
    bool done = true, other_failed = false;
    {
        const nb::gil_scoped_release release;
        try {
            done = bound.comm.run(call);
        } catch (const OtherRankFailed&) {
            other_failed = true;
        } catch (const TransportError& error) {
            failure = error.message;
        } catch (const std::exception& error) {
            failure = error.what();
        }
    }
    bound.busy = false;
    if (other_failed) raise_fault(bound);
    if (!failure.empty())
        raise_run_error(of_rank(bound, failure),
                        "look at the output of the rank that failed; with DOVETAIL_CHECK_CALLS=1 ranks compare their "
                        "arguments first");
    return done;
}

// A buffer of one piece, let go at the end.
class View {
  public:
    View(PyObject* object, bool writes) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writes ? PyBUF_WRITABLE : 0);
        good_ = PyObject_GetBuffer(object, &view_, flags) == 0;
        if (!good_) PyErr_Clear();
    }
    ~View() {
        if (good_) PyBuffer_Release(&view_);
    }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    explicit operator bool() const { return good_; }
    const Py_buffer* operator->() const { return &view_; }
    std::byte* data() const { return static_cast<std::byte*>(view_.buf); }

  private:
    Py_buffer view_;
    bool good_;
};

// What is reduced, by the letters of the buffer protocol; -1 for all else.
int dtype_of(const Py_buffer& view) {
    const std::string_view letters(view.format ? view.format : "B");
    if (letters == "Zf") return DT_COMPLEX64;
    if (letters == "Zd") return DT_COMPLEX128;
    if (letters.size() != 1) return -1;
    static const int wide_int[] = {DT_INT8, DT_INT16, DT_INT32, DT_INT64};
    static const int wide_uint[] = {DT_UINT8, DT_UINT16, DT_UINT32, DT_UINT64};
    const int width = view.itemsize == 1 ? 0 : view.itemsize == 2 ? 1 : view.itemsize == 4 ? 2 : 3;
    switch (letters[0]) {
        case 'e':
            return DT_FLOAT16;
        case 'f':
            return DT_FLOAT32;
        case 'd':
            return DT_FLOAT64;
        case 'b':
        case 'h':
        case 'i':
        case 'l':
        case 'q':
            return wide_int[width];
        case 'B':
        case 'H':
        case 'I':
        case 'L':
        case 'Q':
            return wide_uint[width];
        default:
            return -1;
    }
}

// What is only moved, by the size of an element; -1 where there is no type of that size.
int mover_of(const Py_buffer& view) {
    if (!view.format || std::strchr(view.format, 'O')) return -1;
    const auto size = view.itemsize;
    return size == 1 ? DT_UINT8 : size == 2 ? DT_FLOAT16 : size == 4 ? DT_INT32 : size == 8 ? DT_INT64 : -1;
}

int op_of(PyObject* op) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_Check(op) ? PyUnicode_AsUTF8AndSize(op, &size) : nullptr;
    if (!text) return PyErr_Clear(), -1;
    const std::string_view word(text, static_cast<std::size_t>(size));
    return word == "sum"    ? DT_SUM
           : word == "prod" ? DT_PROD
           : word == "min"  ? DT_MIN
           : word == "max"  ? DT_MAX
           : word == "avg"  ? DT_AVG
                            : -1;
}

bool may_reduce(int dtype, int op) {
    if (dtype < 0 || op < 0) return false;
    if (op == DT_AVG) return dtype <= DT_FLOAT64;
    return dtype < DT_COMPLEX64 || op <= DT_PROD;
}

// Subclasses may hold more than their elements, as masked arrays do: the caller looks closer at those.
bool is_array(nb::handle object) { return std::strcmp(Py_TYPE(object.ptr())->tp_name, "numpy.ndarray") == 0; }

// Elements of a part, where source and result fit together; -1 where they do not.
long long part_of(int kind, const Py_buffer& src, const Py_buffer& dst, int size) {
    const auto cut = [size](const Py_buffer& whole) { return whole.ndim > 0 && whole.shape[0] % size == 0; };
    switch (kind) {
        case DT_ALL_GATHER:
            return dst.len == src.len * size ? src.len / src.itemsize : -1;
        case DT_REDUCE_SCATTER:
            return src.len == dst.len * size && cut(src) ? dst.len / src.itemsize : -1;
        case DT_ALL_TO_ALL:
            return src.len == dst.len && cut(src) ? src.len / src.itemsize / size : -1;
        case DT_ALL_REDUCE:
        case DT_BROADCAST:
        case DT_ALL_TO_NEXT:
            return src.len == dst.len ? src.len / src.itemsize : -1;
        default:
            return -1;
    }
}

// The whole of a plain call. False where something is amiss, new or rare: the caller then looks closer.
bool call(int kind, nb::handle comm, nb::handle array, nb::handle out, nb::handle op, nb::handle root_rank) {
    Bound* bound = known(comm.ptr());
    if (!bound || bound->has_begun || (state().one_thread && std::this_thread::get_id() != state().main_thread))
        return false;
    const bool same = array.is(out);
    if (!is_array(array) || !(same || is_array(out))) return false;
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
        .def_prop_ro("freed", [](const Bound& b) { return b.freed; })
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
