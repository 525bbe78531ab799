// Clocks: see clocks.hpp.
#include "ir/clocks.hpp"

#include <numeric>
#include <unordered_map>

namespace dovetail::ir {
namespace {

constexpr std::int64_t kWidth = 32;  // queues whose counts are followed in one replay of the run

using Clock = std::span<std::int32_t>;

void join(Clock into, std::span<const std::int32_t> other) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

// How often the clock of each op is needed: by dependents and, across ranks, by the op that receives its message.
std::vector<std::int32_t> count_uses(const Program& p, const Run* run) {
    std::vector<std::int32_t> uses(p.num_ops(), 0);
    for (const std::int64_t dep : p.dep) ++uses[dep];
    for (std::int32_t op = 0; run && op < p.num_ops(); ++op)
        if (receives(p.kind[op]) || p.kind[op] == kWait) ++uses[run->matched[op]];
    return uses;
}

// For each op, whether another op receives its message.
std::vector<bool> taken(const Program& p, const Run& run) {
    std::vector<bool> found(p.num_ops(), false);
    for (std::int32_t op = 0; op < p.num_ops(); ++op)
        if (receives(p.kind[op])) found[run.matched[op]] = true;
    return found;
}

// Replays a run with vector clocks that hold the counts of up to kWidth queues.
class Replay {
  public:
    Replay(const Program& p, const Queues& q, const Run& run, std::vector<std::int32_t> column, Moment moment)
        : p_(p),
          q_(q),
          run_(run),
          moment_(moment),
          column_(std::move(column)),
          counts_(q.size() * kWidth, 0),
          moments_(kWidth, 0),
          uses_(count_uses(p, &run)),
          kept_(p.num_ops(), kWidth) {
        if (moment == Moment::begun) return;
        taken_ = taken(p, run);
        touched_ = ClockStore(p.num_ops(), kWidth);
    }

    void step(std::int32_t op) {
        if (p_.kind[op] == kCollective) {
            const auto members = run_.members(p_, op);
            if (members[0] == op) meet(members);
            place_ = std::find(members.begin(), members.end(), op) - members.begin();
        } else {
            place_ = 0;
            begin(op);
            touch(op);
            note(op, 0);
            if (receives(p_.kind[op]) || p_.kind[op] == kWait) learn(op, run_.matched[op]);
            end(op);
        }
    }

    // Whether the pair is ordered; its second op must be the last op stepped.
    bool ordered(const Pair& pair) const {
        return moments_[place_ * kWidth + column_[q_.queue_of[pair.first]]] > q_.position[pair.first];
    }

  private:
    Clock clock(std::int32_t op) { return std::span(counts_).subspan(q_.queue_of[op] * kWidth, kWidth); }

    void learn(std::int32_t op, std::int64_t cause) {
        join(clock(op), kept_.at(cause));
        if (--uses_[cause] == 0) kept_.release(cause);
    }

    void begin(std::int32_t op) {
        for (std::int64_t i = p_.dep_start[op]; i < p_.dep_start[op + 1]; ++i) learn(op, p_.dep[i]);
    }

    // The message has begun to arrive, and brings its sender's clock at the time when that touched its slots.
    void touch(std::int32_t op) {
        if (moment_ == Moment::begun) return;
        if (receives(p_.kind[op])) {
            join(clock(op), touched_.at(run_.matched[op]));
            touched_.release(run_.matched[op]);
        }
        if (sends(p_.kind[op]) && taken_[op]) touched_.keep(op, clock(op));
    }

    void note(std::int32_t op, std::size_t place) {
        const auto now = clock(op);
        std::copy(now.begin(), now.end(), moments_.begin() + static_cast<std::ptrdiff_t>(place * kWidth));
    }

    void end(std::int32_t op) {
        const std::int32_t column = column_[q_.queue_of[op]];
        if (column >= 0) clock(op)[column] = q_.position[op] + 1;
        if (uses_[op] > 0) kept_.keep(op, clock(op));
    }

