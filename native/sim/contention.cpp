// Contention: see contention.hpp.
#include "sim/contention.hpp"

#include <algorithm>

namespace dovetail::sim {

namespace {

bool slows_any(std::span<const double> factors) {
    bool any = false;
    for (const double factor : factors) any |= factor > 1.0;  // without a branch, the compiler takes several at once
    return any;
}

// Per rank, whether it has ops on compute lanes, and either others or the end of a channel.
std::vector<bool> both_sides(const Tables& t) {
    std::vector<bool> computes(t.num_ranks, false), others(t.num_ranks, false), both(t.num_ranks);
    for (std::int32_t op = 0; op < t.num_ops(); ++op) {
        const auto rank = static_cast<std::uint32_t>(t.rank[op]), lane = static_cast<std::uint32_t>(t.lane[op]);
        if (rank < both.size() && lane < t.computes.size()) (t.computes[lane] ? computes : others)[rank] = true;
    }
    for (const auto& ends : {t.chan_src, t.chan_dst})
        for (const std::int32_t rank : ends) others[rank] = true;
    for (std::size_t rank = 0; rank < both.size(); ++rank) both[rank] = computes[rank] && others[rank];
    return both;
}

}  // namespace

Contention::Contention(Clock& clock, const Tables& t)
    : clock_(clock), fluid_(slows_any(t.slow_by_net) || slows_any(t.slow_by_compute)) {
    if (!fluid_) return;
    both_ = both_sides(t);
    clock.keep_due(t.num_ops());
    slot_.assign(t.num_ops(), -1);
    sides_.resize(t.num_ranks);
    touched_.assign(t.num_ranks, false);
}

void Contention::start_fluid(std::int32_t op, double seconds, double slow, std::span<const std::int32_t> ranks,
                             bool computing) {
    if (free_.empty()) {
        free_.push_back(static_cast<std::int32_t>(activities_.size()));
        activities_.emplace_back();
    }
    const std::int32_t slot = free_.back();
    free_.pop_back();
    slot_[op] = slot;
    activities_[slot] = {op, ranks, slow, seconds, clock_.now, 1.0, computing, false, false};
    count(ranks, computing, 1);
    if (slow == 1.0) {
        clock_.at(op, clock_.now + seconds);
        return;
    }
    for (const std::int32_t rank : ranks) sides_[rank][!computing].watchers.push_back(slot);
    queue(slot);
}

void Contention::stop_fluid(std::int32_t op) {
    const std::int32_t slot = slot_[op];
    const Activity& activity = activities_[slot];
    slot_[op] = -1;
    free_.push_back(slot);
    count(activity.ranks, activity.computing, -1);
    if (activity.slow == 1.0) return;
    for (const std::int32_t rank : activity.ranks) {
        auto& watchers = sides_[rank][!activity.computing].watchers;
        *std::find(watchers.begin(), watchers.end(), slot) = watchers.back();
        watchers.pop_back();
    }
}

void Contention::settle() {
    changed_ = false;
    for (const std::int32_t rank : touched_ranks_) {
        touched_[rank] = false;
        for (Side& side : sides_[rank]) {
            if (side.going_on == (side.count > 0)) continue;
            side.going_on = side.count > 0;
            for (const std::int32_t slot : side.watchers) queue(slot);
        }
    }
    touched_ranks_.clear();
    for (const std::int32_t slot : affected_) {
        activities_[slot].queued = false;
        rate(activities_[slot]);
    }
    affected_.clear();
    changed_ = false;
}

void Contention::count(std::span<const std::int32_t> ranks, bool computing, int by) {
    changed_ = true;
    for (const std::int32_t rank : ranks) {
        sides_[rank][computing].count += by;
        if (touched_[rank]) continue;
        touched_[rank] = true;
        touched_ranks_.push_back(rank);
    }
}

void Contention::queue(std::int32_t slot) {
    changed_ = true;
    if (activities_[slot].queued) return;
    activities_[slot].queued = true;
    affected_.push_back(slot);
}

void Contention::rate(Activity& activity) {
    const auto slowed = [&](std::int32_t rank) { return sides_[rank][!activity.computing].going_on; };
    const double factor = std::ranges::any_of(activity.ranks, slowed) ? activity.slow : 1.0;
    if (activity.rated) {
        if (factor == activity.factor) return;
        const double done_s = (clock_.now - activity.since_s) / activity.factor;
        activity.remaining_s = std::max(0.0, activity.remaining_s - done_s);
    }
    activity.rated = true;
    activity.since_s = clock_.now;
    activity.factor = factor;
    clock_.at(activity.op, clock_.now + activity.remaining_s * factor);
}

}  // namespace dovetail::sim
