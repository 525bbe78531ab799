// Memory: see memory.hpp.
#include "ir/memory.hpp"

#include <algorithm>
#include <new>
#include <numeric>

namespace dovetail::ir {
namespace {

constexpr std::int64_t kMostCells = std::int64_t{1} << 28;  // 6 GiB of values

// Families of buffers (and of channels and collectives, through which slots move), and the grain of each.
class Families {
  public:
    explicit Families(const Program& p)
        : parent_(p.num_buffers + p.num_channels() + p.collective.size()), grain_(parent_.size(), 0) {
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
        divide(r.buffer, r.offset);
        divide(r.buffer, r.count);
        if (r.blocks > 1) divide(r.buffer, r.stride);
    }

    // 0 for a buffer of which nothing is touched.
    std::int64_t grain(std::int32_t buffer) { return grain_[find(buffer)]; }

  private:
    std::vector<std::int32_t> parent_;
    std::vector<std::int64_t> grain_;
};

void note_op(const Program& p, std::int64_t op, Families& families) {
    const std::uint8_t kind = p.kind[op];
    std::int32_t node = -1;  // what the op's slots move through, one by one
    const auto link = [&](std::int32_t other) {
        if (node >= 0) families.join(node, other);
        node = other;
    };
    if (receives(kind)) link(p.num_buffers + p.chan_in[op]);
    if (sends(kind)) link(p.num_buffers + p.chan_out[op]);
    if (kind == kCollective) link(p.num_buffers + p.num_channels() + p.call[op]);
    for (std::int64_t i = 0; i < p.num_reads(op); ++i) {
        const Region region = p.read[p.read_start[op] + i];
        families.divide(region);
        if (kind != kCompute || p.is_each(op, i)) link(region.buffer);
        if (kind == kCollective && p.collective[p.call[op]] == kAllToAll && p.num_reads(op) == 1)
            families.divide(region.buffer, p.sent_slots(op, 0));
    }
    for (std::int64_t i = p.write_start[op]; i < p.write_start[op + 1]; ++i) {
        families.divide(p.write[i]);
        link(p.write[i].buffer);
    }
}

void note_post(const Program& p, std::int64_t post, Families& families) {
    const Posts& posts = p.posts;
    const Region region = posts.region[post];
    families.divide(region);
    for (std::int64_t term = posts.term_start[post]; term < posts.term_start[post + 1]; ++term) {
        const std::int32_t kernel = posts.term_kernel[term];
        for (std::int64_t arg = posts.arg_start[term]; arg < posts.arg_start[term + 1]; ++arg) {
            families.divide(posts.arg[arg]);
            if (kernel < 0 || p.mode_each[p.mode_start[kernel] + arg - posts.arg_start[term]])
                families.join(region.buffer, posts.arg[arg].buffer);
        }
    }
}

}  // namespace

Layout::Layout(const Program& p) : num_ranks_(p.num_ranks), grain_(p.num_buffers), start_{0} {
    Families families(p);
    for (std::int64_t op = 0; op < p.num_ops(); ++op) note_op(p, op, families);
    for (std::int64_t post = 0; post < p.posts.size(); ++post) note_post(p, post, families);
    for (std::int32_t buffer = 0; buffer < p.num_buffers; ++buffer) {
        const std::int64_t grain = families.grain(buffer);
        grain_[buffer] = std::max<std::int64_t>(grain, 1);
        for (std::int32_t rank = 0; rank < p.num_ranks; ++rank) {
            const std::int64_t slots = p.buffer_slots[std::int64_t{buffer} * p.num_ranks + rank];
            start_.push_back(start_.back() + (grain == 0 ? 0 : (slots + grain - 1) / grain));
        }
    }
    if (cells() > kMostCells) throw std::bad_alloc();
}

}  // namespace dovetail::ir
