// The simulator; each function does the same as the function of its name in dovetail/sim/reference.py.
#include "sim/simulate.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "sim/clock.hpp"
#include "sim/contention.hpp"
#include "sim/memory.hpp"
#include "sim/queues.hpp"

namespace dovetail::sim {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Meetings {  // the calls of one collective
    std::span<const std::int32_t> group;
    std::unordered_map<std::int32_t, std::int64_t> num_calls;  // by rank
    std::int64_t first = 0;                                    // number of the oldest open call
    std::deque<std::vector<std::int32_t>> open;                // ops of each open call so far
};

class Simulation {
  public:
    Simulation(const Tables& tables, const Result& result)
        : t_(tables),
          start_s_(result.start_s.data()),
          end_s_(result.end_s.data()),
          contention_(clock_, tables),
          is_fluid_(contention_.is_fluid()),
          memory_(tables.num_ops()),
          ops_(memory_.ops()),
          links_(tables.num_links) {
        set_channels();
        set_meetings();
        set_ops();
        if (!malformed_) set_followers();
    }

    bool is_malformed() const { return malformed_; }

    void run() {
        std::vector<std::int32_t> first;
        for (const std::int32_t op : heads_)
            if (ops_[op].missing == 0) first.push_back(op);
        for (const std::int32_t op : first) begin(op);
        for (;;) {
            if (const std::int32_t op = clock_.next_instant(); op >= 0) {
                advance(op);
            } else if (contention_.changed() && clock_.instant_over()) {
                contention_.settle();
            } else if (const std::int32_t op = clock_.next_event(); op >= 0) {
                advance(op);
            } else if (op == Clock::kAtRest) {
                return;
            }
        }
    }

    // Writes the state of each op, and NaN for the times of those that never started or ended.
    void report(std::span<std::uint8_t> state) const {
        if (num_ended_ == t_.num_ops()) {
            std::ranges::fill(state, kEnded);
            return;
        }
        for (std::int32_t op = 0; op < t_.num_ops(); ++op) {
            state[op] = ops_[op].state;
            if (state[op] == kQueued) start_s_[op] = kNaN;
            if (state[op] != kEnded) end_s_[op] = kNaN;
        }
    }

  private:
    void set_channels() {
        channels_.resize(t_.depth.size());
        ends_.reserve(2 * channels_.size());
        for (std::size_t c = 0; c < channels_.size(); ++c) {
            ends_.insert(ends_.end(), {t_.chan_src[c], t_.chan_dst[c]});
            channels_[c].room = t_.depth[c];
            channels_[c].route = t_.route.subspan(t_.route_start[c], t_.uplinks[c]);
            stores_ |= !downlinks(static_cast<std::int32_t>(c)).empty();
        }
        if (stores_) far_s_.assign(t_.num_ops(), kNaN);
    }

    // The links of a channel beyond the switch that stores its messages; none if no switch does.
    std::span<const std::int64_t> downlinks(std::int32_t channel) const {
        const std::int64_t from = t_.route_start[channel] + t_.uplinks[channel];
        return t_.route.subspan(from, t_.route_start[channel + 1] - from);
    }

    void set_meetings() {
        meetings_.resize(t_.group_start.size() - 1);
        for (std::size_t c = 0; c < meetings_.size(); ++c)
            meetings_[c].group = t_.group.subspan(t_.group_start[c], t_.group_start[c + 1] - t_.group_start[c]);
    }

    // Sets every op, and which are the first of their queues.
    void set_ops() {
        std::vector<std::int32_t> last(static_cast<std::size_t>(t_.num_ranks) * t_.num_lanes, -1);
        for (std::int32_t op = 0; op < t_.num_ops(); ++op) {
            if (!fits(op)) {
                malformed_ = true;
                return;
            }
            std::int32_t& previous = last[static_cast<std::size_t>(t_.rank[op]) * t_.num_lanes + t_.lane[op]];
            (previous < 0 ? heads_.emplace_back() : ops_[previous].queue_next) = op;
            ops_[op] = {-1, previous >= 0, -1, 0, Task{t_.task[op]}, kQueued};
            previous = op;
        }
    }

