// LaneRun: the state machine by which the threads of a group run one lane of a Program. The same source runs on host
// threads (host.hpp), where it is tested, and as a threadblock on a device (device.cuh).
//
// Within a group every thread takes the same path: the leader takes decisions that depend on memory, and shares them at
// a barrier. A slice ends with one barrier, after which the leader posts what others wait for.
#pragma once

#include "cuda/stretch.hpp"
#include "cuda/view.hpp"
#include "cuda/wire.hpp"
#include "run/op.hpp"

namespace dovetail::cuda {

using run::Kind;

DOVETAIL_INLINE bool takes_message(Kind kind) { return kind >= Kind::recv && kind <= Kind::recv_reduce_copy_send; }
DOVETAIL_INLINE bool sends_message(Kind kind) {
    return kind == Kind::send || (kind >= Kind::recv_copy_send && kind <= Kind::recv_reduce_copy_send);
}
DOVETAIL_INLINE bool reduces(Kind kind) {
    return kind == Kind::reduce || kind == Kind::recv_reduce || kind == Kind::recv_reduce_send ||
           kind == Kind::recv_reduce_copy_send;
}
DOVETAIL_INLINE bool stores(Kind kind) {
    return kind != Kind::send && kind != Kind::recv_reduce_send && kind != Kind::nop && kind != Kind::signal &&
           kind != Kind::wait;
}

// Of 32 bits where both fit: on a device a division of 64 takes longer than what it is for.
DOVETAIL_INLINE std::uint64_t remainder(std::uint64_t number, std::uint64_t by) {
    if ((number | by) >> 32) return number % by;
    return static_cast<std::uint32_t>(number) % static_cast<std::uint32_t>(by);
}

// Whether a group should wait on: not once all are stopped, and who finds that no lane has moved for long stops all.
template <class Group>
DOVETAIL_INLINE bool patient(const Image& image, Patience& so_far) {
    std::uint64_t& stop = image.at<Counter>(image.stop)->value;
    if (Group::load_relaxed(stop)) return false;
    const std::uint64_t now = Group::now_ns();
    if (so_far.begin_ns == 0) so_far.begin_ns = now;
    if (now - so_far.begin_ns < image.stall_ns) return true;
    std::uint64_t moves = 1;  // never that of who has not looked yet
    for (int lane = 0; lane < image.num_lanes; ++lane)
        moves += Group::load_relaxed(image.at<Watch>(image.watch)[lane].moves);
    if (moves != so_far.moves) {
        so_far = {now, moves};
        return true;
    }
    Group::store_relaxed(stop, 1);
    return false;
}

template <class Wire, class Group>
class LaneRun {
  public:
    DOVETAIL_INLINE LaneRun(const Image& image, Group& group, int lane)
        : image_(image), group_(group), number_(lane), lane_(image.at<const Lane>(image.lanes)[lane]) {}

    // Runs all steps in every round; false where the run was stopped.
    DOVETAIL_INLINE bool run() {
        for (std::int32_t round = 0; round < image_.rounds; ++round)
            for (std::int32_t index = 0; index < lane_.count; ++index)
                if (!run_step(round, index)) return false;
        if (group_.leads()) group_.store_release(watch().at, finished);
        return true;
    }

    static constexpr std::uint64_t finished = ~std::uint64_t{0};

