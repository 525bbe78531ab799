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

    // Slots of different sizes: where each begins is told, and segments are found one after the other.
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

template <class T>
DOVETAIL_INLINE void copy_elements(const std::byte* from, std::byte* to, int bytes) {
    typedef T Any __attribute__((may_alias));
    for (int i = 0; i < bytes; i += static_cast<int>(sizeof(T)))
        *reinterpret_cast<Any*>(to + i) = *reinterpret_cast<const Any*>(from + i);
}

// As wide as the element allows; both places are aligned to it.
DOVETAIL_INLINE void copy_some(const std::byte* from, std::byte* to, int bytes, int element) {
    switch (element) {
        case 1:
            return copy_elements<std::uint8_t>(from, to, bytes);
        case 2:
            return copy_elements<std::uint16_t>(from, to, bytes);
        case 4:
            return copy_elements<std::uint32_t>(from, to, bytes);
        default:
            return copy_elements<std::uint64_t>(from, to, bytes);
    }
}

DOVETAIL_INLINE bool is_whole(const Stretch& stretch, int bytes) {
    return bytes == 16 && stretch.bytes >= 16 && reinterpret_cast<std::uintptr_t>(stretch.at) % 16 == 0;
}

// `bytes` bytes (up to 16, whole elements) from a place of the message on.
DOVETAIL_INLINE Unit load(const View& view, std::int64_t place, int bytes, int element) {
    Unit unit{};
    const Stretch first = view.at(place);
    if (is_whole(first, bytes)) return *reinterpret_cast<const Unit*>(first.at);
    auto* to = reinterpret_cast<std::byte*>(&unit);
    if (first.bytes >= bytes) return copy_some(first.at, to, bytes, element), unit;
    for (int i = 0; i < bytes; i += element) copy_some(view.at(place + i).at, to + i, element, element);
    return unit;
}

DOVETAIL_INLINE void store(const View& view, std::int64_t place, int bytes, int element, const Unit& unit) {
    const Stretch first = view.at(place);
    if (is_whole(first, bytes)) {
        *reinterpret_cast<Unit*>(first.at) = unit;
        return;
    }
    const auto* from = reinterpret_cast<const std::byte*>(&unit);
    if (first.bytes >= bytes) return copy_some(from, first.at, bytes, element);
    for (int i = 0; i < bytes; i += element) copy_some(from + i, view.at(place + i).at, element, element);
}

}  // namespace dovetail::cuda
