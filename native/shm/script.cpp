// Script: see script.hpp.
#include "shm/script.hpp"

#include <algorithm>
#include <cstring>
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

constexpr std::int64_t block_bytes =
    8 * 1024;  // of a sum that is stored and sent: it is still in the first-level cache
constexpr std::int64_t least_tile = 32 * 1024, pipelined = 4;  // bytes of a tile's message; tiles that overlap

[[noreturn]] void cannot_run(const std::string& why) { throw std::invalid_argument(why); }

void store(std::byte* to, const std::byte* from, std::int64_t num_bytes) {
    if (num_bytes == 8) return void(std::memcpy(to, from, 8));
    if (num_bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(num_bytes));
}

// Calls `f(begin, bytes)` for each block of `num_bytes`.
template <class F>
void by_blocks(std::int64_t num_bytes, F f) {
    for (std::int64_t at = 0; at < num_bytes; at += block_bytes)
        f(at, std::min<std::int64_t>(num_bytes - at, block_bytes));
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

// Appends the slots between two offsets. `slot`: bytes of each; `starts`: of unequal ones. Empty ones are left out.
template <class Cuts>
void add_cuts(Cuts& cuts, std::int64_t begin, std::int64_t end, std::int64_t slot, const Script::Starts& starts) {
    if (starts.empty()) {
        for (; begin < end; begin += slot) cuts.push_back({begin, slot});
        return;
    }
    auto next = std::upper_bound(starts.begin(), starts.end(), begin);
    for (; begin < end; begin = *next++)
        if (*next > begin) cuts.push_back({begin, *next - begin});
}

// Bytes of a tile of `tile_bytes` that begins at `begin` in every slot.
std::int64_t clipped(std::int64_t bytes, std::int64_t begin, std::int64_t tile_bytes) {
    return std::clamp<std::int64_t>(bytes - begin, 0, tile_bytes);
}

}  // namespace

Script::Script(std::shared_ptr<Neighbours> ranks, run::Share share, const std::vector<Starts>& starts, Extent extent)
    : ranks_(std::move(ranks)),
      extent_(std::move(extent)),
      share_(std::move(share)),
      starts_(starts),
      slot_bytes_(share_.bases.size()),
      patience_(*ranks_) {
    const Geometry& geometry = ranks_->ends().geometry();
    cut(extent_, static_cast<std::int64_t>(geometry.slot_bytes));
    for (const Op& op : share_.ops) check(op, geometry);
    for (const Op& op : share_.ops)
        for (const auto* spans : {&op.reads, &op.writes})
            for (const Span& span : *spans)
                slot_bytes_[static_cast<std::size_t>(span.buffer)] =
                    span.num_bytes() / std::max<std::int64_t>(span.slots, 1);
    add_steps();
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

// Sets the tiles. `room`: bytes of a channel's slot.
void Script::cut(const Extent& extent, std::int64_t room) {
    const std::int64_t most = extent.most_slots, all = most * extent.slot_bytes;
    const std::int64_t message = std::min(room, extent.is_exchange ? all : std::max(all / pipelined, least_tile));
    if (all <= message) return;
    tile_bytes_ = std::max<std::int64_t>(message / most / 64, 1) * 64;
    if (tile_bytes_ * most > room) cannot_run("a message of " + std::to_string(most) + " slots");
    tiles_ = (extent.slot_bytes + tile_bytes_ - 1) / tile_bytes_;
}

void Script::add_steps() {
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
            return place(span, starts_[static_cast<std::size_t>(span.buffer)], whole);
        };
        if (!op.reads.empty()) step.read = placed(op.reads[0]);
        if (!op.writes.empty()) step.write = placed(op.writes[0]);
        if (op.kind == Kind::reduce) step.sum = step.write;
        lanes_[static_cast<std::size_t>(op.lane)].steps.push_back(std::move(step));
    }
}

