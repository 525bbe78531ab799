// Message: a send or receive as work that PyTorch waits for.
#pragma once

#include <functional>

#include "run/door.h"
#include "work.hpp"

namespace dovetail::torch_group {

// Makes progress while the program waits for it, and in the background.
class Message final : public c10d::Work {
  public:
    // Returns the exception of a fault: whether it is the transport's, its text, and what was found.
    using Explain = std::function<std::exception_ptr(bool, const std::string&, const std::string&)>;

    Message(const dt_mail* mail, const at::Tensor& tensor, Explain explain)
        : mail_(mail), tensor_(tensor), explain_(std::move(explain)) {}

    // Begins. `peer` -1: a receive from any rank. The mailbox holds it until it has ended.
    void begin(bool sends, int peer, int tag) {
        auto self = c10::intrusive_ptr<Message>::reclaim_copy(this);
        void* about = self.release();
        const auto num_bytes = static_cast<long long>(tensor_.nbytes());
        const NoGil free;
        if (sends)
            mail_->send(mail_->box, tensor_.data_ptr(), num_bytes, peer, tag, &ended, about);
        else
            mail_->receive(mail_->box, tensor_.data_ptr(), num_bytes, peer, tag, &ended, about);
    }

    bool isCompleted() override { return ended_; }
    bool isSuccess() const override { return ended_ && text_.empty(); }
    int sourceRank() const override { return source_; }
    void synchronize() override { wait(std::chrono::milliseconds(0)); }
    std::vector<at::Tensor> result() override {
        synchronize();
        return {tensor_};
    }
    std::exception_ptr exception() const override { return isSuccess() || !ended_ ? nullptr : fault(); }
    bool wait(std::chrono::milliseconds limit) override {
        const double limit_s = std::max(0.0, static_cast<double>(limit.count()) / 1e3);
        if (!ended_) {
            const NoGil free;
            const bool in_time = mail_->wait(mail_->box, &has_ended, this, limit_s);
            TORCH_CHECK(in_time, "the message did not arrive within ", limit_s, " s");
        }
        if (!text_.empty()) std::rethrow_exception(fault());
        return true;
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
        bool has_ended = false;
        {
            const std::lock_guard held(lock_);
            if (future_) return future_;
            future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
            has_ended = ended_;
        }
        if (has_ended) complete();
        return future_;
    }

  private:
    static int has_ended(void* about) { return static_cast<Message*>(about)->ended_; }
    static void ended(void* about, int is_of_transport, const char* text, const char* found, int source) {
        const auto self = c10::intrusive_ptr<Message>::reclaim(static_cast<Message*>(about));
        bool has_future = false;
        {
            const std::lock_guard held(self->lock_);
            self->is_of_transport_ = is_of_transport != 0;
            self->text_ = text, self->found_ = found, self->source_ = source;
            self->ended_ = true;
            has_future = self->future_ != nullptr;
        }
        if (has_future) self->complete();
    }
    void complete() {
        text_.empty() ? future_->markCompleted(c10::IValue(std::vector<at::Tensor>{tensor_}))
                      : future_->setError(fault());
    }
    std::exception_ptr fault() const { return explain_(is_of_transport_, text_, found_); }

    const dt_mail* const mail_;
    const at::Tensor tensor_;
    const Explain explain_;
    std::mutex lock_;
    std::atomic<bool> ended_{false};
    bool is_of_transport_ = false;
    std::string text_, found_;  // of the fault, set before it has ended
    int source_ = -1;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace dovetail::torch_group