    // A member whose data reach another began before that one ended. The call's own accesses are not ordered.
    void meet(std::span<const std::int32_t> members) {
        const std::uint8_t kind = p_.collective[p_.call[members[0]]];
        if (kind == kAllToAll && p_.in_parts(members)) return exchange(members);
        std::vector<std::int32_t> known(kWidth, 0);
        moments_.resize(std::max(moments_.size(), members.size() * kWidth));
        for (std::size_t i = 0; i < members.size(); ++i) {
            const std::int32_t op = members[i];
            begin(op);
            note(op, i);
            const bool contributes =
                kind == kReduceScatter || (p_.num_reads(op) && p_.read[p_.read_start[op]].slots() > 0);
            if (contributes && (kind != kBroadcast || op == members[0])) join(known, clock(op));
        }
        for (const std::int32_t op : members) {
            if (kind != kReduceScatter || p_.write[p_.write_start[op]].slots() > 0) join(clock(op), known);
            end(op);
        }
    }

    // The same for an all_to_all, in which a member may send nothing to another.
    void exchange(std::span<const std::int32_t> members) {
        moments_.resize(std::max(moments_.size(), members.size() * kWidth));
        for (std::size_t i = 0; i < members.size(); ++i) {
            begin(members[i]);
            note(members[i], i);
        }
        for (std::size_t j = 0; j < members.size(); ++j) {
            for (std::size_t i = 0; i < members.size(); ++i)
                if (p_.sent_slots(members[i], j) > 0)
                    join(clock(members[j]), std::span(moments_).subspan(i * kWidth, kWidth));
            end(members[j]);
        }
    }

    const Program& p_;
    const Queues& q_;
    const Run& run_;
    const Moment moment_;
    std::vector<std::int32_t> column_;  // per queue: the index of its count in a clock; -1 for none
    std::vector<std::int32_t> counts_;
    std::vector<std::int32_t> moments_;  // the clock at `Moment`, of the last op or of all members of its call
    std::ptrdiff_t place_ = 0;           // index of the last op in moments_
    std::vector<std::int32_t> uses_;
    std::vector<bool> taken_;
    ClockStore kept_, touched_{0, 1};
};

}  // namespace

RankClocks::RankClocks(const Program& p, const Queues& q)
    : p_(p), q_(q), place_(q.size()), width_(q.size()), uses_(count_uses(p, nullptr)), kept_(0, 1) {
    std::int64_t widest = 1, total = 0;
    for (std::int32_t first = 0, last = 0; first < q.size(); first = last) {
        const std::int32_t rank = p.rank[q.rows[q.start[first]]];
        while (last < q.size() && p.rank[q.rows[q.start[last]]] == rank) ++last;
        for (std::int32_t queue = first; queue < last; ++queue) {
            place_[queue] = queue - first, width_[queue] = last - first;
            start_.push_back(total);
            total += last - first;
        }
        widest = std::max<std::int64_t>(widest, last - first);
    }
    counts_.assign(total, 0);
    kept_ = ClockStore(p.num_ops(), widest);
}

void RankClocks::step(std::int32_t op) {
    const std::int32_t queue = q_.queue_of[op];
    const Clock clock = std::span(counts_).subspan(start_[queue], width_[queue]);
    for (std::int64_t i = p_.dep_start[op]; i < p_.dep_start[op + 1]; ++i) {
        const std::int64_t dep = p_.dep[i];
        join(clock, kept_.at(dep));
        if (--uses_[dep] == 0) kept_.release(dep);
    }
    clock[place_[queue]] = q_.position[op] + 1;
    if (uses_[op] > 0) kept_.keep(op, clock);
}

bool RankClocks::ordered(std::int32_t first, std::int32_t second) const {
    if (p_.rank[first] != p_.rank[second]) return false;
    const std::int64_t clock = start_[q_.queue_of[second]];
    return counts_[clock + place_[q_.queue_of[first]]] > q_.position[first];
}

namespace {

// Pairs that are not yet known to be ordered, with their indices in the caller's list.
struct Open {
    std::vector<Pair> pairs;
    std::vector<std::int64_t> numbers;

