// The Python module of native/torch, compiled where it is used, against the PyTorch found there.
#include "operators.hpp"

namespace {

using namespace dovetail::torch_group;
namespace distributed = c10d;

// A Python callable that any thread may call and drop.
std::shared_ptr<py::object> kept(py::object callable) {
    return {new py::object(std::move(callable)), [](py::object* held) {
                const py::gil_scoped_acquire gil;
                delete held;
            }};
}

py::object now(Worker& worker, py::object callable) {
    const auto act = kept(std::move(callable));
    const auto found = kept(py::none());
    {
        const NoGil free;
        worker.now([act, found] {
            const py::gil_scoped_acquire gil;
            *found = (*act)();
        });
    }
    return *found;
}

Worker::Work later(Worker& worker, py::object callable, const Group::Tensors& results, const std::string& title) {
    std::size_t num_bytes = 0;
    for (const auto& each : results) num_bytes += each.layout() == at::kStrided ? each.nbytes() : 0;
    const auto act = [callable = kept(std::move(callable))] {
        const py::gil_scoped_acquire gil;
        (*callable)();
    };
    return worker.later(act, title, results, num_bytes);
}

template <class Kind>
py::object error_of(const Kind& work) {
    if (const auto raised = work.exception()) try {
            std::rethrow_exception(raised);
        } catch (py::error_already_set& error) {
            return error.value();
        } catch (const std::exception& error) {
            return py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(error.what());
        }
    return py::none();
}

// A method that makes a call here, or else as the Python class's `slow` one.
template <class Begin, class... Arguments>
py::object made(Group& group, const char* slow, Begin begin, Arguments&... arguments) {
    if (const Group::Work work = (group.*begin)(arguments...)) return py::cast(work);
    return py::cast(&group, py::return_value_policy::reference).attr(slow)(arguments...);
}

// The same with arguments in other forms.
void define_slow(py::class_<Group, distributed::ProcessGroup, c10::intrusive_ptr<Group>>& group, const char* name,
                 std::string slow) {
    group.def(name, [slow](py::object self, const py::args& args, const py::kwargs& kwargs) {
        return self.attr(slow.c_str())(*args, **kwargs);
    });
}

}  // namespace

