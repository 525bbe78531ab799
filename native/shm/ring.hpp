// A stream of bytes from one rank to another, by a ring in memory that both map. Bytes are numbered from 0, and never
// restart. Records begin at multiples of `grain`, so that their heads are contiguous.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shm/stores.hpp"

namespace dovetail::shm {

inline constexpr std::size_t grain = 32;

// Each counter has a pair of cache lines, because some processors fetch lines in pairs.
struct RingHead {
    alignas(128) std::atomic<std::uint64_t> written;
    alignas(128) std::atomic<std::uint64_t> taken;
    ReadTimes read_times;
};

class RingWriter {
  public:
    RingWriter() = default;
    RingWriter(RingHead* head, std::byte* data, std::size_t capacity)
        : head_(head), data_(data), capacity_(capacity), at_(head->written.load(std::memory_order_relaxed)) {}

    // Loads the reader's counter only if the room known so far is too small.
    bool has_room(std::size_t num_bytes) {
        if (capacity_ - (at_ - taken_) >= num_bytes) return true;
        taken_ = head_->taken.load(std::memory_order_acquire);
        stores_.hear(head_->read_times);
        return capacity_ - (at_ - taken_) >= num_bytes;
    }
    std::size_t room() {
        taken_ = head_->taken.load(std::memory_order_acquire);
        return capacity_ - (at_ - taken_);
    }
    void put(const void* from, std::size_t num_bytes) {
        const std::size_t place = at_ & (capacity_ - 1), first = std::min(num_bytes, capacity_ - place);
        if (num_bytes) std::memcpy(data_ + place, from, first);
        if (num_bytes > first) std::memcpy(data_, static_cast<const std::byte*>(from) + first, num_bytes - first);
        at_ += num_bytes;
    }
    // How the next bytes of a long message are to be stored, and a `put` that does so.
    Turn turn(std::size_t num_bytes) { return stores_.turn(num_bytes, at_ / capacity_, false); }
    void put(const void* from, std::size_t num_bytes, Turn turn) {
        const std::uint64_t began = turn.is_timed ? ticks() : 0;
        if (turn.way == Way::cached) {
            put(from, num_bytes);
        } else {
            const auto* data = static_cast<const std::byte*>(from);
            const std::size_t place = at_ & (capacity_ - 1), first = std::min(num_bytes, capacity_ - place);
            store_nontemporal(data_ + place, data, first);
            store_nontemporal(data_, data + first, num_bytes - first);
            settle();
            at_ += num_bytes;
        }
        if (turn.is_timed) stores_.wrote(ticks() - began, num_bytes);
    }
    void publish() {
        at_ = (at_ + grain - 1) / grain * grain;
        head_->written.store(at_, std::memory_order_release);
    }

  private:
    RingHead* head_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t capacity_ = 0;  // a power of two
    std::uint64_t at_ = 0, taken_ = 0;
    Stores stores_;
};

class RingReader {
  public:
    RingReader() = default;
    RingReader(RingHead* head, std::byte* data, std::size_t capacity)
        : head_(head), data_(data), capacity_(capacity), at_(head->taken.load(std::memory_order_relaxed)) {}

    bool has_record() { return head_->written.load(std::memory_order_acquire) != at_; }
    template <class Head>
    Head head() {
        static_assert(sizeof(Head) == grain);
        Head found;
        std::memcpy(&found, data_ + (at_ & (capacity_ - 1)), grain);
        at_ += grain;
        return found;
    }
    void take(void* into, std::size_t num_bytes) {
        const std::size_t place = at_ & (capacity_ - 1), first = std::min(num_bytes, capacity_ - place);
        if (num_bytes) std::memcpy(into, data_ + place, first);
        if (num_bytes > first) std::memcpy(static_cast<std::byte*>(into) + first, data_, num_bytes - first);
        at_ += num_bytes;
    }
    void take(void* into, std::size_t num_bytes, Turn turn) {
        const std::uint64_t began = turn.is_timed ? ticks() : 0;
        take(into, num_bytes);
        if (turn.is_timed) head_->read_times.add(turn.way, ticks() - began, num_bytes);
    }
    void skip(std::size_t num_bytes) { at_ += num_bytes; }
    void release() {
        at_ = (at_ + grain - 1) / grain * grain;
        head_->taken.store(at_, std::memory_order_release);
    }

  private:
    RingHead* head_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t capacity_ = 0;
    std::uint64_t at_ = 0;
};

}  // namespace dovetail::shm
