// Induction: see induction.hpp.
#include "ir/induction.hpp"

#include <bit>
#include <deque>
#include <vector>

namespace dovetail::ir {
namespace {

constexpr std::int64_t kFewest = 8;       // least repetitions for which induction is tried
constexpr std::int64_t kCandidates = 32;  // most lengths of a repetition that are tried
constexpr int kRefinements = 4;           // most refinements of the classes of equal places
constexpr std::int64_t kAhead = 6;        // repetitions of the reference that are searched for the same value
constexpr std::size_t kStarts = 2;        // places in a repetition that are tried as its beginning

// From row `first`, the same `length` ops are repeated `count` times.
struct Repetition {
    std::int64_t first = 0, length = 0, count = 0;

    std::int64_t end() const { return first + length * count; }
};

bool is_same_region(const Regions& regions, std::int64_t i, std::int64_t j) {
    const Region a = regions[i], b = regions[j];
    return a.buffer == b.buffer && a.offset == b.offset && a.count == b.count && a.stride == b.stride &&
           a.blocks == b.blocks;
}

// Whether two ops do the same.
bool is_same_op(const Program& p, std::int64_t i, std::int64_t j) {
    if (p.kind[i] != p.kind[j] || p.rank[i] != p.rank[j] || p.call[i] != p.call[j] || p.chan_in[i] != p.chan_in[j] ||
        p.chan_out[i] != p.chan_out[j] || p.num_reads(i) != p.num_reads(j) || p.num_writes(i) != p.num_writes(j))
        return false;
    for (std::int64_t k = 0; k < p.num_reads(i); ++k)
        if (!is_same_region(p.read, p.read_start[i] + k, p.read_start[j] + k)) return false;
    for (std::int64_t k = 0; k < p.num_writes(i); ++k)
        if (!is_same_region(p.write, p.write_start[i] + k, p.write_start[j] + k)) return false;
    return true;
}

// The shortest repetition around the middle of a program; `count` is 0 if there is none.
Repetition find_repetition(const Program& p) {
    const std::int64_t count = p.num_ops(), middle = count / 2;
    std::int64_t tried = 0;
    for (std::int64_t row = middle + 1; row < count && tried < kCandidates; ++row) {
        if (!is_same_op(p, middle, row)) continue;
        ++tried;
        const std::int64_t length = row - middle;
        std::int64_t first = middle, last = middle;
        while (first > 0 && is_same_op(p, first - 1, first - 1 + length)) --first;
        while (last + length < count && is_same_op(p, last, last + length)) ++last;
        const std::int64_t found = (last + length - first) / length;
        if (found >= kFewest && 2 * found * length >= count) return {first, length, found};
    }
    return {};
}

// Lengthens the repetition of the program with more repetitions, so that both counts are equal.
void match(Repetition& own, Repetition& theirs) {
    for (Repetition* each : {&own, &theirs}) {
        const std::int64_t other = each == &own ? theirs.count : own.count, times = (each->count + other / 2) / other;
        if (times > 1) each->length *= times, each->count /= times;
    }
}

// The number of values that an op touches.
std::int64_t num_touched(const Program& p, const Layout& layout, std::int64_t op) {
    std::int64_t found = 0;
    for (std::int64_t i = p.read_start[op]; i < p.read_start[op + 1]; ++i) found += layout.cells(p.read[i]).slots();
    for (std::int64_t i = p.write_start[op]; i < p.write_start[op + 1]; ++i) found += layout.cells(p.write[i]).slots();
    return found;
}

// Whether a message op comes before the next compute op.
bool is_last_before_messages(const Program& p, std::int64_t row) {
    while (++row < p.num_ops() && p.kind[row] != kCompute)
        if (sends(p.kind[row]) || receives(p.kind[row])) return true;
    return false;
}

// Compute ops, in the repetition at `first`, after which both programs may have done the same work. If some have
// operands of mode `all`, ops are tiles of a pipeline: the largest one. Else those before messages, which end a sweep.
std::vector<std::int64_t> starts(const Program& p, const Layout& layout, std::int64_t first, std::int64_t length) {
    std::vector<std::int64_t> found;
    std::int64_t most = 0;
    for (std::int64_t op = first; op < first + length; ++op) {
        if (p.kind[op] != kCompute || p.num_writes(op) == 0) continue;
        const std::int64_t touched = p.is_by_slot(p.call[op]) ? 0 : num_touched(p, layout, op);
        if (touched > most) found.assign(1, op), most = touched;
        if (most == 0 && found.size() < kStarts && is_last_before_messages(p, op)) found.push_back(op);
    }
    return found;
}

// Whether ops may run in the order of their rows: each message is sent in an earlier row than it is received.
bool is_in_order(const Program& p, const Run& run) {
    std::vector<std::deque<std::int32_t>> sent(p.num_channels());
    for (std::int32_t op = 0; op < p.num_ops(); ++op) {
        const std::uint8_t kind = p.kind[op];
        if (kind == kPut || kind == kGet || kind == kSignal || kind == kWait || kind == kCollective) return false;
        for (std::int64_t i = p.dep_start[op]; i < p.dep_start[op + 1]; ++i)
            if (p.dep[i] >= op) return false;
        if (receives(kind)) {
            auto& queue = sent[p.chan_in[op]];
            if (queue.empty() || queue.front() != run.matched[op]) return false;
            queue.pop_front();
        }
        if (sends(kind)) sent[p.chan_out[op]].push_back(op);
    }
    return true;
}

// Numbers for (former class, value) pairs, in the order in which they are met.
class Classes {
  public:
    struct Held {
        std::int32_t before;
        Value now;