    // Whether `op` has a rank, a lane, and a channel that leads to or from its rank, or a group.
    bool fits(std::int32_t op) const {
        constexpr auto below = [](std::int32_t value, std::size_t most) {
            return static_cast<std::uint32_t>(value) < most;
        };
        const std::int32_t rank = t_.rank[op], in = t_.chan_in[op], out = t_.chan_out[op];
        if (!below(rank, t_.num_ranks) || !below(t_.lane[op], t_.num_lanes)) return false;
        switch (t_.task[op]) {
            case kWork:
                return true;
            case kRecv:
            case kWait:
                return below(in, channels_.size()) && t_.chan_dst[in] == rank;
            case kSend:
            case kSignal:
                return below(out, channels_.size()) && t_.chan_src[out] == rank;
            case kPut:
                return below(out, channels_.size());
            case kRecvSend:
                return below(in, channels_.size()) && t_.chan_dst[in] == rank && below(out, channels_.size()) &&
                       t_.chan_src[out] == rank;
            default:
                return below(t_.call[op], meetings_.size());
        }
    }

    // Sets the ops that are `after` each op, by row.
    void set_followers() {
        if (t_.dep.empty()) return;
        const std::int32_t n = t_.num_ops();
        const auto outside = [n](std::int64_t before) { return before < 0 || before >= n; };
        const auto& start = t_.dep_start;
        malformed_ = start.front() != 0 || start.back() != static_cast<std::int64_t>(t_.dep.size()) ||
                     !std::ranges::is_sorted(start) || std::ranges::any_of(t_.dep, outside);
        if (malformed_) return;
        follower_start_.assign(n + 1, 0);
        for (const std::int64_t before : t_.dep) ++follower_start_[before + 1];
        std::partial_sum(follower_start_.begin(), follower_start_.end(), follower_start_.begin());
        std::vector<std::int64_t> at(follower_start_.begin(), follower_start_.end() - 1);
        followers_.resize(t_.dep.size());
        for (std::int32_t op = 0; op < n; ++op) {
            for (std::int64_t i = t_.dep_start[op]; i < t_.dep_start[op + 1]; ++i) followers_[at[t_.dep[i]]++] = op;
            ops_[op].missing += static_cast<std::int32_t>(t_.dep_start[op + 1] - t_.dep_start[op]);
        }
    }

    // Starts `op`: all that it waits for within its rank has ended.
    void begin(std::int32_t op) {
        start_s_[op] = clock_.now;
        Op& it = ops_[op];
        fetch(it.queue_next);
        switch (it.task) {
            case kRecv:
            case kRecvSend: {
                it.state = kPartner;
                Channel& channel = channels_[t_.chan_in[op]];
                ++channel.spare;
                channel.posted.push(ops_, op);
                if (!channel.senders.empty())
                    give_places(channel);  // one may have waited for this receive (rendezvous)
                match(channel);
                return;
            }
            case kSend:
                return ask_place(op);
            case kPut:
                return ask_links(op);
            case kSignal:
                return signal(op);
            case kWait:
                it.state = kPartner;
                channels_[t_.chan_in[op]].waiters.push(ops_, op);
                return match_signals(channels_[t_.chan_in[op]]);
            case kCollective:
                return meet(op);
            default:
                return work(op);
        }
    }

    // Loads what a step of this op will need into the cache: it is next on its lane, and its turn is far off.
    void fetch(std::int32_t op) const {
        if (op < 0) return;
        __builtin_prefetch(ops_ + op, 1);
        __builtin_prefetch(start_s_ + op, 1);
        __builtin_prefetch(end_s_ + op, 1);
        __builtin_prefetch(t_.work_s.data() + op);
        __builtin_prefetch(t_.wire_s.data() + op);
        __builtin_prefetch(t_.latency_s.data() + op);
        __builtin_prefetch(t_.chan_in.data() + op);
        __builtin_prefetch(t_.chan_out.data() + op);
    }

    // Goes on with `op` after its current activity has ended.
    void advance(std::int32_t op) {
        const Op& it = ops_[op];
        switch (it.state) {
            case kTaking:
                if (it.task != kWait) {
                    Channel& channel = channels_[t_.chan_in[op]];
                    ++channel.room;
                    if (!channel.senders.empty()) give_places(channel);
                }
                return work(op);
            case kWorking:
                contention_.stop(op);
                return it.task == kRecvSend ? ask_place(op) : end(op);
            case kWire:
                return leave_wire(op);
            case kStored:
                return leave_switch(op);
            case kMeeting: {
                contention_.stop(op);
                const auto members = met_.extract(op);
                for (const std::int32_t member : members.mapped()) end(member);
                return;
            }
            default:
                return end(op);
        }
    }

