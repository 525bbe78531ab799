// EventQueue: the pending events of a simulation by (time, op): a calendar whose days follow what is pending.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace dovetail::sim {

// A time (never negative) and an op, packed into one integer that sorts by time, then by op, without branches.
class Event {
  public:
    Event() = default;
    Event(double time, std::int32_t op)
        : key_(static_cast<Key>(std::bit_cast<std::uint64_t>(time)) << 64 | static_cast<std::uint32_t>(op)) {}

    double time() const { return std::bit_cast<double>(static_cast<std::uint64_t>(key_ >> 64)); }
    std::int32_t op() const { return static_cast<std::int32_t>(key_); }
    bool operator<(const Event& other) const { return key_ < other.key_; }

  private:
    using Key = unsigned __int128;
    Key key_ = 0;
};

// Pending events in three places: those of today and before, sorted; those of the days to come, one unsorted list a
// day; and those after the last day. When all days are over, new ones are laid over the events after the last day,
// several days an event, so that a day has few events and most cost a constant number of steps. The day of a time never
// falls as the time grows, so that the order is exact whatever the days' length.
class EventQueue {
  public:
    bool empty() { return !has_today() && !next_day(); }

    // The earliest event; the queue must not be empty.
    const Event& top() {
        if (!has_today()) next_day();
        return takes_late() ? late_.front() : today_[first_];
    }

    // Takes the earliest event; returns false if there is none.
    bool pop(Event& event) {
        if (first_ == today_.size() || !late_.empty()) [[unlikely]]
            return pop_elsewhere(event);
        event = today_[first_++];
        return true;
    }

    void push(Event event) {
        const double day = day_of(event.time());
        if (day < num_days_) return push_before_end(event, static_cast<std::int64_t>(day));
        push_after(event);
    }

  private:
    static constexpr std::int32_t kNone = -1;
    static constexpr std::size_t kMostShifts = 32, kDaysAnEvent = 4, kMostDays = 1 << 16, kFewMoves = 64,
                                 kMovesAnEvent = 4, kMostTaken = 4096;
    static constexpr double kNoTime = std::numeric_limits<double>::infinity();

    struct Later {
        bool operator()(const Event& one, const Event& other) const { return other < one; }
    };
    struct Buffer {  // a vector whose `push` is short enough to be inlined: growing is not
        std::unique_ptr<Event[]> events;
        std::size_t count = 0, room = 0;

        void push(Event event) {
            if (count == room) [[unlikely]]
                grow();
            events[count++] = event;
        }

        [[gnu::noinline]] void grow() {
            const std::size_t more = std::max<std::size_t>(64, 2 * room);
            auto longer = std::make_unique_for_overwrite<Event[]>(more);
            std::copy_n(events.get(), count, longer.get());
            events = std::move(longer);
            room = more;
        }
    };
    struct Entry {  // of a day's list
        Event event;
        std::int32_t next;
    };

    double day_of(double time) const { return (time - start_s_) * days_a_second_; }
    bool has_today() const { return first_ < today_.size() || !late_.empty(); }

    bool takes_late() const { return !late_.empty() && (first_ == today_.size() || late_.front() < today_[first_]); }

    [[gnu::noinline]] bool pop_elsewhere(Event& event) {
        if (!has_today()) {
            if (pop_alone(event)) return true;
            if (!next_day()) return false;
        }
        if (!takes_late()) {
            event = today_[first_++];
            return true;
        }
        std::pop_heap(late_.begin(), late_.end(), Later{});
        event = late_.back();
        late_.pop_back();
        return true;
    }

    [[gnu::noinline]] void push_before_end(Event event, std::int64_t day) {
        day <= today_number_ ? push_today(event) : push_day(event, static_cast<std::size_t>(day));
    }

    // Inserts an event among those of today; a place far from the end would move too many, and the heap takes it.
    void push_today(Event event) {
        if (first_ == today_.size() || first_ > kMostTaken) {  // events that are taken need no memory
            today_.erase(today_.begin(), today_.begin() + static_cast<std::ptrdiff_t>(first_));
            first_ = 0;
        }
        const std::size_t end = today_.size(), least = end - std::min(end - first_, kMostShifts);
        std::size_t at = end;
        while (at > least && event < today_[at - 1]) --at;
        if (at == least && at > first_ && event < today_[at - 1]) {
            late_.push_back(event);
            std::push_heap(late_.begin(), late_.end(), Later{});
            return;
        }
        today_.insert(today_.begin() + static_cast<std::ptrdiff_t>(at), event);
    }

    void push_after(Event event) {
        const double time = event.time();
        after_least_s_ = std::min(after_least_s_, time);
        after_most_s_ = std::max(after_most_s_, time);
        after_.push(event);
    }

    void push_day(Event event, std::size_t day) {
        std::int32_t entry = free_;
        if (entry == kNone) {
            entry = static_cast<std::int32_t>(entries_.size());
            entries_.emplace_back();
        } else {
            free_ = entries_[entry].next;
        }
        entries_[entry] = {event, heads_[day]};
        heads_[day] = entry;
        marks_[day / 64] |= std::uint64_t{1} << day % 64;
    }

