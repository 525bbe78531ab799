// The operators as dovetail.torch calls them: each returns None for a call that Python has to make.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include "gradients.hpp"

namespace dovetail::torch_group {

// As `is_eager` of src/dovetail/torch/dispatch.py: whether torch's dispatcher would add nothing to a call but time.
inline bool is_eager() {
    using c10::DispatchKey;
    for (const auto key :
         {DispatchKey::FuncTorchDynamicLayerFrontMode, DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::Tracer})
        if (c10::impl::tls_is_dispatch_key_included(key)) return false;
    return !c10::impl::TorchDispatchModeTLS::stack_len() && !at::impl::PythonTorchFunctionTLS::stack_len() &&
           !at::autocast::is_autocast_enabled(at::kCPU) && !at::hasCallbacks();
}

// Reads arguments. False: one of them is for Python.
class Arguments {
  public:
    bool add(py::handle tensor) {
        if (!THPVariable_CheckExact(tensor.ptr())) return false;
        const Tensor& found = THPVariable_Unpack(tensor.ptr());
        const bool is_plain = found.device().is_cpu() && found.layout() == at::kStrided && found.dim() > 1 &&
                              !found.is_quantized() && !found.is_conj() && !found.is_neg();
        return tensors.push_back(found), is_plain;
    }
    // A tensor, or a list of `count` or more; returns how many, 0 for Python's.
    std::size_t add_several(py::handle given) {
        if (THPVariable_Check(given.ptr())) return add(given);
        if (!py::isinstance<py::list>(given) && !py::isinstance<py::tuple>(given)) return 0;
        std::size_t count = 0;
        for (const auto each : given) {
            if (!add(each)) return 0;
            ++count;
        }
        return count;
    }
    // A bias, or None, for each of `count` weights.
    bool add_biases(py::handle given, std::size_t count) {
        has_bias.assign(count, false);
        if (given.is_none()) return true;
        if (THPVariable_Check(given.ptr())) return count == 1 && (has_bias[0] = add_row(given));
        if (!py::isinstance<py::list>(given) && !py::isinstance<py::tuple>(given)) return false;
        std::size_t place = 0;
        for (const auto each : given) {
            if (place == count || (!each.is_none() && !add_row(each))) return false;
            has_bias[place++] = !each.is_none();
        }
        return place == count;
    }
    std::vector<Tensor> tensors;
    std::vector<bool> has_bias;

  private:
    bool add_row(py::handle tensor) {
        if (!THPVariable_CheckExact(tensor.ptr())) return false;
        tensors.push_back(THPVariable_Unpack(tensor.ptr()));
        return tensors.back().device().is_cpu() && tensors.back().dim() == 1;
    }
};

// The group that is given itself or by its name; null if its calls are made in Python.
inline c10::intrusive_ptr<Group> group_of(py::handle given) {
    if (py::isinstance<py::str>(given)) {
        const auto name = given.cast<std::string>();
        try {
            return group_named(name);
        } catch (const c10::Error&) {  // there is none: Python reports it
            return {};
        }
    }
    if (!py::isinstance<Group>(given)) return {};
    return given.cast<c10::intrusive_ptr<Group>>();
}

// What the operators share: reads the arguments, and returns what is served, or none.
struct Read {
    Arguments arguments;
    c10::intrusive_ptr<Group> group;
    Saved about;
    std::size_t count = 0;

    bool reductions(py::handle input, py::handle weight, py::handle bias, py::handle in, const std::string& op,
                    std::int64_t dim) {
        count = is_eager() ? arguments.add_several(input) : 0;
        if (!count || arguments.add_several(weight) != count || !arguments.add_biases(bias, 1)) return false;
        const bool averages = op == "avg";
        return (averages || op == "sum") && has_group(in) && keep(averages, dim, false);
    }
    bool gather(py::handle input, py::handle weight, py::handle bias, py::handle in, std::int64_t dim, bool gathered) {
        if (!is_eager() || !arguments.add(input)) return false;
        count = arguments.add_several(weight);
        return count && arguments.add_biases(bias, count) && has_group(in) && keep(false, dim, gathered);
    }
    Tensors inputs() const { return part(arguments.tensors, 0, count); }
    Tensors weights() const { return part(arguments.tensors, count, count); }
    Tensor bias() const { return arguments.has_bias[0] ? arguments.tensors.back() : Tensor(); }

  private:
    bool has_group(py::handle in) { return (group = group_of(in)) && group->is_open(); }
    bool keep(bool averages, std::int64_t dim, bool gathered) {
        about = c10::make_intrusive<About>(group->getGroupName(), averages, dim, count, arguments.has_bias, gathered);
        return true;
    }
};

inline py::object linear_all_reduce(py::handle input, py::handle weight, py::handle bias, py::handle group,
                                    const std::string& op) {
    Read read;
    if (!read.reductions(input, weight, bias, group, op, 0)) return py::none();
    auto call = Served(read.group).all_reduce(*read.about, read.inputs(), read.weights(), read.bias());
    if (!call) return py::none();
    if (is_any_wanted(read.arguments.tensors))
        return py::cast(AllReduce::apply(read.about, *call, at::TensorList(read.arguments.tensors)));
    return py::cast(call->all_reduce(read.inputs(), read.weights(), read.bias()));
}

inline py::object linear_reduce_scatter(py::handle input, py::handle weight, py::handle bias, py::handle group,
                                        const std::string& op, std::int64_t dim) {
    Read read;
    if (!read.reductions(input, weight, bias, group, op, dim)) return py::none();
    auto call = Served(read.group).reduce_scatter(*read.about, read.inputs(), read.weights(), read.bias());
    if (!call) return py::none();
    if (is_any_wanted(read.arguments.tensors))
        return py::cast(ReduceScatter::apply(read.about, *call, at::TensorList(read.arguments.tensors)));
    return py::cast(call->reduce_scatter(read.inputs(), read.weights(), read.bias()));
}

// Returns (gathered input or None, list of results).
inline py::object all_gather_linear(py::handle input, py::handle weight, py::handle bias, py::handle group,
                                    std::int64_t dim, bool gathered) {
    Read read;
    if (!read.gather(input, weight, bias, group, dim, gathered)) return py::none();
    const Tensors& tensors = read.arguments.tensors;
    const Tensors weights = part(tensors, 1, read.count), biases = AllGather::biases_of(*read.about, tensors);
    auto call = Served(read.group).all_gather(*read.about, tensors[0], weights, biases);
    if (!call) return py::none();
    const auto whole_or_none = [&](const Tensor& whole) { return gathered ? py::cast(whole) : py::none(); };
    if (!is_any_wanted(tensors)) {
        const auto [whole, outs] = call->all_gather(tensors[0], weights, biases);
        return py::make_tuple(whole_or_none(whole), outs);
    }
    Tensors outs = AllGather::apply(read.about, *call, at::TensorList(tensors));
    const Tensor whole = outs[0];
    if (gathered) outs.erase(outs.begin());
    return py::make_tuple(whole_or_none(whole), outs);
}

}  // namespace dovetail::torch_group
