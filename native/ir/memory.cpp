// Memory: see memory.hpp.
#include "ir/memory.hpp"

#include <algorithm>
#include <new>
#include <numeric>

#include "ir/terms.hpp"

namespace dovetail::ir {
namespace {

constexpr std::int64_t kMostCells = std::int64_t{1} << 28;  // 6 GiB of values

// Families of buffers, channels and collectives between which slots move singly, and the grain of each family.
class Families {
  public:
    Families(const std::vector<std::int64_t>& width, std::size_t num_carriers)
        : width_(width),
          has_rows_(std::ranges::any_of(width, [](std::int64_t w) { return w > 1; })),
          parent_(width.size() + num_carriers),
          grain_(parent_.size(), 0),
          carried_(parent_.size(), 0) {
        std::iota(parent_.begin(), parent_.end(), 0);
    }

    std::int32_t find(std::int32_t node) {
        while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
        return node;
    }

    void join(std::int32_t a, std::int32_t b) {
        a = find(a), b = find(b);
        if (a == b) return;
        parent_[b] = a;
        grain_[a] = std::gcd(grain_[a], grain_[b]);
    }

    void divide(std::int32_t node, std::int64_t size) {
        std::int64_t& grain = grain_[find(node)];
        if (grain != 1) grain = std::gcd(grain, size);
    }

    void divide(const Region& r) {
        const std::int64_t w = has_rows_ ? width_[r.buffer] : 1;
        if (w == 1) return divide(r.buffer, r.offset, r.count, r.blocks > 1 ? r.stride : 0);
        if (Layout::is_part_of_rows(r, w)) return divide(r.buffer, r.offset / w, r.blocks, 0);
        if (columns(r) == 0) return divide(r.buffer, 1);
        divide(r.buffer, r.offset / w, r.count / w, r.blocks > 1 ? r.stride / w : 0);
    }

    // Divides the grain of region i's buffer so that it fits the region; a grain of 1 needs no more reading.
    void divide(const Regions& regions, std::int64_t i) {
        if (grain_[find(regions.buffer[i])] != 1) divide(regions[i]);
    }

    // How many slots of a region are in one row; 0 if it cuts across rows.
    std::int64_t columns(const Region& r) const {
        const std::int64_t w = has_rows_ ? width_[r.buffer] : 1;
        if (w == 1) return 1;
        if (Layout::is_part_of_rows(r, w)) return r.count;
        return r.offset % w || r.count % w || (r.blocks > 1 && r.stride % w) ? 0 : w;
    }

    // The columns of the data on a channel or collective; 0 until known.
    std::int64_t& carried(std::int32_t node) { return carried_[node]; }

    bool has_rows() const { return has_rows_; }  // whether any buffer has rows of more than one slot

    // 0 for a buffer that no op touches.
    std::int64_t grain(std::int32_t buffer) { return grain_[find(buffer)]; }

  private:
    void divide(std::int32_t node, std::int64_t a, std::int64_t b, std::int64_t c) {
        std::int64_t& grain = grain_[find(node)];
        if (grain != 1) grain = std::gcd(std::gcd(grain, a), std::gcd(b, c));
    }

    const std::vector<std::int64_t>& width_;
    const bool has_rows_;
    std::vector<std::int32_t> parent_;
    std::vector<std::int64_t> grain_, carried_;
};

// Joins regions that correspond slot by slot into one family; its grain becomes 1 if their rows differ in length.
class Chain {
  public:
    explicit Chain(Families& families, std::int64_t columns = 0) : families_(families), columns_(columns) {}

    void link(std::int32_t node, std::int64_t columns) {
        if (node < 0) return;
        if (node_ >= 0) families_.join(node_, node);
        node_ = node;
        if (apart_ || columns == 0 || (columns_ != 0 && columns_ != columns)) families_.divide(node, 1);
        columns_ = columns;
    }

    void link(const Region& r) { link(r.buffer, families_.columns(r)); }

    void link(const Regions& regions, std::int64_t i) {
        link(regions.buffer[i], families_.has_rows() ? families_.columns(regions[i]) : 1);
    }

    // Adds a region of which each row of `terms` slots corresponds to a single slot.
    void link_rows(const Region& r, std::int64_t terms) {
        if (terms == 1)
            link(r);
        else
            link(r.buffer, families_.columns(r) == terms ? 1 : 0);
    }

    void link_carrier(std::int32_t node) {
        if (families_.has_rows() && families_.carried(node) != 0) return link(node, families_.carried(node));
        if (node_ >= 0) families_.join(node_, node);
        node_ = node;
    }

