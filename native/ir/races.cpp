// Races: see races.hpp.
#include "ir/races.hpp"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <unordered_set>

#include "ir/message_paths.hpp"

namespace dovetail::ir {
namespace {

// Sets `per` and `shift`: slot j of the i-th region read is in part j / per, which corresponds to part j / per + shift
// of the regions written. False if parts need not correspond.
bool shift_of(const Program& p, const Run& run, std::int32_t op, std::int64_t i, std::int64_t& per,
              std::int64_t& shift) {
    per = 1, shift = 0;
    if (p.kind[op] == kCompute) {
        const std::uint8_t mode = p.mode_of(op, i);
        if (mode == kEachSum) per = std::max<std::int64_t>(p.num_terms(op), 1);
        return mode == kEach || mode == kEachSum;
    }
    if (p.kind[op] != kCollective) return true;
    const std::uint8_t kind = p.collective[p.call[op]];
    if (kind != kAllGather && kind != kReduceScatter) return true;
    for (const std::int32_t member : run.members(p, op)) {
        if (member == op) break;
        shift += kind == kAllGather ? p.read[p.read_start[member]].slots() : -p.write[p.write_start[member]].slots();
    }
    return true;
}

bool overlap(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.offset < b.end() && b.offset < a.end();
}

// A cheap test: false only if the op touches no slot twice.
bool may_conflict(const Program& p, std::int32_t op) {
    for (std::int64_t i = p.write_start[op]; i < p.write_start[op + 1]; ++i) {
        const Region written = p.write[i];
        if (written.blocks > 1 && written.stride < written.count) return true;
        for (std::int64_t k = i + 1; k < p.write_start[op + 1]; ++k)
            if (overlap(written, p.write[k])) return true;
        for (std::int64_t k = p.read_start[op]; k < p.read_start[op + 1]; ++k)
            if (overlap(written, p.read[k])) return true;
    }
    return false;
}

bool is_in_place(const Program& p, std::int32_t op) {
    if (p.num_reads(op) != 1 || p.num_writes(op) != 1 || p.kind[op] == kCollective) return false;
    const Region r = p.read[p.read_start[op]], w = p.write[p.write_start[op]];
    const bool same = r.buffer == w.buffer && r.offset == w.offset && r.count == w.count && r.blocks == w.blocks;
    return same && (w.blocks == 1 || (r.stride == w.stride && w.stride >= w.count));
}

bool conflicts_with_itself(const Program& p, const Run& run, std::int32_t op) {
    if (!may_conflict(p, op) || is_in_place(p, op)) return false;
    struct Part {
        std::int64_t region, place;  // index of the region written, and place in it
    };
    std::vector<std::unordered_map<std::int64_t, Part>> written(p.num_buffers);
    for (std::int64_t i = 0; i < p.num_writes(op); ++i) {
        const Region region = p.write[p.write_start[op] + i];
        const auto fresh = [&](std::int64_t j, std::int64_t slot) {
            return written[region.buffer].emplace(slot, Part{i, j}).second;
        };
        if (!region.each(fresh)) return true;
    }
    if (p.kind[op] == kPut || p.kind[op] == kGet) return false;
    for (std::int64_t i = 0; i < p.num_reads(op); ++i) {
        std::int64_t per = 1, shift = 0;
        if (!shift_of(p, run, op, i, per, shift)) continue;
        const Region region = p.read[p.read_start[op] + i];
        const auto& places = written[region.buffer];
        const bool good = region.each([&](std::int64_t j, std::int64_t slot) {
            const auto found = places.find(slot);
            if (found == places.end()) return true;
            const bool same = found->second.region == i || p.kind[op] != kCollective;
            return found->second.place == j / per + shift && same;
        });
        if (!good) return true;
    }
    return false;
}

// Pairs whose order messages must prove; pairs ordered within their rank are not kept.
class Pairs {
  public:
    explicit Pairs(RankClocks& clocks) : clocks_(clocks) {}

    void add(std::int32_t first, std::int32_t second) {
        if (!list_.empty() && list_.back().first == first && list_.back().second == second) return;
        if (!clocks_.ordered(first, second)) list_.push_back({first, second});
    }

    std::span<const Pair> list() const { return list_; }

  private:
    RankClocks& clocks_;
    std::vector<Pair> list_;
};

// The last op that used each end of a channel, and each member's place in a collective.
class Turns {
  public:
    Turns(const Program& p, const Queues& q) : p_(p), q_(q), last_(4 * p.num_channels(), -1) {}

