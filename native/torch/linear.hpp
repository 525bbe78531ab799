// Linear: the operators of dovetail.torch on planned shapes, below autograd: as src/dovetail/torch/linear/kernels.py,
// which they equal bit by bit.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "group.hpp"

namespace dovetail::torch_group {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// A group of this name, if its class is this module's.
inline c10::intrusive_ptr<Group> group_named(const std::string& name) {
    return c10::dynamic_intrusive_pointer_cast<Group>(c10d::resolve_process_group(name));
}

// Returns a matrix of the rows of a tensor, axis `dim` outermost.
inline Tensor rows_of(const Tensor& tensor, std::int64_t dim) {
    if (tensor.dim() == 2) return tensor;
    const Tensor moved = dim ? tensor.movedim(dim, 0) : tensor;
    return moved.reshape({-1, moved.size(-1)});
}

// Returns a matrix of rows as a tensor like another, but with `length` on axis `dim`, which lies outermost.
inline Tensor shaped(const Tensor& matrix, const Tensor& like, std::int64_t dim, std::int64_t length) {
    if (like.dim() == 2) return matrix;
    std::vector<std::int64_t> sizes{length};
    for (std::int64_t axis = 0; axis + 1 < like.dim(); ++axis)
        if (axis != dim) sizes.push_back(like.size(axis));
    sizes.push_back(matrix.size(1));
    return matrix.view(sizes).movedim(0, dim);
}

inline Tensor products(const Tensors& matrices, const Tensors& by) {
    Tensor out = matrices[0].mm(by[0]);
    for (std::size_t place = 1; place < matrices.size(); ++place) out.addmm_(matrices[place], by[place]);
    return out;
}

inline Tensors turned(const Tensors& weights) {
    Tensors found;
    for (const auto& each : weights) found.push_back(each.t());
    return found;
}

// The calls of one operator on one group. `dim`: of the first input, not negative; 0 for an all-reduce.
class Linear {
  public:
    Linear(Group& group, bool averages, std::int64_t dim) : group_(group), averages_(averages), dim_(dim) {}

    // Finds the plan of a call. `others`: biases, and what else Python's key has.
    bool finds(Key key, const Tensors& inputs, const Tensors& weights, const Tensors& others) {
        plan_ = group_.plans.find(key.add(inputs).add(weights).add(others));
        return plan_ != nullptr;
    }

    Tensor all_reduce(const Tensors& inputs, const Tensors& weights, const Tensor& bias) {
        const NoGil free;
        const at::AutoDispatchBelowAutograd below;
        const Clock clock(*plan_);
        const auto question = group_.ask(plan_->number);
        Tensor out = products(rows_of(inputs), turned(weights));
        reduce(out, question);
        if (bias.defined()) out.add_(bias);
        return inputs[0].dim() == 2 ? out : shaped(out, inputs[0], 0, inputs[0].size(0));
    }

    Tensor reduce_scatter(const Tensors& inputs, const Tensors& weights, const Tensor& bias) {
        const NoGil free;
        const at::AutoDispatchBelowAutograd below;
        const Clock clock(*plan_);
        const auto question = group_.ask(plan_->number);
        Tensor out = scatter(products(rows_of(inputs), turned(weights)), question);
        if (bias.defined()) out.add_(bias);
        return part_like(out, inputs[0]);
    }

    // Returns the gathered tensor, and its product with each weight.
    std::pair<Tensor, Tensors> all_gather(const Tensor& own, const Tensors& weights, const Tensors& biases) {
        const NoGil free;
        const at::AutoDispatchBelowAutograd below;
        const Clock clock(*plan_);
        const Tensor matrix = torch_group::rows_of(own, dim_).contiguous();
        const std::int64_t length = own.size(dim_) * group_.getSize();
        Tensor whole = at::empty({matrix.size(0) * group_.getSize(), matrix.size(1)}, matrix.options());
        agree(group_.ask(plan_->number));
        c10d::AllgatherOptions opts;
        opts.asyncOp = false;
        check(group_.try_all_gather(whole, matrix, opts));
        Tensors outs;
        for (std::size_t place = 0; place < weights.size(); ++place) {
            const Tensor by = weights[place].t(), &row = biases[place];
            outs.push_back(shaped(row.defined() ? at::addmm(row, whole, by) : whole.mm(by), own, dim_, length));
        }
        return {shaped(whole, own, dim_, length), std::move(outs)};
    }

