// slice: the ops that reach one slot, found from the end of the run backwards.
#include <algorithm>

#include "ir/symbolic.hpp"

namespace dovetail::ir {
namespace {

class Slice {
  public:
    Slice(const Program& p, const Run& run, const Layout& layout)
        : p_(p), run_(run), layout_(layout), cell_(layout.cells(), 0), message_(p.num_ops(), 0) {}

    std::vector<std::int32_t> operator()(const Wrong& wrong) {
        const Region asked = p_.posts.region[wrong.post];
        const Region cells = layout_.cells(asked);
        cells.each([&](std::int64_t place, std::int64_t cell) {
            if (place == wrong.place / layout_.grain(asked.buffer))
                cell_[layout_.start(asked.buffer, wrong.rank) + cell] = 1;
            return true;
        });
        for (auto at = run_.order.rbegin(); at != run_.order.rend(); ++at) {
            if (p_.kind[*at] != kCollective)
                visit(std::span(&*at, 1));
            else if (const auto members = run_.members(p_, *at); members.back() == *at)
                visit(members);
        }
        std::reverse(rows_.begin(), rows_.end());
        return std::move(rows_);
    }

  private:
    // Ops that run as one: needed when what any of them writes or sends is, and then all that they read is.
    void visit(std::span<const std::int32_t> ops) {
        bool is_needed = false;
        for (const std::int32_t op : ops) {
            is_needed = is_needed || message_[op];
            for (std::int64_t i = p_.write_start[op]; i < p_.write_start[op + 1]; ++i)
                is_needed =
                    is_needed || !each(p_.target(op), p_.write[i], [](std::uint8_t& cell) { return cell == 0; });
        }
        if (!is_needed) return;
        for (const std::int32_t op : ops)
            for (std::int64_t i = p_.write_start[op]; i < p_.write_start[op + 1] && !p_.adds(op); ++i)
                each(p_.target(op), p_.write[i], [](std::uint8_t& cell) { return cell = 0, true; });
        for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
            rows_.push_back(*op);
            if (receives(p_.kind[*op])) message_[run_.matched[*op]] = 1;
            const auto need = [](std::uint8_t& cell) { return cell = 1, true; };
            for (std::int64_t i = p_.read_start[*op]; i < p_.read_start[*op + 1]; ++i)
                each(p_.source(*op), p_.read[i], need);
            for (std::int64_t i = p_.write_start[*op]; i < p_.write_start[*op + 1] && p_.adds(*op); ++i)
                each(p_.rank[*op], p_.write[i], need);
        }
    }

    template <class F>
    bool each(std::int32_t rank, const Region& region, F f) {
        const std::int64_t start = layout_.start(region.buffer, rank);
        return layout_.cells(region).each([&](std::int64_t, std::int64_t cell) { return f(cell_[start + cell]); });
    }

    const Program& p_;
    const Run& run_;
    const Layout& layout_;
    std::vector<std::uint8_t> cell_,
        message_;  // needed: cells of the state at this point, messages by the op that sends
    std::vector<std::int32_t> rows_;
};

}  // namespace

std::vector<std::int32_t> slice(const Program& p, const Run& run, const Layout& layout, const Wrong& wrong) {
    return Slice(p, run, layout)(wrong);
}

}  // namespace dovetail::ir
