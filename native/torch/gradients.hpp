// The operators' autograd rules: as src/dovetail/torch/linear/gradients.py, whose functions they call for what is
// not planned here, and for gradients of gradients.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "linear.hpp"

namespace dovetail::torch_group {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An operator's arguments that are no tensors. `name`: of its group. `has_bias`: of each weight, or of the one result.
struct About final : torch::CustomClassHolder {
    About(std::string name, bool averages, std::int64_t dim, std::size_t count, std::vector<bool> has_bias,
          bool gathered)
        : name(std::move(name)),
          averages(averages),
          gathered(gathered),
          dim(dim),
          count(count),
          has_bias(std::move(has_bias)) {}
    const std::string name;
    const bool averages, gathered;
    const std::int64_t dim;
    const std::size_t count;  // of weights
    const std::vector<bool> has_bias;

    std::string op() const { return averages ? "avg" : "sum"; }
    static const About& of(const AutogradContext& ctx) {
        return *static_cast<const About*>(ctx.saved_data.at("about").toCapsule().get());
    }
    int ranks() const { return c10d::resolve_process_group(name)->getSize(); }
    Tensor scaled(const Tensor& grad) const { return averages ? grad / ranks() : grad; }
};
using Saved = c10::intrusive_ptr<About>;

inline Tensor tensor_of(py::handle object) { return object.is_none() ? Tensor() : object.cast<Tensor>(); }
inline py::object python() { return py::module_::import("dovetail.torch.linear.gradients"); }
inline Tensor bias_gradient(const Tensor& grad) {
    std::vector<std::int64_t> axes;
    for (std::int64_t axis = 0; axis + 1 < grad.dim(); ++axis) axes.push_back(axis);
    return grad.sum(axes);
}
inline Tensor weight_gradient(const Tensor& grad, const Tensor& input, std::int64_t dim) {
    return rows_of(grad, dim).t().mm(rows_of(input, dim));
}
inline Tensors part(const Tensors& all, std::size_t begin, std::size_t count) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    return {first, first + static_cast<std::ptrdiff_t>(count)};
}
inline bool is_any_wanted(const Tensors& tensors) {
    if (!at::GradMode::is_enabled()) return false;
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const Tensor& each) { return each.defined() && each.requires_grad(); });
}

// Finds the calls of an operator that are made here.
class Served {
  public:
    explicit Served(const std::string& name) : group_(group_named(name)) {}
    explicit Served(c10::intrusive_ptr<Group> group) : group_(std::move(group)) {}
    // None: Python makes it.
    std::optional<Linear> find(Key key, bool averages, std::int64_t dim, const Tensors& inputs, const Tensors& weights,
                               const Tensors& others) const {
        if (!group_ || !group_->is_open()) return std::nullopt;
        Linear found(*group_, averages, dim);
        if (!found.finds(std::move(key), inputs, weights, others)) return std::nullopt;
        return found;
    }
    std::optional<Linear> all_reduce(const About& about, const Tensors& inputs, const Tensors& weights,
                                     const Tensor& bias) const {
        Key key;
        key.add(Key::all_reduce).add(about.averages ? Key::avg : Key::sum);
        return find(std::move(key), about.averages, 0, inputs, weights, {bias, Tensor()});
    }
    std::optional<Linear> reduce_scatter(const About& about, const Tensors& inputs, const Tensors& weights,
                                         const Tensor& bias) const {
        Key key;
        key.add(Key::reduce_scatter).add(about.averages ? Key::avg : Key::sum).add(about.dim);
        return find(std::move(key), about.averages, axis(about, inputs[0]), inputs, weights, {bias, Tensor()});
    }
    std::optional<Linear> all_gather(const About& about, const Tensor& own, const Tensors& weights,
                                     const Tensors& biases) const {
        Key key;
        const bool keeps = about.gathered || is_any_wanted(weights) || is_any_wanted(biases) || is_any_wanted({own});
        key.add(Key::all_gather).add(about.dim).add(keeps);  // the gathered input is kept for gradients
        return find(std::move(key), false, axis(about, own), {own}, weights, biases);
    }
    std::optional<Linear> gradients(const About& about, const Tensors& grads, const Tensors& weights,
                                    const Tensor& whole) const {
        Key key;
        key.add(Key::gradients).add(Key::reduce_scatter).add(Key::sum).add(about.dim);
        return find(std::move(key), false, axis(about, grads[0]), grads, weights, {whole});
    }
    std::optional<Linear> scattered_gradients(const About& about, const Tensor& grad, const Tensors& weights,
                                              const Tensors& inputs) const {
        Key key;
        key.add(Key::scattered_gradients).add(about.dim);
        return find(std::move(key), false, axis(about, grad), {grad}, weights, inputs);
    }
    static std::int64_t axis(const About& about, const Tensor& like) {
        return about.dim < 0 ? about.dim + like.dim() : about.dim;
    }