    void step(std::int32_t op, Pairs& pairs) {
        const std::uint8_t kind = p_.kind[op];
        if (receives(kind) || kind == kWait)
            use(4 * std::int64_t{p_.chan_in[op]} + (receives(kind) ? 0 : 1), op, pairs);
        if (sends(kind) || kind == kSignal) use(4 * std::int64_t{p_.chan_out[op]} + (sends(kind) ? 2 : 3), op, pairs);
        if (kind != kCollective) return;
        const std::int64_t seat = std::int64_t{p_.call[op]} * p_.num_ranks + p_.rank[op];
        const auto [at, fresh] = seats_.try_emplace(seat, op);
        if (!fresh && q_.queue_of[at->second] != q_.queue_of[op]) pairs.add(at->second, op);
        at->second = op;
    }

  private:
    void use(std::int64_t end, std::int32_t op, Pairs& pairs) {
        if (last_[end] >= 0 && q_.queue_of[last_[end]] != q_.queue_of[op]) pairs.add(last_[end], op);
        last_[end] = op;
    }

    const Program& p_;
    const Queues& q_;
    std::vector<std::int32_t> last_;
    std::unordered_map<std::int64_t, std::int32_t> seats_;
};

// A region in the memory of a rank that an op of a queue touches, in cells.
struct Touched {
    std::int32_t queue, rank;
    Region cells;

    bool operator==(const Touched&) const = default;

    struct Hash {
        std::size_t operator()(const Touched& t) const {
            const Region& r = t.cells;
            std::uint64_t hash = 0;
            for (const std::int64_t word : {std::int64_t{t.queue}, std::int64_t{t.rank}, std::int64_t{r.buffer},
                                            r.offset, r.count, r.stride, r.blocks})
                hash = (std::rotl(hash, 23) ^ std::uint64_t(word)) * 0x9e3779b97f4a7c15;
            return hash;
        }
    };
};

constexpr std::int64_t kFewCells = 32;  // regions of at most this many cells are scanned instead of looked up

// For each cell that several queues touch, the last write and, per queue, the last read since.
class Shadow {
  public:
    Shadow(const Program& p, const Queues& q, const Layout& layout)
        : p_(p), q_(q), layout_(layout), is_shared_(std::int64_t{p.num_buffers} * p.num_ranks, false) {
        find_shared_buffers();
        if (!any_) return;
        find_shared_cells();
        writer_.assign(layout.cells(), -1);
        reader_.assign(layout.cells(), -1);
    }

    bool is_shared() const { return any_; }

    void step(std::int32_t op, Pairs& pairs) {
        accesses(op, [&](std::int32_t rank, const Region& region, bool writes) {
            if (!is_shared_[std::int64_t{region.buffer} * p_.num_ranks + rank]) return;
            const Region cells = layout_.cells(region);
            for (std::int64_t block = 0; block < cells.blocks; ++block) {
                const std::int64_t first = layout_.start(region.buffer, rank) + cells.offset + block * cells.stride;
                for (std::int64_t cell = next_[first]; cell < first + cells.count; cell = next_[cell + 1])
                    writes ? write(cell, op, pairs) : read(cell, op, pairs);
            }
        });
    }

  private:
    // The queue that touches something: none yet, several, or else its number.
    enum { kNobody = -1, kSeveral = -2 };

    static void note(std::int32_t& toucher, std::int32_t queue) {
        toucher = toucher == kNobody || toucher == queue ? queue : kSeveral;
    }

    void find_shared_buffers() {
        std::vector<std::int32_t> touchers(is_shared_.size(), kNobody);
        for (std::int32_t op = 0; op < p_.num_ops(); ++op)
            accesses(op, [&](std::int32_t rank, const Region& region, bool) {
                if (region.slots() > 0)
                    note(touchers[std::int64_t{region.buffer} * p_.num_ranks + rank], q_.queue_of[op]);
            });
        for (std::size_t i = 0; i < touchers.size(); ++i)
            if (touchers[i] == kSeveral) is_shared_[i] = any_ = true;
    }

