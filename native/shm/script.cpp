// Script: see script.hpp.
#include "shm/script.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>

#include "run/mpi_table.h"
#include "run/reduce.hpp"

namespace dovetail::shm {

namespace {

using run::Kind;
using run::Op;
using run::Span;

constexpr Count block_bytes = 8 * 1024;  // of a sum that is stored and sent: it is still in the first-level cache

[[noreturn]] void cannot_run(const std::string& why) { throw std::invalid_argument(why); }

void store(std::byte* to, const std::byte* from, std::int64_t num_bytes) {
    if (num_bytes == 8) return void(std::memcpy(to, from, 8));
    if (num_bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(num_bytes));
}

bool is_known(Kind kind) {
    return kind != Kind::put && kind != Kind::get && kind != Kind::compute && kind != Kind::collective;
}

// Numbers the tags of each peer in ascending order: so both ends of a pair give its FIFOs the same numbers.
std::map<std::pair<int, int>, int> number_fifos(const std::vector<Op>& ops, bool out) {
    std::map<int, std::set<int>> tags;
    for (const Op& op : ops)
        if (out ? run::sends(op.kind) : run::receives(op.kind))
            tags[out ? op.out_peer : op.in_peer].insert(out ? op.out_tag : op.in_tag);
    std::map<std::pair<int, int>, int> found;
    for (const auto& [peer, known] : tags) {
        int next = 0;
        for (const int tag : known) found[{peer, tag}] = next++;
    }
    return found;
}

// Bytes of a tile of `tile_bytes` that begins at `begin` in every slot.
std::int64_t clipped(std::int64_t bytes, std::int64_t begin, std::int64_t tile_bytes) {
    return std::clamp<std::int64_t>(bytes - begin, 0, tile_bytes);
}

}  // namespace

Script::Script(std::shared_ptr<Neighbours> ranks, run::Share share, const std::vector<Starts>& starts,
               const Extent& extent)
    : ranks_(std::move(ranks)), share_(std::move(share)), patience_(*ranks_) {
    const Geometry& geometry = ranks_->ends().geometry();
    const auto room = static_cast<std::int64_t>(geometry.slot_bytes);
    if (extent.most_slots * extent.slot_bytes > room) {
        tile_bytes_ = room / extent.most_slots / 64 * 64;
        if (tile_bytes_ == 0) cannot_run("a message of " + std::to_string(extent.most_slots) + " slots");
        tiles_ = (extent.slot_bytes + tile_bytes_ - 1) / tile_bytes_;
    }
    for (const Op& op : share_.ops) check(op, geometry);
    add_steps(starts);
}

void Script::check(const Op& op, const Geometry& geometry) const {
    if (!is_known(op.kind)) cannot_run(std::string("an op '") + run::kind_name(op.kind) + "'");
    if (op.reads.size() > 1 || op.writes.size() > 1) cannot_run("an op on several regions");
    if (run::sends(op.kind) && op.kind != Kind::signal && geometry.depth() < static_cast<Count>(op.out_depth))
        cannot_run("channels of " + std::to_string(op.out_depth) + " messages");
    if (op.reads.empty() || op.writes.empty()) return;
    const Span &read = op.reads[0], &write = op.writes[0];
    const bool same = read.buffer == write.buffer && read.offset == write.offset && read.count == write.count &&
                      read.stride == write.stride && read.blocks == write.blocks;
    if (!same && run::overlap(read, write)) cannot_run("an op on two regions that overlap");
}

std::int64_t most_slots(const run::Columns& columns) {
    std::int64_t most = 1;
    for (std::int64_t op = 0; op < columns.num_ops; ++op) {
        const auto kind = static_cast<Kind>(columns.kind[op]);
        if (!run::sends(kind) && !run::receives(kind)) continue;
        for (const auto* side : {&columns.reads, &columns.writes})
            for (std::int64_t row = side->start[op]; row < side->start[op + 1]; ++row)
                most = std::max(most, side->count[row] * side->blocks[row]);
    }
    return most;
}

void Script::add_steps(const std::vector<Starts>& starts) {
    const auto in = number_fifos(share_.ops, false), out = number_fifos(share_.ops, true);
    const auto fifos = static_cast<int>(ranks_->ends().geometry().fifos);
    for (const auto* known : {&in, &out})
        for (const auto& [channel, fifo] : *known)
            if (fifo >= fifos) cannot_run("more than " + std::to_string(fifos) + " channels between two ranks");
    std::map<std::pair<int, int>, Count> signals;
    lanes_.resize(share_.lanes.size());
    for (const Op& op : share_.ops) {
        if (op.kind == Kind::signal && ++signals[{op.out_peer, op.out_tag}] > ranks_->ends().geometry().lines / 2)
            cannot_run("that many signals between two ranks");
        Step step;
        step.kind = op.kind;
        step.op = &op;
        step.after = op.after;
        if (run::receives(op.kind)) step.in = &ranks_->ends().from(op.in_peer, in.at({op.in_peer, op.in_tag}));
        if (run::sends(op.kind)) step.out = &ranks_->ends().to(op.out_peer, out.at({op.out_peer, op.out_tag}));
        bool whole = tiles_ == 1;
        for (const auto* spans : {&op.reads, &op.writes})
            for (const Span& span : *spans) whole = whole && span.contiguous(), step.dtype = span.dtype;
        const auto placed = [&](const Span& span) {
            return place(span, starts[static_cast<std::size_t>(span.buffer)], whole);
        };
        if (!op.reads.empty()) step.read = placed(op.reads[0]);
        if (!op.writes.empty()) step.write = placed(op.writes[0]);
        if (op.kind == Kind::reduce) step.sum = step.write;
        lanes_[static_cast<std::size_t>(op.lane)].steps.push_back(std::move(step));
    }
}

// The span's slots one by one, or, if `whole`, as one. Empty slots are left out, also at the other end.
Script::Place Script::place(const Span& span, const Starts& starts, bool whole) const {
    Place found{span.base, {}, span.buffer};
    if (whole) {
        found.cuts.push_back({span.offset, span.num_bytes()});
        return found;
    }
    const auto cut = [&](std::int64_t begin, std::int64_t end) {
        if (starts.empty()) {
            const std::int64_t slot = span.num_bytes() / std::max<std::int64_t>(span.slots, 1);
            for (; begin < end; begin += slot) found.cuts.push_back({begin, slot});
            return;
        }
        auto next = std::upper_bound(starts.begin(), starts.end(), begin);
        for (; begin < end; begin = *next++)
            if (*next > begin) found.cuts.push_back({begin, *next - begin});
    };
    if (span.pieces)
        for (const auto& [offset, count] : *span.pieces) cut(offset, offset + count);
    else
        for (std::int64_t i = 0; i < span.blocks; ++i)
            cut(span.offset + i * span.stride, span.offset + i * span.stride + span.count);
    return found;
}

std::int64_t Script::message_bytes(const Step& step, std::int64_t tile) const {
    const auto& cuts = step.kind == Kind::recv || step.kind == Kind::recv_copy_send ? step.write.cuts : step.read.cuts;
    std::int64_t total = 0;
    for (const Cut& cut : cuts) total += clipped(cut.bytes, tile * tile_bytes_, tile_bytes_);
    return total;
}

// The bytes of one tile that an op touches. Calls `f(place in the first span, in the second, in the message, bytes)`
// for every slot.
class Script::Tile {
  public:
    Tile(std::int64_t begin, std::int64_t bytes) : begin_(begin), bytes_(bytes) {}
    template <class F>
    void each(const Place& one, const Place& other, F f) const {
        std::int64_t at = 0;
        for (std::size_t i = 0; i < one.cuts.size(); ++i) {
            const std::int64_t bytes = clipped(one.cuts[i].bytes, begin_, bytes_);
            if (bytes == 0) continue;
            f(*one.base + one.cuts[i].offset + begin_, *other.base + other.cuts[i].offset + begin_, at, bytes);
            at += bytes;
        }
    }
    template <class F>
    void each(const Place& one, F f) const {
        each(one, one, [&](std::byte* where, std::byte*, std::int64_t at, std::int64_t bytes) { f(where, at, bytes); });
    }