  private:
    DOVETAIL_INLINE bool run_step(std::int32_t round, std::int32_t index) {
        const Step* all = image_.at<const Step>(image_.steps) + lane_.first;
        const Step& step = group_.step(all + index, all + (index + 1 < lane_.count ? index + 1 : 0));
        const auto kind = static_cast<Kind>(step.kind);
        const std::uint64_t turn = image_.first_round + static_cast<std::uint64_t>(round);
        at_ = static_cast<std::uint64_t>(index + 1) << 32;
        if (group_.leads()) report(Wait::nothing);
        for (std::int32_t i = 0; i < step.num_deps; ++i)
            if (!await_dep(image_.at<const Dep>(image_.deps)[step.dep + i], turn)) return false;
        Span* span = image_.stamps && group_.leads()
                         ? image_.at<Span>(image_.spans) + std::int64_t{round} * image_.num_steps + step.row
                         : nullptr;
        if (span) span->begin_ns = group_.now_ns();
        bool goes_on = true;
        if (kind == Kind::wait)
            goes_on = await_signal(step, turn);
        else if (kind == Kind::signal)
            signal(step);
        else if (kind != Kind::nop)
            goes_on = move(step, kind, round, turn);
        if (!goes_on) return false;
        if (span) span->end_ns = group_.now_ns();
        if (step.publishes && group_.leads())
            group_.store_release(counter(image_.done, number_), turn * count() + static_cast<std::uint64_t>(index) + 1);
        return true;
    }

    DOVETAIL_INLINE std::uint64_t count() const { return static_cast<std::uint64_t>(lane_.count); }
    DOVETAIL_INLINE Watch& watch() const { return image_.at<Watch>(image_.watch)[number_]; }
    DOVETAIL_INLINE std::uint64_t& counter(std::int64_t table, std::int32_t number) const {
        return image_.at<Counter>(table)[number].value;
    }
    DOVETAIL_INLINE void report(Wait what) {
        group_.store_relaxed(watch().at, at_ | static_cast<std::uint64_t>(what));
        group_.store_relaxed(watch().moves, ++moves_);
    }

    struct Seen {  // what a counter had come to when the leader last looked: it need not look again for less
        const std::uint64_t* counter = nullptr;
        std::uint64_t value = 0;
    };

    // The leader alone: until the counter has come to `wanted`.
    DOVETAIL_INLINE bool reach(std::uint64_t& counter, std::uint64_t wanted, Wait what, Seen& seen) {
        if (seen.counter == &counter && seen.value >= wanted) return true;
        const bool orders = what != Wait::place || Wire::counts_sent;  // else nothing is read that others wrote
        seen = {&counter, orders ? group_.load_acquire(counter) : group_.load_place(counter)};
        if (seen.value >= wanted) return true;
        group_.store_relaxed(watch().at, at_ | static_cast<std::uint64_t>(what));
        if (!group_.spin([&] { return group_.load_relaxed(counter) >= wanted; })) return false;
        // Once: on a device each acquiring load empties the multiprocessor's cache.
        seen.value = orders ? group_.load_acquire(counter) : group_.load_place(counter);
        return true;
    }

    // The same for all threads of the group, which learn of it, or that the run was stopped.
    DOVETAIL_INLINE bool await(std::uint64_t& counter, std::uint64_t wanted, Wait what) {
        Seen seen;
        return group_.all(!group_.leads() || reach(counter, wanted, what, seen));
    }

    // Until a slice may be moved: it is there, and there is a place for it.
    DOVETAIL_INLINE bool await_slice(const Step& step, bool message, std::uint64_t number_in, bool sends,
                                     std::uint64_t number_out) {
        const std::uint64_t capacity = sends ? static_cast<std::uint64_t>(step.through.capacity) : 0;
        const bool place = sends && number_out > capacity;
        if (!message && !place) return true;
        bool came = true;
        if (group_.leads()) {
            if (message) came = reach(counter(image_.sent, step.in), number_in, Wait::message, in_);
            if (came && place) came = reach(counter(image_.taken, step.out), number_out - capacity, Wait::place, out_);
        }
        return group_.all(came);
    }

    DOVETAIL_INLINE bool await_dep(const Dep& dep, std::uint64_t turn) {
        const std::uint64_t wanted =
            turn * static_cast<std::uint64_t>(dep.count) + static_cast<std::uint64_t>(dep.index) + 1;
        return await(counter(image_.done, dep.lane), wanted, Wait::op);
    }

