// The ranks run until they wait for an op that has no end yet; whoever gives it one wakes them. Ops have the order that
// dovetail/trace/to_program.py gives them: by channel and direction, and by rank and group of a collective.
#include "sim/replay.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

namespace dovetail::sim {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Sending {
    double ready_s, wire_s, latency_s;
    std::int32_t op;
    bool rendezvous;
};

struct Receiving {
    double ready_s;
    std::int32_t op;
};

struct Channel {
    std::vector<Sending> sends;
    std::vector<Receiving> receives;
    std::size_t num_sent = 0, num_received = 0;  // those that have ended
    double sent_s = 0.0, received_s = 0.0;       // end of the last of these
};

struct Joining {
    double ready_s, seconds;
    std::int32_t call, op;
};

// A rank's collectives with one group, one after another.
struct Lane {
    std::int32_t rank;
    std::size_t group_size;
    std::vector<Joining> joins;
    std::size_t num_over = 0;
    bool is_open = false;
    double over_s = 0.0;
};

struct Meeting {
    std::vector<std::int32_t> lanes;
    double begin_s = 0.0, seconds = 0.0;
};

struct Call {
    std::unordered_map<std::int32_t, std::size_t> num_calls;  // by rank
    std::vector<Meeting> meetings;
};

struct Rank {
    std::size_t at = 0;  // next step
    double now_s = 0.0, own_s = 0.0;
    bool has_begun = false;
    std::int64_t row = -1;
    std::vector<std::int32_t> waiting, held, quiet;
    std::size_t num_open = 0;  // ops of `waiting` without an end, if the rank is blocked
    std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> stalled;  // by channel
};

class Replay {
  public:
    explicit Replay(const ReplayModel& model)
        : m_(model),
          ranks_(model.steps.size()),
          sends_(model.channel.size(), -1),
          receives_(model.channel.size(), -1),
          joined_(model.call.size()) {
        std::int32_t most = -1;
        for (const std::int32_t channel : m_.channel) most = std::max(most, channel);
        channels_.resize(most + 1);
        most = -1;
        for (const std::int32_t call : m_.call) most = std::max(most, call);
        calls_.resize(most + 1);
    }

    double run() {
        for (std::size_t rank = ranks_.size(); rank-- > 0;) runnable_.push_back(static_cast<std::int32_t>(rank));
        while (!runnable_.empty()) {
            const std::int32_t rank = runnable_.back();
            runnable_.pop_back();
            go_on(rank);
        }
        return is_over() ? makespan_s_ : kNaN;
    }

  private:
    bool is_over() const {
        const auto ended = [this](const Rank& it) { return it.at == m_.steps[&it - ranks_.data()].size(); };
        const auto empty = [](const Channel& it) {
            return it.num_sent == it.sends.size() && it.num_received == it.receives.size();
        };
        const auto met = [](const Lane& it) { return it.num_over == it.joins.size(); };
        return std::ranges::all_of(ranks_, ended) && std::ranges::all_of(channels_, empty) &&
               std::ranges::all_of(lanes_, met);
    }

    void go_on(std::int32_t rank) {
        Rank& it = ranks_[rank];
        for (const auto& steps = m_.steps[rank]; it.at < steps.size(); ++it.at) {
            const ReplayStep& step = steps[it.at];
            if (works(it, step) && blocks(rank)) return;
            take(rank, step);
        }
    }

    // Whether this step does something after all that the rank waits for.
    bool works(const Rank& it, const ReplayStep& step) const {
        if (step.seconds > 0 || (!it.held.empty() && step.row != it.row)) return true;
        switch (step.kind) {
            case StepKind::kSend:
                return !m_.held[step.number];
            case StepKind::kRecv:
                return !m_.stalls[step.number];
            case StepKind::kJoin:
                return !m_.quiet[step.number];
            case StepKind::kOwn:
            case StepKind::kEnd:
                return true;
            default:
                return !it.quiet.empty() || !it.has_begun;
        }
    }

    // Whether an op that the rank waits for has no end yet; the last that gets one wakes the rank.
    bool blocks(std::int32_t rank) {
        Rank& it = ranks_[rank];
        it.num_open = 0;
        for (const std::int32_t op : it.waiting) {
            if (end_s_[op] == end_s_[op] || waiter_[op] == rank) continue;
            waiter_[op] = rank;
            ++it.num_open;
        }
        return it.num_open > 0;
    }