    // Returns the gathered gradient of a scattered sum of products, and the gradients of their inputs and weights.
    std::tuple<Tensor, Tensors, Tensors> scattered_gradients(const Tensor& grad, const Tensors& weights,
                                                             const Tensors& inputs) {
        auto [whole, of_inputs] = all_gather(grad, turned(weights), Tensors(weights.size()));
        const NoGil free;
        const at::AutoDispatchBelowAutograd below;
        const Tensor rows = torch_group::rows_of(whole, dim_);
        Tensors of_weights;
        for (const auto& each : inputs) of_weights.push_back(rows.t().mm(torch_group::rows_of(each, dim_)));
        return {whole, std::move(of_inputs), std::move(of_weights)};
    }

    // Returns the gradients of a gathered (`scatters`) or replicated input of products, and those of the weights.
    std::pair<Tensor, Tensors> gradients(const Tensors& grads, const Tensors& weights, const Tensor& whole,
                                         bool scatters) {
        const NoGil free;
        const at::AutoDispatchBelowAutograd below;
        const Clock clock(*plan_);
        const Tensors matrices = rows_of(grads);
        const auto question = group_.ask(plan_->number);
        Tensor out = products(matrices, weights);
        if (scatters)
            out = scatter(out, question);
        else
            reduce(out, question);
        const Tensor rows = torch_group::rows_of(whole, dim_);
        Tensors found;
        for (const auto& each : matrices) found.push_back(each.t().mm(rows));
        return {scatters ? part_like(out, grads[0]) : out.view(whole.sizes()), std::move(found)};
    }

  private:
    // Counts a call, and its time.
    class Clock {
      public:
        explicit Clock(Plan& plan) : plan_(plan) {}
        ~Clock() {
            ++plan_.calls;
            plan_.nanoseconds += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began_).count();
        }
        Clock(const Clock&) = delete;
        Clock& operator=(const Clock&) = delete;

      private:
        Plan& plan_;
        const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
    };

    Tensors rows_of(const Tensors& tensors) const {
        Tensors found;
        for (const auto& each : tensors) found.push_back(torch_group::rows_of(each, dim_));
        return found;
    }
    Tensor part_like(const Tensor& out, const Tensor& input) const {
        return shaped(out, input, dim_, input.size(dim_) / group_.getSize()).contiguous();
    }
    c10d::ReduceOp op() const { return averages_ ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM; }

    static void check(const Group::Work& made) { TORCH_CHECK(made, "the process group was destroyed"); }

    // Ranks have agreed before data move. They multiply first: so they wait for each other once. If some rank knows
    // another plan, all are serial, as this one is.
    void agree(const std::shared_ptr<Question>& question) { group_.settle(*question, plan_->title); }
    void reduce(const Tensor& out, const std::shared_ptr<Question>& question) {
        agree(question);
        c10d::AllreduceOptions opts;
        opts.reduceOp = op(), opts.asyncOp = false;
        check(group_.try_allreduce({out}, opts));
    }
    Tensor scatter(const Tensor& all, const std::shared_ptr<Question>& question) {
        agree(question);
        Tensor out = at::empty({all.size(0) / group_.getSize(), all.size(1)}, all.options());
        c10d::ReduceScatterOptions opts;
        opts.reduceOp = op(), opts.asyncOp = false;
        check(group_.try_reduce_scatter(out, all, opts));
        return out;
    }

    Group& group_;
    const bool averages_;
    const std::int64_t dim_;
    std::shared_ptr<Plan> plan_;
};

}  // namespace dovetail::torch_group
