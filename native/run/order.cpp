// Whether lanes and dependencies of a rank order its accesses, without messages: see order.hpp.
#include "run/order.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <tuple>

namespace dovetail::run {

namespace {

constexpr std::size_t most_work = 50'000'000;  // entries of tables; if there are more, the answer is no

struct Turn {  // an op's place: its lane on this rank, and its index within that lane
    int lane;
    std::int64_t index;
};

struct Blocks {  // of slots, as in a region
    std::int64_t offset, count, stride, blocks;

    auto operator<=>(const Blocks&) const = default;
};

struct Access {
    Blocks slots;
    int op;
    bool writes;
};

// Slots that one or more ops touch: the lanes of these ops, and which pieces of the slots several lanes touch.
struct Touched {
    std::vector<int> lanes;
    std::vector<std::size_t> shared;
};

// What ops touch: (0, buffer), (1 or 2, channel sent or received on), (3 or 4, channel signalled or waited on),
// (5, collective).
using Place = std::pair<int, int>;

class Rank {
  public:
    Rank(const Columns& columns, const std::vector<std::int64_t>& rows) : columns_(columns) {
        std::map<int, int> lanes;
        for (const auto row : rows) {
            const int lane = lanes.emplace(columns.lane[row], static_cast<int>(lanes.size())).first->second;
            if (lane == static_cast<int>(queues_.size())) queues_.emplace_back();
            auto& queue = queues_[static_cast<std::size_t>(lane)];
            number_[row] = static_cast<int>(turns_.size());
            turns_.push_back({lane, static_cast<std::int64_t>(queue.size())});
            queue.push_back(row);
        }
    }

    bool ordered() {
        if (queues_.size() < 2) return true;
        if (turns_.size() * queues_.size() > most_work || !advance_clocks()) return false;
        for (const auto& [row, op] : number_) collect(row, op);
        return std::all_of(accesses_.begin(), accesses_.end(), [this](auto& entry) { return in_order(entry.second); });
    }

  private:
    // Ops of each lane that have ended when an op begins.
    std::int64_t& known(int op, std::size_t lane) {
        return clocks_[static_cast<std::size_t>(op) * queues_.size() + lane];
    }

    bool advance_clocks() {
        clocks_.assign(turns_.size() * queues_.size(), 0);
        std::vector<std::size_t> next(queues_.size());
        std::vector<bool> ended(turns_.size());
        std::size_t left = turns_.size();
        for (bool moved = true; moved && left;) {
            moved = false;
            for (std::size_t lane = 0; lane < queues_.size(); ++lane)
                for (; next[lane] < queues_[lane].size(); ++next[lane], --left, moved = true) {
                    const auto row = queues_[lane][next[lane]];
                    if (!begins(row, lane, next[lane], ended)) break;
                    ended[static_cast<std::size_t>(number_[row])] = true;
                }
        }
        return left == 0;
    }

    bool begins(std::int64_t row, std::size_t lane, std::size_t index, const std::vector<bool>& ended) {
        const int op = number_[row];
        const auto join = [&](int other) {
            for (std::size_t i = 0; i < queues_.size(); ++i) known(op, i) = std::max(known(op, i), known(other, i));
        };
        for (auto d = columns_.dep_start[row]; d < columns_.dep_start[row + 1]; ++d) {
            const auto dep = number_.find(columns_.dep[d]);
            if (dep == number_.end() || !ended[static_cast<std::size_t>(dep->second)]) return false;
            join(dep->second);
            const Turn& turn = turns_[static_cast<std::size_t>(dep->second)];
            auto& seen = known(op, static_cast<std::size_t>(turn.lane));
            seen = std::max(seen, turn.index + 1);
        }
        if (index > 0) join(number_[queues_[lane][index - 1]]);
        return true;
    }

    void collect(std::int64_t row, int op) {
        const auto kind = static_cast<Kind>(columns_.kind[row]);
        add(columns_.reads, row, op, false);
        add(columns_.writes, row, op, true);
        const auto turn = [&](int what, int which) {
            if (which >= 0) accesses_[{what, which}].push_back({{0, 1, 0, 1}, op, true});
        };
        turn(kind == Kind::signal ? 3 : 1, columns_.chan_out[row]);
        turn(kind == Kind::wait ? 4 : 2, columns_.chan_in[row]);
        if (kind == Kind::collective) turn(5, columns_.call[row]);
    }

    void add(const Regions& regions, std::int64_t row, int op, bool writes) {
        for (auto r = regions.start[row]; r < regions.start[row + 1]; ++r) {
            const auto blocks = regions.blocks[r];
            if (regions.count[r] == 0 || blocks == 0) continue;
            const auto stride = blocks > 1 ? regions.stride[r] : 0;
            const Blocks slots{regions.offset[r], regions.count[r], stride, blocks};
            accesses_[{0, regions.buffer[r]}].push_back({slots, op, writes});
        }
    }