    void divide(std::int64_t size) {
        if (node_ >= 0) families_.divide(node_, size);
    }

    // Sets the grain to 1 along rows: the values of slots depend on their places.
    void tell_apart() {
        apart_ = apart_ || columns_ != 1;
        if (apart_) divide(1);
    }

    std::int32_t node() const { return node_; }
    std::int64_t columns() const { return columns_; }

  private:
    Families& families_;
    std::int32_t node_ = -1;
    std::int64_t columns_;
    bool apart_ = false;
};

void note_operand(const Program& p, std::int64_t op, std::int64_t i, const Region& region, Families& families,
                  Chain& chain) {
    switch (p.mode_of(op, i)) {
        case kEach:
            return chain.link(region);
        case kEachSum:
            return chain.link_rows(region, p.num_terms(op));
        case kSum:
            return families.divide(region.buffer, 1);
        default:
            return;
    }
}

// `carriers`: the node of the program's first channel; its collectives follow the channels.
void note_op(const Program& p, std::int64_t op, std::int32_t carriers, Families& families) {
    const std::uint8_t kind = p.kind[op];
    Chain chain(families);
    std::int32_t nodes[2], num_nodes = 0;
    if (receives(kind)) nodes[num_nodes++] = carriers + p.chan_in[op];
    if (sends(kind)) nodes[num_nodes++] = carriers + p.chan_out[op];
    if (kind == kCollective) nodes[num_nodes++] = carriers + p.num_channels() + p.call[op];
    for (std::int32_t i = 0; i < num_nodes; ++i) chain.link_carrier(nodes[i]);
    for (std::int64_t i = 0; i < p.num_reads(op); ++i) {
        const std::int64_t row = p.read_start[op] + i;
        families.divide(p.read, row);
        if (kind == kCompute)
            note_operand(p, op, i, p.read[row], families, chain);
        else
            chain.link(p.read, row);
        if (kind == kCollective && p.collective[p.call[op]] == kAllToAll && p.num_reads(op) == 1) {
            const Region region = p.read[row];
            const std::int64_t part = p.sent_slots(op, 0);
            const std::int64_t columns = std::max<std::int64_t>(families.columns(region), 1);
            families.divide(region.buffer, part % columns ? 1 : part / columns);
        }
    }
    for (std::int64_t i = p.write_start[op]; i < p.write_start[op + 1]; ++i) {
        families.divide(p.write, i);
        chain.link(p.write, i);
    }
    if (kind == kCompute && !p.is_by_slot(p.call[op])) chain.tell_apart();
    for (std::int32_t i = 0; i < num_nodes && families.has_rows(); ++i) families.carried(nodes[i]) = chain.columns();
}

// Adds a term of `slots` slots, which correspond to those of the chain.
void note_term(const TermView& term, std::int64_t slots, Families& families, Chain& chain) {
    const std::int64_t terms = term.num_terms(slots);
    if (!term.is_by_slot()) chain.tell_apart();
    for (std::int64_t i = 0; i < term.size(); ++i) {
        const std::uint8_t mode = term.mode(i);
        const bool alike = mode == kEach || (mode == kEachSum && terms == 1);
        if (!term.is_term(i)) {
            const Region region = term.region(i);
            families.divide(region);
            if (alike) chain.link(region);
            if (mode == kEachSum && terms != 1) chain.link_rows(region, terms);
            if (mode == kSum) families.divide(region.buffer, 1);
        } else if (alike) {
            note_term(term.term(i), slots, families, chain);
        } else {
            Chain inner(families, mode == kEachSum ? terms : 0);
            note_term(term.term(i), term.slots_needed(i, slots), families, inner);
            if (mode == kSum) inner.divide(1);
            if (mode == kEachSum && inner.node() < 0) chain.divide(1);
            if (mode == kEachSum) chain.link(inner.node(), inner.columns() == terms ? 1 : 0);
        }
    }
}

void note_post(const Program& p, std::int64_t post, Families& families) {
    const Region region = p.posts.region[post];
    Chain chain(families);
    families.divide(region);
    chain.link(region);
    for (std::int64_t term = p.posts.term_start[post]; term < p.posts.term_start[post + 1]; ++term) {
        if (p.posts.is_inner[term]) continue;
        if (p.posts.term_kernel[term] >= 0) {
            note_term({p, term}, region.slots(), families, chain);
        } else {
            const Region source = p.posts.arg[p.posts.arg_start[term]];
            families.divide(source);
            chain.link(source);
        }
    }
}

// The slots per row of each buffer: as many as a kernel sums over, or the stride of the blocks that it reads, or the
// width of a buffer with which whole runs of slots are exchanged.
class Widths {
  public:
    explicit Widths(std::int32_t num_buffers) : found_(num_buffers, 1), alike_(num_buffers) {
        std::iota(alike_.begin(), alike_.end(), 0);
    }