PYBIND11_MODULE(dovetail_torch, m) {
    py::module_::import("torch._C._distributed_c10d");
    py::class_<Collective, distributed::Work, c10::intrusive_ptr<Collective>>(m, "Collective")
        .def("exception", &error_of<Collective>);
    py::class_<Message, distributed::Work, c10::intrusive_ptr<Message>>(m, "Message")
        .def("exception", &error_of<Message>);
    py::class_<Worker, std::shared_ptr<Worker>>(m, "Worker")
        .def(py::init([](std::uintptr_t door) {
            const auto* by = reinterpret_cast<const dt_door*>(door);
            TORCH_CHECK(by->version == DT_DOOR_VERSION, "the native module and its sources differ: reinstall dovetail");
            return std::make_shared<Worker>([by](bool on) { by->rest(by->comm, by->number, on); });
        }))
        .def("now", &now)
        .def("later", &later, py::arg("callable"), py::arg("results"), py::arg("title") = "")
        .def("wake", &Worker::wake)
        .def("close", [](Worker& worker, double limit_s) {
            const NoGil free;
            return worker.close(std::chrono::milliseconds(static_cast<long long>(1e3 * limit_s)));
        });
    py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan")
        .def_property_readonly("calls", [](const Plan& plan) { return plan.calls.load(); })
        .def_property_readonly("total_s",
                               [](const Plan& plan) { return 1e-9 * static_cast<double>(plan.nanoseconds); });
    py::class_<Question, std::shared_ptr<Question>>(m, "Question");
    m.def("linear_all_reduce", &linear_all_reduce);
    m.def("linear_reduce_scatter", &linear_reduce_scatter);
    m.def("all_gather_linear", &all_gather_linear);
    py::class_<Group, distributed::ProcessGroup, c10::intrusive_ptr<Group>> group(m, "Group");
    group.def(py::init<int, int>())
        .def("open_door",
             [](Group& g, std::uintptr_t door, std::shared_ptr<Worker> worker) {
                 g.open(reinterpret_cast<const dt_door*>(door), std::move(worker));
             })
        .def("shut_door", &Group::shut)
        .def("open_mail", [](Group& g, std::uintptr_t mail) { g.open_mail(reinterpret_cast<const dt_mail*>(mail)); })
        .def("know", [](Group& g, const py::tuple& key, std::int64_t number,
                        const std::string& title) { return g.plans.know(Key::of(key), number, title); })
        .def("forget", [](Group& g, const py::tuple& key) { g.plans.forget(Key::of(key)); })
        .def("ask", &Group::ask)
        .def("settle", [](Group& g, Question& question, const std::string& title) { return g.settle(question, title); })
        .def_property_readonly("is_native", &Group::is_open)
        .def("name_in_cpp", [](Group& g, const std::string& name) { g.setGroupName(name); })
        .def("reduces", [](Group& g, at::ScalarType dtype, distributed::ReduceOp::RedOpType op, int to_dtype,
                           int to_op) { g.reduces(dtype, op, {to_dtype, to_op}); })
        .def_property(
            "turn", [](const Group& g) { return g.turn.load(); }, [](Group& g, long long turn) { g.turn = turn; });
    group.def("allreduce", [](Group& g, Group::Tensors tensors, const distributed::AllreduceOptions& opts) {
        return made(g, "slow_allreduce", &Group::try_allreduce, tensors, opts);
    });
    group.def("broadcast", [](Group& g, Group::Tensors tensors, const distributed::BroadcastOptions& opts) {
        return made(g, "slow_broadcast", &Group::try_broadcast, tensors, opts);
    });
    for (const char* name : {"all_gather_single", "_allgather_base"})
        group.def(name, [](Group& g, at::Tensor out, at::Tensor own, const distributed::AllgatherOptions& opts) {
            return made(g, "slow_all_gather_single", &Group::try_all_gather, out, own, opts);
        });
    for (const char* name : {"reduce_scatter_single", "_reduce_scatter_base"})
        group.def(name, [](Group& g, at::Tensor out, at::Tensor all, const distributed::ReduceScatterOptions& opts) {
            return made(g, "slow_reduce_scatter_single", &Group::try_reduce_scatter, out, all, opts);
        });
    group.def("barrier", [](Group& g, const distributed::BarrierOptions& opts) {
        return made(g, "slow_barrier", &Group::try_barrier, opts);
    });
    group.def("send", [](Group& g, Group::Tensors tensors, int target, int tag) {
        return made(g, "slow_send", &Group::try_send, tensors, target, tag);
    });
    group.def("recv", [](Group& g, Group::Tensors tensors, int source, int tag) {
        return made(g, "slow_recv", &Group::try_recv, tensors, source, tag);
    });
    group.def("recv_anysource", [](Group& g, Group::Tensors tensors, int tag) {
        return made(g, "slow_recv_anysource", &Group::try_recv_any, tensors, tag);
    });
    for (const auto& [name, slow] : {std::pair("allreduce", "slow_allreduce"),
                                     {"broadcast", "slow_broadcast"},
                                     {"all_gather_single", "slow_all_gather_single"},
                                     {"_allgather_base", "slow_all_gather_single"},
                                     {"reduce_scatter_single", "slow_reduce_scatter_single"},
                                     {"_reduce_scatter_base", "slow_reduce_scatter_single"},
                                     {"barrier", "slow_barrier"},
                                     {"send", "slow_send"},
                                     {"recv", "slow_recv"},
                                     {"recv_anysource", "slow_recv_anysource"}})
        define_slow(group, name, slow);
}