    explicit Open(std::span<const Pair> list) : pairs(list.begin(), list.end()), numbers(list.size()) {
        std::iota(numbers.begin(), numbers.end(), 0);
    }

    void close(const std::vector<bool>& seen) {
        std::size_t kept = 0;
        for (std::size_t i = 0; i < pairs.size(); ++i)
            if (!seen[i]) pairs[kept] = pairs[i], numbers[kept++] = numbers[i];
        pairs.resize(kept), numbers.resize(kept);
    }
};

// Which pairs are ordered by a signal or dependency directly from one queue to the other.
std::vector<bool> ordered_directly(const Program& p, const Queues& q, const Run& run, std::span<const Pair> pairs) {
    std::vector<bool> seen(pairs.size(), false);
    std::unordered_map<std::int64_t, std::int32_t> last;  // by (to, from): the last op of `from` known to `to`
    const auto key = [&](std::int32_t to, std::int32_t from) { return std::int64_t{to} * q.size() + from; };
    const auto learn = [&](std::int32_t op, std::int64_t cause) {
        const auto [at, fresh] = last.try_emplace(key(q.queue_of[op], q.queue_of[cause]), q.position[cause]);
        at->second = std::max(at->second, q.position[cause]);
    };
    std::size_t next = 0;
    for (const std::int32_t op : run.order) {
        if (next == pairs.size()) break;
        for (std::int64_t i = p.dep_start[op]; i < p.dep_start[op + 1]; ++i) learn(op, p.dep[i]);
        for (; next < pairs.size() && pairs[next].second == op; ++next) {
            const std::int32_t first = pairs[next].first;
            const auto found = last.find(key(q.queue_of[op], q.queue_of[first]));
            seen[next] = found != last.end() && found->second >= q.position[first];
        }
        if (p.kind[op] == kWait) learn(op, run.matched[op]);
    }
    return seen;
}

// Order through the hub of the first op's rank (the queue that waits for others most often), or through another rank's
// hub if none of its ops comes after the first op. This needs clocks of hubs only, which are few.
class Hubs {
  public:
    Hubs(const Program& p, const Queues& q, const Run& run) : p_(p), q_(q), run_(run), hub_(p.num_ranks, -1) {
        find_hubs();
        find_ways();
    }

    // Which pairs are ordered through hubs.
    std::vector<bool> ordered(std::span<const Pair> pairs, Moment moment) const {
        std::vector<bool> seen(pairs.size(), false);
        for (std::int32_t low = 0; low < p_.num_ranks; low += kWidth) follow(pairs, moment, low, seen);
        return seen;
    }

  private:
    void find_hubs() {
        std::vector<std::int32_t> waits(q_.size(), 0);
        for (std::int32_t op = 0; op < p_.num_ops(); ++op)
            for (std::int64_t i = p_.dep_start[op]; i < p_.dep_start[op + 1]; ++i)
                if (q_.queue_of[p_.dep[i]] != q_.queue_of[op]) ++waits[q_.queue_of[op]];
        for (std::int32_t queue = 0; queue < q_.size(); ++queue) {
            std::int32_t& hub = hub_[p_.rank[q_.rows[q_.start[queue]]]];
            if (hub < 0 || waits[queue] > waits[hub]) hub = queue;
        }
    }

    // Finds, from the last op backwards, the first op of the rank's hub, or else of another hub, after each op.
    void find_ways() {
        way_.assign(p_.num_ops(), -1);
        const auto lead = [&](std::int64_t op, std::int32_t to) {
            const std::int32_t old = way_[op];
            if (to < 0 || to == old) return;
            const bool same = old >= 0 && q_.queue_of[old] == q_.queue_of[to];
            if (old < 0 || (same ? q_.position[to] < q_.position[old] : p_.rank[to] == p_.rank[op])) way_[op] = to;
        };
        for (auto at = run_.order.rbegin(); at != run_.order.rend(); ++at) {
            const std::int32_t op = *at, queue = q_.queue_of[op];
            const std::int32_t to = queue == hub_[p_.rank[op]] ? op : way_[op];
            for (std::int64_t i = p_.dep_start[op]; i < p_.dep_start[op + 1]; ++i) lead(p_.dep[i], to);
            if (q_.position[op] > 0) lead(q_.rows[q_.start[queue] + q_.position[op] - 1], to);
            if (receives(p_.kind[op]) || p_.kind[op] == kWait) lead(run_.matched[op], to);
        }
    }