    void note_program(const Program& p) {
        if (std::ranges::find(p.mode, kEachSum) == p.mode.end()) return;
        for (std::int64_t op = 0; op < p.num_ops(); ++op) note_op(p, op);
        for (std::int64_t post = 0; post < p.posts.size(); ++post)
            for (std::int64_t term = p.posts.term_start[post]; term < p.posts.term_start[post + 1]; ++term)
                if (!p.posts.is_inner[term]) note_term({p, term}, p.posts.region[post].slots(), 1);
    }

    std::vector<std::int64_t> operator()() {
        std::vector<std::int64_t> widest(found_.size(), 1);
        for (std::size_t buffer = 0; buffer < found_.size(); ++buffer) {
            std::int64_t& width = widest[find(buffer)];
            width = std::max(width, found_[buffer]);
        }
        for (std::size_t buffer = 0; buffer < found_.size(); ++buffer)
            if (found_[buffer] == 1) found_[buffer] = widest[find(buffer)];
        return found_;
    }

  private:
    std::size_t find(std::size_t buffer) {
        while (alike_[buffer] != buffer) buffer = alike_[buffer] = alike_[alike_[buffer]];
        return buffer;
    }

    void note(const Region& r, std::int64_t terms) {
        const bool parts = r.blocks > 1 && r.count == terms && r.stride > 0;
        if (terms > 1 && found_[r.buffer] == 1) found_[r.buffer] = parts ? r.stride : terms;
    }

    void note_op(const Program& p, std::int64_t op) {
        const bool computes = p.kind[op] == kCompute;
        for (std::int64_t i = 0; i < p.num_reads(op); ++i) {
            const Region region = p.read[p.read_start[op] + i];
            const std::int64_t terms = computes && p.mode_of(op, i) == kEachSum ? p.num_terms(op) : 1;
            note(region, terms);
            if (region.blocks != 1 || terms != 1 || (computes && p.mode_of(op, i) != kEach)) continue;
            for (std::int64_t k = p.write_start[op]; k < p.write_start[op + 1]; ++k)
                if (p.write.blocks[k] == 1) alike_[find(region.buffer)] = find(p.write.buffer[k]);
        }
    }

    // Adds a term of `slots` slots, in rows of `columns` slots.
    void note_term(const TermView& term, std::int64_t slots, std::int64_t columns) {
        const std::int64_t terms = term.num_terms(slots);
        for (std::int64_t i = 0; i < term.size(); ++i) {
            const std::uint8_t mode = term.mode(i);
            const std::int64_t row = mode == kEachSum ? terms * columns : mode == kEach ? columns : 1;
            if (term.is_term(i))
                note_term(term.term(i), term.slots_needed(i, slots), row);
            else
                note(term.region(i), row);
        }
    }

    std::vector<std::int64_t> found_;
    std::vector<std::size_t> alike_;
};

}  // namespace

Layout::Layout(std::span<const Program* const> programs)
    : num_ranks_(programs[0]->num_ranks), grain_(programs[0]->num_buffers), start_{0} {
    Widths widths(programs[0]->num_buffers);
    std::size_t carriers = 0;
    for (const Program* p : programs) widths.note_program(*p), carriers += p->num_channels() + p->collective.size();
    width_ = widths();
    Families families(width_, carriers);
    std::int32_t carrier = programs[0]->num_buffers;
    for (const Program* p : programs) {
        for (std::int64_t op = 0; op < p->num_ops(); ++op) note_op(*p, op, carrier, families);
        for (std::int64_t post = 0; post < p->posts.size(); ++post) note_post(*p, post, families);
        carrier += p->num_channels() + static_cast<std::int32_t>(p->collective.size());
    }
    for (std::int32_t buffer = 0; buffer < programs[0]->num_buffers; ++buffer) {
        const std::int64_t grain = families.grain(buffer), row = width_[buffer];
        grain_[buffer] = std::max<std::int64_t>(grain, 1);
        for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
            const std::int64_t slots = programs[0]->buffer_slots[std::int64_t{buffer} * num_ranks_ + rank];
            const std::int64_t rows = (slots + row - 1) / row;
            start_.push_back(start_.back() + (grain == 0 ? 0 : (rows + grain - 1) / grain * row));
        }
    }
    if (cells() > kMostCells) throw std::bad_alloc();
}

}  // namespace dovetail::ir