  private:
    c10::intrusive_ptr<Group> group_;
};

// Calls an operator whose tensors are inputs, weights, and a bias if there is one; keeps what gradients need.
template <Tensor (Linear::*Operator)(const Tensors&, const Tensors&, const Tensor&)>
Tensor forward_of(AutogradContext& ctx, const Saved& about, Linear& call, at::TensorList all) {
    const Tensors tensors = all.vec();
    const std::size_t count = about->count;
    const Tensors inputs = part(tensors, 0, count), weights = part(tensors, count, count);
    Tensor out = (call.*Operator)(inputs, weights, about->has_bias[0] ? tensors.back() : Tensor());
    ctx.saved_data["about"] = c10::IValue::make_capsule(about);
    ctx.save_for_backward(part(tensors, 0, 2 * count));
    return out;
}

// `linear_all_reduce`. Tensors: inputs, weights, a bias if there is one.
struct AllReduce : torch::autograd::Function<AllReduce> {
    static Tensor forward(AutogradContext* ctx, const Saved& about, Linear& call, at::TensorList all) {
        return forward_of<&Linear::all_reduce>(*ctx, about, call, all);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const auto& about = About::of(*ctx);
        const Tensors saved = ctx->get_saved_variables();
        const std::size_t count = about.count;
        const Tensor rows = rows_of(about.scaled(grads[0]), 0);
        variable_list found(2 + 2 * count);
        for (std::size_t place = 0; place < count; ++place) {
            const Tensor &input = saved[place], &weight = saved[count + place];
            if (ctx->needs_input_grad(place)) {
                const Tensor made = rows.mm(weight);
                found[2 + place] = grads[0].dim() == 2 ? made : made.view(input.sizes());
            }
            if (ctx->needs_input_grad(count + place)) found[2 + count + place] = rows.t().mm(rows_of(input, 0));
        }
        if (about.has_bias[0]) found.push_back(ctx->needs_input_grad(2 * count) ? bias_gradient(grads[0]) : Tensor());
        return found;
    }
};

// `all_gather_linear`. Tensors: the input, weights, the biases that there are.
struct AllGather : torch::autograd::Function<AllGather> {
    static variable_list forward(AutogradContext* ctx, const Saved& about, Linear& call, at::TensorList all) {
        const Tensors tensors = all.vec();
        const Tensors weights = part(tensors, 1, about->count);
        auto [whole, outs] = call.all_gather(tensors[0], weights, biases_of(*about, tensors));
        Tensors kept{tensors[0], whole};
        kept.insert(kept.end(), weights.begin(), weights.end());
        ctx->saved_data["about"] = c10::IValue::make_capsule(about);
        ctx->save_for_backward(std::move(kept));
        ctx->set_materialize_grads(false);
        if (about->gathered) outs.insert(outs.begin(), whole);
        return outs;
    }
    static Tensors biases_of(const About& about, const Tensors& tensors) {
        Tensors found;
        std::size_t next = 1 + about.count;
        for (const bool has : about.has_bias) found.push_back(has ? tensors[next++] : Tensor());
        return found;
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& all) {
        const auto& about = About::of(*ctx);
        const Tensors saved = ctx->get_saved_variables();
        const Tensors weights = part(saved, 2, about.count), grads = part(all, about.gathered, about.count);
        const Tensor of_whole = about.gathered ? all[0] : Tensor();
        variable_list found(2);
        bool is_whole = !at::GradMode::is_enabled() && !of_whole.defined();
        for (std::size_t place = 0; place <= about.count; ++place)
            is_whole = is_whole && ctx->needs_input_grad(place) && (place == 0 || grads[place - 1].defined());
        auto call = is_whole ? Served(about.name).gradients(about, grads, weights, saved[1]) : std::nullopt;
        if (!call) return by_python(*ctx, about, saved, weights, of_whole, grads);
        auto [of_input, of_weights] = call->gradients(grads, weights, saved[1], true);
        found.push_back(std::move(of_input));
        found.insert(found.end(), of_weights.begin(), of_weights.end());
        std::size_t next = 1 + about.count;
        for (std::size_t place = 0; place < about.count; ++place)
            if (about.has_bias[place])
                found.push_back(ctx->needs_input_grad(next++) ? bias_gradient(grads[place]) : Tensor());
        return found;
    }
    static variable_list by_python(const AutogradContext& ctx, const About& about, const Tensors& saved,
                                   const Tensors& weights, const Tensor& of_whole, const Tensors& grads) {
        const py::gil_scoped_acquire gil;
        py::list wanted;
        std::size_t next = 1 + about.count;
        for (std::size_t place = 0; place <= about.count; ++place) wanted.append(ctx.needs_input_grad(place));
        for (const bool has : about.has_bias) wanted.append(has && ctx.needs_input_grad(next++));
        const py::tuple made = python().attr("gathered_gradients")(wanted, saved[0], saved[1], weights, of_whole, grads,
                                                                   about.dim, about.name);
        variable_list found(2);
        found.push_back(tensor_of(made[0]));
        for (const auto each : made[1]) found.push_back(tensor_of(each));
        std::size_t place = 0;
        for (const auto each : made[2])
            if (about.has_bias[place++]) found.push_back(tensor_of(each));
        return found;
    }
};

