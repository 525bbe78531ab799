// Group: a process group whose frequent collectives on tensors without gaps need no Python. Others are made in Python.
#pragma once

#include <array>
#include <string>
#include <torch/csrc/distributed/c10d/PyProcessGroup.hpp>

#include "messages.hpp"
#include "plans.hpp"
#include "run/door.h"
#include "run/mpi_table.h"
#include "worker.hpp"

namespace dovetail::torch_group {

// The transport's type and operation for a reduction of torch's; type -1: it has none.
struct Reduction {
    int dtype = -1, op = 0;
};

// The type by which elements are moved, and how many of it make one element: as `mover` of torch/tensors.py.
struct Mover {
    int dtype, width;
};

// One call. `name`: torch's. `handle`: of the call if it has begun. `is_plain`: the library makes it, whatever the
// rules.
struct Asked {
    const char* name;
    dt_asked by;
    int handle = -1;
    bool is_plain = false;
};

// Whether all ranks make the same call of an operator: the number of each. `work`: of the exchange, if it was begun.
struct Question {
    std::int64_t own = 0;
    std::vector<std::int64_t> every;
    c10::intrusive_ptr<c10d::Work> work;
};

// The members named `try_…` begin a call, or return null if Python has to make it. The Python class that inherits has
// all collectives as methods: `slow_NAME` for those that are here.
class Group : public c10d::ProcessGroup {
  public:
    using Work = c10::intrusive_ptr<c10d::Work>;
    using Tensors = std::vector<at::Tensor>;
    using Lists = std::vector<Tensors>;
    using Counts = std::vector<std::int64_t>;

    Group(int rank, int size) : ProcessGroup(rank, size) {}

    // Makes calls by a door from now on, until it is shut.
    void open(const dt_door* door, std::shared_ptr<Worker> worker) {
        worker_ = std::move(worker);
        door_ = door;
    }
    void shut() { door_ = nullptr, mail_ = nullptr; }
    void open_mail(const dt_mail* mail) { mail_ = mail; }
    bool is_open() const { return door_ != nullptr; }
    void reduces(at::ScalarType dtype, int op, Reduction by) { table_[index(dtype, op)] = by; }
    std::atomic<long long> turn{0};  // how many collectives were called
    Plans plans;

    // Begins to ask whether all ranks make the call of this number: between hosts, while this rank computes. On one
    // host ranks exchange their numbers in `settle`: a thread that does it meanwhile takes longer.
    std::shared_ptr<Question> ask(std::int64_t number) {
        const dt_door* door = door_;
        TORCH_CHECK(door, "the process group was destroyed");
        auto question = std::make_shared<Question>();
        question->own = number;
        question->every.resize(static_cast<std::size_t>(size_));
        if (door->number >= 0) return question;
        const auto asked = std::make_shared<Asked>(exchange(*question));
        auto begins = [asked, door] { return (asked->handle = door->begin(door->comm, &asked->by)) >= 0; };
        auto act = [this, asked, door, question] { make(*asked, *door); };
        question->work = worker_->later(std::move(act), "", {}, sizeof number, std::move(begins), true);
        return question;
    }
    // Returns whether all ranks know the same of the call: as `agree` of torch/linear/agreement.py. Throws
    // OperatorError on every rank if some rank makes another call. `title`: this one in words.
    bool settle(Question& question, const std::string& title) {
        if (question.work) {
            question.work->wait(std::chrono::milliseconds(0));
        } else {
            const dt_door* door = door_;
            TORCH_CHECK(door, "the process group was destroyed");
            const NoGil free;
            worker_->now([&] { make(exchange(question), *door); });
        }
        bool is_known_alike = true;
        for (const auto each : question.every) {
            is_known_alike = is_known_alike && each == question.own;
            if ((each ^ question.own) & ~known_bits) {
                const py::gil_scoped_acquire gil;
                py::module_::import("dovetail.torch.linear.agreement").attr("disagreed")(self(), title);
            }
        }
        return is_known_alike;
    }