    void follow(std::span<const Pair> pairs, Moment moment, std::int32_t low, std::vector<bool>& seen) const {
        std::vector<std::int32_t> column(q_.size(), -1);
        const std::int32_t high = std::min(low + static_cast<std::int32_t>(kWidth), p_.num_ranks);
        for (std::int32_t rank = low; rank < high; ++rank)
            if (hub_[rank] >= 0) column[hub_[rank]] = rank - low;
        Replay replay(p_, q_, run_, std::move(column), moment);
        std::size_t next = 0;
        for (const std::int32_t op : run_.order) {
            replay.step(op);
            for (; next < pairs.size() && pairs[next].second == op; ++next) {
                const std::int32_t first = pairs[next].first;
                const std::int32_t to = q_.queue_of[first] == hub_[p_.rank[first]] ? first : way_[first];
                if (to < 0 || p_.rank[to] < low || p_.rank[to] >= high) continue;
                if (replay.ordered({to, op})) seen[next] = true;
            }
            if (next == pairs.size()) return;
        }
    }

    const Program& p_;
    const Queues& q_;
    const Run& run_;
    std::vector<std::int32_t> hub_;  // per rank: its hub's queue
    std::vector<std::int32_t> way_;  // per op: the op of a hub after it; -1 for none
};

// In how many queues the first ops of the pairs are.
std::int64_t num_firsts(const Queues& q, std::span<const Pair> pairs) {
    std::vector<std::uint8_t> is_first(q.size(), 0);
    for (const Pair& pair : pairs) is_first[q.queue_of[pair.first]] = 1;
    return std::count(is_first.begin(), is_first.end(), 1);
}

// The index of the first pair that is not ordered, by clocks of the queues of first ops, kWidth queues at a time.
std::int64_t first_of(const Program& p, const Queues& q, const Run& run, std::span<const Pair> pairs, Moment moment,
                      const std::function<bool(const Pair&)>& excused) {
    std::vector<std::int32_t> number(q.size(), -1);  // per queue of a first op: its index
    std::int32_t count = 0;
    for (const Pair& pair : pairs)
        if (std::int32_t& n = number[q.queue_of[pair.first]]; n < 0) n = count++;
    std::size_t best = pairs.size();
    for (std::int32_t low = 0; low < count; low += kWidth) {
        std::vector<std::int32_t> column(q.size(), -1);
        for (std::int32_t queue = 0; queue < q.size(); ++queue)
            if (number[queue] >= low && number[queue] < low + kWidth) column[queue] = number[queue] - low;
        Replay replay(p, q, run, column, moment);
        std::size_t next = 0;
        for (const std::int32_t op : run.order) {
            if (next >= best) break;
            replay.step(op);
            for (; next < best && pairs[next].second == op; ++next) {
                const Pair& pair = pairs[next];
                if (column[q.queue_of[pair.first]] < 0 || replay.ordered(pair)) continue;
                if (!excused || !excused(pair)) best = next;
            }
        }
    }
    return best < pairs.size() ? static_cast<std::int64_t>(best) : -1;
}

}  // namespace

std::int64_t first_unordered(const Program& p, const Queues& q, const Run& run, std::span<const Pair> pairs,
                             Moment moment, const std::function<bool(const Pair&)>& excused) {
    Open open(pairs);
    if (!open.pairs.empty()) open.close(ordered_directly(p, q, run, open.pairs));
    if (num_firsts(q, open.pairs) > p.num_ranks) open.close(Hubs(p, q, run).ordered(open.pairs, moment));
    const std::int64_t found = first_of(p, q, run, open.pairs, moment, excused);
    return found < 0 ? -1 : open.numbers[found];
}

}  // namespace dovetail::ir