  private:
    const std::int64_t begin_, bytes_;
};

void Script::perform(const Step& step, std::int64_t tile, std::int64_t bytes) {
    const auto size = static_cast<Count>(bytes);
    const Tile part(tile * tile_bytes_, tile_bytes_);
    const std::byte* in = step.in ? step.in->place(size) : nullptr;
    std::byte* out = step.out ? step.out->place(size) : nullptr;
    const int one = run::dtype_bytes(step.dtype), op = reduce_op_, dtype = step.dtype;
    const auto combine = [=](const std::byte* a, const std::byte* b, std::byte* to, std::int64_t num_bytes) {
        run::combine(dtype, op, a, b, to, num_bytes / one);
    };
    switch (step.kind) {
        case Kind::copy:
            part.each(step.read, step.write, [](auto* from, auto* to, auto, auto n) { store(to, from, n); });
            break;
        case Kind::reduce:
            part.each(step.read, step.write, [&](auto* from, auto* to, auto, auto n) {
                combine(*step.sum.base + (to - *step.write.base), from, to, n);
            });
            break;
        case Kind::send:
            part.each(step.read, [&](auto* from, auto at, auto n) { store(out + at, from, n); });
            break;
        case Kind::recv:
            part.each(step.write, [&](auto* to, auto at, auto n) { store(to, in + at, n); });
            break;
        case Kind::recv_reduce:
            part.each(step.read, step.write,
                      [&](auto* from, auto* to, auto at, auto n) { combine(from, in + at, to, n); });
            break;
        case Kind::recv_copy_send:
            part.each(step.write, [&](auto* to, auto at, auto n) {
                store(to, in + at, n);
                store(out + at, to, n);
            });
            break;
        case Kind::recv_reduce_send:
            part.each(step.read, [&](auto* from, auto at, auto n) { combine(from, in + at, out + at, n); });
            break;
        case Kind::recv_reduce_copy_send:
            part.each(step.read, step.write, [&](auto* from, auto* to, auto at, auto n) {
                for (std::int64_t done = 0, block = 0; done < n; done += block) {
                    block = std::min<std::int64_t>(n - done, block_bytes);
                    combine(from + done, in + at + done, to + done, block);
                    store(out + at + done, to + done, block);
                }
            });
            break;
        default:
            break;
    }
    if (step.out) step.out->commit(size);
    if (step.in) step.in->release(size);
}

bool Script::is_ready(const Step& step, std::int64_t tile) const {
    for (const auto& [lane, index] : step.after) {
        const Lane& other = lanes_[static_cast<std::size_t>(lane)];
        if (other.done <= tile * static_cast<std::int64_t>(other.steps.size()) + index) return false;
    }
    return true;
}

bool Script::step(Lane& lane) {
    Step& step = lane.steps[lane.next];
    const auto bytes = static_cast<Count>(lane.bytes);
    if (step.in && !step.in->has_come(bytes)) return false;
    if (step.out && !step.out->has_room(bytes)) return false;
    if (!step.after.empty() && !is_ready(step, lane.tile)) return false;
    if (survey_.buffer >= 0 && lane.tile == 0) {
        survey_.read(step.read);
        survey_.read(step.sum);
        survey_.write(step.write);
    }
    perform(step, lane.tile, lane.bytes);
    ++lane.done;
    if (++lane.next == lane.steps.size()) {
        lane.next = 0;
        if (++lane.tile == tiles_) return --left_, true;
    }
    lane.bytes = message_bytes(lane.steps[lane.next], lane.tile);
    return true;
}

// Bytes of a cut that have been written.
std::int64_t Script::Survey::count(const Cut& cut) const {
    std::int64_t total = 0;
    auto it = written.upper_bound(cut.offset);
    if (it != written.begin()) --it;
    for (; it != written.end() && it->first < cut.offset + cut.bytes; ++it)
        total +=
            std::max<std::int64_t>(0, std::min(it->second, cut.offset + cut.bytes) - std::max(it->first, cut.offset));
    return total;
}

void Script::Survey::read(Place& place) {
    if (place.buffer != buffer) return;
    std::int64_t all = 0, before = 0;
    for (const Cut& cut : place.cuts) all += cut.bytes, before += count(cut);
    if (before == 0)
        early.push_back(&place);
    else
        mixed = mixed || before < all;
}

void Script::Survey::write(const Place& place) {
    if (place.buffer != buffer) return;
    for (const Cut& cut : place.cuts) {
        std::int64_t begin = cut.offset, end = cut.offset + cut.bytes;
        auto it = written.upper_bound(begin);
        if (it != written.begin() && std::prev(it)->second >= begin) --it;
        while (it != written.end() && it->first <= end) {
            begin = std::min(begin, it->first), end = std::max(end, it->second);
            it = written.erase(it);
        }
        if (begin < end) written[begin] = end;
    }
}

// It is proved that two accesses that conflict have the same order in every run: so all runs read the same bytes early.
void Script::end_survey() {
    const Survey found = std::exchange(survey_, {});
    surveyed_ = true;
    if (found.mixed || found.written.size() != 1 || found.written.begin()->first != 0) return;
    borrows_ = found.written.begin()->second;
    for (Place* place : found.early) place->base = &source_;
}

void Script::begin(const Options& options) {
    if (!surveyed_ && options.input >= 0) survey_ = {input_ = options.input};
    if (input_ >= 0) source_ = share_.bases[static_cast<std::size_t>(input_)];
    if (options.source && borrows_) source_ = const_cast<std::byte*>(options.source);
    left_ = 0;
    for (Lane& lane : lanes_) {
        lane.next = 0, lane.tile = lane.done = 0;
        if (lane.steps.empty()) continue;
        ++left_;
        lane.bytes = message_bytes(lane.steps[0], 0);
    }
}

bool Script::advance() {
    bool moved = false;
    for (Lane& lane : lanes_)
        while (!lane.steps.empty() && lane.tile < tiles_ && step(lane)) moved = true;
    return moved;
}

std::string Script::run(const Options& options) {
    reduce_op_ = options.reduce_op;
    begin(options);
    patience_.moved();
    while (left_ > 0) {
        if (advance())
            patience_.moved();
        else if (patience_.wait(options.rests)) {
            const std::string why = stalled(options);
            if (why.empty()) continue;
            ranks_->fail();
            return why;
        }
    }
    if (survey_.buffer >= 0) end_survey();
    if (reduce_op_ == DT_AVG)
        for (const auto& [where, divisor] : share_.quotients)
            run::divide(where.dtype, where.data(), run::elements(where), divisor);
    return "";
}

int Script::awaited(const Lane& lane) {
    const Step& step = lane.steps[lane.next];
    const auto bytes = static_cast<Count>(lane.bytes);
    if (step.in && !step.in->has_come(bytes)) return step.op->in_peer;
    return step.out && !step.out->has_room(bytes) ? step.op->out_peer : -1;
}

// The rank that will never do what a lane waits for. A rank that has done its part may end. So check again for messages
// once it can send no more. If a rank failed because another one ended, the latter is named.
std::string Script::lost() const {
    for (const Lane& lane : lanes_) {
        const int peer = lane.steps.empty() || lane.tile == tiles_ ? -1 : awaited(lane);
        if (peer < 0) continue;
        const bool ended = ranks_->has_ended(peer);
        if (!(ended || ranks_->has_failed(peer)) || awaited(lane) != peer) continue;
        for (int rank = 0; rank < ranks_->size() && !ended; ++rank)
            if (ranks_->has_ended(rank)) return "rank " + std::to_string(rank) + " has ended";
        return "rank " + std::to_string(peer) + (ended ? " has ended" : " has failed");
    }
    return "";
}

std::string Script::stalled(const Options& options) const {
    const std::string gone = lost();
    if (gone.empty() && patience_.waited_s() < options.stall_s) return "";
    std::string text = "rank " + std::to_string(ranks_->rank()) + " stalled: ";
    text +=
        gone.empty() ? "no op moved for " + std::to_string(static_cast<int>(std::ceil(options.stall_s))) + " s" : gone;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        const Lane& lane = lanes_[i];
        if (lane.steps.empty() || lane.tile == tiles_) continue;
        const Step& step = lane.steps[lane.next];
        const int peer = awaited(lane);
        text += "\n  lane " + std::to_string(share_.lanes[i].first) + " waits at its op " + std::to_string(lane.next) +
                " '" + run::kind_name(step.kind) + "' (row " + std::to_string(step.op->row) + ")";
        if (peer < 0)
            text += " for an op of another lane";
        else if (step.in && peer == step.op->in_peer)
            text += " for a message from rank " + std::to_string(peer);
        else
            text += " for rank " + std::to_string(peer) + " to take earlier messages";
    }
    return text;
}

}  // namespace dovetail::shm