    void take(std::int32_t rank, const ReplayStep& step) {
        Rank& it = ranks_[rank];
        if (step.seconds > 0) {
            it.own_s += step.seconds;
            here(it);
        }
        if (!it.held.empty() && step.row != it.row) set_out(it);
        it.row = step.row;
        switch (step.kind) {
            case StepKind::kSend:
                if (m_.held[step.number]) return it.held.push_back(step.number);
                set_out(it);  // messages of one channel keep their order
                return give(it, step.number);
            case StepKind::kRecv:
                return receive(it, step.number);
            case StepKind::kSent:
                let_on(rank);
                if (m_.rendezvous[step.number] && sends_[step.number] >= 0) it.waiting.push_back(sends_[step.number]);
                return;
            case StepKind::kReceived:
                let_on(rank);
                if (receives_[step.number] < 0) post(it, step.number);
                return it.waiting.push_back(receives_[step.number]);
            case StepKind::kJoin:
                it.quiet.push_back(step.number);
                if (!m_.quiet[step.number]) meet_all(rank);  // collectives of one group keep their order
                return;
            case StepKind::kJoined:
                let_on(rank);
                it.waiting.insert(it.waiting.end(), joined_[step.number].begin(), joined_[step.number].end());
                return;
            default:
                here(it);
        }
    }

    // Lets the rank do its work so far, after all that it waits for.
    void here(Rank& it) {
        for (const std::int32_t op : it.waiting) it.now_s = std::max(it.now_s, end_s_[op]);
        it.waiting.clear();
        it.now_s += it.own_s;
        it.own_s = 0.0;
        it.has_begun = true;
        makespan_s_ = std::max(makespan_s_, it.now_s);
    }

    std::int32_t new_op() {
        end_s_.push_back(kNaN);
        waiter_.push_back(-1);
        return static_cast<std::int32_t>(end_s_.size()) - 1;
    }

    void end(std::int32_t op, double end_s) {
        end_s_[op] = end_s;
        makespan_s_ = std::max(makespan_s_, end_s);
        if (const std::int32_t rank = waiter_[op]; rank >= 0 && --ranks_[rank].num_open == 0) runnable_.push_back(rank);
    }

    void set_out(Rank& it) {
        for (const std::int32_t number : std::exchange(it.held, {})) give(it, number);
    }

    void give(Rank& it, std::int32_t number) {
        here(it);
        sends_[number] = new_op();
        send(m_.channel[number],
             {it.now_s, m_.wire_s[number], m_.latency_s[number], sends_[number], m_.rendezvous[number]});
    }

    void receive(Rank& it, std::int32_t number) {
        const std::int32_t channel = m_.channel[number];
        const auto of_channel = [channel](const auto& each) { return each.first == channel; };
        const auto at = std::ranges::find_if(it.stalled, of_channel);
        if (m_.stalls[number]) {
            if (at == it.stalled.end())
                it.stalled.push_back({channel, {number}});
            else
                at->second.push_back(number);
            return;
        }
        here(it);
        if (at != it.stalled.end()) {
            const auto numbers = std::move(at->second);
            it.stalled.erase(at);
            for (const std::int32_t each : numbers) post(it, each);
        }
        post(it, number);
    }

    void post(Rank& it, std::int32_t number) {
        if (!it.has_begun) here(it);
        receives_[number] = new_op();
        take_from(m_.channel[number], {it.now_s, receives_[number]});
    }

    // Lets stalled receives and collectives progress, as the library does in every wait.
    void let_on(std::int32_t rank) {
        Rank& it = ranks_[rank];
        for (const auto& [channel, numbers] : std::exchange(it.stalled, {}))
            for (const std::int32_t number : numbers) post(it, number);
        meet_all(rank);
    }

    void send(std::int32_t channel, const Sending& it) {
        channels_[channel].sends.push_back(it);
        settle(channels_[channel]);
    }

    void take_from(std::int32_t channel, const Receiving& it) {
        channels_[channel].receives.push_back(it);
        settle(channels_[channel]);
    }

    // Ends the sends and receives of a channel whose times are known.
    void settle(Channel& it) {
        for (bool moved = true; moved;) {
            moved = false;
            for (; it.num_sent < it.sends.size(); ++it.num_sent, moved = true) {
                Sending& next = it.sends[it.num_sent];
                double begin_s = std::max(next.ready_s, it.sent_s);
                if (next.rendezvous) {
                    if (it.num_received < it.num_sent || it.receives.size() <= it.num_sent) break;
                    begin_s = std::max({begin_s, it.receives[it.num_sent].ready_s, it.received_s});
                }
                it.sent_s = begin_s + next.wire_s;
                next.ready_s = it.sent_s + next.latency_s;  // from here on: when it arrives
                end(next.op, it.sent_s);
            }
            for (; it.num_received < std::min(it.receives.size(), it.num_sent); ++it.num_received, moved = true) {
                const Receiving& next = it.receives[it.num_received];
                it.received_s = std::max({it.received_s, next.ready_s, it.sends[it.num_received].ready_s});
                end(next.op, it.received_s);
            }
        }
    }

