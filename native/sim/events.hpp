// EventQueue: the pending events of a simulation by (time, op): a calendar whose days follow what is pending.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

    void push(Event event) {
        const double day = day_of(event.time());
        if (!(day < num_days_)) {
            after_.push_back(event);
        } else if (const auto number = static_cast<std::int64_t>(day); number <= today_number_) {
            push_today(event);
        } else {
            push_day(event, static_cast<std::size_t>(number));
        }
    }

  private:
    static constexpr std::int32_t kNone = -1;
    static constexpr std::size_t kMostShifts = 32, kDaysAnEvent = 4, kMostDays = 1 << 16, kFewEvents = 12,
                                 kMostTaken = 4096;

    struct Later {
        bool operator()(const Event& one, const Event& other) const { return other < one; }
    };
    struct Entry {  // of a day's list
        Event event;
        std::int32_t next;
    };

    double day_of(double time) const { return (time - start_s_) * days_a_second_; }
    bool has_today() const { return first_ < today_.size() || !late_.empty(); }

    bool takes_late() const { return !late_.empty() && (first_ == today_.size() || late_.front() < today_[first_]); }

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
        } else if (after_.empty()) {
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

    void sort_today() {
        if (today_.size() > kFewEvents) {
            if (!std::is_sorted(today_.begin(), today_.end())) std::sort(today_.begin(), today_.end());
            return;
        }
        for (std::size_t i = 1; i < today_.size(); ++i) {
            const Event event = today_[i];
            std::size_t at = i;
            for (; at > 0 && event < today_[at - 1]; --at) today_[at] = today_[at - 1];
            today_[at] = event;
        }
    }

    // Lays days over all events that are pending, which are those after the last day, and takes the first one.
    void lay_days() {
        const auto [first, last] = std::minmax_element(after_.begin(), after_.end());
        const Event least = *first, most = *last;
        const std::size_t count = after_.size();
        const double length_s = (most.time() - least.time()) / static_cast<double>(count);
        start_s_ = least.time();
        days_a_second_ = 1.0 / std::max({length_s, start_s_ * 0x1p-52, 1e-300});
        if (!std::isfinite(most.time())) return take_all();
        const std::size_t days = std::min(std::bit_ceil(kDaysAnEvent * count), kMostDays);
        num_days_ = static_cast<double>(days);
        today_number_ = 0;
        if (days > heads_.size()) {  // no day has entries now
            heads_.resize(days, kNone);
            marks_.resize((days + 63) / 64);
        }
        moved_.swap(after_);
        after_.clear();
        for (const Event event : moved_) {
            const double day = day_of(event.time());
            if (!(day < num_days_)) {
                after_.push_back(event);
            } else if (day < 1.0) {
                today_.push_back(event);
            } else {
                push_day(event, static_cast<std::size_t>(day));
            }
        }
        moved_.clear();
        sort_today();
    }

    // Makes every time that is not infinite one of today, so that sums beyond the largest double end, too.
    void take_all() {
        start_s_ = days_a_second_ = 0.0;
        num_days_ = 1.0;
        today_number_ = 0;
        today_.swap(after_);
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
    std::vector<Event> after_, moved_;
};

}  // namespace dovetail::sim
