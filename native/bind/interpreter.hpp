// What the interpreters on host threads and on a device take from Python, and give back.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "bind/columns.hpp"
#include "cuda/load.hpp"

namespace dovetail::bind {

using Channels = std::vector<std::tuple<int, int, int>>;  // source, destination, depth
using Starts = nanobind::ndarray<const std::int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
// Of each rank and buffer: address, bytes of a slot, dtype, slots, and where slots begin in bytes if they differ.
using Memories = std::vector<std::tuple<std::uintptr_t, std::int64_t, int, std::int64_t, std::optional<Starts>>>;
using Spans = std::tuple<std::vector<std::int64_t>, std::vector<double>, std::vector<double>>;
using Facts = std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t, int>;

inline cuda::Loaded load(const Table& columns, int num_ranks, const Channels& channels, const Memories& memory,
                         const std::vector<std::int64_t>& order, const cuda::Layout& layout) {
    std::vector<run::ChannelRow> ends;
    for (const auto& [src, dst, depth] : channels) ends.push_back({src, dst, depth});
    std::vector<run::Memory> homes;
    std::vector<std::int64_t> slots;
    for (const auto& [address, slot, dtype, count, starts] : memory) {
        homes.push_back({reinterpret_cast<std::byte*>(address), slot, dtype, starts ? starts->data() : nullptr});
        slots.push_back(count);
    }
    return cuda::load(read_columns(columns), num_ranks, ends, homes, slots, order, layout);
}

// Times count from the first begin: a device's clock reads the time of day, of which a double holds only some 0.25 us.
inline Spans spans_of(const cuda::Image& image, const cuda::Span* spans) {
    const std::int64_t count = std::int64_t{image.rounds} * image.num_steps;
    std::uint64_t first = ~std::uint64_t{0};
    for (std::int64_t i = 0; i < count; ++i)
        if (spans[i].end_ns != 0) first = std::min(first, spans[i].begin_ns);
    Spans found;
    for (std::int64_t i = 0; i < count; ++i) {
        if (spans[i].end_ns == 0) continue;
        std::get<0>(found).push_back(i % image.num_steps);
        std::get<1>(found).push_back(1e-9 * static_cast<double>(spans[i].begin_ns - first));
        std::get<2>(found).push_back(1e-9 * static_cast<double>(spans[i].end_ns - first));
    }
    return found;
}

inline Facts facts_of(const cuda::Loaded& loaded) {
    const cuda::Image& image = loaded.image;
    return {image.num_lanes,  image.rounds,      loaded.num_bytes,
            image.tile_bytes, image.slice_bytes, static_cast<int>(loaded.protocol)};
}

}  // namespace dovetail::bind