    void meet_all(std::int32_t rank) {
        for (const std::int32_t number : std::exchange(ranks_[rank].quiet, {})) meet(rank, number);
    }

    void meet(std::int32_t rank, std::int32_t number) {
        Rank& it = ranks_[rank];
        here(it);
        joined_[number].clear();
        if (static_cast<Way>(m_.way[number]) != Way::kAll) return meet_root(rank, number);
        const std::int32_t lane = lane_of(rank, m_.group[number]);
        joined_[number].push_back(new_op());
        lanes_[lane].joins.push_back({it.now_s, m_.seconds[number], m_.call[number], joined_[number][0]});
        open_.push_back(lane);
        while (!open_.empty()) {
            const std::int32_t next = open_.back();
            open_.pop_back();
            open(next);
        }
    }

    std::int32_t lane_of(std::int32_t rank, std::int32_t group) {
        const auto key = static_cast<std::int64_t>(group) * static_cast<std::int64_t>(ranks_.size()) + rank;
        const auto [at, is_new] = lane_at_.try_emplace(key, static_cast<std::int32_t>(lanes_.size()));
        if (is_new) {
            const std::int64_t size = m_.group_start[group + 1] - m_.group_start[group];
            lanes_.push_back({rank, static_cast<std::size_t>(size), {}});
        }
        return at->second;
    }

    // Begins the next collective of a lane; the last rank to come ends it.
    void open(std::int32_t lane) {
        Lane& it = lanes_[lane];
        if (it.is_open || it.num_over == it.joins.size()) return;
        it.is_open = true;
        const Joining& join = it.joins[it.num_over];
        Call& call = calls_[join.call];
        const std::size_t k = call.num_calls[it.rank]++;
        if (k >= call.meetings.size()) call.meetings.resize(k + 1);
        Meeting& meeting = call.meetings[k];
        meeting.lanes.push_back(lane);
        meeting.begin_s = std::max({meeting.begin_s, join.ready_s, it.over_s});
        meeting.seconds = std::max(meeting.seconds, join.seconds);
        if (meeting.lanes.size() < it.group_size) return;
        const double end_s = meeting.begin_s + meeting.seconds;
        for (const std::int32_t each : meeting.lanes) {
            Lane& member = lanes_[each];
            end(member.joins[member.num_over++].op, member.over_s = end_s);
            member.is_open = false;
            open_.push_back(each);
        }
    }

    // Adds messages from the root to all others, or from all to the root.
    void meet_root(std::int32_t rank, std::int32_t number) {
        const std::int32_t root = m_.root[number], group = m_.group[number];
        const bool is_root = root == rank, gives = (static_cast<Way>(m_.way[number]) == Way::kFromRoot) == is_root;
        const double now_s = ranks_[rank].now_s;
        const auto with = [&](std::int32_t other) {
            const std::int32_t src = gives ? rank : other, dst = gives ? other : rank;
            const std::int32_t channel = rooted_channel(m_.rooted[number], src, dst);
            const std::int32_t op = new_op();
            if (gives) return send(channel, {now_s, 0.0, m_.seconds[number], op, false});
            joined_[number].push_back(op);
            take_from(channel, {now_s, op});
        };
        if (!is_root) return with(root);
        for (std::int64_t i = m_.group_start[group]; i < m_.group_start[group + 1]; ++i)
            if (m_.members[i] != root) with(m_.members[i]);
    }

    std::int32_t rooted_channel(std::int32_t rooted, std::int32_t src, std::int32_t dst) {
        const auto count = static_cast<std::int64_t>(ranks_.size());
        const auto key = (rooted * count + src) * count + dst;
        const auto [at, is_new] = rooted_at_.try_emplace(key, static_cast<std::int32_t>(channels_.size()));
        if (is_new) channels_.emplace_back();
        return at->second;
    }

    const ReplayModel& m_;
    std::vector<Rank> ranks_;
    std::vector<std::int32_t> sends_, receives_;     // by message: the op; -1: not yet
    std::vector<std::vector<std::int32_t>> joined_;  // by collective call: what its rank waits for
    std::vector<Channel> channels_;
    std::vector<Call> calls_;
    std::vector<Lane> lanes_;
    std::unordered_map<std::int64_t, std::int32_t> lane_at_, rooted_at_;
    std::vector<double> end_s_;         // by op; NaN: not yet
    std::vector<std::int32_t> waiter_;  // by op: the rank that waits for it; -1: none
    std::vector<std::int32_t> runnable_, open_;
    double makespan_s_ = 0.0;
};

}  // namespace

double replay_makespan_s(const ReplayModel& model) { return Replay(model).run(); }

}  // namespace dovetail::sim