// `linear_reduce_scatter`. Tensors: inputs, weights, a bias if there is one.
struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
    static Tensor forward(AutogradContext* ctx, const Saved& about, Linear& call, at::TensorList all) {
        return forward_of<&Linear::reduce_scatter>(*ctx, about, call, all);
    }
    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const auto& about = About::of(*ctx);
        const Tensors saved = ctx->get_saved_variables();
        const std::size_t count = about.count;
        const Tensor scaled = about.scaled(grads[0]);
        const Tensors inputs = part(saved, 0, count), weights = part(saved, count, count);
        bool is_whole = !at::GradMode::is_enabled();
        for (std::size_t place = 0; place < 2 * count; ++place) is_whole = is_whole && ctx->needs_input_grad(place);
        const std::int64_t dim = Served::axis(about, grads[0]);
        Tensor whole;
        Tensors of_inputs, of_weights(count);
        if (is_whole) {
            std::tie(whole, of_inputs, of_weights) = together(about, scaled, weights, inputs);
        } else {
            std::tie(whole, of_inputs) = gathered(about, scaled, turned(weights));
            for (std::size_t place = 0; place < count; ++place)
                if (ctx->needs_input_grad(count + place))
                    of_weights[place] = weight_gradient(whole, inputs[place], dim);
        }
        variable_list found(2);
        found.insert(found.end(), of_inputs.begin(), of_inputs.end());
        found.insert(found.end(), of_weights.begin(), of_weights.end());
        if (about.has_bias[0]) {
            Tensor of_bias = ctx->needs_input_grad(2 * count) ? bias_gradient(whole) : Tensor();
            found.push_back(of_bias.defined() && about.averages ? of_bias * about.ranks() : of_bias);
        }
        return found;
    }
    // Returns the gathered gradient, and those of all inputs and weights: the serial plan here, others in Python.
    static std::tuple<Tensor, Tensors, Tensors> together(const About& about, const Tensor& grad, const Tensors& weights,
                                                         const Tensors& inputs) {
        if (auto call = Served(about.name).scattered_gradients(about, grad, weights, inputs))
            return call->scattered_gradients(grad, weights, inputs);
        const py::gil_scoped_acquire gil;
        const py::tuple made =
            python().attr("linear_scattered_gradients")(grad, weights, inputs, about.dim, about.name);
        return {made[0].cast<Tensor>(), made[1].cast<Tensors>(), made[2].cast<Tensors>()};
    }
    static std::pair<Tensor, Tensors> gathered(const About& about, const Tensor& grad, const Tensors& weights);
};

// Calls `all_gather_linear` without biases, with gradients if they are wanted. `whole`: of the input.
inline std::pair<Tensor, Tensors> ReduceScatter::gathered(const About& about, const Tensor& grad,
                                                          const Tensors& weights) {
    const std::vector<bool> without(weights.size());
    const auto asked = c10::make_intrusive<About>(about.name, false, about.dim, weights.size(), without, true);
    Tensors tensors{grad};
    tensors.insert(tensors.end(), weights.begin(), weights.end());
    auto call = Served(about.name).all_gather(*asked, grad, weights, Tensors(weights.size()));
    if (call && !is_any_wanted(tensors)) return call->all_gather(grad, weights, Tensors(weights.size()));
    if (call) {
        Tensors found = AllGather::apply(asked, *call, at::TensorList(tensors));
        return {found[0], part(found, 1, weights.size())};
    }
    const py::gil_scoped_acquire gil;
    const py::list none = py::cast(std::vector<std::optional<Tensor>>(weights.size()));
    const py::tuple made = python().attr("all_gather_linear")(grad, weights, none, about.dim, true, about.name);
    return {made[0].cast<Tensor>(), made[1].cast<Tensors>()};
}

}  // namespace dovetail::torch_group
