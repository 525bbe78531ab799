// Python bindings of native/cuda/device: devices, streams and the interpreter on them. A module of its own, loaded when
// first used.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/interpreter.hpp"
#include "cuda/device/engines.hpp"
#include "cuda/device/interpreter.hpp"
#include "cuda/device/streams.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace dovetail;

namespace {

// What may enter a device, and what may take long there.
using Enters = nb::call_guard<cuda::CallersContext>;
using Waits = nb::call_guard<cuda::CallersContext, nb::gil_scoped_release>;

// An object that enters its device at its end, too.
template <class T, class... Arguments>
std::shared_ptr<T> made(Arguments&&... arguments) {
    return {new T(std::forward<Arguments>(arguments)...), [](T* object) {
                const cuda::CallersContext callers;
                delete object;
            }};
}

// Address, starts (an address on the device, or 0), bytes of a slot, offset, count, stride, blocks.
using PlaceRow =
    std::tuple<std::uintptr_t, std::uintptr_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using CopyRow = std::tuple<std::uintptr_t, std::uintptr_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using MoveRow = std::tuple<PlaceRow, PlaceRow, std::optional<PlaceRow>, int, int>;  // to, a, b, dtype, reduce op
using MatrixRow = std::tuple<std::uintptr_t, std::int64_t>;
using ProductRow =
    std::tuple<MatrixRow, MatrixRow, MatrixRow, std::tuple<std::int64_t, std::int64_t, std::int64_t>, int, bool>;
using ClearRow = std::tuple<std::uintptr_t, std::int64_t>;

cuda::Place place_of(const PlaceRow& row) {
    cuda::Place made;
    const auto& [base, starts, slot, offset, count, stride, blocks] = row;
    made.present = true, made.base = reinterpret_cast<std::byte*>(base);
    made.starts = starts ? static_cast<std::int64_t>(starts) : -1;
    made.slot = slot, made.offset = offset, made.count = count, made.stride = stride, made.blocks = blocks;
    return made;
}

cuda::Action action_of(const std::string& what, nb::handle row) {
    if (what == "copy") {
        const auto [to, from, width, height, to_pitch, from_pitch] = nb::cast<CopyRow>(row);
        return cuda::Copy{to, from, width, height, to_pitch, from_pitch};
    }
    if (what == "move") {
        const auto [to, a, b, dtype, reduce_op] = nb::cast<MoveRow>(row);
        cuda::Move made;
        made.to = place_of(to), made.a = place_of(a), made.combines = b.has_value();
        if (b) made.b = place_of(*b);
        made.dtype = dtype, made.reduce_op = reduce_op;
        return made;
    }
    if (what == "product") {
        const auto [a, b, c, shape, dtype, accumulate] = nb::cast<ProductRow>(row);
        const auto matrix = [](const MatrixRow& r) { return cuda::Matrix{std::get<0>(r), std::get<1>(r)}; };
        const auto [m, k, n] = shape;
        return cuda::Product{matrix(a), matrix(b), matrix(c), m, k, n, dtype, accumulate};
    }
    if (what == "clear") {
        const auto [at, bytes] = nb::cast<ClearRow>(row);
        return cuda::Clear{at, bytes};
    }
    return std::monostate{};
}

cuda::StreamOptions options_of(int copy_blocks, int move_blocks, int processors, bool overlapping, bool stamps) {
    cuda::StreamOptions made;
    made.copy_blocks = copy_blocks, made.move_blocks = move_blocks, made.product_processors = processors;
    made.overlapping = overlapping, made.stamps = stamps;
    return made;
}

nb::dict facts_of(const cuda::Device& device) {
    const auto& facts = device.facts();
    nb::dict found;
    found["device"] = facts.name;
    found["driver_version"] = facts.driver_version;
    found["compute_capability"] = nb::make_tuple(facts.major, facts.minor);
    found["multiprocessors"] = facts.processors;
    found["copy_engines"] = facts.copy_engines;
    found["clock_hz"] = 1e3 * facts.clock_khz;
    found["memory_bytes"] = facts.memory_bytes;
    found["cache_bytes"] = facts.cache_bytes;
    return found;
}

// Where an array of another library lies, and what it is: address, device type and number, shape, dtype code and bits.
nb::object described(const nb::ndarray<>& array) {
    std::vector<std::int64_t> shape;
    std::int64_t size = 1;
    bool in_rows = true;
    for (std::size_t i = array.ndim(); i-- > 0;) {
        shape.insert(shape.begin(), static_cast<std::int64_t>(array.shape(i)));
        in_rows &= array.shape(i) <= 1 || array.stride(i) == size;
        size *= static_cast<std::int64_t>(array.shape(i));
    }
    return nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data()), array.device_type(), array.device_id(), shape,
                          static_cast<int>(array.dtype().code), static_cast<int>(array.dtype().bits), in_rows);
}

