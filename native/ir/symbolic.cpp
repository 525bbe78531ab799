// Symbolic execution: see symbolic.hpp.
#include "ir/symbolic.hpp"

#include <algorithm>
#include <deque>

namespace dovetail::ir {
namespace {

enum Atom : std::uint64_t { kInput, kUndefined, kKernel };

// Messages of one channel on their way: values end to end.
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
    Execution(const Program& p, const Run& run, const Layout& layout, const Key& key)
        : p_(p), run_(run), layout_(layout), key_(key), cells_(layout.cells()), pipes_(p.num_channels()) {}

    void step(std::int32_t op) {
        const std::uint8_t kind = p_.kind[op];
        if (kind == kCompute)
            compute(op);
        else if (kind == kCollective)
            collective(op);
        else
            move(op);
    }

    Wrong check(std::int64_t post) {
        const Region region = layout_.cells(p_.posts.region[post]);
        std::vector<Value> asked;
        asked.reserve(region.slots());
        Wrong wrong;
        for (std::int64_t i = p_.posts.rank_start[post]; i < p_.posts.rank_start[post + 1]; ++i) {
            const std::int32_t rank = p_.posts.rank[i];
            const bool good = region.each([&](std::int64_t place, std::int64_t cell) {
                if (std::size_t(place) == asked.size()) asked.push_back(ask(post, place));
                if (read(region.buffer, rank, cell) == asked[place]) return true;
                wrong = {post, rank, place * layout_.grain(region.buffer)};
                return false;
            });
            if (!good) break;
        }
        terms_post_ = -1;
        return wrong;
    }

  private:
    Value start(std::int32_t buffer, std::int32_t rank, std::int64_t cell) const {
        const std::int64_t grain = layout_.grain(buffer);
        Hash hash(key_);
        hash.word(p_.buffer_is_input[buffer] ? kInput : kUndefined);
        hash.word(std::uint64_t(buffer) << 32 | std::uint32_t(rank));
        hash.word(cell * grain);
        hash.word(grain);
        return hash.finish();
    }

    Value& slot(std::int32_t buffer, std::int32_t rank, std::int64_t cell) {
        return cells_[layout_.start(buffer, rank) + cell];
    }

    const Value& read(std::int32_t buffer, std::int32_t rank, std::int64_t cell) {
        Value& value = slot(buffer, rank, cell);
        if (value.count == 0) value = start(buffer, rank, cell);
        return value;
    }

    void load(std::int32_t rank, const Region& r, std::vector<Value>& out) {
        out.clear();
        const Region cells = layout_.cells(r);
        cells.each([&](std::int64_t, std::int64_t cell) { return out.push_back(read(r.buffer, rank, cell)), true; });
    }

    void store(std::int32_t rank, const Region& r, const Value* values) {
        const Region cells = layout_.cells(r);
        cells.each([&](std::int64_t j, std::int64_t cell) { return slot(r.buffer, rank, cell) = values[j], true; });
    }

    void add(Value& into, const Value& other) {
        into.a += other.a, into.b += other.b, into.count += other.count;
        into.count = std::min(into.count, kMostContributions);
    }

    // Ops that move and add slot by slot.
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

    // The next message of the op's channel, added to what it reads.
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
        operands_.resize(p_.num_reads(op));
        for (std::size_t i = 0; i < operands_.size(); ++i)
            load(p_.rank[op], p_.read[p_.read_start[op] + i], operands_[i]);
        digest(kernel);
        results_.resize(p_.num_writes(op));
        for (std::size_t w = 0; w < results_.size(); ++w) {
            const Region region = p_.write[p_.write_start[op] + w];
            const std::int64_t grain = layout_.grain(region.buffer), count = layout_.cells(region).slots();
            results_[w].clear();
            if (p_.accumulate[kernel]) load(p_.rank[op], region, more_);
            for (std::int64_t j = 0; j < count; ++j) {
                results_[w].push_back(apply(kernel, w, j, grain));
                if (p_.accumulate[kernel]) add(results_[w].back(), more_[j]);
            }
        }
        for (std::size_t w = 0; w < results_.size(); ++w)
            store(p_.rank[op], p_.write[p_.write_start[op] + w], results_[w].data());
    }

    // Brings each `all` operand down to one value.
    void digest(std::int32_t kernel) {
        has_each_ = false;
        for (std::size_t i = 0; i < operands_.size(); ++i) {
            const bool each = p_.mode_each[p_.mode_start[kernel] + i];
            has_each_ = has_each_ || each;
            if (each) continue;
            Hash hash(key_);
            hash.word(kKernel + 1);
            for (const Value& value : operands_[i]) hash.value(value);
            operands_[i].assign(1, hash.finish());
        }
    }

