// How a slice of a message crosses a channel, by protocol; after NCCL's three.
//
// Simple: data unmodified; a counter holds the number of slices that have arrived. LL: 8 of each 16 bytes are flags, so
// that the reader of data sees at once whether it is new. LL128: one flag of 8 bytes with each 120 bytes of data, where
// 128 bytes become visible together. All three count slices that were read, so that the sender overwrites none before.
//
// A `Group` is the threads that run a lane: see host.hpp and device.cuh. A thread moves one unit of up to 16 bytes at a
// time; `Crossing` is where the slice lies in the ring, and its number, which distinguishes old flags from new ones.
#pragma once

#include "cuda/element.hpp"
#include "cuda/image.hpp"

namespace dovetail::cuda {

struct Crossing {
    std::byte* at;
    std::uint64_t number;  // over all rounds, from 1 on
};

struct Part {  // of a slice: where a unit's data begin in it, and how many bytes they are at most
    std::int64_t begin;
    int bytes;
};

struct Simple {
    static constexpr bool counts_sent = true, plain = true;  // data lie in a slice as they are
    static constexpr int threads_together = 1, batch = 2;
    static DOVETAIL_INLINE std::int64_t units(std::int64_t bytes) { return (bytes + 15) / 16; }
    static DOVETAIL_INLINE Part part(std::int64_t unit) { return {16 * unit, 16}; }
    template <class Group>
    static DOVETAIL_INLINE bool take(Group&, const Crossing& from, std::int64_t unit, Unit& data) {
        data = reinterpret_cast<const Unit*>(from.at)[unit];
        return true;
    }
    template <class Group>
    static DOVETAIL_INLINE void put(Group&, const Crossing& to, std::int64_t unit, const Unit& data) {
        reinterpret_cast<Unit*>(to.at)[unit] = data;
    }
};

// Of 8 data bytes in the halves of two words, each with a flag beside it.
struct Ll {
    static constexpr bool counts_sent = false, plain = false;
    static constexpr int threads_together = 1, batch = 1;
    static DOVETAIL_INLINE std::int64_t units(std::int64_t bytes) { return bytes > 8 ? (bytes + 7) / 8 : 1; }
    static DOVETAIL_INLINE Part part(std::int64_t unit) { return {8 * unit, 8}; }
    template <class Group>
    static DOVETAIL_INLINE bool take(Group& group, const Crossing& from, std::int64_t unit, Unit& data) {
        const std::uint64_t flag = from.number & 0xffffffffu;
        const auto* line = reinterpret_cast<const std::uint64_t*>(from.at) + 2 * unit;
        std::uint64_t low = 0, high = 0;
        const bool came = group.spin([&] {
            group.load_pair(line, low, high);
            return low >> 32 == flag && high >> 32 == flag;
        });
        data.word[0] = (low & 0xffffffffu) | high << 32;
        data.word[1] = 0;
        return came;
    }
    template <class Group>
    static DOVETAIL_INLINE void put(Group& group, const Crossing& to, std::int64_t unit, const Unit& data) {
        const std::uint64_t flag = to.number << 32;
        auto* line = reinterpret_cast<std::uint64_t*>(to.at) + 2 * unit;
        group.store_pair(line, (data.word[0] & 0xffffffffu) | flag, data.word[0] >> 32 | flag);
    }
};

// Eight units make a line of 128 bytes, whose last 8 are the flag. On a device eight threads of a warp move a line.
struct Ll128 {
    static constexpr bool counts_sent = false, plain = false;
    static constexpr int threads_together = 8, batch = 1;
    static DOVETAIL_INLINE std::int64_t units(std::int64_t bytes) {
        return bytes > 120 ? 8 * ((bytes + 119) / 120) : 8;
    }
    static DOVETAIL_INLINE Part part(std::int64_t unit) {
        return {unit / 8 * 120 + unit % 8 * 16, unit % 8 == 7 ? 8 : 16};
    }
    template <class Group>
    static DOVETAIL_INLINE bool take(Group& group, const Crossing& from, std::int64_t unit, Unit& data) {
        const auto* line = reinterpret_cast<const std::uint64_t*>(from.at) + 16 * (unit / 8);
        const int place = static_cast<int>(unit % 8);
        const bool came = group.spin_together([&] { return group.load_line(line, place, from.number, data); });
        if (place == 7) data.word[1] = 0;
        return came;
    }
    template <class Group>
    static DOVETAIL_INLINE void put(Group& group, const Crossing& to, std::int64_t unit, const Unit& data) {
        auto* line = reinterpret_cast<std::uint64_t*>(to.at) + 16 * (unit / 8);
        const int place = static_cast<int>(unit % 8);
        group.store_line(line, place, to.number, data);
    }
};

// Bytes that a slice of a message takes in a ring.
inline std::int64_t pitch_of(Protocol protocol, std::int64_t bytes) {
    if (protocol == Protocol::ll) return 16 * Ll::units(bytes);
    if (protocol == Protocol::ll128) return 16 * Ll128::units(bytes);
    return 16 * Simple::units(bytes);
}

}  // namespace dovetail::cuda
