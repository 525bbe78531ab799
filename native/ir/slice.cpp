// slice: the ops whose results reach one slot, found from the end of the run backwards.
#include <algorithm>
#include <limits>

#include "ir/symbolic.hpp"

namespace dovetail::ir {
namespace {

// The needed places of a region: from `first` to before `last`.
struct Places {
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;

    bool is_empty() const { return first >= last; }
    void add(std::int64_t place) { first = std::min(first, place), last = std::max(last, place + 1); }
};

constexpr Places kAll{0, std::numeric_limits<std::int64_t>::max()};

class Slicer {
  public:
    Slicer(const Program& p, const Run& run, const Layout& layout)
        : p_(p), run_(run), layout_(layout), cell_(layout.cells(), 0), message_(p.num_ops()) {}

    Slice operator()(std::int32_t buffer, std::int32_t rank, std::int64_t cell) {
        for (std::int32_t op = 0; op < p_.num_ops(); ++op) has_whole_ = has_whole_ || is_whole(op);
        cell_[layout_.start(buffer, rank) + cell] = 1;
        for (auto at = run_.order.rbegin(); at != run_.order.rend(); ++at) {
            if (is_whole(*at) && p_.kind[*at] == kCollective) {
                if (const auto members = run_.members(p_, *at); members.back() == *at) visit_whole(members);
            } else if (is_whole(*at)) {
                visit_whole(std::span(&*at, 1));
            } else {
                visit(*at);
            }
        }
        for (auto* part : {&found_.first, &found_.last}) std::reverse(part->begin(), part->end());
        for (auto* part : {&found_.ops, &found_.matched}) std::reverse(part->begin(), part->end());
        return std::move(found_);
    }

  private:
    bool is_whole(std::int32_t op) const { return p_.kind[op] == kCollective || p_.kind[op] == kCompute; }

    // Visits an op that moves or adds place by place: it needs those places whose results are needed.
    void visit(std::int32_t op) {
        Places needed = message_[op];
        for (std::int64_t i = p_.write_start[op]; i < p_.write_start[op + 1]; ++i)
            each(p_.target(op), p_.write[i], kAll, [&](std::int64_t place, std::uint8_t& cell) {
                if (cell) needed.add(place);
                cell = cell && p_.adds(op);
            });
        if (needed.is_empty()) return;
        note(op, needed);
        if (receives(p_.kind[op])) message_[run_.matched[op]] = needed;
        const auto need = [](std::int64_t, std::uint8_t& cell) { cell = 1; };
        for (std::int64_t i = p_.read_start[op]; i < p_.read_start[op + 1]; ++i)
            each(p_.source(op), p_.read[i], needed, need);
        for (std::int64_t i = p_.write_start[op]; i < p_.write_start[op + 1] && p_.adds(op); ++i)
            each(p_.rank[op], p_.write[i], needed, need);
    }

    // Visits ops that run together and mix places: if any slot that they write is needed, all that they read is.
    void visit_whole(std::span<const std::int32_t> ops) {
        bool is_needed = false;
        for (const std::int32_t op : ops)
            for (std::int64_t i = p_.write_start[op]; i < p_.write_start[op + 1]; ++i)
                each(p_.rank[op], p_.write[i], kAll, [&](std::int64_t, std::uint8_t& cell) {
                    is_needed = is_needed || cell;
                    cell = cell && p_.adds(op);
                });
        if (!is_needed) return;
        const auto need = [](std::int64_t, std::uint8_t& cell) { cell = 1; };
        for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
            note(*op, kAll);
            for (std::int64_t i = p_.read_start[*op]; i < p_.read_start[*op + 1]; ++i)
                each(p_.rank[*op], p_.read[i], kAll, need);
            for (std::int64_t i = p_.write_start[*op]; i < p_.write_start[*op + 1] && p_.adds(*op); ++i)
                each(p_.rank[*op], p_.write[i], kAll, need);
        }
    }

    // Records the op, with its needed places in slots.
    void note(std::int32_t op, const Places& cells) {
        found_.ops.push_back(op);
        found_.matched.push_back(receives(p_.kind[op]) ? run_.matched[op] : -1);
        const bool reads = p_.num_reads(op), has = reads || p_.num_writes(op);
        if (is_whole(op) || !has) {
            found_.first.push_back(0), found_.last.push_back(is_whole(op) ? -1 : cells.last);
            return;
        }
        const Region region = reads ? p_.read[p_.read_start[op]] : p_.write[p_.write_start[op]];
        const std::int64_t tail = (layout_.grain(region.buffer) - 1) * layout_.columns(region);
        found_.first.push_back(
            layout_.first_slot(region, cells.first));  // the slots of a cell correspond: its first one suffices
        found_.last.push_back(layout_.first_slot(region, cells.last - 1) + (has_whole_ ? tail : 0) + 1);
    }

    // Calls f(place, cell) for the given places of a region, counted in cells.
    template <class F>
    void each(std::int32_t rank, const Region& region, const Places& asked, F f) {
        const std::int64_t start = layout_.start(region.buffer, rank);
        layout_.cells(region).each([&](std::int64_t place, std::int64_t cell) {
            if (place >= asked.first && place < asked.last) f(place, cell_[start + cell]);
            return place < asked.last;
        });
    }

    const Program& p_;
    const Run& run_;
    const Layout& layout_;
    bool has_whole_ = false;
    std::vector<std::uint8_t> cell_;  // whether a cell's state at this point is needed
    std::vector<Places> message_;     // per sending op: the needed places of its message
    Slice found_;
};

}  // namespace

Slice slice(const Program& p, const Run& run, const Layout& layout, std::int32_t buffer, std::int32_t rank,
            std::int64_t cell) {
    return Slicer(p, run, layout)(buffer, rank, cell);
}

}  // namespace dovetail::ir
