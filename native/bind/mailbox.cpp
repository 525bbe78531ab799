// Python bindings of native/run/mailbox.hpp.
#include "run/mailbox.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>

#include "run/door.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace dovetail::run;

namespace {

// A mailbox, and what code that is compiled where it is used calls.
struct Post {
    explicit Post(std::shared_ptr<Transport> transport) : box(std::move(transport)) {}
    ~Post() {
        const nb::gil_scoped_release release;  // its thread may be in a Python callable
        box.close();
    }
    Mailbox box;
    dt_mail door{};
};

// A Python callable that any thread may call and drop.
Mailbox::Done called(nb::object done) {
    const std::shared_ptr<nb::object> kept(new nb::object(std::move(done)), [](nb::object* held) {
        const nb::gil_scoped_acquire gil;
        delete held;
    });
    return [kept](const Mailbox::Fault& fault, int source) {
        const nb::gil_scoped_acquire gil;
        (*kept)(fault.is_of_transport, fault.text, fault.found, source);
    };
}

Mailbox::Done called(dt_done done, void* about) {
    return [done, about](const Mailbox::Fault& fault, int source) {
        done(about, fault.is_of_transport, fault.text.c_str(), fault.found.c_str(), source);
    };
}

void send(Post& post, std::uintptr_t address, long long num_bytes, int target, long long tag, nb::object done) {
    auto ended = called(std::move(done));
    const nb::gil_scoped_release release;
    post.box.send(reinterpret_cast<const void*>(address), num_bytes, target, tag, std::move(ended));
}

void receive(Post& post, std::uintptr_t address, long long num_bytes, int source, long long tag, nb::object done) {
    auto ended = called(std::move(done));
    const nb::gil_scoped_release release;
    post.box.receive(reinterpret_cast<void*>(address), num_bytes, source, tag, std::move(ended));
}

bool wait(Post& post, const nb::object& has_ended, double limit_s) {
    const auto asks = [&] {
        const nb::gil_scoped_acquire gil;
        return nb::cast<bool>(has_ended());
    };
    const nb::gil_scoped_release release;
    return post.box.wait(asks, limit_s);
}

void send_through_door(void* box, const void* data, long long num_bytes, int target, long long tag, dt_done done,
                       void* about) {
    static_cast<Mailbox*>(box)->send(data, num_bytes, target, tag, called(done, about));
}

void receive_through_door(void* box, void* data, long long num_bytes, int source, long long tag, dt_done done,
                          void* about) {
    static_cast<Mailbox*>(box)->receive(data, num_bytes, source, tag, called(done, about));
}

int wait_through_door(void* box, int (*has_ended)(void*), void* about, double limit_s) {
    return static_cast<Mailbox*>(box)->wait([=] { return has_ended(about) != 0; }, limit_s);
}

std::uintptr_t door_of(Post& post) {
    post.door = {DT_DOOR_VERSION, &post.box, send_through_door, receive_through_door, wait_through_door};
    return reinterpret_cast<std::uintptr_t>(&post.door);
}

}  // namespace

void bind_mailbox(nb::module_& m) {
    nb::class_<Post>(m, "Mailbox")
        .def(nb::init<std::shared_ptr<Transport>>(), "transport"_a)
        .def("send", &send, "address"_a, "num_bytes"_a, "target"_a, "tag"_a, "done"_a,
             "Send bytes. `done` gets: whether the transport failed, the fault's text (empty: none), what was found, "
             "the source.")
        .def("receive", &receive, "address"_a, "num_bytes"_a, "source"_a, "tag"_a, "done"_a,
             "Receive a message with this tag from a rank, or (-1) from any.")
        .def("wait", &wait, "has_ended"_a, "limit_s"_a, "Poll until `has_ended()`. Return whether it has in time.")
        .def(
            "lose", [](Post& post, int rank, const std::string& why) { post.box.lose(rank, why); }, "rank"_a, "why"_a,
            nb::call_guard<nb::gil_scoped_release>(), "Let what is sent to a rank or awaited from it fail.")
        .def(
            "close", [](Post& post) { post.box.close(); }, nb::call_guard<nb::gil_scoped_release>(),
            "Cancel what has not ended.")
        .def("door", &door_of, "Address of a `dt_mail` (run/door.h), valid as long as this.");
}
