// Extent: see extent.hpp.
#include "shm/extent.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace dovetail::shm {

using run::Kind;

namespace {

// A channel is a FIFO, so that its n-th message sent is the n-th received, if one lane sends all and one receives all.
void pair_messages(const run::Columns& columns, Extent& found) {
    using Rows = std::vector<std::int64_t>;
    const auto count = static_cast<std::size_t>(columns.num_ops);
    found.receiver.assign(count, -1), found.sender.assign(count, -1), found.lane.assign(count, 0);
    const std::int64_t lanes = count ? 1 + *std::max_element(columns.lane, columns.lane + count) : 0;
    std::map<int, std::pair<Rows, Rows>> channels;  // rows that send, and that receive
    for (std::size_t row = 0; row < count; ++row) {
        const auto kind = static_cast<Kind>(columns.kind[row]);
        const auto number = static_cast<std::int64_t>(row);
        found.lane[row] = columns.rank[row] * lanes + columns.lane[row];
        if (run::sends(kind) && kind != Kind::signal) channels[columns.chan_out[row]].first.push_back(number);
        if (run::receives(kind) && kind != Kind::wait) channels[columns.chan_in[row]].second.push_back(number);
    }
    const auto at = [](auto& column, std::int64_t row) -> auto& { return column[static_cast<std::size_t>(row)]; };
    const auto is_one = [&](const Rows& rows) {
        return std::all_of(rows.begin(), rows.end(),
                           [&](std::int64_t row) { return at(found.lane, row) == at(found.lane, rows[0]); });
    };
    for (const auto& [channel, ends] : channels) {
        const auto& [sent, received] = ends;
        if (sent.size() != received.size() || !is_one(sent) || !is_one(received)) continue;
        for (std::size_t i = 0; i < sent.size(); ++i)
            at(found.receiver, sent[i]) = received[i], at(found.sender, received[i]) = sent[i];
    }
}

}  // namespace

Extent extent_of(const run::Columns& columns, std::int64_t slot_bytes) {
    Extent found{1, slot_bytes, true};
    pair_messages(columns, found);
    std::map<int, std::int64_t> surplus;  // slots that a rank sends more than it receives
    for (std::int64_t op = 0; op < columns.num_ops; ++op) {
        const auto kind = static_cast<Kind>(columns.kind[op]);
        const bool sends = run::sends(kind), receives = run::receives(kind);
        std::int64_t most = 0;
        for (const auto* side : {&columns.reads, &columns.writes})
            for (std::int64_t row = side->start[op]; (sends || receives) && row < side->start[op + 1]; ++row)
                most = std::max(most, side->count[row] * side->blocks[row]);
        found.most_slots = std::max(found.most_slots, most);
        found.is_exchange = found.is_exchange && !(sends && receives);
        surplus[columns.rank[op]] += sends ? most : receives ? -most : 0;
    }
    for (const auto& [rank, slots] : surplus) found.is_exchange = found.is_exchange && slots == 0;
    return found;
}

}  // namespace dovetail::shm
