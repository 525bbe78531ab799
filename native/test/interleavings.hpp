// Interleavings: runs a few threads of a test in every order of their atomic accesses, and with every value that C++
// lets a load return, stale ones included.
//
// Threads are fibers of one thread; each stops before its next access. Memory is as in the release-acquire fragment of
// C++: a location has the history of its stores, a thread a view of the oldest store of each location that it may still
// read, and a load that acquires takes over the view of the store that released. Two accesses to plain memory that no
// such chain orders are a race. Not covered: stores of several threads to one location in an order other than that of
// execution, and loads that read from the future.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dovetail::test {

class Interleavings {
  public:
    // `make` returns the threads of one execution and, last, what is checked when all have ended. Throws
    // std::runtime_error at the first race, deadlock or failed check. Returns the number of executions.
    using Body = std::function<void()>;
    static std::int64_t explore(const std::function<std::vector<Body>()>& make) {
        Interleavings search;
        current_ = &search;
        do search.execute(make());
        while (search.next());
        current_ = nullptr;
        return search.executions_;
    }

    static Interleavings& current() { return *current_; }

    // What thread or set-up does to memory. A location is known by its address.
    std::uint64_t load(const void* where, std::memory_order order) {
        Location& at = reach(where, false);
        if (order == std::memory_order_seq_cst) join(own(), total_);
        const auto found = thread_ < 0 ? at.history.size() - 1 : choose_stored(at, own().seen[where]);
        own().seen[where] = found;
        if (thread_ >= 0) looked_[static_cast<std::size_t>(thread_)][where] = found;
        if (acquires(order)) join(own(), at.history[found].view);
        return at.history[found].value;
    }
    void store(const void* where, std::uint64_t value, std::memory_order order) {
        put(reach(where, true), where, value, order);
    }
    std::uint64_t change(const void* where, const std::function<std::uint64_t(std::uint64_t)>& to,
                         std::memory_order order) {
        Location& at = reach(where, true);
        const Stored latest = at.history.back();
        if (acquires(order)) join(own(), latest.view);
        put(at, where, to(latest.value), order);
        return latest.value;
    }
    void touch(const void* where, bool writes) {  // plain memory: no other order of it needs to be tried
        Plain& at = plain_[where];
        const View& mine = own();
        if (thread_ >= 0 && !precedes(at.writer, at.written, mine)) fail("a race: data is not published");
        for (std::size_t other = 0; writes && other < at.reads.size(); ++other)
            if (thread_ >= 0 && !precedes(static_cast<int>(other), at.reads[other], mine))
                fail("a race: data is overwritten while it is read");
        const auto now = thread_ < 0 ? 0 : mine.clock[static_cast<std::size_t>(thread_)];
        if (writes)
            at.writer = thread_, at.written = now;
        else if (thread_ >= 0)
            at.reads.resize(clocks_), at.reads[static_cast<std::size_t>(thread_)] = now;
    }
    // After loads that found nothing to do. When one of their locations holds something newer this execution is given
    // up, for in another one the thread has not come to these loads before.
    void pause() {
        if (thread_ < 0) fail("the set-up waits");
        waits_[static_cast<std::size_t>(thread_)] = true;
        stop();
    }
    void expect(bool is_true, const char* what) {
        if (!is_true) fail(what);
    }

  private:
    struct View {
        std::map<const void*, std::size_t> seen;
        std::vector<std::uint64_t> clock;  // by thread
    };
    struct Stored {
        std::uint64_t value;
        View view;
        std::size_t time = 0;  // accesses before it
    };
    struct Location {
        std::vector<Stored> history;
    };
    struct Plain {
        int writer = -1;
        std::uint64_t written = 0;
        std::vector<std::uint64_t> reads;  // by thread
    };
    struct Fiber {
        ucontext_t context;
        std::vector<std::byte> stack;
        Body body;
        bool ended = false;
        const void* next = nullptr;  // the location of its next access
        bool writes = false;
    };
    struct Choice {
        std::size_t taken, count;
    };

