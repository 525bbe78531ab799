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

namespace dovetail::sim {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A first-in, first-out list of ops; an op is in one list at a time, so that all lists share one `next` column.
struct List {
    std::int32_t head = -1, tail = -1;

    bool empty() const { return head < 0; }

    void push(std::vector<std::int32_t>& next, std::int32_t op) {
        (empty() ? head : next[tail]) = op;
        next[op] = -1;
        tail = op;
    }

    std::int32_t pop(const std::vector<std::int32_t>& next) {
        const std::int32_t op = head;
        head = next[op];
        return op;
    }
};

// Messages in order: a send waits for a place, then is in flight until received; a receive waits for the oldest one.
struct Channel {
    List posted, senders, flying, signals, waiters;
    std::int32_t held = 0, depth = 0;
    std::int64_t num_posted = 0, num_sent = 0;
    std::span<const std::int64_t> route;
    std::span<const std::int32_t> ends;  // its ranks; one if both are the same
};

struct LinkQueue {
    std::vector<std::int32_t> ops;
    std::size_t first = 0;

    bool empty() const { return first == ops.size(); }
    std::int32_t front() const { return ops[first]; }

    void pop() {
        if (++first < ops.size()) return;
        ops.clear();
        first = 0;
    }
};

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
          start_s_(result.start_s),
          end_s_(result.end_s),
          state_(result.state),
          contention_(clock_, has_contention(tables), tables.num_ranks, tables.num_ops()) {
        const std::int32_t n = t_.num_ops();
        std::ranges::fill(start_s_, kNaN);
        std::ranges::fill(end_s_, kNaN);
        std::ranges::fill(state_, kQueued);
        list_next_.resize(n);
        blocked_.resize(n);
        links_.resize(t_.num_links);
        set_channels();
        set_meetings();
        set_followers();
    }

