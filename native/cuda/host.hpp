// Lanes on host threads: a group is one thread, or several that meet at barriers as those of a threadblock do.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "cuda/lane.hpp"

namespace dovetail::cuda {

// What the threads of one group share.
class Barrier {
  public:
    explicit Barrier(int threads) : threads_(threads) {}
    // Whether all threads of the group say so; none goes on before all have come.
    bool all(bool good) {
        if (threads_ == 1) return good;
        const unsigned phase = phase_.load(std::memory_order_relaxed);
        if (!good) bad_[phase & 1] = true;
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            bad_[(phase + 1) & 1] = false;
            phase_.store(phase + 1, std::memory_order_release);
        }
        while (phase_.load(std::memory_order_acquire) == phase) sched_yield();
        return !bad_[phase & 1];
    }

  private:
    const int threads_;
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> phase_{0};
    std::atomic<bool> bad_[2] = {false, false};
};

class HostGroup {
  public:
    HostGroup(const Image& image, Barrier& barrier, int thread, int size)
        : image_(image), barrier_(barrier), thread_(thread), size_(size) {}
    bool leads() const { return thread_ == 0; }
    bool all(bool good) { return barrier_.all(good); }
    std::int64_t thread() const { return thread_; }
    std::int64_t threads() const { return size_; }
    // The units that this thread moves, in turn; those that make one line go to one thread.
    std::int64_t unit(std::int64_t turn, int together) const {
        return (turn / together * size_ + thread_) * together + turn % together;
    }

    // A lane's step, where it lies; `next` comes after it.
    static const Step& step(const Step* at, const Step* next) { return (void)next, *at; }

    // Two values that all threads of a lane need: each makes its own, in `mine`.
    template <class T, class Make>
    static const T* share(T (&mine)[2], Make make) {
        for (int which = 0; which < 2; ++which) mine[which] = make(which);
        return mine;
    }

    static std::uint64_t load_relaxed(std::uint64_t& word) {
        return std::atomic_ref(word).load(std::memory_order_relaxed);
    }
    static std::uint64_t load_acquire(std::uint64_t& word) {
        return std::atomic_ref(word).load(std::memory_order_acquire);
    }
    static std::uint64_t load_place(std::uint64_t& word) { return load_acquire(word); }
    static void store_relaxed(std::uint64_t& word, std::uint64_t value) {
        std::atomic_ref(word).store(value, std::memory_order_relaxed);
    }
    static void store_release(std::uint64_t& word, std::uint64_t value) {
        std::atomic_ref(word).store(value, std::memory_order_release);
    }
    static void store_loaded(std::uint64_t& word, std::uint64_t value) { store_release(word, value); }
    static void store_release_both(std::uint64_t& one, std::uint64_t value, std::uint64_t& other, std::uint64_t more) {
        store_release(one, value), store_release(other, more);
    }
    static std::uint64_t now_ns() {
        const auto since = std::chrono::steady_clock::now().time_since_epoch();
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
    }

    // Spins until `ready` returns true. Returns false if the run was stopped, or if this thread gives up because
    // nothing has moved for too long. Long waits sleep, so that threads that can move do not queue behind those that
    // cannot.
    template <class F>
    bool spin(F ready) {
        Patience so_far;
        for (unsigned turn = 1; !ready(); ++turn) {
            if (turn > 64)
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            else if (turn > 16)
                sched_yield();
            if (turn % 64 == 0 && !patient<HostGroup>(image_, so_far)) return false;
        }
        return true;
    }
    template <class F>
    bool spin_together(F ready) {
        return spin(ready);
    }

    // Loads both words of an LL line; each contains a flag that marks it as new.
    static void load_pair(const std::uint64_t* line, std::uint64_t& low, std::uint64_t& high) {
        low = load_relaxed(const_cast<std::uint64_t&>(line[0]));
        high = load_relaxed(const_cast<std::uint64_t&>(line[1]));
    }
    static void store_pair(std::uint64_t* line, std::uint64_t low, std::uint64_t high) {
        store_relaxed(line[0], low);
        store_relaxed(line[1], high);
    }

    // A unit of an LL128 line, whose flag is stored last.
    static bool load_line(const std::uint64_t* line, int place, std::uint64_t flag, Unit& data) {
        if (load_acquire(const_cast<std::uint64_t&>(line[15])) != flag) return false;
        load_pair(line + 2 * place, data.word[0], data.word[1]);
        return true;
    }
    static void store_line(std::uint64_t* line, int place, std::uint64_t flag, const Unit& data) {
        store_relaxed(line[2 * place], data.word[0]);
        if (place < 7)
            store_relaxed(line[2 * place + 1], data.word[1]);
        else
            store_release(line[15], flag);
    }

  private:
    const Image& image_;
    Barrier& barrier_;
    const int thread_, size_;
};

// Threads that are kept from one run to the next: to start one costs more than many a lane, most of all for sanitizers.
class Crew {
  public:
    ~Crew() {
        part_ = nullptr;
        for (auto& each : members_) each->go.release();
        for (auto& each : members_) each->thread.join();
    }

    // Calls `part` with each number below `count`, all at once, and returns when all have returned.
    void run(int count, const std::function<void(int)>& part) {
        part_ = &part, left_ = count;
        for (int number = static_cast<int>(members_.size()); number < count; ++number) {
            members_.push_back(std::make_unique<Member>());
            members_.back()->thread = std::thread([this, &go = members_.back()->go, number] { serve(go, number); });
        }
        for (int number = 0; number < count; ++number) members_[static_cast<std::size_t>(number)]->go.release();
        if (count > 0) done_.acquire();
    }

  private:
    struct Member {
        std::binary_semaphore go{0};
        std::thread thread;
    };

    void serve(std::binary_semaphore& go, int number) {
        for (go.acquire(); part_ != nullptr; go.acquire()) {
            (*part_)(number);
            if (left_.fetch_sub(1) == 1) done_.release();
        }
    }

    const std::function<void(int)>* part_ = nullptr;
    std::atomic<int> left_{0};
    std::binary_semaphore done_{0};
    std::vector<std::unique_ptr<Member>> members_;
};

template <class Group, class Wire>
bool run_lanes(const Image& image, int threads_of_lane, Crew& crew) {
    std::vector<std::unique_ptr<Barrier>> barriers;
    for (int lane = 0; lane < image.num_lanes; ++lane) barriers.push_back(std::make_unique<Barrier>(threads_of_lane));
    std::atomic<bool> good{true};
    crew.run(image.num_lanes * threads_of_lane, [&](int number) {
        const int lane = number / threads_of_lane;
        Group group(image, *barriers[static_cast<std::size_t>(lane)], number % threads_of_lane, threads_of_lane);
        if (!LaneRun<Wire, Group>(image, group, lane).run()) good = false;
    });
    return good;
}

// Runs the image's lanes, each on a group of its own; false where the run stalled.
template <class Group = HostGroup>
bool run_on_threads(const Image& image, Protocol protocol, int threads_of_lane, Crew& crew) {
    if (protocol == Protocol::ll) return run_lanes<Group, Ll>(image, threads_of_lane, crew);
    if (protocol == Protocol::ll128) return run_lanes<Group, Ll128>(image, threads_of_lane, crew);
    return run_lanes<Group, Simple>(image, threads_of_lane, crew);
}

}  // namespace dovetail::cuda
