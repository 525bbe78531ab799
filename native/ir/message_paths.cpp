// MessagePaths: see message_paths.hpp.
#include "ir/message_paths.hpp"

#include <unordered_map>

namespace dovetail::ir {

MessagePaths::MessagePaths(const Program& p, const Run& run, const Layout& layout)
    : p_(p), layout_(layout), path_(p.num_ops(), -1), ahead_(p.num_ops(), 0) {
    for (const std::int32_t op : run.order) {
        if (receives(p.kind[op])) {
            const std::int32_t sender = run.matched[op];
            path_[op] = path_[sender], ahead_[op] = ahead_[sender] + 1;
        } else if (sends(p.kind[op])) {
            path_[op] = op;
        }
    }
}

// Ops on paths only touch the memory of their own rank.
bool MessagePaths::in_step(std::int32_t first, std::int32_t second) const {
    if (path_[first] < 0 || path_[first] != path_[second] || ahead_[first] >= ahead_[second]) return false;
    if (p_.rank[first] != p_.rank[second]) return true;
    const std::int64_t reads = p_.read_start[first], writes = p_.write_start[first];
    const std::int64_t then_reads = p_.read_start[second], then_writes = p_.write_start[second];
    for (std::int64_t w = writes; w < p_.write_start[first + 1]; ++w)
        for (std::int64_t r = then_reads; r < p_.read_start[second + 1]; ++r)
            if (!follows(p_.write[w], p_.read[r])) return false;
    for (std::int64_t w = then_writes; w < p_.write_start[second + 1]; ++w) {
        for (std::int64_t r = reads; r < p_.read_start[first + 1]; ++r)
            if (!follows(p_.read[r], p_.write[w])) return false;
        for (std::int64_t v = writes; v < p_.write_start[first + 1]; ++v)
            if (!follows(p_.write[v], p_.write[w])) return false;
    }
    return true;
}

// Whether each slot in both regions is in no earlier part of `other` than its last part in `one`.
bool MessagePaths::follows(const Region& one, const Region& other) const {
    if (one.buffer != other.buffer || one.offset >= other.end() || other.offset >= one.end()) return true;
    if (one.blocks == 1 && other.blocks == 1) return other.offset <= one.offset;
    std::unordered_map<std::int64_t, std::int64_t> last;
    const bool alike = layout_.columns(one) == layout_.columns(other);  // then cells are in the order of their slots
    const Region before = alike ? layout_.cells(one) : one, after = alike ? layout_.cells(other) : other;
    before.each([&](std::int64_t part, std::int64_t slot) { return last[slot] = part, true; });
    return after.each([&](std::int64_t part, std::int64_t slot) {
        const auto found = last.find(slot);
        return found == last.end() || found->second <= part;
    });
}

}  // namespace dovetail::ir
