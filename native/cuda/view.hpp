// View: the bytes of a region in one round, as the message that they are; from a place in it to memory and back.
#pragma once

#include "cuda/element.hpp"
#include "cuda/image.hpp"

namespace dovetail::cuda {

// A stretch of memory that begins at a place of the message and ends with its segment.
struct Stretch {
    std::byte* at;
    std::int64_t bytes;
};

class View {
  public:
    View() = default;

    // Bytes that lie one after the other.
    DOVETAIL_INLINE View(std::byte* at, std::int64_t bytes) : origin_(at), bytes_(bytes), segment_(bytes) {}

    DOVETAIL_INLINE View(const Image& image, const Place& place, std::int64_t round) : origin_(place.base) {
        if (place.starts >= 0)
            uneven(image, place, round);
        else
            even(image, place, round);
    }

    DOVETAIL_INLINE std::int64_t bytes() const { return bytes_; }

    DOVETAIL_INLINE Stretch at(std::int64_t place) const {
        if (segment_ == bytes_) return {origin_ + place, bytes_ - place};
        if (starts_) return search(place);
        const std::int64_t number = place / segment_, inside = place - number * segment_;
        const std::int64_t outer = number / inner_, inner = number - outer * inner_;
        return {origin_ + outer * outer_pitch_ + inner * inner_pitch_ + inside, segment_ - inside};
    }

  private:
    DOVETAIL_INLINE void even(const Image& image, const Place& place, std::int64_t round) {
        const std::int64_t tile = round * image.tile_bytes, left = place.slot - tile;
        const bool whole = image.rounds == 1;
        segment_ = whole ? place.slot * place.count : left < 0 ? 0 : left < image.tile_bytes ? left : image.tile_bytes;
        inner_ = whole ? 1 : place.count;
        inner_pitch_ = place.slot;
        outer_pitch_ = place.stride * place.slot;
        bytes_ = segment_ * inner_ * place.blocks;
        origin_ += place.offset * place.slot + tile;
        if (inner_pitch_ == segment_) segment_ *= inner_, inner_ = 1;
        if (inner_ == 1 && (place.blocks == 1 || outer_pitch_ == segment_)) segment_ = bytes_;
    }

    // Slots of different sizes: a table has the begin of each, and segments are found one after the other.
    DOVETAIL_INLINE void uneven(const Image& image, const Place& place, std::int64_t round) {
        starts_ = image.at<const std::int64_t>(place.starts);
        offset_ = place.offset, count_ = place.count, stride_ = place.stride, blocks_ = place.blocks;
        cut_ = image.rounds > 1, tile_ = image.tile_bytes, round_ = round;
        for (std::int64_t k = 0; k < segments(); ++k) bytes_ += segment(k).bytes;
        segment_ = -1;
        if (segments() == 1) {
            const Stretch only = segment(0);
            origin_ = only.at, segment_ = only.bytes;
        }
    }
    DOVETAIL_INLINE std::int64_t segments() const { return cut_ ? count_ * blocks_ : blocks_; }
    DOVETAIL_INLINE Stretch segment(std::int64_t k) const {
        if (!cut_) {
            const std::int64_t slot = offset_ + k * stride_;
            return {origin_ + starts_[slot], starts_[slot + count_] - starts_[slot]};
        }
        const std::int64_t block = k / count_, slot = offset_ + block * stride_ + (k - block * count_);
        const std::int64_t begin = starts_[slot] + round_ * tile_, end = starts_[slot + 1];
        return {origin_ + begin, end < begin ? 0 : end - begin < tile_ ? end - begin : tile_};
    }
    DOVETAIL_INLINE Stretch search(std::int64_t place) const {
        for (std::int64_t k = 0;; ++k) {
            const Stretch found = segment(k);
            if (place < found.bytes) return {found.at + place, found.bytes - place};
            place -= found.bytes;
        }
    }

