// Worker: makes the calls of one group in their order, on its thread or on one that waits for them.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "work.hpp"

namespace dovetail::torch_group {

// As `Worker` of src/dovetail/torch/work.py, which gives the reasons; but its thread needs no lock of Python's.
class Worker : public std::enable_shared_from_this<Worker> {
  public:
    using Act = std::function<void()>;
    using Begin = std::function<bool()>;
    using Work = c10::intrusive_ptr<Collective>;

    explicit Worker(std::function<void(bool)> rest) : rest_(std::move(rest)) {}

    // Makes a call after all earlier ones. Without Python's lock.
    template <class Call>
    void now(const Call& call) {
        if (turn_.try_lock()) {
            const std::lock_guard turn(turn_, std::adopt_lock);
            if (!num_waiting_) return call();
        }
        later(call, {}, {}, 0)->wait(std::chrono::milliseconds(0));
    }

    // Lets the thread make a call of `num_bytes` after all earlier ones. Returns at once. `begin`, if given, begins the
    // call while earlier ones are under way; false: later ones wait until it has ended. `is_lazy`: if it has begun, its
    // messages move alone, and the thread is not woken: whoever waits for it ends it.
    Work later(Act act, const std::string& title, std::vector<at::Tensor> results, std::size_t num_bytes,
               Begin begin = {}, bool is_lazy = false) {
        auto work = c10::make_intrusive<Collective>(title, std::move(results), shared_from_this());
        {
            const std::lock_guard held(lock_);
            tasks_.push_back({std::move(act), std::move(begin), work, num_bytes <= short_bytes});
            ++num_waiting_;
        }
        const std::size_t num_begun = begin_ahead();  // here: the thread may get no core for some milliseconds
        bool rings = false;
        {
            const std::lock_guard held(lock_);
            if (is_lazy && num_begun == tasks_.size()) return work;
            if (!std::exchange(has_thread_, true)) std::thread([self = shared_from_this()] { self->run(); }).detach();
            rings = num_bytes > short_bytes || !looks_;
            if (rings) looks_ = rung_ = true;
        }
        if (rings) bell_.notify_all();
        return work;
    }

    // Lets the thread make now what it would make a little later.
    void wake() {
        {
            const std::lock_guard held(lock_);
            rung_ = true;
        }
        bell_.notify_all();
    }

    // Waits until `work` has ended, at most for `limit`. `helps`: makes the calls up to it, unless the thread does.
    void hasten(Collective& work, bool helps) {
        rest_(false);
        while (helps && !work.has_ended() && turn_.try_lock()) {
            std::unique_lock turn(turn_, std::adopt_lock);
            if (do_next(turn) == Did::nothing) return;
        }
    }

    void expect(int more) { num_expecting_ += more; }

    // Ends the thread after the calls that it has. Returns whether it has ended within `limit`.
    bool close(std::chrono::milliseconds limit) {
        std::unique_lock held(lock_);
        ends_ = true;
        bell_.notify_all();
        return !has_thread_ || bell_.wait_for(held, limit, [this] { return has_ended_; });
    }

  private:
    using Clock = std::chrono::steady_clock;
    struct Task {
        Act act;
        Begin begin;
        Work work;
        bool is_short = false, has_begun = false;
    };
    enum class Did { nothing, short_call, long_call };
    static constexpr std::size_t most_ahead = 4;         // calls under way at once
    static constexpr std::size_t short_bytes = 1 << 16;  // such a call takes about as long as waking a thread
    static constexpr std::chrono::microseconds nap{100}, linger{20000};

    void run() {
        auto worked = Clock::now();  // when it last made a short call: those do not always wake it
        for (;;) {
            if (num_waiting_) {
                std::unique_lock turn(turn_);
                rest_(true);                       // the program computes,
                if (num_expecting_) rest_(false);  // until it waits
                if (do_next(turn) == Did::short_call) worked = Clock::now();
                rest_(false);
                continue;
            }
            std::unique_lock held(lock_);
            if (!tasks_.empty()) continue;
            if (ends_) break;
            const auto rings = [this] { return rung_ || ends_; };
            looks_ = Clock::now() - worked < linger;
            if (looks_)
                bell_.wait_for(held, nap, rings);
            else
                bell_.wait(held, rings);
            rung_ = false;
        }
        const std::lock_guard held(lock_);
        has_ended_ = true;
        bell_.notify_all();
    }

    // Makes the first call, if there is one. What waits for its future runs after the turn, and may make calls itself.
    Did do_next(std::unique_lock<std::mutex>& turn) {
        begin_ahead();
        std::optional<Task> task;
        {
            const std::lock_guard begins(begins_);
            const std::lock_guard held(lock_);
            if (tasks_.empty()) return Did::nothing;
            task = std::move(tasks_.front());
            tasks_.pop_front();
            --num_waiting_;
        }
        std::exception_ptr raised;
        try {
            task->act();
        } catch (...) {
            raised = std::current_exception();
        }
        const bool has_future = task->work->end(std::move(raised));
        turn.unlock();
        if (has_future) task->work->complete();
        return task->is_short ? Did::short_call : Did::long_call;
    }

    // Begins calls that wait, so that the network is never idle between one and the next. Returns how many have begun.
    std::size_t begin_ahead() {
        const std::lock_guard begins(begins_);
        for (std::size_t place = 0;; ++place) {
            if (place == most_ahead) return place;
            Task* task = nullptr;
            {
                const std::lock_guard held(lock_);
                if (place >= tasks_.size()) return place;
                task = &tasks_[place];
            }
            if (!task->has_begun && !(task->has_begun = task->begin && task->begin())) return place;
        }
    }

    const std::function<void(bool)> rest_;
    std::mutex turn_;    // held by the thread that makes a call
    std::mutex begins_;  // held while calls begin, or are removed
    std::mutex lock_;    // of what follows
    std::condition_variable bell_;
    std::deque<Task> tasks_;  // calls that have not ended
    bool has_thread_ = false, has_ended_ = false, ends_ = false;
    bool looks_ = false;  // whether the thread looks for calls without being woken
    bool rung_ = false;
    std::atomic<int> num_waiting_{0}, num_expecting_{0};
};

inline bool Collective::wait(std::chrono::milliseconds limit) {
    const bool is_limited = limit > no_limit;
    if (!ended_) {
        const NoGil free;
        worker_->expect(1);
        worker_->hasten(*this, !is_limited);
        std::unique_lock held(lock_);
        const auto has_ended = [this] { return ended_.load(); };
        const bool in_time =
            is_limited ? changed_.wait_for(held, limit, has_ended) : (changed_.wait(held, has_ended), true);
        worker_->expect(-1);
        TORCH_CHECK(in_time, "the collective did not end within ", static_cast<double>(limit.count()) / 1e3, " s");
    }
    if (const auto raised = error()) std::rethrow_exception(raised);
    return true;
}

inline c10::intrusive_ptr<c10::ivalue::Future> Collective::getFuture() {
    {
        const std::lock_guard held(lock_);
        if (future_) return future_;
        future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
        if (!ended_) return worker_->wake(), future_;
    }
    complete();
    return future_;
}

inline bool Collective::end(std::exception_ptr raised) {
    bool has_future = false;
    {
        const std::lock_guard held(lock_);
        error_ = std::move(raised);
        ended_ = true;
        has_future = future_ != nullptr;
    }
    changed_.notify_all();
    if (shown_) shown_->end();
    return has_future;
}

}  // namespace dovetail::torch_group
