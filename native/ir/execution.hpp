// Execution: runs a program on symbols instead of numbers, as dovetail/ir/symbolic.py does, but values are hashes.
#pragma once

#include <algorithm>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "ir/greedy.hpp"
#include "ir/memory.hpp"
#include "ir/program.hpp"
#include "ir/symbolic.hpp"
#include "ir/terms.hpp"
#include "ir/value.hpp"

namespace dovetail::ir {

// What a hash stands for: the initial value of a slot (kTheirs: of one that the reference has not written), the result
// of a kernel, a list, or the common value of several places.
enum Atom : std::uint64_t { kInput, kUndefined, kKernel, kList, kTheirs, kClass };

constexpr std::size_t kMostValues = std::size_t{1} << 28;  // of a nested term: 6 GiB

// The layout of the cells of a list of slots: a cell is `grain` slots, one in each of `grain` rows of `columns` cells.
struct Shape {
    std::int64_t grain = 1, columns = 1;

    std::int64_t first_slot(std::int64_t cell) const { return cell / columns * columns * grain + cell % columns; }
};

// The messages in flight on one channel: their values, one after another.
struct Pipe {
    std::vector<Value> values;
    std::size_t head = 0;

    void drop(std::size_t count) {
        head += count;
        if (head == values.size()) values.clear(), head = 0;
    }
};

class Execution {
  public:
    Execution(const Program& p, const Run& run, const Layout& layout, const Key& key, bool is_reference)
        : p_(p),
          run_(run),
          layout_(layout),
          key_(key),
          undefined_(is_reference ? kTheirs : kUndefined),
          cells_(layout.cells()),
          pipes_(p.num_channels()) {}

    // Runs all ops in the order of the run.
    void run() {
        for (const std::int32_t op : run_.order) step(op);
    }

    // Runs a range of ops in the order of their rows.
    void run(std::int64_t first, std::int64_t last) {
        for (std::int64_t op = first; op < last; ++op) step(static_cast<std::int32_t>(op));
    }

    // Per buffer, whether rows from `first` to before `last` may change it: they write it, or it is a result already
    // written, which the other program may write in those rows. Repeating the rows leaves all other buffers unchanged.
    std::vector<std::uint8_t> changing(std::int64_t first, std::int64_t last) const {
        std::vector<std::uint8_t> found(p_.num_buffers, 0);
        const auto& written = p_.write.buffer;
        for (std::int64_t i = 0; i < p_.write_start[first]; ++i) found[written[i]] = p_.buffer_is_result[written[i]];
        for (std::int64_t i = p_.write_start[first]; i < p_.write_start[last]; ++i) found[written[i]] = 1;
        return found;
    }

    // Calls f(value) for all values in some buffers, and all values in flight on every channel.
    template <class F>
    void each(const std::vector<std::uint8_t>& buffers, F f) {
        for (std::int32_t buffer = 0; buffer < p_.num_buffers; ++buffer)
            for (std::int32_t rank = 0; rank < p_.num_ranks && buffers[buffer]; ++rank) {
                const std::int64_t count = layout_.end(buffer, rank) - layout_.start(buffer, rank);
                for (std::int64_t cell = 0; cell < count; ++cell) f(touched(buffer, rank, cell));
            }
        for (Pipe& pipe : pipes_)
            for (std::size_t i = pipe.head; i < pipe.values.size(); ++i) f(pipe.values[i]);
    }

    // How many values are in flight on each channel.
    std::vector<std::size_t> under_way() const {
        std::vector<std::size_t> found;
        for (const Pipe& pipe : pipes_) found.push_back(pipe.values.size() - pipe.head);
        return found;
    }

    const Value& read(std::int32_t buffer, std::int32_t rank, std::int64_t cell) { return touched(buffer, rank, cell); }

    // The number of values that ops have read and written.
    std::int64_t work() const { return work_; }

    // The first wrong slot for each set of post-conditions.
    std::vector<Wrong> check(std::int32_t num_sets) {
        std::vector<Wrong> found(num_sets);
        std::vector<Value> asked;  // the values computed so far for the last post-condition
        for (std::int64_t post = 0, last = -1; post < p_.posts.size(); ++post) {
            Wrong& wrong = found[p_.posts.set[post]];
            if (wrong.post >= 0) continue;
            if (last < 0 || !p_.posts.alike(last, post)) asked.clear(), ask_kernels(post);
            last = post;
            wrong = check(post, asked);
        }
        return found;
    }

  private:
    void step(std::int32_t op) {
        const std::uint8_t kind = p_.kind[op];
        if (kind == kCompute)
            compute(op);
        else if (kind == kCollective)
            collective(op);
        else
            move(op);
    }