    // Cuts the slots into pieces that every access covers whole or not at all. Then judges those that several lanes
    // touch, piece by piece.
    bool in_order(const std::vector<Access>& accesses) {
        std::map<Blocks, Touched> touched;
        std::vector<const Touched*> of_access;
        for (const auto& access : accesses) {
            const int lane = turns_[static_cast<std::size_t>(access.op)].lane;
            Touched& found = touched[access.slots];
            if (std::find(found.lanes.begin(), found.lanes.end(), lane) == found.lanes.end())
                found.lanes.push_back(lane);
            of_access.push_back(&found);
        }
        const std::size_t count = find_shared(touched);
        std::vector<std::vector<Access>> pieces(count);
        for (std::size_t i = 0; i < accesses.size() && entries_ <= most_work; ++i)
            for (const auto piece : of_access[i]->shared) pieces[piece].push_back(accesses[i]), ++entries_;
        if (entries_ > most_work) return false;
        return std::all_of(pieces.begin(), pieces.end(), [this](auto& piece) { return piece_in_order(piece); });
    }

    // Records which pieces several lanes touch. Returns the number of pieces.
    std::size_t find_shared(std::map<Blocks, Touched>& touched) {
        std::vector<std::int64_t> cuts;
        for (const auto& [slots, found] : touched)
            for (std::int64_t block = 0; block < slots.blocks && ++entries_ <= most_work; ++block) {
                const auto begin = slots.offset + block * slots.stride;
                cuts.insert(cuts.end(), {begin, begin + slots.count});
            }
        std::sort(cuts.begin(), cuts.end());
        cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
        constexpr int nobody = -1, several = -2;
        std::vector<int> touchers(cuts.size(), nobody);
        const auto each = [&](const Blocks& slots, const auto& f) {
            for (std::int64_t block = 0; block < slots.blocks && entries_ <= most_work; ++block) {
                const auto begin = slots.offset + block * slots.stride;
                auto at = std::lower_bound(cuts.begin(), cuts.end(), begin);
                for (; *at < begin + slots.count && ++entries_ <= most_work; ++at)
                    f(static_cast<std::size_t>(at - cuts.begin()));
            }
        };
        for (const auto& [slots, found] : touched)
            for (const int lane : found.lanes)
                each(slots, [&](std::size_t piece) {
                    touchers[piece] = touchers[piece] == nobody || touchers[piece] == lane ? lane : several;
                });
        for (auto& [slots, found] : touched)
            each(slots, [&](std::size_t piece) {
                if (touchers[piece] == several) found.shared.push_back(piece);
            });
        return cuts.size();
    }

    // Clocks grow along a lane. So of another lane only the first that is not before an op has to be after it.
    bool piece_in_order(std::vector<Access>& piece) {
        const auto key = [this](const Access& access) {
            const Turn& turn = turns_[static_cast<std::size_t>(access.op)];
            return std::pair{turn.lane, turn.index};
        };
        std::sort(piece.begin(), piece.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
        std::map<std::pair<int, bool>, std::vector<int>> by_lane;  // (lane, only those that write)
        for (const auto& access : piece) {
            by_lane[{key(access).first, false}].push_back(access.op);
            if (access.writes) by_lane[{key(access).first, true}].push_back(access.op);
        }
        for (const auto& access : piece)
            for (const auto& [lane, ops] : by_lane)
                if (lane.second != access.writes && lane.first != key(access).first && !before(access.op, ops))
                    return false;
        return true;
    }

    bool before(int op, const std::vector<int>& others) {
        const Turn& mine = turns_[static_cast<std::size_t>(op)];
        const auto lane = static_cast<std::size_t>(turns_[static_cast<std::size_t>(others[0])].lane);
        const auto next = std::partition_point(others.begin(), others.end(), [&](int other) {
            return turns_[static_cast<std::size_t>(other)].index < known(op, lane);
        });
        return next == others.end() || known(*next, static_cast<std::size_t>(mine.lane)) > mine.index;
    }

    const Columns& columns_;
    std::vector<std::vector<std::int64_t>> queues_;  // rows
    std::map<std::int64_t, int> number_;             // row -> op of this rank
    std::vector<Turn> turns_;
    std::vector<std::int64_t> clocks_;  // by op and lane
    std::map<Place, std::vector<Access>> accesses_;
    std::size_t entries_ = 0;
};

}  // namespace

bool ordered_locally(int num_ranks, const Columns& columns) {
    std::vector<std::vector<std::int64_t>> rows(static_cast<std::size_t>(num_ranks));
    for (std::int64_t i = 0; i < columns.num_ops; ++i) rows[static_cast<std::size_t>(columns.rank[i])].push_back(i);
    return std::all_of(rows.begin(), rows.end(), [&](const auto& mine) { return Rank(columns, mine).ordered(); });
}

}  // namespace dovetail::run
