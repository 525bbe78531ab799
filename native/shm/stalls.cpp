// How a Script notices that it waits in vain, and how it begins again after a failed call: see script.hpp.
#include <cmath>

#include "run/op.hpp"
#include "shm/script.hpp"

namespace dovetail::shm {

namespace {

constexpr const char* lost_hint = ": no call works on this communicator any more";

}  // namespace

// After a call that failed on some rank: fails here too, if it has not yet; else waits until it has on every rank.
std::string Script::reset(const Options& options) {
    constexpr const char* earlier = " in an earlier call, which this one stands for";
    const bool is_new = !ranks_->has_failed(ranks_->rank());
    if (const int rank = died(); is_new && rank >= 0)
        return ranks_->fail(), "rank " + std::to_string(ranks_->rank()) + " stalled: rank " + std::to_string(rank) +
                                   " has ended\n  in an earlier call of other ranks";
    for (int rank = 0; rank < ranks_->size() && is_new; ++rank)
        if (ranks_->has_failed(rank)) return ranks_->fail(), "rank " + std::to_string(rank) + " has failed" + earlier;
    patience_.moved();
    while (!ranks_->is_reset()) {
        if (!patience_.wait(options.rests)) continue;
        const int rank = ranks_->missing();
        if (rank >= 0 && ranks_->has_ended(rank)) return "rank " + std::to_string(rank) + " has ended" + lost_hint;
        if (rank >= 0 && patience_.waited_s() > options.stall_s)
            return "rank " + std::to_string(rank) + " makes no call since one failed";
    }
    return "";
}

int Script::awaited(const Lane& lane) {
    const Step& step = lane.steps[lane.next];
    const auto bytes = static_cast<Count>(lane.bytes);
    if (step.in && !step.in->has_come(bytes)) return step.op->in_peer;
    return step.out && !step.out->has_room(bytes) ? step.op->out_peer : -1;
}

// A rank that ended without having failed before; -1: none.
int Script::died() const {
    for (int rank = 0; rank < ranks_->size(); ++rank)
        if (ranks_->has_ended(rank) && !ranks_->has_failed(rank)) return rank;
    return -1;
}

// The rank that will never do what a lane waits for. A rank that has done its part may end. So check again for messages
// once it can send no more. If a rank failed because another one ended, the latter is named.
std::string Script::lost() const {
    const auto lost_by = [&](const auto& awaited) -> std::string {
        const int peer = awaited();
        if (peer < 0) return "";
        const bool ended = ranks_->has_ended(peer);
        if (!(ended || ranks_->has_failed(peer)) || awaited() != peer) return "";
        if (const int rank = died(); rank >= 0) return "rank " + std::to_string(rank) + " has ended";
        return "rank " + std::to_string(peer) + (ended ? " has ended" : " has failed");
    };
    std::string found;
    for (std::size_t i = 0; i < lanes_.size() && found.empty(); ++i)
        if (const Lane& lane = lanes_[i]; !lane.steps.empty() && lane.tile < tiles_)
            found = lost_by([&] { return awaited(lane); });
    for (std::size_t i = 0; i < unread_.size() && found.empty(); ++i) {
        const auto& [step, slots] = unread_[i];
        found = lost_by([&, to = step, at = slots] { return to->out->have_taken(at) ? -1 : to->op->out_peer; });
    }
    return found;
}

std::string Script::stalled(const Options& options) const {
    const std::string gone = lost();
    if (gone.empty() && patience_.waited_s() < options.stall_s) return "";
    std::string text = "rank " + std::to_string(ranks_->rank()) + " stalled: ";
    text +=
        gone.empty() ? "no op moved for " + std::to_string(static_cast<int>(std::ceil(options.stall_s))) + " s" : gone;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        const Lane& lane = lanes_[i];
        if (lane.steps.empty() || lane.tile == tiles_) continue;
        const Step& step = lane.steps[lane.next];
        const int peer = awaited(lane);
        text += "\n  lane " + std::to_string(share_.lanes[i].first) + " waits at its op " + std::to_string(lane.next) +
                " '" + run::kind_name(step.kind) + "' (row " + std::to_string(step.op->row) + ")";
        if (peer < 0)
            text += " for an op of another lane";
        else if (step.in && peer == step.op->in_peer)
            text += " for a message from rank " + std::to_string(peer);
        else
            text += " for rank " + std::to_string(peer) + " to take earlier messages";
    }
    for (const auto& [step, slots] : unread_)
        if (!step->out->have_taken(slots))
            text += "\n  rank " + std::to_string(step->op->out_peer) + " has not read what it was lent";
    return text;
}

}  // namespace dovetail::shm