    static bool acquires(std::memory_order order) {
        return order != std::memory_order_relaxed && order != std::memory_order_release;
    }
    static bool releases(std::memory_order order) {
        return order != std::memory_order_relaxed && order != std::memory_order_acquire;
    }
    static void join(View& to, const View& from) {
        for (const auto& [where, at] : from.seen) to.seen[where] = std::max(to.seen[where], at);
        to.clock.resize(std::max(to.clock.size(), from.clock.size()));
        for (std::size_t i = 0; i < from.clock.size(); ++i) to.clock[i] = std::max(to.clock[i], from.clock[i]);
    }
    static bool precedes(int thread, std::uint64_t clock, const View& view) {
        return thread < 0 || clock <= view.clock[static_cast<std::size_t>(thread)];
    }
    View& own() { return thread_ < 0 ? setup_ : views_[static_cast<std::size_t>(thread_)]; }

    [[noreturn]] void fail(const std::string& what) {
        std::string text = what + "; threads in the order of their accesses:";
        for (const int thread : order_) text += ' ' + std::to_string(thread);
        throw std::runtime_error(text);
    }

    // Stops before an access, and counts it.
    Location& reach(const void* where, bool writes) {
        if (thread_ >= 0) {
            Fiber& fiber = *fibers_[static_cast<std::size_t>(thread_)];
            fiber.next = where, fiber.writes = writes;
            last_[static_cast<std::size_t>(thread_)] = made_[static_cast<std::size_t>(thread_)];
            stop();
            order_.push_back(thread_);
            made_[static_cast<std::size_t>(thread_)] = order_.size();
        }
        Location& at = locations_[where];
        if (at.history.empty()) at.history.push_back({0, {}, 0});
        return at;
    }
    void put(Location& at, const void* where, std::uint64_t value, std::memory_order order) {
        own().seen[where] = at.history.size();
        if (thread_ >= 0) looked_[static_cast<std::size_t>(thread_)].erase(where);
        if (order == std::memory_order_seq_cst) join(own(), total_), total_ = own();
        View view;
        if (releases(order)) view = own();
        view.seen[where] = at.history.size();
        at.history.push_back({value, std::move(view), order_.size()});
        if (thread_ >= 0)
            ++own().clock[static_cast<std::size_t>(thread_)];  // what comes now, this store does not publish
    }
    // One of the stores that a load may read, the oldest that is `seen` or a later one. A stale one is left out where
    // another execution has the load just before the store that made it stale: unless this thread's latest access,
    // which comes before the load, came after that store.
    std::size_t choose_stored(const Location& at, std::size_t seen) {
        const std::size_t latest = at.history.size() - 1, before = last_[static_cast<std::size_t>(thread_)];
        std::size_t stale = seen;
        while (stale < latest && at.history[stale + 1].time < before) ++stale;
        const auto chosen = choose(stale - seen + (stale < latest ? 2 : 1));
        return chosen == 0 ? latest : seen + chosen - 1;
    }
    std::size_t choose(std::size_t count) {
        if (count == 1) return 0;
        if (step_ == choices_.size()) choices_.push_back({0, count});
        return choices_[step_++].taken;
    }

    void stop() { swapcontext(&fibers_[static_cast<std::size_t>(thread_)]->context, &scheduler_); }
    static void enter() {
        Interleavings& search = current();
        Fiber& fiber = *search.fibers_[static_cast<std::size_t>(search.thread_)];
        try {
            fiber.body();
        } catch (const std::exception& error) {
            search.failure_ = error.what();
        }
        fiber.ended = true;
        search.stop();
    }

    void execute(std::vector<Body> bodies) {
        const Body check = std::move(bodies.back());
        bodies.pop_back();
        clocks_ = bodies.size();
        setup_.clock.assign(clocks_, 0);
        views_.assign(clocks_, setup_);
        for (std::size_t i = 0; i < clocks_; ++i) views_[i].clock[i] = 1;
        waits_.assign(clocks_, false);
        looked_.assign(clocks_, {});
        made_.assign(clocks_, 0), last_ = made_;
        for (auto& body : bodies) {
            auto& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
            fiber.body = std::move(body), fiber.stack.resize(std::size_t{1} << 17);
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
            makecontext(&fiber.context, enter, 0);
        }
        for (std::size_t i = 0; i < clocks_; ++i) resume(i);  // each to its first access
        std::vector<std::size_t> asleep;
        while (schedule(asleep)) {
        }
        if (failure_.empty() && !pruned_) {
            thread_ = -1;
            for (const View& view : views_) join(setup_, view);
            check();
        }
        ++executions_;
        if (!failure_.empty()) throw std::runtime_error(failure_);
    }