    DOVETAIL_INLINE bool await_signal(const Step& step, std::uint64_t turn) {
        const auto per_round = static_cast<std::uint64_t>(step.by.signals);
        const std::uint64_t wanted = turn * per_round + static_cast<std::uint64_t>(step.in_first) + 1;
        return await(counter(image_.signals, step.in), wanted, Wait::signal);
    }

    // What came before in the group was ended by a barrier, so the leader's release covers it.
    DOVETAIL_INLINE void signal(const Step& step) {
        if (!group_.leads()) return;
        std::uint64_t& count = counter(image_.signals, step.out);
        group_.store_release(count, group_.load_relaxed(count) + 1);
    }

    // Where a slice of a channel lies; `number` counts from 1 on.
    DOVETAIL_INLINE Crossing crossing(const Channel& channel, std::uint64_t number) const {
        const std::uint64_t place = remainder(number - 1, static_cast<std::uint64_t>(channel.capacity));
        return {image_.base + channel.ring + static_cast<std::int64_t>(place) * image_.pitch, number};
    }

    static DOVETAIL_INLINE std::uint64_t first_slice(const Channel& channel, std::int64_t first, std::uint64_t turn) {
        return turn * static_cast<std::uint64_t>(channel.per_round) + static_cast<std::uint64_t>(first) + 1;
    }

    // An op that moves bytes, slice by slice; what nobody else waits for is one slice.
    DOVETAIL_INLINE bool move(const Step& step, Kind kind, std::int32_t round, std::uint64_t turn) {
        const bool reads = step.from.present;
        View mine[2];
        const View* const views = group_.share(mine, [&](int which) {
            const Place& place = which == 0 ? step.from : step.to;
            return (which == 0 ? reads : stores(kind)) ? View(image_, place, round) : View();
        });
        const View &from = views[0], &to = views[1];
        const std::int64_t bytes = reads ? from.bytes() : to.bytes();
        const bool takes = takes_message(kind), sends = sends_message(kind);
        const std::uint64_t in = first_slice(step.by, step.in_first, turn);
        const std::uint64_t out = first_slice(step.through, step.out_first, turn);
        const auto slices = static_cast<std::uint64_t>(step.slices);
        const std::int64_t each = takes || sends ? image_.slice_bytes : bytes;
        for (std::uint64_t slice = 0;; ++slice) {
            const std::int64_t begin = static_cast<std::int64_t>(slice) * each, left = bytes - begin;
            const std::int64_t size = left < each ? left : each;
            const bool last = left <= each;
            if (!await_slice(step, takes && Wire::counts_sent, in + slice, sends, out + slice)) return false;
            const Ends ends{takes ? crossing(step.by, in + slice) : Crossing{},
                            sends ? crossing(step.through, out + slice) : Crossing{}};
            if (takes && !Wire::counts_sent && group_.leads())
                group_.store_relaxed(watch().at, at_ | static_cast<std::uint64_t>(Wait::message));
            if (!group_.all(move_slice(step, kind, from, to, begin, size, ends))) return false;
            if (group_.leads()) {  // slices that are empty are never waited for, but count
                const std::uint64_t moved = last ? slices : slice + 1;
                post(takes, step.in, in + moved - 1, sends && Wire::counts_sent, step.out, out + moved - 1);
                report(Wait::nothing);
            }
            if (last) return true;
        }
    }

    // Signals that a slice was taken, and that one was sent; if both, memory is ordered once.
    DOVETAIL_INLINE void post(bool took, std::int32_t in, std::uint64_t taken, bool gave, std::int32_t out,
                              std::uint64_t sent) {
        if (took && gave)
            group_.store_release_both(counter(image_.taken, in), taken, counter(image_.sent, out), sent);
        else if (took && Wire::counts_sent)
            group_.store_release(counter(image_.taken, in), taken);
        else if (took)  // flags were seen in what was loaded, so it was loaded
            group_.store_loaded(counter(image_.taken, in), taken);
        else if (gave)
            group_.store_release(counter(image_.sent, out), sent);
    }