    Work try_allreduce(const Tensors& tensors, const c10d::AllreduceOptions& opts) {
        if (tensors.size() != 1 || !is_plain(tensors[0])) return {};
        const at::Tensor& one = tensors[0];
        const Reduction by = reduction(one, opts.reduceOp);
        void* at = one.data_ptr();
        return by.dtype < 0
                   ? Work()
                   : begin({"all_reduce", {DT_ALL_REDUCE, at, at, one.numel(), by.dtype, by.op, 0, bytes(one)}},
                           tensors, opts.asyncOp);
    }
    Work try_broadcast(const Tensors& tensors, const c10d::BroadcastOptions& opts) {
        if (tensors.size() != 1 || !is_plain(tensors[0]) || opts.rootRank < 0 || opts.rootRank >= size_) return {};
        const at::Tensor& one = tensors[0];
        void* at = one.data_ptr();
        const Mover by = mover(one);
        return begin(
            {"broadcast",
             {DT_BROADCAST, at, at, one.numel() * by.width, by.dtype, 0, static_cast<int>(opts.rootRank), bytes(one)}},
            tensors, opts.asyncOp);
    }
    Work try_all_gather(const at::Tensor& out, const at::Tensor& own, const c10d::AllgatherOptions& opts) {
        if (!are_whole_and_part(out, own)) return {};
        const Mover by = mover(own);
        return begin(
            {"all_gather",
             {DT_ALL_GATHER, own.data_ptr(), out.data_ptr(), own.numel() * by.width, by.dtype, 0, 0, bytes(out)}},
            {out}, opts.asyncOp, own);
    }
    Work try_reduce_scatter(const at::Tensor& out, const at::Tensor& all, const c10d::ReduceScatterOptions& opts) {
        if (!are_whole_and_part(all, out)) return {};
        const Reduction by = reduction(out, opts.reduceOp);
        if (by.dtype < 0) return {};
        return begin({"reduce_scatter",
                      {DT_REDUCE_SCATTER, all.data_ptr(), out.data_ptr(), out.numel(), by.dtype, by.op, 0, bytes(all)}},
                     {out}, opts.asyncOp, all);
    }
    Work try_barrier(const c10d::BarrierOptions& opts) {
        return begin({"barrier", {DT_BARRIER, nullptr, nullptr, 0, DT_UINT8, 0, 0, 0}}, {}, opts.asyncOp);
    }