    Wrong check(std::int64_t post, std::vector<Value>& asked) {
        const Region region = layout_.cells(p_.posts.region[post]);
        asked.reserve(region.slots());
        Wrong wrong;
        for (std::int64_t i = p_.posts.rank_start[post]; i < p_.posts.rank_start[post + 1]; ++i) {
            const std::int32_t rank = p_.posts.rank[i];
            const bool good = region.each([&](std::int64_t place, std::int64_t cell) {
                if (std::size_t(place) == asked.size()) asked.push_back(ask(post, place));
                if (read(region.buffer, rank, cell) == asked[place]) return true;
                wrong = {post, rank, layout_.first_slot(p_.posts.region[post], place)};
                return false;
            });
            if (!good) break;
        }
        return wrong;
    }

    Value start(std::int32_t buffer, std::int32_t rank, std::int64_t cell) const {
        const std::int64_t grain = layout_.grain(buffer);
        Hash hash(key_);
        hash.word(p_.buffer_is_input[buffer] ? kInput : undefined_);
        hash.word(std::uint64_t(buffer) << 32 | std::uint32_t(rank));
        hash.word(cell * grain);
        hash.word(grain);
        return hash.finish();
    }

    Value& touched(std::int32_t buffer, std::int32_t rank, std::int64_t cell) {
        Value& value = slot(buffer, rank, cell);
        if (value.count == 0) value = start(buffer, rank, cell);
        return value;
    }

    Value& slot(std::int32_t buffer, std::int32_t rank, std::int64_t cell) {
        return cells_[layout_.start(buffer, rank) + cell];
    }

    void load(std::int32_t rank, const Region& r, std::vector<Value>& out) {
        out.clear();
        const Region cells = layout_.cells(r);
        work_ += cells.slots();
        cells.each([&](std::int64_t, std::int64_t cell) { return out.push_back(read(r.buffer, rank, cell)), true; });
    }

    void store(std::int32_t rank, const Region& r, const Value* values) {
        const Region cells = layout_.cells(r);
        work_ += cells.slots();
        cells.each([&](std::int64_t j, std::int64_t cell) { return slot(r.buffer, rank, cell) = values[j], true; });
    }

    static void add(Value& into, const Value& other) {
        into.a += other.a, into.b += other.b, into.count += other.count;
        into.count = std::min(into.count, kMostContributions);
    }

    // Runs an op that moves or adds slot by slot.
    void move(std::int32_t op) {
        const std::uint8_t kind = p_.kind[op];
        if (kind == kNop || kind == kSignal || kind == kWait) return;
        if (p_.num_reads(op)) load(p_.source(op), p_.read[p_.read_start[op]], out_);
        if (kind == kReduce) {
            load(p_.rank[op], p_.write[p_.write_start[op]], more_);
            for (std::size_t j = 0; j < out_.size(); ++j) add(out_[j], more_[j]);
        }
        if (receives(kind)) take(op);
        if (p_.num_writes(op)) store(p_.target(op), p_.write[p_.write_start[op]], out_.data());
        if (sends(kind)) {
            auto& values = pipes_[p_.chan_out[op]].values;
            values.insert(values.end(), out_.begin(), out_.end());
        }
    }

    // Receives the next message of the op's channel, and adds it to what the op reads.
    void take(std::int32_t op) {
        Pipe& pipe = pipes_[p_.chan_in[op]];
        const std::int64_t slots = p_.message_slots(op);
        const std::int32_t buffer =
            (p_.num_reads(op) ? p_.read[p_.read_start[op]] : p_.write[p_.write_start[op]]).buffer;
        const std::size_t count = slots / layout_.grain(buffer);
        const Value* message = pipe.values.data() + pipe.head;
        if (p_.num_reads(op) == 0)
            out_.assign(message, message + count);
        else
            for (std::size_t j = 0; j < count; ++j) add(out_[j], message[j]);
        pipe.drop(count);
    }