    void end(std::int32_t op, State state = kEnded) {
        Op& it = ops_[op];
        it.state = state;
        end_s_[op] = clock_.now;
        ++num_ended_;
        if (it.queue_next >= 0) release(it.queue_next);
        if (followers_.empty()) return;
        for (std::int64_t i = follower_start_[op]; i < follower_start_[op + 1]; ++i) release(followers_[i]);
    }

    void release(std::int32_t follower) {
        if (--ops_[follower].missing == 0) begin(follower);
    }

    void work(std::int32_t op) {
        ops_[op].state = kWorking;
        const double seconds = t_.work_s[op];
        if (!is_fluid_) return occupy(op, seconds);
        const bool computing = t_.computes[t_.lane[op]];
        const double slow = computing ? t_.slow_by_net[op] : t_.slow_by_compute[op];
        contention_.start(op, seconds, slow, t_.rank.subspan(op, 1), computing);
    }

    // Ends the current activity of `op` in `seconds`; nothing slows it.
    void occupy(std::int32_t op, double seconds) {
        seconds > 0 ? clock_.at(op, clock_.now + seconds) : clock_.at_once(op);
    }

    void ask_place(std::int32_t op) {
        ops_[op].state = kPlace;
        Channel& channel = channels_[t_.chan_out[op]];
        if (channel.senders.empty() && channel.room > 0 && (channel.spare > 0 || !t_.rendezvous[op])) {
            return give_place(channel, op);
        }
        channel.senders.push(ops_, op);
        give_places(channel);
    }

    void give_place(Channel& channel, std::int32_t op) {
        channel.flying.push(ops_, op);
        --channel.room;
        --channel.spare;
        ask_links(op);
    }

    // Starts waiting sends, oldest first, while there is room (and, by rendezvous, a posted receive for each).
    void give_places(Channel& channel) {
        while (!channel.senders.empty() && channel.room > 0) {
            const std::int32_t op = channel.senders.head;
            if (channel.spare <= 0 && t_.rendezvous[op]) return;
            channel.senders.pop(ops_);
            give_place(channel, op);
        }
    }

    // Adds `op` to the queues of all links of its route, or of those as far as the switch that stores messages; when it
    // is first in all of them, it occupies the links.
    void ask_links(std::int32_t op) {
        Op& it = ops_[op];
        it.state = kLinks;
        for (const std::int64_t link : channels_[t_.chan_out[op]].route) it.blocked += links_[link].push(op);
        if (it.blocked == 0) enter_wire(op);
    }

    void enter_wire(std::int32_t op) {
        Op& it = ops_[op];
        it.state = kWire;
        if (stores_) ask_downlinks(op);
        const double seconds = t_.wire_s[op];
        if (!is_fluid_) return occupy(op, seconds);
        const std::size_t first = 2 * static_cast<std::size_t>(t_.chan_out[op]);
        const std::span<const std::int32_t> ends{&ends_[first], ends_[first] == ends_[first + 1] ? 1u : 2u};
        contention_.start(op, seconds, t_.slow_by_compute[op], ends, false);
    }

    // Adds the message of `op`, which begins to reach the switch, to the queues of the links beyond.
    void ask_downlinks(std::int32_t op) {
        Op& it = ops_[op];
        for (const std::int64_t link : downlinks(t_.chan_out[op])) it.blocked += links_[link].push(op);
        if (it.blocked == 0) far_s_[op] = clock_.now;
    }

    void free_links(std::span<const std::int64_t> links) {
        for (const std::int64_t link : links) {
            const std::int32_t next = links_[link].pop();
            if (next >= 0 && --ops_[next].blocked == 0) links_free(next);
        }
    }

    // All links that `op` waits for are its own now.
    void links_free(std::int32_t op) {
        const State state = ops_[op].state;
        if (state == kLinks) return enter_wire(op);
        far_s_[op] = clock_.now;
        if (state == kStored) clock_.at(op, clock_.now + t_.wire_s[op]);
    }