    void run() {
        std::vector<std::int32_t> first;
        for (std::int32_t op = 0; op < t_.num_ops(); ++op)
            if (missing_[op] == 0) first.push_back(op);
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

  private:
    static bool has_contention(const Tables& t) {
        const auto slows = [](double factor) { return factor > 1.0; };
        return std::ranges::any_of(t.slow_by_net, slows) || std::ranges::any_of(t.slow_by_compute, slows);
    }

    void set_channels() {
        channels_.resize(t_.depth.size());
        ends_.reserve(2 * channels_.size());
        for (std::size_t c = 0; c < channels_.size(); ++c) {
            ends_.insert(ends_.end(), {t_.chan_src[c], t_.chan_dst[c]});
            Channel& channel = channels_[c];
            channel.depth = t_.depth[c];
            channel.ends = {ends_.data() + 2 * c, t_.chan_src[c] == t_.chan_dst[c] ? 1u : 2u};
            channel.route = t_.route.subspan(t_.route_start[c], t_.route_start[c + 1] - t_.route_start[c]);
        }
    }

    void set_meetings() {
        meetings_.resize(t_.group_start.size() - 1);
        for (std::size_t c = 0; c < meetings_.size(); ++c)
            meetings_[c].group = t_.group.subspan(t_.group_start[c], t_.group_start[c + 1] - t_.group_start[c]);
    }

    // Sets the followers of each op: the next op of its queue first, then the ops that are `after` it, by row.
    void set_followers() {
        const std::int32_t n = t_.num_ops();
        queue_next_.assign(n, -1);
        missing_.assign(n, 0);
        std::vector<std::int32_t> last(static_cast<std::size_t>(t_.num_ranks) * t_.num_lanes, -1);
        for (std::int32_t op = 0; op < n; ++op) {
            std::int32_t& previous = last[static_cast<std::size_t>(t_.rank[op]) * t_.num_lanes + t_.lane[op]];
            if (previous >= 0) {
                queue_next_[previous] = op;
                missing_[op] = 1;
            }
            previous = op;
        }
        if (t_.dep.empty()) return;
        follower_start_.assign(n + 1, 0);
        for (const std::int64_t before : t_.dep) ++follower_start_[before + 1];
        std::partial_sum(follower_start_.begin(), follower_start_.end(), follower_start_.begin());
        std::vector<std::int64_t> at(follower_start_.begin(), follower_start_.end() - 1);
        followers_.resize(t_.dep.size());
        for (std::int32_t op = 0; op < n; ++op) {
            for (std::int64_t i = t_.dep_start[op]; i < t_.dep_start[op + 1]; ++i) followers_[at[t_.dep[i]]++] = op;
            missing_[op] += static_cast<std::int32_t>(t_.dep_start[op + 1] - t_.dep_start[op]);
        }
    }

    // Starts `op`: all that it waits for within its rank has ended.
    void begin(std::int32_t op) {
        start_s_[op] = clock_.now;
        switch (t_.task[op]) {
            case kRecv:
            case kRecvSend: {
                state_[op] = kPartner;
                Channel& channel = channels_[t_.chan_in[op]];
                channel.posted.push(list_next_, op);
                ++channel.num_posted;
                give_places(channel);  // a send may have waited for this receive (rendezvous)
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
                state_[op] = kPartner;
                channels_[t_.chan_in[op]].waiters.push(list_next_, op);
                return match_signals(channels_[t_.chan_in[op]]);
            case kCollective:
                return meet(op);
            default:
                return work(op);
        }
    }

    // Goes on with `op` after its current activity has ended.
    void advance(std::int32_t op) {
        switch (state_[op]) {
            case kTaking:
                if (t_.task[op] != kWait) {
                    Channel& channel = channels_[t_.chan_in[op]];
                    --channel.held;
                    give_places(channel);
                }
                return work(op);
            case kWorking:
                contention_.stop(op);
                return t_.task[op] == kRecvSend ? ask_place(op) : end(op);
            case kWire:
                return leave_wire(op);
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

    void end(std::int32_t op) {
        state_[op] = kEnded;
        end_s_[op] = clock_.now;
        if (const std::int32_t next = queue_next_[op]; next >= 0) release(next);
        if (followers_.empty()) return;
        for (std::int64_t i = follower_start_[op]; i < follower_start_[op + 1]; ++i) release(followers_[i]);
    }

    void release(std::int32_t follower) {
        if (--missing_[follower] == 0) begin(follower);
    }

    void work(std::int32_t op) {
        state_[op] = kWorking;
        const bool computing = t_.computes[t_.lane[op]];
        const double slow = computing ? t_.slow_by_net[op] : t_.slow_by_compute[op];
        contention_.start(op, t_.work_s[op], slow, t_.rank.subspan(op, 1), computing);
    }

    void ask_place(std::int32_t op) {
        state_[op] = kPlace;
        Channel& channel = channels_[t_.chan_out[op]];
        channel.senders.push(list_next_, op);
        give_places(channel);
    }

    // Starts waiting sends, oldest first, while there is room (and, by rendezvous, a posted receive for each).
    void give_places(Channel& channel) {
        while (!channel.senders.empty() && channel.held < channel.depth) {
            const std::int32_t op = channel.senders.head;
            if (t_.rendezvous[op] && channel.num_posted <= channel.num_sent) return;
            channel.senders.pop(list_next_);
            channel.flying.push(list_next_, op);
            ++channel.held;
            ++channel.num_sent;
            ask_links(op);
        }
    }

    // Adds `op` to the queues of all links of its route; when it is first in all of them, it occupies the links.
    void ask_links(std::int32_t op) {
        state_[op] = kLinks;
        for (const std::int64_t link : channels_[t_.chan_out[op]].route) {
            blocked_[op] += !links_[link].empty();
            links_[link].ops.push_back(op);
        }
        if (blocked_[op] == 0) enter_wire(op);
    }

    void enter_wire(std::int32_t op) {
        state_[op] = kWire;
        contention_.start(op, t_.wire_s[op], t_.slow_by_compute[op], channels_[t_.chan_out[op]].ends, false);
    }

    void leave_wire(std::int32_t op) {
        contention_.stop(op);
        Channel& channel = channels_[t_.chan_out[op]];
        for (const std::int64_t link : channel.route) {
            LinkQueue& queue = links_[link];
            queue.pop();
            if (!queue.empty() && --blocked_[queue.front()] == 0) enter_wire(queue.front());
        }
        if (t_.task[op] == kPut) {
            state_[op] = kFlight;
            clock_.at_once_or_at(op, clock_.now + t_.latency_s[op]);
            return;
        }
        state_[op] = kEnded;  // `match` reads from this that the links are free
        end_s_[op] = clock_.now;
        match(channel);
        end(op);
    }

    // Gives each posted receive its message, in order, once that has left the links.
    void match(Channel& channel) {
        while (!channel.posted.empty() && !channel.flying.empty() && state_[channel.flying.head] == kEnded) {
            const std::int32_t message = channel.flying.pop(list_next_);
            const std::int32_t op = channel.posted.pop(list_next_);
            state_[op] = kTaking;
            clock_.at_once_or_at(op, end_s_[message] + t_.latency_s[message]);
        }
    }

    void signal(std::int32_t op) {
        Channel& channel = channels_[t_.chan_out[op]];
        channel.signals.push(list_next_, op);
        match_signals(channel);
        state_[op] = kFlight;
        clock_.at_once(op);
    }

    void match_signals(Channel& channel) {
        while (!channel.waiters.empty() && !channel.signals.empty()) {
            const std::int32_t message = channel.signals.pop(list_next_);
            const std::int32_t op = channel.waiters.pop(list_next_);
            state_[op] = kTaking;
            clock_.at_once_or_at(op, start_s_[message] + t_.latency_s[message]);
        }
    }

    // Joins the k-th call of the collective, where k counts this rank's calls; the last member to come starts it.
    void meet(std::int32_t op) {
        state_[op] = kPartner;
        Meetings& meetings = meetings_[t_.call[op]];
        const auto k = static_cast<std::size_t>(meetings.num_calls[t_.rank[op]]++ - meetings.first);
        if (k >= meetings.open.size()) meetings.open.resize(k + 1);
        meetings.open[k].push_back(op);
        if (meetings.open[k].size() < meetings.group.size()) return;
        double seconds = 0.0, slow = 1.0;
        for (const std::int32_t member : meetings.open[k]) {
            state_[member] = kMeeting;
            seconds = std::max(seconds, t_.work_s[member]);
            slow = std::max(slow, t_.slow_by_compute[member]);
        }
        met_[op] = std::move(meetings.open[k]);  // k is 0: members complete earlier calls first
        meetings.open.pop_front();
        ++meetings.first;
        contention_.start(op, seconds, slow, meetings.group, false);
    }

    const Tables& t_;
    std::span<double> start_s_, end_s_;
    std::span<std::uint8_t> state_;
    Clock clock_;
    Contention contention_;
    std::vector<Channel> channels_;
    std::vector<std::int32_t> ends_;
    std::vector<LinkQueue> links_;
    std::vector<Meetings> meetings_;
    std::unordered_map<std::int32_t, std::vector<std::int32_t>> met_;  // last member to call -> all members
    std::vector<std::int32_t> queue_next_, missing_, list_next_, blocked_, followers_;
    std::vector<std::int64_t> follower_start_;
};

}  // namespace

void simulate(const Tables& tables, const Result& result) { Simulation(tables, result).run(); }

}  // namespace dovetail::sim