void copy_out(const cuda::Device& device, std::uintptr_t to, std::uintptr_t from, std::int64_t bytes) {
    const cuda::Stream stream(device);
    device.copy(to, from, bytes, stream);
    stream.synchronize();
}

void fill(const cuda::Device& device, std::uintptr_t at, int value, std::int64_t bytes) {
    const cuda::Stream stream(device);
    if (bytes > 0)
        cuda::check(cuda::driver().cuMemsetD8Async(at, static_cast<unsigned char>(value),
                                                   static_cast<std::size_t>(bytes), stream),
                    "setting memory");
    stream.synchronize();
}

void bind_device(nb::module_& m) {
    nb::class_<cuda::Device>(m, "Device")
        .def("facts", &facts_of)
        .def("free_bytes", &cuda::Device::free_bytes, Enters())
        .def("synchronize", &cuda::Device::synchronize, Waits())
        .def("fill", &fill, "address"_a, "value"_a, "num_bytes"_a, Waits(), "Sets bytes, and waits for their end.")
        .def("copy", &copy_out, "to"_a, "source"_a, "num_bytes"_a, Waits(),
             "Copies bytes by address, and waits for their end.");
    m.def("open_device", [](int index) { return made<cuda::Device>(index); }, "index"_a, Enters());
    nb::class_<cuda::Block>(m, "Block")
        .def_prop_ro("address", &cuda::Block::address)
        .def_prop_ro("num_bytes", &cuda::Block::bytes);
    m.def(
        "allocate",
        [](std::shared_ptr<cuda::Device> device, std::int64_t bytes, bool on_host) {
            return made<cuda::Block>(std::move(device), bytes, on_host);
        },
        "device"_a, "num_bytes"_a, "on_host"_a, Enters());
    m.def("describe", &described, "array"_a, "Of any array that speaks DLPack.");
    m.def(
        "as_array",
        [](std::uintptr_t address, const std::vector<std::size_t>& shape, int code, int bits, int index,
           nb::object owner) {
            const nb::dlpack::dtype dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
            return nb::ndarray<>(reinterpret_cast<void*>(address), shape.size(), shape.data(), owner, nullptr, dtype,
                                 nb::device::cuda::value, index);
        },
        "address"_a, "shape"_a, "code"_a, "bits"_a, "device"_a, "owner"_a, "An array on the device, for DLPack.");
}

