// Collective: a call that the thread of a group makes, as work that PyTorch waits for.
#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace dovetail::torch_group {

class Worker;

// Gives Python's lock back while it lives, if this thread has it.
class NoGil {
  public:
    NoGil() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
    ~NoGil() {
        if (state_) PyEval_RestoreThread(state_);
    }
    NoGil(const NoGil&) = delete;
    NoGil& operator=(const NoGil&) = delete;

  private:
    PyThreadState* const state_;
};

// `results`: tensors that are valid once it has ended. A profile shows it as `title`, if that is not empty, until then.
class Collective final : public c10d::Work {
  public:
    Collective(const std::string& title, std::vector<at::Tensor> results, std::shared_ptr<Worker> worker)
        : results_(std::move(results)), worker_(std::move(worker)) {
        if (title.empty()) return;
        shown_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
        shown_->_setAsync();  // another thread ends it
        shown_->before(title);
    }

    bool has_ended() const { return ended_; }
    bool isCompleted() override { return ended_; }
    bool isSuccess() const override { return ended_ && !error(); }
    std::exception_ptr exception() const override { return error(); }
    void synchronize() override { wait(no_limit); }
    std::vector<at::Tensor> result() override {
        wait(no_limit);
        return results_;
    }
    bool wait(std::chrono::milliseconds limit) override;  // throws the call's error
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    bool end(std::exception_ptr raised);  // whether `complete` is to be called then
    void complete() { error_ ? future_->setError(error_) : future_->markCompleted(c10::IValue(results_)); }

  private:
    static constexpr std::chrono::milliseconds no_limit{0};

    std::exception_ptr error() const {
        const std::lock_guard held(lock_);
        return error_;
    }
    const std::vector<at::Tensor> results_;
    const std::shared_ptr<Worker> worker_;
    mutable std::mutex lock_;
    std::condition_variable changed_;
    std::atomic<bool> ended_{false};
    std::exception_ptr error_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    std::unique_ptr<at::RecordFunction> shown_;
};

}  // namespace dovetail::torch_group
