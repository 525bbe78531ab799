// Builds the image of a Program: see load.hpp.
#include "cuda/load.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include "cuda/lane.hpp"
#include "run/op.hpp"
#include "run/order.hpp"

namespace dovetail::cuda {

namespace {

// Where a rank's own lanes and dependencies order all its accesses, parts of a message may be passed on before the rest
// has come, by flags that order nothing else. Elsewhere a message also signals that ops before it have ended: it is
// then signalled whole, by a counter that orders memory.
Layout careful(const run::Columns& columns, int num_ranks, const Layout& asked) {
    const auto one_sided = [&](std::int64_t row) {
        const auto kind = static_cast<Kind>(columns.kind[row]);
        return kind == Kind::put || kind == Kind::get;
    };
    bool local = true;
    for (std::int64_t row = 0; row < columns.num_ops; ++row) local &= !one_sided(row);
    if (local && run::ordered_locally(num_ranks, columns)) return asked;
    return {Protocol::simple, asked.place_bytes, 0};
}

using Sizes = std::vector<std::int64_t>;  // of the slots of a message

class Loader {
  public:
    Loader(const run::Columns& columns, int num_ranks, const std::vector<run::ChannelRow>& ends,
           const std::vector<run::Memory>& memory, const std::vector<std::int64_t>& slots,
           const std::vector<std::int64_t>& order, const Layout& layout)
        : columns_(columns),
          ends_(ends),
          memory_(memory),
          slots_(slots),
          order_(order),
          layout_(layout),
          num_buffers_(num_ranks ? memory.size() / static_cast<std::size_t>(num_ranks) : 0) {}

    Loaded load();

  private:
    Place place(const run::Regions& regions, std::int64_t region, int rank) const;
    void index_lanes();
    void fill_step(std::int64_t row);
    void keep_starts();
    void cut_slots();
    bool may_cut() const;
    void number_messages();
    void lay_out(Loaded& loaded) const;

    std::size_t home(int rank, int buffer) const {
        return static_cast<std::size_t>(rank) * num_buffers_ + static_cast<std::size_t>(buffer);
    }
    const Place& moved(const Step& step) const { return step.from.present ? step.from : step.to; }
    std::int64_t slot_bytes(const Place& place, std::int64_t slot) const;
    Sizes sizes(const Place& place) const;
    std::int64_t tile_of(const Place& place) const;  // bytes of a region in its longest round
    Step& step(std::int64_t row) { return steps_[static_cast<std::size_t>(place_[static_cast<std::size_t>(row)])]; }

    const run::Columns& columns_;
    const std::vector<run::ChannelRow>& ends_;
    const std::vector<run::Memory>& memory_;
    const std::vector<std::int64_t>& slots_;
    const std::vector<std::int64_t>& order_;
    const Layout layout_;
    const std::size_t num_buffers_;