    void compute(std::int32_t op) {
        const std::int32_t kernel = p_.call[op];
        const auto modes = p_.modes(kernel);
        operands_.resize(modes.size());
        for (std::size_t i = 0; i < modes.size(); ++i) {
            const Region region = p_.read[p_.read_start[op] + i];
            load(p_.rank[op], region, operands_[i]);
            if (modes[i] == kAll) digest(operands_[i], layout_.columns(region));
        }
        const std::int64_t terms = p_.num_terms(op);
        results_.resize(p_.num_writes(op));
        for (std::size_t w = 0; w < results_.size(); ++w) {
            const Region region = p_.write[p_.write_start[op] + w];
            const Shape shape{layout_.grain(region.buffer), layout_.columns(region)};
            apply(kernel, w, operands_, terms, layout_.cells(region).slots(), shape, results_[w]);
            if (!p_.accumulate[kernel]) continue;
            load(p_.rank[op], region, more_);
            for (std::size_t j = 0; j < more_.size(); ++j) add(results_[w][j], more_[j]);
        }
        for (std::size_t w = 0; w < results_.size(); ++w)
            store(p_.rank[op], p_.write[p_.write_start[op] + w], results_[w].data());
    }

    // Reduces an operand of mode `all` to one value.
    void digest(std::vector<Value>& operand, std::int64_t columns) const {
        Hash hash(key_);
        hash.word(kList);
        hash.word(columns);
        for (const Value& value : operand) hash.value(value);
        operand.assign(1, hash.finish());
    }

    // Result w of a kernel on digested operands: `count` cells, each the sum of `terms` terms.
    void apply(std::int32_t kernel, std::uint64_t w, const std::vector<std::vector<Value>>& operands,
               std::int64_t terms, std::int64_t count, const Shape& shape, std::vector<Value>& out) const {
        const auto modes = p_.modes(kernel);
        const bool by_slot = p_.is_by_slot(kernel);
        Hash of_kernel(key_);
        of_kernel.word(kKernel);
        of_kernel.word(p_.kernel_name[kernel]);
        of_kernel.word(w);
        of_kernel.word(modes.size());
        for (const std::uint8_t mode : modes) of_kernel.word(mode);
        out.resize(count);
        for (std::int64_t j = 0; j < count; ++j) {
            for (std::int64_t s = 0; s < terms; ++s) {
                Hash hash = of_kernel;
                if (!by_slot) hash.word(shape.first_slot(j)), hash.word(shape.grain), hash.word(shape.columns);
                const std::int64_t index[] = {0, j, s, j * terms + s};
                for (std::size_t i = 0; i < modes.size(); ++i) hash.value(operands[i][index[modes[i]]]);
                if (s == 0)
                    out[j] = hash.finish();
                else
                    add(out[j], hash.finish());
            }
        }
    }

    void collective(std::int32_t op) {
        const auto members = run_.members(p_, op);
        if (members[0] != op) return;
        const std::uint8_t kind = p_.collective[p_.call[op]];
        operands_.resize(members.size());
        for (std::size_t i = 0; i < members.size(); ++i) {
            operands_[i].clear();
            for (std::int64_t r = p_.read_start[members[i]]; r < p_.read_start[members[i] + 1]; ++r) {
                load(p_.rank[members[i]], p_.read[r], more_);
                operands_[i].insert(operands_[i].end(), more_.begin(), more_.end());
            }
        }
        out_ = operands_[0];
        for (std::size_t i = 1; i < members.size(); ++i) {
            if (kind == kAllGather) out_.insert(out_.end(), operands_[i].begin(), operands_[i].end());
            for (std::size_t j = 0; (kind == kAllReduce || kind == kReduceScatter) && j < out_.size(); ++j)
                add(out_[j], operands_[i][j]);
        }
        if (kind == kAllToAll) return exchange(members);
        std::size_t start = 0;
        for (std::size_t i = 0; i < members.size(); ++i) {
            if (p_.num_writes(members[i]) == 0) continue;
            const Region region = p_.write[p_.write_start[members[i]]];
            store(p_.rank[members[i]], region, out_.data() + start);
            if (kind == kReduceScatter) start += layout_.cells(region).slots();
        }
    }

    // All-to-all: member i receives part i of every member's operand, in the order of members.
    void exchange(std::span<const std::int32_t> members) {
        std::vector<std::int64_t> begin(members.size(), 0);  // per member: where its next part begins
        for (std::size_t i = 0; i < members.size(); ++i) {
            out_.clear();
            for (std::size_t from = 0; from < members.size(); ++from) {
                const std::int32_t op = members[from];
                const std::int64_t grain = layout_.grain(p_.read.buffer[p_.read_start[op]]);
                const std::int64_t count = p_.sent_slots(op, i) / grain;
                const auto part = operands_[from].begin() + begin[from];
                out_.insert(out_.end(), part, part + count);
                begin[from] += count;
            }
            const Value* next = out_.data();
            for (std::int64_t w = p_.write_start[members[i]]; w < p_.write_start[members[i] + 1]; ++w) {
                store(p_.rank[members[i]], p_.write[w], next);
                next += layout_.cells(p_.write[w]).slots();
            }
        }
    }