void bind_streams(nb::module_& m) {
    nb::class_<cuda::Blas>(m, "Blas").def_prop_ro("path", &cuda::Blas::path).def("version", &cuda::Blas::version);
    m.def(
        "open_blas",
        [](std::shared_ptr<cuda::Device> device, const std::vector<std::string>& paths) {
            return made<cuda::Blas>(std::move(device), paths);
        },
        "device"_a, "paths"_a, Enters());
    nb::class_<cuda::Streams>(m, "Streams")
        .def("run", &cuda::Streams::run, Waits())
        .def("capture", &cuda::Streams::capture, Waits())
        .def("replay", &cuda::Streams::replay, Waits())
        .def("total_s", &cuda::Streams::total_s, Enters())
        .def("enqueue_s", &cuda::Streams::enqueue_s)
        .def(
            "spans",
            [](const cuda::Streams& streams) {
                bind::Spans found;
                streams.spans(std::get<0>(found), std::get<1>(found), std::get<2>(found));
                return found;
            },
            Enters());
    m.def(
        "streams",
        [](const std::vector<std::shared_ptr<cuda::Device>>& devices,
           const std::vector<std::shared_ptr<cuda::Blas>>& blas, std::vector<int> seat_of, nb::list commands,
           int copy_blocks, int move_blocks, int processors, bool overlapping, bool stamps) {
            std::vector<cuda::Seat> seats;
            for (std::size_t i = 0; i < devices.size(); ++i)
                seats.push_back({devices[i], blas.empty() ? nullptr : blas.at(i)});
            std::vector<cuda::Command> given;
            for (nb::handle each : commands) {
                const auto [stream, row, waits, what, action] =
                    nb::cast<std::tuple<int, std::int64_t, std::vector<std::int32_t>, std::string, nb::object>>(each);
                given.push_back({stream, row, waits, action_of(what, action)});
            }
            return made<cuda::Streams>(std::move(seats), std::move(seat_of), std::move(given),
                                       options_of(copy_blocks, move_blocks, processors, overlapping, stamps));
        },
        "devices"_a, "blas"_a, "seat_of"_a, "commands"_a, "copy_blocks"_a, "move_blocks"_a, "processors"_a,
        "overlapping"_a, "stamps"_a, Enters());
}

void bind_interpreter(nb::module_& m) {
    nb::class_<cuda::DeviceInterpreter>(m, "DeviceInterpreter")
        .def("run", &cuda::DeviceInterpreter::run, "reduce_op"_a, "stall_s"_a, "stamps"_a, Waits())
        .def("total_s", &cuda::DeviceInterpreter::total_s)
        .def("threads", &cuda::DeviceInterpreter::threads)
        .def("facts", [](const cuda::DeviceInterpreter& each) { return bind::facts_of(each.loaded()); })
        .def(
            "spans",
            [](const cuda::DeviceInterpreter& each) {
                const auto spans = each.spans();
                return spans.empty() ? bind::Spans{} : bind::spans_of(each.loaded().image, spans.data());
            },
            Enters());
    m.def(
        "device_interpreter",
        [](std::shared_ptr<cuda::Device> device, int threads, const bind::Table& columns, int num_ranks,
           const bind::Channels& channels, const bind::Memories& memory, const std::vector<std::int64_t>& order,
           int protocol, std::int64_t place_bytes, std::int64_t slice_bytes) {
            const cuda::Layout layout{static_cast<cuda::Protocol>(protocol), place_bytes, slice_bytes};
            auto loaded = bind::load(columns, num_ranks, channels, memory, order, layout);
            return made<cuda::DeviceInterpreter>(std::move(device), std::move(loaded), threads);
        },
        "device"_a, "threads"_a, "columns"_a, "num_ranks"_a, "channels"_a, "memory"_a, "order"_a, "protocol"_a,
        "place_bytes"_a, "slice_bytes"_a, Enters());
}

}  // namespace

NB_MODULE(_cuda, m) {
    m.doc() = "Native parts of dovetail.run that need the CUDA driver.";
    nb::register_exception_translator([](const std::exception_ptr& caught, void*) {
        try {
            std::rethrow_exception(caught);
        } catch (const cuda::DeviceFault& fault) {
            const auto type = nb::module_::import_("dovetail.core").attr("EnvironmentFault");
            const auto hint = fault.hint.empty() ? nb::object(nb::none()) : nb::object(nb::str(fault.hint.c_str()));
            const auto made = type(nb::str(fault.what()), "hint"_a = hint);
            PyErr_SetObject(type.ptr(), made.ptr());
        }
    });
    bind_device(m), bind_streams(m), bind_interpreter(m);
    m.def(
        "try_engines",
        [](const std::shared_ptr<cuda::Device>& device, const std::vector<std::int64_t>& sizes, double limit_s) {
            std::vector<std::tuple<std::string, std::int64_t, bool, std::string>> rows;
            for (const auto& each : cuda::try_engines(device, sizes, limit_s))
                rows.emplace_back(each.variant, each.bytes, each.beside, each.failure);
            return rows;
        },
        "device"_a, "sizes"_a, "limit_s"_a, Waits());
}