    // Goes to the next day that has events; false if there is none. Only when today's events are all taken.
    bool next_day() {
        today_.clear();
        first_ = 0;
        if (const std::int64_t day = next_marked(); day >= 0) {
            take_day(static_cast<std::size_t>(day));
        } else if (after_.count == 0) {
            return false;
        } else {
            lay_days();
        }
        return true;
    }

    // The number of the next day with events; -1 if there is none.
    std::int64_t next_marked() const {
        const auto from = static_cast<std::size_t>(today_number_ + 1);
        std::size_t word = from / 64;
        if (word >= marks_.size()) return -1;
        std::uint64_t marks = marks_[word] & ~std::uint64_t{0} << from % 64;
        while (marks == 0) {
            if (++word == marks_.size()) return -1;
            marks = marks_[word];
        }
        return static_cast<std::int64_t>(word * 64) + __builtin_ctzll(marks);
    }

    // Takes the only event of the next day with events, as most days have; false if there is none, or several.
    bool pop_alone(Event& event) {
        const std::int64_t day = next_marked();
        if (day < 0 || entries_[heads_[day]].next != kNone) return false;
        const std::int32_t entry = heads_[day];
        event = entries_[entry].event;
        entries_[entry].next = free_;
        free_ = entry;
        heads_[day] = kNone;
        marks_[day / 64] &= ~(std::uint64_t{1} << day % 64);
        today_number_ = day;
        today_.clear();
        first_ = 0;
        return true;
    }

    void take_day(std::size_t day) {
        marks_[day / 64] &= ~(std::uint64_t{1} << day % 64);
        today_number_ = static_cast<std::int64_t>(day);
        std::int32_t entry = heads_[day], last = kNone;
        heads_[day] = kNone;
        for (std::int32_t at = entry; at != kNone; at = entries_[at].next) {
            today_.push_back(entries_[at].event);
            last = at;
        }
        entries_[last].next = free_;
        free_ = entry;
        std::reverse(today_.begin(), today_.end());  // lists begin with what came last, which most often is the latest
        sort_today();
    }

    // Sorts by insertion, which is best for what is nearly sorted; after too many moves, std::sort takes over.
    void sort_today() {
        std::size_t moves_left = kFewMoves + kMovesAnEvent * today_.size();
        for (std::size_t i = 1; i < today_.size(); ++i) {
            if (!(today_[i] < today_[i - 1])) continue;
            const Event event = today_[i];
            std::size_t at = i;
            for (; at > 0 && event < today_[at - 1]; --at) today_[at] = today_[at - 1];
            today_[at] = event;
            if (i - at > moves_left) return std::sort(today_.begin(), today_.end());
            moves_left -= i - at;
        }
    }

    // Lays days over all events that are pending, which are those after the last day, and takes the first one.
    void lay_days() {
        const double least_s = std::exchange(after_least_s_, kNoTime), most_s = std::exchange(after_most_s_, 0.0);
        const std::size_t count = after_.count;
        const double length_s = (most_s - least_s) / static_cast<double>(count);
        start_s_ = least_s;
        days_a_second_ = 1.0 / std::max({length_s, start_s_ * 0x1p-52, 1e-300});
        if (!std::isfinite(most_s)) start_s_ = days_a_second_ = 0.0;  // all are today's
        if (least_s == most_s || !std::isfinite(most_s)) return take_all();
        const std::size_t days = std::min(std::bit_ceil(kDaysAnEvent * count), kMostDays);
        num_days_ = static_cast<double>(days);
        today_number_ = 0;
        if (days > heads_.size()) {  // no day has entries now
            heads_.resize(days, kNone);
            marks_.resize((days + 63) / 64);
        }
        std::swap(moved_, after_);
        after_.count = 0;
        for (const Event event : std::span(moved_.events.get(), moved_.count)) {
            const double day = day_of(event.time());
            if (!(day < num_days_)) {
                push_after(event);
            } else if (day < 1.0) {
                today_.push_back(event);
            } else {
                push_day(event, static_cast<std::size_t>(day));
            }
        }
        sort_today();
    }

    // Makes all events today's, and this the only day.
    void take_all() {
        num_days_ = 1.0;
        today_number_ = 0;
        today_.assign(after_.events.get(), after_.events.get() + after_.count);
        after_.count = 0;
        sort_today();
    }

    std::vector<Event> today_;  // sorted, from `first_` on
    std::size_t first_ = 0;
    std::vector<Event> late_;         // a heap
    std::int64_t today_number_ = -1;  // number of the current day
    double start_s_ = 0.0, days_a_second_ = 0.0, num_days_ = 0.0;
    std::vector<std::int32_t> heads_;   // per day: its first entry
    std::vector<std::uint64_t> marks_;  // a bit per day: whether it has entries
    std::vector<Entry> entries_;
    std::int32_t free_ = kNone;
    Buffer after_, moved_;
    double after_least_s_ = kNoTime, after_most_s_ = 0.0;  // of the times in `after_`
};

}  // namespace dovetail::sim