    Image image_;
    std::vector<Lane> lanes_;
    std::vector<Step> steps_;
    std::vector<Dep> deps_;
    std::vector<Channel> channels_;
    std::vector<std::int64_t> starts_;
    std::vector<std::int64_t> starts_at_;          // by rank and buffer: first of its starts, -1 where slots are alike
    std::vector<std::int64_t> place_;              // row -> step
    std::vector<std::int32_t> lane_of_;            // row -> lane
    std::vector<std::vector<std::int32_t>> rows_;  // by lane
};

Place Loader::place(const run::Regions& regions, std::int64_t region, int rank) const {
    const auto at = home(rank, regions.buffer[region]);
    Place found;
    found.present = true;
    found.base = memory_[at].base;
    found.starts = starts_at_[at];  // an index for now
    found.slot = memory_[at].slot_bytes;
    found.offset = regions.offset[region];
    found.count = regions.count[region];
    found.stride = regions.stride[region];
    found.blocks = regions.blocks[region];
    return found;
}

void Loader::keep_starts() {
    for (std::size_t at = 0; at < memory_.size(); ++at) {
        const bool uneven = memory_[at].starts != nullptr;
        starts_at_.push_back(uneven ? static_cast<std::int64_t>(starts_.size()) : -1);
        if (uneven) starts_.insert(starts_.end(), memory_[at].starts, memory_[at].starts + slots_[at] + 1);
    }
}

void Loader::index_lanes() {
    std::map<std::pair<int, int>, std::int32_t> known;
    const auto rows = static_cast<std::size_t>(columns_.num_ops);
    lane_of_.resize(rows), place_.resize(rows);
    for (std::size_t row = 0; row < rows; ++row) {
        const std::pair key{columns_.rank[row], columns_.lane[row]};
        const auto [it, fresh] = known.emplace(key, static_cast<std::int32_t>(lanes_.size()));
        if (fresh) lanes_.push_back({0, 0, key.first, key.second}), rows_.emplace_back();
        lane_of_[row] = it->second;
        rows_[static_cast<std::size_t>(it->second)].push_back(static_cast<std::int32_t>(row));
    }
    std::int32_t first = 0;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        lanes_[lane].first = first;
        lanes_[lane].count = static_cast<std::int32_t>(rows_[lane].size());
        for (const std::int32_t row : rows_[lane]) place_[static_cast<std::size_t>(row)] = first++;
    }
}

void Loader::fill_step(std::int64_t row) {
    const auto kind = static_cast<Kind>(columns_.kind[row]);
    if (kind == Kind::compute || kind == Kind::collective)
        throw std::invalid_argument("op " + std::to_string(row) + " '" + run::kind_name(kind) +
                                    "': the interpreter moves and reduces, and has no kernels");
    Step& made = step(row);
    made.kind = columns_.kind[row];
    made.row = static_cast<std::int32_t>(row);
    made.in = columns_.chan_in[row], made.out = columns_.chan_out[row];
    const int rank = columns_.rank[row];
    const auto channel = [&](std::int32_t number) -> const run::ChannelRow& {
        return ends_[static_cast<std::size_t>(number)];
    };
    const std::int64_t read = columns_.reads.start[row], write = columns_.writes.start[row];
    if (columns_.reads.start[row + 1] > read)
        made.from = place(columns_.reads, read, kind == Kind::get ? channel(made.in).src : rank);
    if (columns_.writes.start[row + 1] > write)
        made.to = place(columns_.writes, write, kind == Kind::put ? channel(made.out).dst : rank);
    const auto& side = columns_.reads.start[row + 1] > read ? columns_.reads : columns_.writes;
    const std::int64_t first = side.start[row];
    if (first < side.start[row + 1])
        made.dtype = static_cast<std::uint8_t>(memory_[home(rank, side.buffer[first])].dtype);
    made.dep = static_cast<std::int32_t>(deps_.size());
    for (std::int64_t i = columns_.dep_start[row]; i < columns_.dep_start[row + 1]; ++i) {
        const auto other = static_cast<std::size_t>(columns_.dep[i]);
        const std::int32_t lane = lane_of_[other];
        if (lane == lane_of_[static_cast<std::size_t>(row)]) continue;
        const Lane& of = lanes_[static_cast<std::size_t>(lane)];
        deps_.push_back({lane, static_cast<std::int32_t>(place_[other]) - of.first, of.count});
        step(columns_.dep[i]).publishes = true;
    }
    made.num_deps = static_cast<std::int32_t>(deps_.size()) - made.dep;
}

std::int64_t Loader::slot_bytes(const Place& place, std::int64_t slot) const {
    if (place.starts < 0) return place.slot;
    const auto at = static_cast<std::size_t>(place.starts + slot);
    return starts_[at + 1] - starts_[at];
}

Sizes Loader::sizes(const Place& place) const {
    Sizes found;
    for (std::int64_t block = 0; block < place.blocks; ++block)
        for (std::int64_t i = 0; i < place.count; ++i)
            found.push_back(slot_bytes(place, place.offset + block * place.stride + i));
    return found;
}

std::int64_t Loader::tile_of(const Place& place) const {
    if (place.starts < 0) return place.count * place.blocks * std::min(place.slot, image_.tile_bytes);
    std::int64_t total = 0;
    for (const std::int64_t size : sizes(place)) total += std::min(size, image_.tile_bytes);
    return total;
}

// Slots may be cut where each of a message meets one of its own size, and each end of a channel belongs to one lane:
// what a lane does in its next round could otherwise come before what another has yet to do in this one.
bool Loader::may_cut() const {
    std::vector<std::int32_t> lane_at(2 * ends_.size(), -1);
    std::vector<std::vector<Sizes>> met(2 * ends_.size());
    const auto use = [&](std::size_t end, std::int32_t lane) {
        if (lane_at[end] < 0) lane_at[end] = lane;
        return lane_at[end] == lane;
    };
    for (std::int64_t row = 0; row < columns_.num_ops; ++row) {
        const Step& each = steps_[static_cast<std::size_t>(place_[static_cast<std::size_t>(row)])];
        const auto kind = static_cast<Kind>(each.kind);
        const bool one_sided = kind == Kind::put || kind == Kind::get;
        if (each.from.present && each.to.present && sizes(each.from) != sizes(each.to)) return false;
        for (const auto& [number, side] : {std::pair{each.in, 0}, std::pair{each.out, 1}}) {
            if (number < 0 || one_sided) continue;
            const auto end = 2 * static_cast<std::size_t>(number) + static_cast<std::size_t>(side);
            if (!use(end, lane_of_[static_cast<std::size_t>(row)])) return false;
            if (takes_message(kind) || sends_message(kind)) met[end].push_back(sizes(moved(each)));
        }
    }
    for (std::size_t channel = 0; channel < ends_.size(); ++channel)
        if (met[2 * channel] != met[2 * channel + 1]) return false;
    return true;
}

void Loader::cut_slots() {
    std::int64_t longest = 0, most = 1;
    for (const Step& each : steps_) {
        const auto kind = static_cast<Kind>(each.kind);
        for (const Place* place : {&each.from, &each.to}) {
            if (!place->present || place->count * place->blocks == 0) continue;
            if (place->starts < 0)
                longest = std::max(longest, place->slot);
            else
                for (const std::int64_t size : sizes(*place)) longest = std::max(longest, size);
            if (takes_message(kind) || sends_message(kind)) most = std::max(most, place->count * place->blocks);
        }
    }
    constexpr std::int64_t least = 16;  // so that tiles begin where vectors may
    image_.tile_bytes = std::max<std::int64_t>(longest, 1);
    const std::int64_t tile = std::max(layout_.place_bytes / most / least * least, least);
    if (layout_.place_bytes > 0 && tile < longest && may_cut()) image_.tile_bytes = tile;
    image_.rounds = static_cast<std::int32_t>((std::max<std::int64_t>(longest, 1) - 1) / image_.tile_bytes + 1);
    std::int64_t message = 1;
    for (const Step& each : steps_)
        if (each.in >= 0 || each.out >= 0)
            if (moved(each).present) message = std::max(message, tile_of(moved(each)));
    const std::int64_t grain = layout_.protocol == Protocol::ll128 ? 240 : 16;  // slices begin where vectors may, too
    const std::int64_t slice = layout_.slice_bytes > 0 ? std::min(layout_.slice_bytes, message) : message;
    image_.slice_bytes = (slice + grain - 1) / grain * grain;
    image_.pitch = (pitch_of(layout_.protocol, image_.slice_bytes) + 127) / 128 * 128;
}

void Loader::number_messages() {
    channels_.resize(ends_.size());
    std::vector<std::int64_t> taken(ends_.size()), waits(ends_.size()), messages(ends_.size()),
        longest(ends_.size(), 1);
    for (const std::int64_t row : order_) {
        Step& each = step(row);
        const auto kind = static_cast<Kind>(each.kind);
        const auto in = static_cast<std::size_t>(each.in), out = static_cast<std::size_t>(each.out);
        if (kind == Kind::signal) ++channels_[out].signals;
        if (kind == Kind::wait) each.in_first = waits[in]++;
        if (!takes_message(kind) && !sends_message(kind)) continue;
        const std::int64_t bytes = tile_of(moved(each));
        each.slices = static_cast<std::int32_t>(std::max<std::int64_t>((bytes - 1) / image_.slice_bytes + 1, 1));
        if (takes_message(kind)) each.in_first = taken[in], taken[in] += each.slices;
        if (!sends_message(kind)) continue;
        each.out_first = channels_[out].per_round;
        channels_[out].per_round += each.slices;
        longest[out] = std::max<std::int64_t>(longest[out], each.slices);
        ++messages[out];
    }
    for (std::size_t i = 0; i < ends_.size(); ++i) {
        const std::int64_t all = std::max<std::int64_t>(messages[i] * image_.rounds, 1);
        channels_[i].capacity = std::min<std::int64_t>(ends_[i].depth, all) * longest[i];
        channels_[i].per_round = std::max(channels_[i].per_round, taken[i]);
        channels_[i].signals = std::max(channels_[i].signals, waits[i]);
    }
}

// Writes the tables one after the other, and sets where all that comes after them lies.
void Loader::lay_out(Loaded& loaded) const {
    std::int64_t end = 0;
    const auto room = [&](std::int64_t bytes) {
        const std::int64_t at = end;
        end = (end + bytes + 127) / 128 * 128;
        return at;
    };
    const auto of = [](const auto& table) { return static_cast<std::int64_t>(table.size() * sizeof(table[0])); };
    Image& image = loaded.image = image_;
    image.num_lanes = static_cast<std::int32_t>(lanes_.size());
    image.num_steps = static_cast<std::int32_t>(steps_.size());
    image.num_channels = static_cast<std::int32_t>(channels_.size());
    image.lanes = room(of(lanes_)), image.steps = room(of(steps_)), image.deps = room(of(deps_));
    const std::int64_t starts = room(of(starts_));
    loaded.tables.resize(static_cast<std::size_t>(end));
    const auto lines = [&](std::size_t count) { return room(static_cast<std::int64_t>(count * sizeof(Counter))); };
    image.done = lines(lanes_.size()), image.stop = lines(1), image.watch = lines(lanes_.size());
    image.sent = lines(channels_.size()), image.taken = lines(channels_.size()),
    image.signals = lines(channels_.size());
    image.spans = room(static_cast<std::int64_t>(steps_.size() * sizeof(Span)) * image.rounds);
    const bool flags_in_rings = layout_.protocol != Protocol::simple;
    if (!flags_in_rings) loaded.zeros_end = end;
    auto channels = channels_;
    for (Channel& channel : channels) channel.ring = room(channel.capacity * image.pitch);
    if (flags_in_rings) loaded.zeros_end = end;
    auto steps = steps_;
    for (Step& each : steps) {
        if (each.in >= 0) each.by = channels[static_cast<std::size_t>(each.in)];
        if (each.out >= 0) each.through = channels[static_cast<std::size_t>(each.out)];
        for (Place* place : {&each.from, &each.to})
            if (place->starts >= 0) place->starts = starts + 8 * place->starts;
    }
    const auto write = [&](std::int64_t at, const auto& table) {
        if (!table.empty()) std::memcpy(loaded.tables.data() + at, table.data(), table.size() * sizeof(table[0]));
    };
    write(image.lanes, lanes_), write(image.steps, steps), write(image.deps, deps_);
    write(starts, starts_);
    loaded.num_bytes = end;
    loaded.protocol = layout_.protocol;
    loaded.ends = ends_;
}

Loaded Loader::load() {
    keep_starts();
    index_lanes();
    steps_.resize(place_.size());
    for (std::int64_t row = 0; row < columns_.num_ops; ++row) fill_step(row);
    cut_slots();
    number_messages();
    Loaded loaded;
    lay_out(loaded);
    return loaded;
}

}  // namespace