    Work try_message(bool sends, const Tensors& tensors, int peer, int tag) {
        const dt_mail* mail = mail_;
        const bool is_any = peer < 0 && !sends;
        if (!mail || tensors.size() != 1 || !is_plain(tensors[0]) || peer == rank_ || peer >= size_) return {};
        if (peer < 0 && !is_any) return {};
        auto explain = [self = c10::intrusive_ptr<Group>::reclaim_copy(this), sends](
                           bool is_of_transport, const std::string& text, const std::string& found) {
            const py::gil_scoped_acquire gil;
            try {
                self->self().attr("raise_fault_of_message")(sends ? "send" : "receive", is_of_transport, text, found);
            } catch (...) {
                return std::current_exception();
            }
            return std::exception_ptr();
        };
        auto made = c10::make_intrusive<Message>(mail, tensors[0], std::move(explain));
        made->begin(sends, peer, tag);
        return made;
    }
    Work try_send(const Tensors& tensors, int target, int tag) { return try_message(true, tensors, target, tag); }
    Work try_recv(const Tensors& tensors, int source, int tag) {
        return source < 0 ? Work() : try_message(false, tensors, source, tag);
    }
    Work try_recv_any(const Tensors& tensors, int tag) { return try_message(false, tensors, -1, tag); }

    Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
        if (Work work = try_allreduce(tensors, opts)) return work;
        return slow("slow_allreduce", tensors, opts);
    }
    Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
        if (Work work = try_broadcast(tensors, opts)) return work;
        return slow("slow_broadcast", tensors, opts);
    }
    Work all_gather_single(at::Tensor& out, at::Tensor& own, const c10d::AllgatherOptions& opts) override {
        if (Work work = try_all_gather(out, own, opts)) return work;
        return slow("slow_all_gather_single", out, own, opts);
    }
    Work reduce_scatter_single(at::Tensor& out, at::Tensor& all, const c10d::ReduceScatterOptions& opts) override {
        if (Work work = try_reduce_scatter(out, all, opts)) return work;
        return slow("slow_reduce_scatter_single", out, all, opts);
    }
    Work all_gather_single_coalesced(Tensors& outs, Tensors& own, const c10d::AllgatherOptions& opts) override {
        if (outs.size() == 1 && own.size() == 1)
            if (Work work = try_all_gather(outs[0], own[0], opts)) return work;
        return slow("all_gather_single_coalesced", outs, own, opts);
    }
    Work reduce_scatter_single_coalesced(Tensors& outs, Tensors& all, const c10d::ReduceScatterOptions& opts) override {
        if (outs.size() == 1 && all.size() == 1)
            if (Work work = try_reduce_scatter(outs[0], all[0], opts)) return work;
        return slow("reduce_scatter_single_coalesced", outs, all, opts);
    }
    Work barrier(const c10d::BarrierOptions& opts) override {
        if (Work work = try_barrier(opts)) return work;
        return slow("slow_barrier", opts);
    }

    // Python makes these. C++ that has a process group, such as DDP's and the functional collectives', calls them.
    Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
        return slow("allreduce_coalesced", tensors, opts);
    }
    Work reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override { return slow("reduce", tensors, opts); }
    Work allgather(Lists& outs, Tensors& own, const c10d::AllgatherOptions& opts) override {
        return slow("allgather", outs, own, opts);
    }
    Work allgather_coalesced(Lists& outs, Tensors& own, const c10d::AllgatherOptions& opts) override {
        return slow("allgather_coalesced", outs, own, opts);
    }
    Work gather(Lists& outs, Tensors& own, const c10d::GatherOptions& opts) override {
        return slow("gather", outs, own, opts);
    }
    Work scatter(Tensors& outs, Lists& all, const c10d::ScatterOptions& opts) override {
        return slow("scatter", outs, all, opts);
    }
    Work reduce_scatter(Tensors& outs, Lists& all, const c10d::ReduceScatterOptions& opts) override {
        return slow("reduce_scatter", outs, all, opts);
    }
    Work all_to_all_single(at::Tensor& out, at::Tensor& all, Counts& awaited, Counts& sent,
                           const c10d::AllToAllOptions& opts) override {
        return slow("all_to_all_single", out, all, awaited, sent, opts);
    }
    Work alltoall(Tensors& outs, Tensors& all, const c10d::AllToAllOptions& opts) override {
        return slow("alltoall", outs, all, opts);
    }
    Work send(Tensors& tensors, int target, int tag) override {
        if (Work work = try_send(tensors, target, tag)) return work;
        return slow("slow_send", tensors, target, tag);
    }
    Work recv(Tensors& tensors, int source, int tag) override {
        if (Work work = try_recv(tensors, source, tag)) return work;
        return slow("slow_recv", tensors, source, tag);
    }
    Work recvAnysource(Tensors& tensors, int tag) override {
        if (Work work = try_recv_any(tensors, tag)) return work;
        return slow("slow_recv_anysource", tensors, tag);
    }

    const std::string getBackendName() const override { return "dovetail"; }
    const std::string& getGroupName() const override { return name_; }
    void setGroupName(const std::string& name) override { name_ = name; }

    // What a call returns that was waited for.
    static const Work& done() {
        static const auto* kept = new Work([] {
            auto made = c10::make_intrusive<Collective>("", Tensors{}, nullptr);
            made->end(nullptr);
            return made;
        }());
        return *kept;
    }

  private:
    static constexpr std::int64_t known_bits = 0xffff;  // STATE of torch/linear/agreement.py
    static constexpr std::size_t num_ops = 10;
    static std::size_t index(at::ScalarType dtype, int op) {
        return static_cast<std::size_t>(dtype) * num_ops + static_cast<std::size_t>(op);
    }
    static Mover mover(const at::Tensor& tensor) {
        switch (tensor.itemsize()) {
            case 1:
                return {DT_UINT8, 1};
            case 2:
                return {DT_FLOAT16, 1};
            case 4:
                return {DT_INT32, 1};
            case 8:
                return {DT_INT64, 1};
            default:
                return {DT_INT64, 2};
        }
    }
    static long long bytes(const at::Tensor& tensor) { return static_cast<long long>(tensor.nbytes()); }
    static bool is_plain(const at::Tensor& tensor) {
        return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
               !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg();
    }
    bool are_whole_and_part(const at::Tensor& whole, const at::Tensor& part) const {
        return is_plain(whole) && is_plain(part) && whole.scalar_type() == part.scalar_type() &&
               whole.numel() == part.numel() * size_;
    }
    Reduction reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
        const std::size_t at = index(tensor.scalar_type(), op.op_);
        return at < table_.size() ? table_[at] : Reduction{};
    }

    // `read`: lives as long as the call.
    Work begin(const Asked& asked, const Tensors& results, bool is_async, const at::Tensor& read = {}) {
        const dt_door* door = door_;
        if (!door) return {};
        ++turn;
        const std::string title = at::hasCallbacks() ? title_of(asked) : std::string();
        if (!is_async) {
            std::optional<at::RecordFunction> shown;
            if (!title.empty()) shown.emplace(at::RecordScope::USER_SCOPE).before(title);
            const NoGil free;
            worker_->now([&] { make(asked, *door); });
            return done();
        }
        const auto kept = std::make_shared<Asked>(asked);
        auto act = [this, kept, results, read, door] { make(*kept, *door); };
        auto begins = [kept, door] { return (kept->handle = door->begin(door->comm, &kept->by)) >= 0; };
        const auto num_bytes = static_cast<std::size_t>(asked.by.num_bytes);
        return worker_->later(std::move(act), title, results, num_bytes, std::move(begins));
    }

    static Asked exchange(Question& question) {
        constexpr int one = sizeof question.own;
        return {"the agreement of an operator",
                {DT_ALL_GATHER, &question.own, question.every.data(), one, DT_UINT8, 0, 0, one},
                -1,
                true};
    }

    void make(const Asked& asked, const dt_door& door) {
        std::array<char, 1024> text{};
        const int size = static_cast<int>(text.size());
        const dt_asked& by = asked.by;
        const auto first = asked.is_plain ? door.library : door.call;
        const int outcome = asked.handle < 0 ? first(door.comm, &by, text.data(), size)
                                             : door.finish(door.comm, &by, asked.handle, text.data(), size);
        if (outcome == DT_CALL_DONE) return;
        const py::gil_scoped_acquire gil;
        const auto address = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at); };
        self().attr("finish_call")(asked.name, outcome, std::string(text.data()), by.kind, address(by.src),
                                   address(by.dst), by.count, by.dtype, by.op, by.root, by.num_bytes);
    }

    std::string title_of(const Asked& asked) {
        const py::gil_scoped_acquire gil;
        return self().attr("title_of")(asked.name, asked.by.num_bytes).cast<std::string>();
    }
    py::object self() { return py::cast(this, py::return_value_policy::reference); }

    template <class... Arguments>
    Work slow(const char* name, Arguments&... arguments) {
        const py::gil_scoped_acquire gil;
        py::object made = self().attr(name)(arguments...);
        if (py::isinstance<Collective>(made)) return made.cast<c10::intrusive_ptr<Collective>>();
        return c10::make_intrusive<c10d::PyProcessGroup::PyWorkHolder>(made);
    }

    std::string name_;
    std::atomic<const dt_door*> door_{nullptr};
    std::atomic<const dt_mail*> mail_{nullptr};
    std::shared_ptr<Worker> worker_;
    std::array<Reduction, num_ops* static_cast<std::size_t>(at::ScalarType::NumOptions)> table_{};
};

}  // namespace dovetail::torch_group