    void resume(std::size_t i) {
        thread_ = static_cast<int>(i);
        swapcontext(&scheduler_, &fibers_[i]->context);
    }

    // Lets one thread make its access, and go on to its next one. `asleep`: threads whose access here was tried before,
    // with all that follows, and is independent of all accesses since.
    bool schedule(std::vector<std::size_t>& asleep) {
        std::vector<std::size_t> able;
        bool ended = true;
        for (std::size_t i = 0; i < fibers_.size(); ++i) {
            ended = ended && fibers_[i]->ended;
            if (waits_[i] && is_news(i)) return pruned_ = true, false;
            if (!fibers_[i]->ended && !waits_[i]) able.push_back(i);
        }
        if (ended || !failure_.empty()) return false;
        if (able.empty()) return failure_ = described("a deadlock: every thread waits"), false;
        std::vector<std::size_t> fresh;
        for (const auto i : able)
            if (std::find(asleep.begin(), asleep.end(), i) == asleep.end()) fresh.push_back(i);
        if (fresh.empty()) return pruned_ = true, false;
        const auto taken = choose(fresh.size());
        asleep.insert(asleep.end(), fresh.begin(), fresh.begin() + static_cast<std::ptrdiff_t>(taken));
        std::erase_if(asleep, [&](std::size_t i) { return depends(i, fresh[taken]); });
        resume(fresh[taken]);
        return failure_.empty();
    }
    std::string described(const std::string& what) {
        try {
            fail(what);
        } catch (const std::exception& error) {
            return error.what();
        }
    }
    bool is_news(std::size_t i) const {
        return std::any_of(looked_[i].begin(), looked_[i].end(), [&](const auto& look) {
            return locations_.at(look.first).history.size() > look.second + 1;
        });
    }
    bool depends(std::size_t a, std::size_t b) const {
        const Fiber &one = *fibers_[a], &other = *fibers_[b];
        return one.next == other.next && (one.writes || other.writes);
    }

    // The next execution: the latest choice that has another way left takes it.
    bool next() {
        while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().count) choices_.pop_back();
        if (choices_.empty()) return false;
        ++choices_.back().taken;
        const auto kept = std::move(choices_);
        const auto executions = executions_;
        *this = Interleavings();
        choices_ = kept, executions_ = executions;
        return true;
    }

    static inline Interleavings* current_ = nullptr;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::map<const void*, Location> locations_;
    std::map<const void*, Plain> plain_;
    std::vector<View> views_;
    View setup_, total_;
    std::vector<bool> waits_;
    std::vector<std::map<const void*, std::size_t>> looked_;  // by thread: the latest store found
    std::vector<Choice> choices_;
    std::size_t step_ = 0, clocks_ = 0;
    std::vector<int> order_;
    std::vector<std::size_t> made_, last_;  // by thread: the times of its latest access, and of the one before
    std::string failure_;
    bool pruned_ = false;
    std::int64_t executions_ = 0;
    int thread_ = -1;
    ucontext_t scheduler_;
};

// In place of std::atomic, in the code under test.
template <class T>
class Atomic {
  public:
    T load(std::memory_order order = std::memory_order_seq_cst) const {
        return static_cast<T>(Interleavings::current().load(this, order));
    }
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
        Interleavings::current().store(this, static_cast<std::uint64_t>(value), order);
    }
    T fetch_add(T more, std::memory_order order = std::memory_order_seq_cst) {
        const auto add = [more](std::uint64_t value) { return value + static_cast<std::uint64_t>(more); };
        return static_cast<T>(Interleavings::current().change(this, add, order));
    }

  private:
    T unused_{};  // of the same size as the real one: the value lies in the history of its address
};

}  // namespace dovetail::test