    struct Ends {
        Crossing in, out;
    };

    // The units of a slice that lie in one piece wherever they come from and go to: how many, all threads together.
    DOVETAIL_INLINE std::int64_t move_whole(const Step& step, Kind kind, const View& from, const View& to,
                                            std::int64_t begin, std::int64_t size, const Ends& ends) {
        const bool takes = takes_message(kind), sends = sends_message(kind);
        const std::int64_t units = size / 16, whole = 16 * units;
        if (units == 0) return 0;
        Unit *held = nullptr, *kept = nullptr;
        if (step.from.present && !lies_whole(from, begin, whole, held)) return 0;
        if (stores(kind) && !lies_whole(to, begin, whole, kept)) return 0;
        const Unit* came = takes ? reinterpret_cast<const Unit*>(ends.in.at) : nullptr;
        Stretches all{held, nullptr, kept, sends ? reinterpret_cast<Unit*>(ends.out.at) : nullptr};
        if (kind == Kind::reduce)
            all.a = kept, all.b = held;
        else if (reduces(kind))
            all.b = came;
        else if (takes)
            all.a = came;
        move_stretches(all, step.dtype, image_.reduce_op, units, group_.thread(), group_.threads());
        return units;
    }

    DOVETAIL_INLINE bool move_slice(const Step& step, Kind kind, const View& from, const View& to, std::int64_t begin,
                                    std::int64_t size, const Ends& ends) {
        const bool takes = takes_message(kind), sends = sends_message(kind), adds = reduces(kind), keeps = stores(kind);
        const int element = element_bytes(step.dtype);
        const std::int64_t units = takes || sends ? Wire::units(size) : Simple::units(size);
        const int together = takes || sends ? Wire::threads_together : 1;
        constexpr int batch = Wire::batch;  // units on their way at once
        std::int64_t done = 0;
        if constexpr (Wire::plain) done = move_whole(step, kind, from, to, begin, size, ends);
        for (std::int64_t turn = 0; done + group_.unit(turn, together) < units; turn += batch) {
            Unit data[batch] = {}, came[batch] = {};
            Part part[batch];
            DOVETAIL_UNROLL
            for (int i = 0; i < batch; ++i) {
                const std::int64_t unit = done + group_.unit(turn + i, together);
                part[i] = takes || sends ? Wire::part(unit) : Simple::part(unit);
                const std::int64_t left = unit < units ? size - part[i].begin : 0;
                part[i].bytes = left <= 0 ? 0 : left < part[i].bytes ? static_cast<int>(left) : part[i].bytes;
                part[i].begin += begin;
                if (unit >= units) continue;
                if (step.from.present && part[i].bytes > 0) data[i] = load(from, part[i].begin, part[i].bytes, element);
                if (takes && !Wire::take(group_, ends.in, unit, came[i])) return false;
                if (kind == Kind::reduce && part[i].bytes > 0)
                    came[i] = data[i], data[i] = load(to, part[i].begin, part[i].bytes, element);
            }
            DOVETAIL_UNROLL
            for (int i = 0; i < batch; ++i) {
                const std::int64_t unit = done + group_.unit(turn + i, together);
                if (unit >= units) continue;
                if (adds)
                    data[i] = Wire::plain ? combine(step.dtype, image_.reduce_op, data[i], came[i])
                                          : combine_at_once(step.dtype, image_.reduce_op, data[i], came[i]);
                else if (takes)
                    data[i] = came[i];
                if (keeps && part[i].bytes > 0) store(to, part[i].begin, part[i].bytes, element, data[i]);
                if (sends) Wire::put(group_, ends.out, unit, data[i]);
            }
        }
        return true;
    }

    const Image& image_;
    Group& group_;
    const int number_;
    const Lane lane_;
    std::uint64_t at_ = 0, moves_ = 0;
    Seen in_, out_;
};

}  // namespace dovetail::cuda