    // Cell j of result w of a kernel on digested operands.
    Value apply(std::int32_t kernel, std::uint64_t w, std::int64_t j, std::int64_t grain) const {
        Hash hash(key_);
        hash.word(kKernel);
        hash.word(p_.kernel_name[kernel]);
        hash.word(w);
        hash.word(has_each_ ? 0 : j * grain);
        hash.word(has_each_ ? 0 : grain);
        for (std::size_t i = 0; i < operands_.size(); ++i) {
            const bool each = p_.mode_each[p_.mode_start[kernel] + i];
            hash.word(each);
            hash.value(operands_[i][each ? j : 0]);
        }
        return hash.finish();
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

    // Member i of an all_to_all gets part i of every member's operand, one after the other.
    void exchange(std::span<const std::int32_t> members) {
        std::vector<std::int64_t> begin(members.size(), 0);  // of each member's next part
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

    // The value that a post-condition asks for at a place of its region, in cells.
    Value ask(std::int64_t post, std::int64_t place) {
        if (terms_post_ != post) ask_terms(post);
        Value sum;
        const std::int64_t grain = layout_.grain(p_.posts.region[post].buffer);
        for (std::int64_t t = p_.posts.term_start[post]; t < p_.posts.term_start[post + 1]; ++t) {
            const std::int32_t kernel = p_.posts.term_kernel[t];
            const std::int64_t arg = p_.posts.arg_start[t];
            if (kernel < 0) {
                add(sum, at(arg, place));
                continue;
            }
            operands_ = terms_[t - p_.posts.term_start[post]];
            has_each_ = false;
            for (std::size_t i = 0; i < operands_.size(); ++i) {
                if (!p_.mode_each[p_.mode_start[kernel] + i]) continue;
                has_each_ = true;
                operands_[i].assign(1, at(arg + static_cast<std::int64_t>(i), place));
            }
            add(sum, apply_once(kernel, place, grain));
        }
        return sum;
    }

    // The digests of all `all` operands in the terms of a post-condition.
    void ask_terms(std::int64_t post) {
        terms_post_ = post;
        terms_.assign(p_.posts.term_start[post + 1] - p_.posts.term_start[post], {});
        for (std::int64_t t = p_.posts.term_start[post]; t < p_.posts.term_start[post + 1]; ++t) {
            const std::int32_t kernel = p_.posts.term_kernel[t];
            if (kernel < 0) continue;
            const std::int64_t count = p_.mode_start[kernel + 1] - p_.mode_start[kernel];
            operands_.assign(count, {});
            for (std::int64_t i = 0; i < count; ++i) {
                if (p_.mode_each[p_.mode_start[kernel] + i]) continue;
                const Region region = layout_.cells(p_.posts.arg[p_.posts.arg_start[t] + i]);
                const std::int32_t rank = p_.posts.arg_rank[p_.posts.arg_start[t] + i];
                region.each([&](std::int64_t, std::int64_t cell) {
                    return operands_[i].push_back(start(region.buffer, rank, cell)), true;
                });
            }
            digest(kernel);
            terms_[t - p_.posts.term_start[post]] = operands_;
        }
    }

    // The starting value at a place of an argument of a term, in cells.
    Value at(std::int64_t arg, std::int64_t place) const {
        const Region region = layout_.cells(p_.posts.arg[arg]);
        const std::int64_t cell = region.offset + place / region.count * region.stride + place % region.count;
        return start(region.buffer, p_.posts.arg_rank[arg], cell);
    }

    // As apply, with `each` operands that hold the one value meant.
    Value apply_once(std::int32_t kernel, std::int64_t place, std::int64_t grain) const {
        return apply(kernel, 0, has_each_ ? 0 : place, grain);
    }

    const Program& p_;
    const Run& run_;
    const Layout& layout_;
    const Key key_;
    std::vector<Value> cells_;
    std::vector<Pipe> pipes_;
    bool has_each_ = false;
    std::vector<Value> out_, more_;                       // scratch of one op
    std::vector<std::vector<Value>> operands_, results_;  // likewise
    std::int64_t terms_post_ = -1;
    std::vector<std::vector<std::vector<Value>>> terms_;  // operands of each term of post-condition terms_post_
};

}  // namespace

Results execute(const Program& p, const Run& run, const Layout& layout, const Key& key, std::int32_t num_sets) {
    Execution execution(p, run, layout, key);
    for (const std::int32_t op : run.order) execution.step(op);
    Results results;
    results.wrong.resize(num_sets);
    for (std::int64_t post = 0; post < p.posts.size(); ++post) {
        Wrong& wrong = results.wrong[p.posts.set[post]];
        if (wrong.post < 0) wrong = execution.check(post);
    }
    return results;
}

}  // namespace dovetail::ir