    std::byte* origin_ = nullptr;
    std::int64_t bytes_ = 0, segment_ = 0, inner_ = 1, inner_pitch_ = 0, outer_pitch_ = 0;
    const std::int64_t* starts_ = nullptr;
    std::int64_t offset_ = 0, count_ = 0, stride_ = 0, blocks_ = 0, tile_ = 0, round_ = 0;
    bool cut_ = false;
};

typedef std::uint64_t __attribute__((may_alias)) Word;  // over elements of any type

// Up to 8 bytes, whole elements, in one word. Words are made by shifts: an array that is indexed at run time would lie
// in memory on a device, not in registers.
template <class T>
DOVETAIL_INLINE std::uint64_t load_elements(const std::byte* from, int bytes) {
    typedef T Any __attribute__((may_alias));
    constexpr int size = static_cast<int>(sizeof(T));
    std::uint64_t word = 0;
    DOVETAIL_UNROLL
    for (int at = 0; at < 8; at += size)
        if (at < bytes) word |= std::uint64_t{*reinterpret_cast<const Any*>(from + at)} << (8 * at);
    return word;
}

template <class T>
DOVETAIL_INLINE void store_elements(std::byte* to, int bytes, std::uint64_t word) {
    typedef T Any __attribute__((may_alias));
    constexpr int size = static_cast<int>(sizeof(T));
    DOVETAIL_UNROLL
    for (int at = 0; at < 8; at += size)
        if (at < bytes) *reinterpret_cast<Any*>(to + at) = static_cast<T>(word >> (8 * at));
}

// As wide as the element allows; the place is aligned to it.
DOVETAIL_INLINE std::uint64_t load_word(const std::byte* from, int bytes, int element) {
    switch (element) {
        case 1:
            return load_elements<std::uint8_t>(from, bytes);
        case 2:
            return load_elements<std::uint16_t>(from, bytes);
        case 4:
            return load_elements<std::uint32_t>(from, bytes);
        default:
            return load_elements<std::uint64_t>(from, bytes);
    }
}

DOVETAIL_INLINE void store_word(std::byte* to, int bytes, int element, std::uint64_t word) {
    switch (element) {
        case 1:
            return store_elements<std::uint8_t>(to, bytes, word);
        case 2:
            return store_elements<std::uint16_t>(to, bytes, word);
        case 4:
            return store_elements<std::uint32_t>(to, bytes, word);
        default:
            return store_elements<std::uint64_t>(to, bytes, word);
    }
}

// 8 or 16 bytes of one piece, in words of 8.
DOVETAIL_INLINE bool is_words(const Stretch& stretch, int bytes) {
    return bytes % 8 == 0 && stretch.bytes >= bytes && reinterpret_cast<std::uintptr_t>(stretch.at) % 8 == 0;
}

DOVETAIL_INLINE bool is_whole(const Stretch& stretch, int bytes) {
    return bytes == 16 && stretch.bytes >= 16 && reinterpret_cast<std::uintptr_t>(stretch.at) % 16 == 0;
}

// `bytes` bytes (up to 16, whole elements) from a place of the message on.
DOVETAIL_INLINE Unit load(const View& view, std::int64_t place, int bytes, int element) {
    const Stretch first = view.at(place);
    if (is_whole(first, bytes)) return *reinterpret_cast<const Unit*>(first.at);
    std::uint64_t low = 0, high = 0;
    if (is_words(first, bytes)) {
        const auto* words = reinterpret_cast<const Word*>(first.at);
        return {{words[0], bytes == 16 ? words[1] : 0}};
    }
    const int step = first.bytes >= bytes ? 8 : element;  // elements that lie apart are found one by one
    for (int i = 0; i < bytes; i += step) {
        const int size = bytes - i < step ? bytes - i : step;
        const std::uint64_t word = load_word(view.at(place + i).at, size, element);
        if (i < 8)
            low |= word << (8 * i);
        else
            high |= word << (8 * (i - 8));
    }
    return {{low, high}};
}

DOVETAIL_INLINE void store(const View& view, std::int64_t place, int bytes, int element, const Unit& unit) {
    const Stretch first = view.at(place);
    if (is_whole(first, bytes)) {
        *reinterpret_cast<Unit*>(first.at) = unit;
        return;
    }
    if (is_words(first, bytes)) {
        auto* words = reinterpret_cast<Word*>(first.at);
        words[0] = unit.word[0];
        if (bytes == 16) words[1] = unit.word[1];
        return;
    }
    const int step = first.bytes >= bytes ? 8 : element;
    for (int i = 0; i < bytes; i += step) {
        const int size = bytes - i < step ? bytes - i : step;
        const std::uint64_t word = i < 8 ? unit.word[0] >> (8 * i) : unit.word[1] >> (8 * (i - 8));
        store_word(view.at(place + i).at, size, element, word);
    }
}

}  // namespace dovetail::cuda