    // The value that a post-condition requires at a place of its region, in cells.
    Value ask(std::int64_t post, std::int64_t place) const {
        Value sum = kernels_.empty() ? Value{} : kernels_[place];
        for (std::int64_t t = p_.posts.term_start[post]; t < p_.posts.term_start[post + 1]; ++t) {
            if (p_.posts.term_kernel[t] >= 0 || p_.posts.is_inner[t]) continue;
            const std::int64_t arg = p_.posts.arg_start[t];
            const Region region = layout_.cells(p_.posts.arg[arg]);
            const std::int64_t cell = region.offset + place / region.count * region.stride + place % region.count;
            add(sum, start(region.buffer, p_.posts.arg_rank[arg], cell));
        }
        return sum;
    }

    // Sums, cell by cell, the results of the kernels among the terms of a post-condition; empty if there are none.
    void ask_kernels(std::int64_t post) {
        kernels_.clear();
        const Region region = p_.posts.region[post];
        const Shape shape{layout_.grain(region.buffer), layout_.columns(region)};
        for (std::int64_t t = p_.posts.term_start[post]; t < p_.posts.term_start[post + 1]; ++t) {
            if (p_.posts.term_kernel[t] < 0 || p_.posts.is_inner[t]) continue;
            const auto values = evaluate({p_, t}, region.slots(), shape);
            kernels_.resize(values.size());
            for (std::size_t j = 0; j < values.size(); ++j) add(kernels_[j], values[j]);
        }
    }

    // The values of a term of `slots` slots, one per cell.
    std::vector<Value> evaluate(const TermView& term, std::int64_t slots, const Shape& shape) const {
        const std::size_t count = slots / shape.grain;
        if (count > kMostValues) throw std::bad_alloc();
        std::vector<std::vector<Value>> operands;
        for (std::int64_t i = 0; i < term.size(); ++i) operands.push_back(operand(term, i, slots, shape));
        if (term.kernel() >= 0) {
            std::vector<Value> out;
            apply(term.kernel(), 0, operands, term.num_terms(slots), count, shape, out);
            return out;
        }
        for (std::size_t i = 1; i < operands.size(); ++i)
            for (std::size_t j = 0; j < count; ++j) add(operands[0][j], operands[i][j]);
        return std::move(operands[0]);
    }

    // The values of operand i of a term of `slots` slots, one per cell; one value for mode `all`.
    std::vector<Value> operand(const TermView& term, std::int64_t i, std::int64_t slots, const Shape& shape) const {
        const std::uint8_t mode = term.mode(i);
        std::vector<Value> values;
        std::int64_t columns = 1;
        if (!term.is_term(i)) {
            const Region region = term.region(i);
            columns = layout_.columns(region);
            layout_.cells(region).each([&](std::int64_t, std::int64_t cell) {
                return values.push_back(start(region.buffer, term.rank(i), cell)), true;
            });
        } else {
            const std::int64_t terms = term.num_terms(slots);
            Shape own = shape;
            if (mode == kAll) own = shape_of(term.term(i), term.own_slots(i));
            if (mode == kSum) own = {};
            if (mode == kEachSum && terms != 1 && shape.grain != 1) own.columns = terms;
            columns = own.columns;
            values = evaluate(term.term(i), term.slots_needed(i, slots), own);
        }
        if (mode == kAll) digest(values, columns);
        return values;
    }

    // The layout of the cells of a term that determines its own number of slots.
    Shape shape_of(const TermView& term, std::int64_t slots) const {
        for (std::int64_t i = 0; i < term.size(); ++i) {
            const bool rows = term.mode(i) == kEachSum && term.num_terms(slots) != 1;
            if (term.mode(i) != kEach && term.mode(i) != kEachSum) continue;
            Shape found;
            if (term.is_term(i))
                found = shape_of(term.term(i), term.slots_needed(i, slots));
            else
                found = {layout_.grain(term.region(i).buffer), layout_.columns(term.region(i))};
            if (rows) found.columns = 1;
            if (found.grain != 1) return found;
        }
        return {};
    }

    const Program& p_;
    const Run& run_;
    const Layout& layout_;
    const Key key_;
    const Atom undefined_;
    std::int64_t work_ = 0;
    std::vector<Value> cells_;
    std::vector<Pipe> pipes_;
    std::vector<Value> out_, more_;                       // scratch within one op
    std::vector<std::vector<Value>> operands_, results_;  // likewise
    std::vector<Value> kernels_;                          // see ask_kernels
};

}  // namespace dovetail::ir