    void leave_wire(std::int32_t op) {
        contention_.stop(op);
        free_links(channels_[t_.chan_out[op]].route);
        if (!stores_) return arrive(op);
        const double left_s = far_s_[op] + t_.wire_s[op];  // NaN if it waits for a link beyond the switch
        if (left_s <= clock_.now || downlinks(t_.chan_out[op]).empty()) return leave_switch(op);
        if (ops_[op].task == kPut) {
            ops_[op].state = kStored;
        } else {
            end(op, kStored);
        }
        if (ops_[op].blocked == 0) clock_.at(op, left_s);
    }

    void leave_switch(std::int32_t op) {
        free_links(downlinks(t_.chan_out[op]));
        far_s_[op] = clock_.now;
        if (ops_[op].state != kStored || ops_[op].task == kPut) return arrive(op);
        ops_[op].state = kEnded;
        match(channels_[t_.chan_out[op]]);
    }

    // The message of `op` has left all links.
    void arrive(std::int32_t op) {
        Op& it = ops_[op];
        Channel& channel = channels_[t_.chan_out[op]];
        if (it.task == kPut) {
            it.state = kFlight;
            clock_.at_once_or_at(op, clock_.now + t_.latency_s[op]);
            return;
        }
        end_s_[op] = clock_.now;
        it.state = kEnded;  // `match` reads from this that the links are free
        match(channel);
        end(op);
    }

    // Gives each posted receive its message, in order, once that has left the links.
    void match(Channel& channel) {
        while (!channel.posted.empty() && !channel.flying.empty() && ops_[channel.flying.head].state == kEnded) {
            const std::int32_t message = channel.flying.pop(ops_), op = channel.posted.pop(ops_);
            ops_[op].state = kTaking;
            const double left_s = stores_ ? far_s_[message] : end_s_[message];
            clock_.at_once_or_at(op, left_s + t_.latency_s[message]);
        }
    }

    void signal(std::int32_t op) {
        Op& it = ops_[op];
        Channel& channel = channels_[t_.chan_out[op]];
        channel.signals.push(ops_, op);
        match_signals(channel);
        it.state = kFlight;
        clock_.at_once(op);
    }

    void match_signals(Channel& channel) {
        while (!channel.waiters.empty() && !channel.signals.empty()) {
            const std::int32_t message = channel.signals.pop(ops_), op = channel.waiters.pop(ops_);
            ops_[op].state = kTaking;
            clock_.at_once_or_at(op, start_s_[message] + t_.latency_s[message]);
        }
    }

    // Joins the k-th call of the collective, where k counts this rank's calls; the last member to come starts it.
    void meet(std::int32_t op) {
        ops_[op].state = kPartner;
        Meetings& meetings = meetings_[t_.call[op]];
        const auto k = static_cast<std::size_t>(meetings.num_calls[t_.rank[op]]++ - meetings.first);
        if (k >= meetings.open.size()) meetings.open.resize(k + 1);
        meetings.open[k].push_back(op);
        if (meetings.open[k].size() < meetings.group.size()) return;
        double seconds = 0.0, slow = 1.0;
        for (const std::int32_t member : meetings.open[k]) {
            ops_[member].state = kMeeting;
            seconds = std::max(seconds, t_.work_s[member]);
            slow = std::max(slow, t_.slow_by_compute[member]);
        }
        met_[op] = std::move(meetings.open[k]);  // k is 0: members complete earlier calls first
        meetings.open.pop_front();
        ++meetings.first;
        contention_.start(op, seconds, slow, meetings.group, false);
    }

    const Tables& t_;
    double *start_s_, *end_s_;
    Clock clock_;
    Contention contention_;
    bool is_fluid_;
    OpMemory memory_;
    Op* ops_;
    std::int32_t num_ended_ = 0;
    bool malformed_ = false, stores_ = false;  // stores_: some switch stores messages
    std::vector<Channel> channels_;
    std::vector<std::int32_t> ends_;  // per channel: its source and destination
    std::vector<LinkQueue> links_;
    std::vector<double>
        far_s_;  // per op, if `stores_`: when its message had the links beyond the switch; then left them
    std::vector<Meetings> meetings_;
    std::unordered_map<std::int32_t, std::vector<std::int32_t>> met_;  // last member to call -> all members
    std::vector<std::int32_t> heads_, followers_;
    std::vector<std::int64_t> follower_start_;
};

}  // namespace

bool simulate(const Tables& tables, const Result& result) {
    Simulation simulation(tables, result);
    if (simulation.is_malformed()) return false;
    simulation.run();
    simulation.report(result.state);
    return true;
}

}  // namespace dovetail::sim