    // Marks the cells that several queues touch; handles a region that one queue touches repeatedly only once.
    void find_shared_cells() {
        std::vector<std::int32_t> touchers(layout_.cells(), kNobody);
        std::unordered_set<Touched, Touched::Hash> seen;
        for (std::int32_t op = 0; op < p_.num_ops(); ++op)
            accesses(op, [&](std::int32_t rank, const Region& region, bool) {
                if (!is_shared_[std::int64_t{region.buffer} * p_.num_ranks + rank]) return;
                const Region cells = layout_.cells(region);
                if (cells.slots() > kFewCells && !seen.insert({q_.queue_of[op], rank, cells}).second) return;
                const std::int64_t start = layout_.start(region.buffer, rank);
                cells.each([&](std::int64_t, std::int64_t cell) {
                    return note(touchers[start + cell], q_.queue_of[op]), true;
                });
            });
        next_.assign(touchers.size() + 1, layout_.cells());
        for (std::int64_t cell = layout_.cells() - 1; cell >= 0; --cell)
            next_[cell] = touchers[cell] == kSeveral ? cell : next_[cell + 1];
    }

    // Calls f(rank, region, writes) for each access, in the same order as the Python reference.
    template <class F>
    void accesses(std::int32_t op, F f) const {
        for (std::int64_t i = p_.read_start[op]; i < p_.read_start[op + 1]; ++i) f(p_.source(op), p_.read[i], false);
        const std::int32_t target = p_.target(op);
        for (int again = p_.adds(op) ? 0 : 1; again < 2; ++again)
            for (std::int64_t i = p_.write_start[op]; i < p_.write_start[op + 1]; ++i)
                f(target, p_.write[i], again == 1);
    }

    void meet(std::int32_t first, std::int32_t op, Pairs& pairs) const {
        if (first >= 0 && q_.queue_of[first] != q_.queue_of[op]) pairs.add(first, op);
    }

    void read(std::int64_t cell, std::int32_t op, Pairs& pairs) {
        meet(writer_[cell], op, pairs);
        std::int32_t& reader = reader_[cell];
        if (reader == -1 || (reader >= 0 && q_.queue_of[reader] == q_.queue_of[op])) {
            reader = op;
            return;
        }
        if (reader >= 0) {  // a second queue reads: keep a list
            if (spare_.empty()) {
                spare_.push_back(static_cast<std::int32_t>(lists_.size()));
                lists_.emplace_back();
            }
            lists_[spare_.back()].assign(1, reader);
            reader = -2 - spare_.back();
            spare_.pop_back();
        }
        auto& list = lists_[-2 - reader];
        std::erase_if(list, [&](std::int32_t other) { return q_.queue_of[other] == q_.queue_of[op]; });
        list.push_back(op);
    }

    void write(std::int64_t cell, std::int32_t op, Pairs& pairs) {
        meet(writer_[cell], op, pairs);
        std::int32_t& reader = reader_[cell];
        if (reader <= -2) {
            for (const std::int32_t other : lists_[-2 - reader]) meet(other, op, pairs);
            spare_.push_back(-2 - reader);
        } else {
            meet(reader, op, pairs);
        }
        reader = -1;
        writer_[cell] = op;
    }

    const Program& p_;
    const Queues& q_;
    const Layout& layout_;
    std::vector<bool> is_shared_;  // per buffer and rank: whether several queues touch it
    bool any_ = false;
    std::vector<std::int64_t> next_;             // per cell: the next cell, from itself on, that several queues touch
    std::vector<std::int32_t> writer_, reader_;  // a reader: -1 for none, an op, or -2 - the number of a list
    std::vector<std::vector<std::int32_t>> lists_;
    std::vector<std::int32_t> spare_;
};

Pair first(std::span<const Pair> pairs, std::int64_t number) { return number < 0 ? Pair{} : pairs[number]; }

}  // namespace

Races find_races(const Program& p, const Queues& q, const Run& run, const Layout& layout) {
    Races races;
    for (std::int32_t op = 0; op < p.num_ops(); ++op)
        if (conflicts_with_itself(p, run, op)) {
            races.self = op;
            return races;
        }
    RankClocks clocks(p, q);
    Pairs turn_pairs(clocks), slot_pairs(clocks);
    Turns turns(p, q);
    Shadow shadow(p, q, layout);
    for (const std::int32_t op : run.order) {
        clocks.step(op);
        turns.step(op, turn_pairs);
        if (shadow.is_shared()) shadow.step(op, slot_pairs);
    }
    races.turns = first(turn_pairs.list(), first_unordered(p, q, run, turn_pairs.list(), Moment::begun));
    if (races.turns.first >= 0 || slot_pairs.list().empty()) return races;
    const MessagePaths paths(p, run, layout);
    const auto in_step = [&](const Pair& pair) { return paths.in_step(pair.first, pair.second); };
    races.slots = first(slot_pairs.list(), first_unordered(p, q, run, slot_pairs.list(), Moment::touched, in_step));
    return races;
}

}  // namespace dovetail::ir