Loaded load(const run::Columns& columns, int num_ranks, const std::vector<run::ChannelRow>& channels,
            const std::vector<run::Memory>& memory, const std::vector<std::int64_t>& slots,
            const std::vector<std::int64_t>& order, const Layout& layout) {
    return Loader(columns, num_ranks, channels, memory, slots, order, careful(columns, num_ranks, layout)).load();
}

std::string Loaded::explain(const Image& at) const {
    std::string text;
    const auto* lanes = reinterpret_cast<const Lane*>(tables.data() + at.lanes);
    const auto* steps = reinterpret_cast<const Step*>(tables.data() + at.steps);
    for (int lane = 0; lane < at.num_lanes; ++lane) {
        const std::uint64_t reported = at.at<const Watch>(at.watch)[lane].at;
        if (reported == ~std::uint64_t{0}) continue;
        const auto index = static_cast<std::int32_t>(reported >> 32) - 1;
        if (index < 0) {
            text += "\n  lane " + std::to_string(lanes[lane].id) + " of rank " + std::to_string(lanes[lane].rank) +
                    " never began";
            continue;
        }
        if (index >= lanes[lane].count) {  // nothing that a lane writes: its memory was overwritten
            text += "\n  lane " + std::to_string(lanes[lane].id) + " of rank " + std::to_string(lanes[lane].rank) +
                    " left no word of where it is";
            continue;
        }
        const Step& step = steps[lanes[lane].first + index];
        text += "\n  lane " + std::to_string(lanes[lane].id) + " of rank " + std::to_string(lanes[lane].rank) +
                " waits at its op " + std::to_string(index) + " '" + run::kind_name(static_cast<Kind>(step.kind)) +
                "' (row " + std::to_string(step.row) + ")";
        const auto source = [&] { return std::to_string(ends[static_cast<std::size_t>(step.in)].src); };
        switch (static_cast<Wait>(reported & 0xffffffffu)) {
            case Wait::op:
                text += " for an op of another lane";
                break;
            case Wait::message:
                text += " for a message from rank " + source();
                break;
            case Wait::signal:
                text += " for a signal from rank " + source();
                break;
            case Wait::place:
                text += " for rank " + std::to_string(ends[static_cast<std::size_t>(step.out)].dst) +
                        " to take earlier messages";
                break;
            case Wait::nothing:
                text += ", which was stopped on its way";
        }
    }
    return text;
}

}  // namespace dovetail::cuda