        bool operator==(const Held&) const = default;
    };

    explicit Classes(std::size_t most) : table_(std::bit_ceil(2 * most + 16), -1) { held_.reserve(most); }

    std::int32_t size() const { return static_cast<std::int32_t>(held_.size()); }

    std::int32_t number(const Held& held) {
        std::size_t at = held.now.a + std::uint64_t(held.before) * 0x9e3779b97f4a7c15;
        while (table_[at &= table_.size() - 1] >= 0 && held_[table_[at]] != held) ++at;
        if (table_[at] < 0) table_[at] = size(), held_.push_back(held);
        return table_[at];
    }

  private:
    std::vector<std::int32_t> table_;
    std::vector<Held> held_;
};

// The states of two programs, and classes of places (in memory and channels of both) that hold the same value.
class Both {
  public:
    Both(const Runs& runs, const Layout& layout, const Key& key, std::int64_t& work)
        : own(runs.program, runs.run, layout, key, false),
          reference(*runs.reference, *runs.reference_run, layout, key, true),
          key_(key),
          work_(work) {}
    ~Both() { work_ += own.work() + reference.work(); }
    Both(const Both&) = delete;
    Both& operator=(const Both&) = delete;

    // Runs one repetition of each program; whether all classes still hold. If so, the state is reset to the classes.
    bool repeats(std::int64_t row, std::int64_t length, std::int64_t their_row, std::int64_t their_length) {
        changing_ = own.changing(row, row + length);
        theirs_ = reference.changing(their_row, their_row + their_length);
        num_places_ = 0;
        each([&](const Value&) { ++num_places_; });
        class_of_.assign(num_places_, 0);
        note();
        const auto before = under_way();
        for (int i = 0; i < kRefinements; ++i) {
            forget();
            own.run(row, row + length), reference.run(their_row, their_row + their_length);
            if (under_way() != before) return false;
            if (is_as_noted()) return forget(), true;
            note();
        }
        return false;
    }

    Execution own, reference;

  private:
    // Splits the classes by the values that their places hold now.
    void note() {
        Classes classes(num_places_);
        auto at = class_of_.begin();
        each([&](const Value& value) { *at = classes.number({*at, value}), ++at; });
        num_classes_ = classes.size();
    }

    // Whether all places of each class hold the same value.
    bool is_as_noted() {
        std::vector<Value> now(num_classes_);  // per class
        auto at = class_of_.cbegin();
        bool same = true;
        each([&](const Value& value) {
            Value& other = now[*at++];
            if (other.count == 0) other = value;
            same = same && other == value;
        });
        return same;
    }

    // Replaces all values by one symbol per class: only the equalities remain known.
    void forget() {
        auto at = class_of_.cbegin();
        each([&](Value& value) {
            Hash hash(key_);
            hash.word(kClass);
            hash.word(*at++);
            value = hash.finish();
        });
    }

    std::vector<std::size_t> under_way() const {
        auto found = own.under_way();
        for (const std::size_t count : reference.under_way()) found.push_back(count);
        return found;
    }

