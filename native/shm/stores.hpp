// Stores: how a writer stores long messages that another core reads: through the caches, or past them (non-temporal).
//
// A store through the caches takes the line from the core that read it last. Between cores that share no cache this is
// several times as long as a store past the caches; where they share one, the reader finds cached data sooner. A
// machine may change between the two while a program runs. So both ends time their messages, and a whole lap of the
// ring is stored the way whose latest laps took least at both ends. A lap after a change does not count: it meets what
// the other way left in the caches. The other way is tried again, soon after a change, then more and more rarely.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dovetail::shm {

enum class Way : std::uint32_t { cached, nontemporal };

// How one message is stored, and whether both ends time it.
struct Turn {
    Way way = Way::cached;
    std::uint32_t is_timed = 0;
};

// Stores past the caches, where the processor can. Other cores may see it late: `settle` comes before any flag.
inline void store_nontemporal(std::byte* to, const std::byte* from, std::size_t num_bytes) {
#if defined(__SSE2__)
    constexpr std::size_t one = sizeof(__m128i), line = 4 * one;
    std::size_t at = std::min((line - reinterpret_cast<std::uintptr_t>(to) % line) % line, num_bytes);
    std::memcpy(to, from, at);
    for (; at + line <= num_bytes; at += line)
        for (std::size_t i = at; i < at + line; i += one)
            _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    std::memcpy(to + at, from + at, num_bytes - at);
#else
    std::memcpy(to, from, num_bytes);
#endif
}

inline void settle() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

inline std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// What a reader reports to its writer, in sums by way, on a line that the reader writes anyway.
struct ReadTimes {
    std::atomic<std::uint64_t> spent[2], bytes[2];

    void add(Way way, std::uint64_t more_spent, std::uint64_t more_bytes) {
        const auto i = static_cast<std::size_t>(way);
        spent[i].store(spent[i].load(std::memory_order_relaxed) + more_spent, std::memory_order_relaxed);
        bytes[i].store(bytes[i].load(std::memory_order_relaxed) + more_bytes, std::memory_order_relaxed);
    }
};

// Ticks per byte: the median of the latest laps, so that neither interrupts nor a cold cache decide.
class Rate {
  public:
    void note(std::uint64_t spent, std::uint64_t bytes) {
        latest_[count_++ % latest_.size()] = static_cast<float>(spent) / static_cast<float>(bytes);
    }
    void clear() { count_ = 0; }
    bool is_known() const { return count_ > 0; }
    float value() const {
        auto sorted = latest_;
        const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count_, sorted.size()));
        const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
        std::nth_element(sorted.begin(), middle, end);
        return *middle;
    }

  private:
    std::array<float, 9> latest_ = {};
    std::size_t count_ = 0;
};

class Stores {
  public:
    // Bytes: shorter messages are never stored past the caches; and not each is timed that is shorter than
    // `always_timed`, because reading the clock would show.
    static constexpr std::uint64_t least_nontemporal = 1024, always_timed = 4096;
    // What stays cached also helps later steps, whose time is not counted.
    static constexpr float least_gain = 0.7, least_gain_alone = 0.5;
    static constexpr int first_interval = 8, laps_of_try = 6;  // laps from a change to the next try; at most, of a try
    static constexpr float most_tried = 64;  // in the end, tries take one of this many parts of the time

    // Not `hears`: no reader reports its times, so that the writer's must fall further.
    explicit Stores(bool hears = true) : hears_(hears) {}

    // Of the message in a slot; `lap`, `is_first`: of the ring, and in it.
    Turn turn(std::uint64_t num_bytes, std::uint64_t lap, bool is_first) {
        if (num_bytes < least_nontemporal) return {};
        if (lap != lap_) begin(lap);
        return {way_, is_settled_ && (is_first || num_bytes >= always_timed)};
    }
    void wrote(std::uint64_t spent, std::uint64_t num_bytes) { timed_.spent += spent, timed_.bytes += num_bytes; }
    void hear(const ReadTimes& sums) {
        for (const std::size_t i : {0, 1}) {
            const Sum sum{sums.spent[i].load(std::memory_order_relaxed), sums.bytes[i].load(std::memory_order_relaxed)};
            if (sum.bytes != heard_[i].bytes)
                reads_[i].note(sum.spent - heard_[i].spent, sum.bytes - heard_[i].bytes), heard_[i] = sum;
        }
    }

  private:
    struct Sum {
        std::uint64_t spent = 0, bytes = 0;
    };
    static std::size_t index(Way way) { return static_cast<std::size_t>(way); }
    Way other() const { return best_ == Way::nontemporal ? Way::cached : Way::nontemporal; }
    bool is_known(Way way) const {
        return writes_[index(way)].is_known() && (!hears_ || reads_[index(way)].is_known());
    }
    float cost(Way way) const { return writes_[index(way)].value() + (hears_ ? reads_[index(way)].value() : 0.0f); }
    Way better() const {
        const float gain = hears_ ? least_gain : least_gain_alone;
        return cost(Way::nontemporal) < gain * cost(Way::cached) ? Way::nontemporal : Way::cached;
    }

    void begin(std::uint64_t lap) {
        if (timed_.bytes) writes_[index(way_)].note(timed_.spent, timed_.bytes);
        const Way before = way_;
        ++laps_;
        way_ == best_ ? go_on() : go_on_trying();
        is_settled_ = way_ == before;
        lap_ = lap, timed_ = {};
    }
    void go_on() {
        if (!is_known(best_)) return;
        const bool is_doubted = is_known(other()) && better() != best_;  // it has become slower than the other was
        if (laps_ < interval_ && !is_doubted) return;
        way_ = other();
        laps_ = 0;
        writes_[index(way_)].clear(), reads_[index(way_)].clear();
    }
    // A try goes on while its laps say that the other way is better. If the last of them does, it is the choice.
    void go_on_trying() {
        const bool is_better = is_known(way_) && better() == way_;
        if (laps_ < laps_of_try && (!is_known(way_) || is_better)) return;
        if (is_better) {
            best_ = way_, interval_ = first_interval;
        } else {
            const float most = is_known(way_) ? 2 * most_tried * cost(way_) / cost(best_) : 2 * most_tried;
            interval_ = std::min(2 * interval_, static_cast<int>(most));
        }
        way_ = best_;
        laps_ = 0;
    }

    bool hears_;
    Rate writes_[2], reads_[2];
    Sum heard_[2], timed_;  // timed_: of this lap
    Way best_ = Way::cached, way_ = Way::cached;
    bool is_settled_ = false;                   // the last lap was stored this way
    int laps_ = 0, interval_ = first_interval;  // since the last change of way; until the next try
    std::uint64_t lap_ = 0;
};

}  // namespace dovetail::shm