// The span's slots one by one, or, if `whole`, as one. Empty slots are left out also at the other end.
Script::Place Script::place(const Span& span, const Starts& starts, bool whole) const {
    Place found{span.base, {}, span.buffer};
    if (whole) {
        found.cuts.push_back({span.offset, span.num_bytes()});
        return found;
    }
    const std::int64_t slot = slot_bytes_[static_cast<std::size_t>(span.buffer)];
    const auto cut = [&](std::int64_t begin, std::int64_t end) { add_cuts(found.cuts, begin, end, slot, starts); };
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

// Where and how an op stores.
struct Script::Into {
    Way way = Way::cached;
    int dtype = 0, op = 0;

    void copy(std::byte* to, const std::byte* from, std::int64_t num_bytes) const {
        if (way == Way::cached) return store(to, from, num_bytes);
        store_nontemporal(to, from, static_cast<std::size_t>(num_bytes));
    }
    void combine(std::byte* to, const std::byte* a, const std::byte* b, std::int64_t num_bytes) const {
        const int one = run::dtype_bytes(dtype);
        if (way == Way::cached) return run::combine(dtype, op, a, b, to, num_bytes / one);
        by_blocks(num_bytes, [&](std::int64_t at, std::int64_t block) {
            alignas(64) std::byte made[block_bytes];
            run::combine(dtype, op, a + at, b + at, made, block / one);
            copy(to + at, made, block);
        });
    }
};

// How bytes are stored that lie in this rank's part of a region, where others may have read what is overwritten.
Turn Script::own_turn(const std::byte* to, std::int64_t bytes) {
    if (!lends_ || bytes < static_cast<std::int64_t>(Stores::always_timed)) return {};
    if (!ranks_->regions.find(to, 1, ranks_->rank()).is_one) return {};
    return stores_.turn(static_cast<std::uint64_t>(bytes), runs_, false);
}

Turn Script::own_turn(const Step& step, std::int64_t tile, std::int64_t bytes) {
    if (step.write.cuts.empty()) return {};
    return own_turn(*step.write.base + step.write.cuts[0].offset + (tiles_ > 1 ? tile * tile_bytes_ : 0), bytes);
}

// Copies from the source to the input's buffer.
void Script::fill(std::byte* to, const std::byte* from, std::int64_t num_bytes) {
    const Turn kept = own_turn(to, num_bytes);
    const std::uint64_t began = kept.is_timed ? ticks() : 0;
    Into{kept.way}.copy(to, from, num_bytes);
    if (kept.way == Way::nontemporal) settle();
    if (kept.is_timed) stores_.wrote(ticks() - began, static_cast<std::uint64_t>(num_bytes));
}

void Script::perform(const Step& step, std::int64_t tile, std::int64_t bytes) {
    const auto size = static_cast<Count>(bytes);
    const Tile part(tile * tile_bytes_, tile_bytes_);
    const Loan come = step.in ? step.in->loan(size) : Loan{}, goes = lends_ ? loan_of(step, tile, bytes) : Loan{};
    const std::byte* in = come.is_one ? ranks_->regions.at(come, step.op->in_peer)
                          : step.in   ? step.in->place(size)
                                      : nullptr;
    std::byte* out = step.out && !goes.is_one ? step.out->place(size) : nullptr;
    const Turn kept = own_turn(step, tile, bytes), turn = out ? step.out->turn(size) : Turn{};
    const Into own{kept.way, step.dtype, reduce_op_}, sent{turn.way, step.dtype, reduce_op_};
    const bool is_timed = kept.is_timed || turn.is_timed || (step.in && step.in->is_timed(size));
    const std::uint64_t began = is_timed ? ticks() : 0;
    switch (step.kind) {
        case Kind::copy:
            part.each(step.read, step.write, [&](auto* from, auto* to, auto, auto n) { own.copy(to, from, n); });
            break;
        case Kind::reduce:
            part.each(step.read, step.write, [&](auto* from, auto* to, auto, auto n) {
                own.combine(to, *step.sum.base + (to - *step.write.base), from, n);
            });
            break;
        case Kind::send:
            if (out) part.each(step.read, [&](auto* from, auto at, auto n) { sent.copy(out + at, from, n); });
            break;
        case Kind::recv:
            part.each(step.write, [&](auto* to, auto at, auto n) { own.copy(to, in + at, n); });
            break;
        case Kind::recv_reduce:
            part.each(step.read, step.write,
                      [&](auto* from, auto* to, auto at, auto n) { own.combine(to, from, in + at, n); });
            break;
        case Kind::recv_copy_send:
            part.each(step.write, [&](auto* to, auto at, auto n) {
                own.copy(to, in + at, n);
                if (out) sent.copy(out + at, in + at, n);
            });
            break;
        case Kind::recv_reduce_send:
            part.each(step.read, [&](auto* from, auto at, auto n) { sent.combine(out + at, from, in + at, n); });
            break;
        case Kind::recv_reduce_copy_send:
            part.each(step.read, step.write, [&](auto* from, auto* to, auto at, auto n) {
                if (!out) return own.combine(to, from, in + at, n);
                by_blocks(n, [&](std::int64_t done, std::int64_t block) {
                    own.combine(to + done, from + done, in + at + done, block);
                    sent.copy(out + at + done, to + done, block);
                });
            });
            break;
        default:
            break;
    }
    if (kept.way == Way::nontemporal) settle();
    if (kept.is_timed) stores_.wrote(ticks() - began, size);
    if (step.out) step.out->commit(size, goes, turn, began);
    if (step.in) step.in->release(size, began);
    if (goes.is_one) note_loan(step);
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
    if (!surveyed_ && lane.tile == 0) observe(step);
    perform(step, lane.tile, lane.bytes);
    ++lane.done;
    if (++lane.next == lane.steps.size()) {
        lane.next = 0;
        if (++lane.tile == tiles_) return --left_, true;
        if (lane.tile == filled_) fill();
    }
    lane.bytes = message_bytes(lane.steps[lane.next], lane.tile);
    return true;
}

void Script::begin(const Options& options) {
    if (!surveyed_ && options.input >= 0) survey_ = {input_ = options.input};
    if (input_ >= 0) source_ = share_.bases[static_cast<std::size_t>(input_)];
    const bool borrows = options.source_at == 0 && borrows_ == options.source_bytes;
    if (options.source && borrows) source_ = const_cast<std::byte*>(options.source);
    filled_ = tiles_;
    lends_ = surveyed_ && !ranks_->regions.empty();
    ++runs_;
    if (options.source && !borrows) begin_filling(options);
    sent_.clear();
    unread_.clear();
    least_lent_ = options.least_lent, least_answered_ = options.least_answered;
    left_ = 0;
    for (Lane& lane : lanes_) {
        lane.next = 0, lane.tile = lane.done = 0;
        if (lane.steps.empty()) continue;
        ++left_;
        lane.bytes = message_bytes(lane.steps[0], 0);
    }
}

void Script::begin_filling(const Options& options) {
    const auto input = static_cast<std::size_t>(input_);
    const std::int64_t begin = options.source_at, end = begin + options.source_bytes;
    if (tiles_ == 1 || (starts_[input].empty() && slot_bytes_[input] == 0))
        return fill(share_.bases[input] + begin, options.source, options.source_bytes);
    unfilled_.clear(), filled_ = 0;
    add_cuts(unfilled_, begin, end, slot_bytes_[input], starts_[input]);
    own_ = options.source, own_at_ = begin;
    fill();
}

// Copies one more tile of the source.
void Script::fill() {
    const std::int64_t begin = filled_++ * tile_bytes_;
    std::byte* const to = share_.bases[static_cast<std::size_t>(input_)];
    for (const Cut& cut : unfilled_)
        fill(to + cut.offset + begin, own_ + (cut.offset - own_at_) + begin, clipped(cut.bytes, begin, tile_bytes_));
}

bool Script::advance() {
    bool moved = false;
    for (Lane& lane : lanes_)
        while (!lane.steps.empty() && lane.tile < tiles_ && step(lane)) moved = true;
    return moved;
}

std::string Script::run(const Options& options) {
    if (ranks_->is_disturbed())
        if (std::string why = reset(options); !why.empty()) return why;
    reduce_op_ = options.reduce_op;
    begin(options);
    patience_.moved();
    while (left_ > 0 || !is_all_read()) {
        if (advance())
            patience_.moved();
        else if (patience_.wait(options.rests)) {
            const std::string why = stalled(options);
            if (why.empty()) continue;
            ranks_->fail();
            return why;
        }
    }
    while (filled_ < tiles_) fill();  // this rank has no steps
    if (!surveyed_) end_survey();
    if (reduce_op_ == DT_AVG)
        for (const auto& [where, divisor] : share_.quotients)
            run::divide(where.dtype, where.data(), run::elements(where), divisor);
    return "";
}

}  // namespace dovetail::shm