    template <class F>
    void each(F f) {
        own.each(changing_, f), reference.each(theirs_, f);
    }

    const Key key_;
    std::int64_t& work_;
    std::vector<std::uint8_t> changing_, theirs_;  // buffers
    std::size_t num_places_ = 0;
    std::vector<std::int32_t> class_of_;  // by place
    std::int32_t num_classes_ = 0;
};

// The first value that the compute op in a row has written.
const Value& made_by(const Program& p, const Layout& layout, Execution& execution, std::int64_t row) {
    const Region region = p.write[p.write_start[row]];
    return execution.read(region.buffer, p.target(row), layout.cells(region).offset);
}

// Whether the op in a row is a compute op that has written the value `wanted`.
bool makes(const Program& p, const Layout& layout, Execution& execution, std::int64_t row, const Value& wanted) {
    if (p.kind[row] != kCompute) return false;
    for (std::int64_t i = p.write_start[row]; i < p.write_start[row + 1]; ++i) {
        const Region region = p.write[i];
        const bool has = !layout.cells(region).each([&](std::int64_t, std::int64_t cell) {
            return execution.read(region.buffer, p.target(row), cell) != wanted;
        });
        if (has) return true;
    }
    return false;
}

// Whether the proof succeeds with repetitions that start at these rows.
bool holds(const Runs& runs, const Layout& layout, const Compare& difference, const Repetition& own, std::int64_t begin,
           const Repetition& theirs, std::int64_t other, Both& both) {
    const std::int64_t count = std::min((own.end() - begin) / own.length, (theirs.end() - other) / theirs.length);
    if (count < kFewest / 2 || !both.repeats(begin, own.length, other, theirs.length)) return false;
    both.own.run(begin + count * own.length, runs.program.num_ops());
    both.reference.run(other + count * theirs.length, runs.reference->num_ops());
    return difference(runs, layout, both.own, both.reference).buffer < 0;
}

// Whether the proof succeeds with the repetitions as found.
bool holds_at_once(const Runs& runs, const Layout& layout, const Key& key, const Compare& difference,
                   const Repetition& own, const Repetition& theirs, std::int64_t& work) {
    Both both(runs, layout, key, work);
    both.own.run(0, own.first), both.reference.run(0, theirs.first);
    return holds(runs, layout, difference, own, own.first, theirs, theirs.first, both);
}

// Whether the proof succeeds with repetitions that start after the compute op in a row and, in the reference, after a
// compute op that writes the same value.
bool holds_from(const Runs& runs, const Layout& layout, const Key& key, const Compare& difference,
                const Repetition& own, const Repetition& theirs, std::int64_t row, std::int64_t& work) {
    const Program &p = runs.program, &r = *runs.reference;
    Both both(runs, layout, key, work);
    both.own.run(0, row + 1);
    const Value wanted = made_by(p, layout, both.own, row);
    both.reference.run(0, theirs.first);
    const std::int64_t last = std::min(theirs.first + kAhead * theirs.length, theirs.end());
    for (std::int64_t other = theirs.first; other < last; ++other) {
        both.reference.run(other, other + 1);
        if (makes(r, layout, both.reference, other, wanted))
            return holds(runs, layout, difference, own, row + 1, theirs, other + 1, both);
    }
    return false;
}

}  // namespace

bool is_same_by_induction(const Runs& runs, const Layout& layout, const Key& key, const Compare& difference,
                          std::int64_t& work) {
    std::int64_t touched = 0;
    for (std::int64_t op = 0; op < runs.program.num_ops(); ++op) touched += num_touched(runs.program, layout, op);
    if (touched < kFewest * layout.cells()) return false;
    Repetition own = find_repetition(runs.program), theirs = find_repetition(*runs.reference);
    if (own.count == 0 || theirs.count == 0) return false;
    if (!is_in_order(runs.program, runs.run) || !is_in_order(*runs.reference, *runs.reference_run)) return false;
    match(own, theirs);
    for (const std::int64_t row : starts(runs.program, layout, own.first + own.length, own.length))
        if (holds_from(runs, layout, key, difference, own, theirs, row, work)) return true;
    return holds_at_once(runs, layout, key, difference, own, theirs, work);
}

}  // namespace dovetail::ir
