// The greedy run: see greedy.hpp.
#include "ir/greedy.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <unordered_map>

namespace dovetail::ir {
namespace {

// A first-in, first-out list, linked through a shared array.
struct List {
    std::int32_t head = -1, tail = -1;
    std::int64_t size = 0;

    void push(std::vector<std::int32_t>& next, std::int32_t item) {
        next[item] = -1;
        if (head < 0)
            head = item;
        else
            next[tail] = item;
        tail = item;
        ++size;
    }

    std::int32_t pop(const std::vector<std::int32_t>& next) {
        const std::int32_t item = head;
        head = next[item];
        --size;
        return item;
    }
};

// Calls of one collective: the ops of each member that have arrived, and the number of members in each call.
struct Calls {
    std::unordered_map<std::int32_t, std::int32_t> place;  // rank -> place in the group
    std::vector<std::vector<std::int32_t>> arrived;
    std::vector<std::int32_t> count;
};

class Greedy {
  public:
    Greedy(const Program& program, const Queues& queues, bool declared)
        : p_(program),
          q_(queues),
          declared_(declared),
          has_run_(program.num_ops(), 0),
          next_op_(program.num_ops(), -1),
          messages_(program.num_channels()),
          signals_(program.num_channels()),
          on_message_(program.num_channels()),
          on_signal_(program.num_channels()),
          on_place_(program.num_channels()),
          on_op_(program.dep.empty() ? 0 : program.num_ops()),
          next_queue_(queues.size(), -1),
          is_ready_(queues.size(), 1),
          is_full_(queues.size(), 0),
          is_listed_(queues.size(), 0),
          calls_(program.collective.size()) {
        run_.order.reserve(program.num_ops());
        run_.matched.assign(program.num_ops(), -1);
        run_.done.assign(queues.size(), 0);
        for (std::int32_t queue = 0; queue < queues.size(); ++queue) ready_.push_back(queue);
        for (std::size_t call = 0; call < calls_.size(); ++call) {
            const std::int32_t size = p_.group_size(static_cast<std::int32_t>(call));
            calls_[call].arrived.resize(size);
            for (std::int32_t i = 0; i < size; ++i) calls_[call].place[p_.group[p_.group_start[call] + i]] = i;
        }
    }

    Run operator()() {
        do {
            while (!ready_.empty()) {
                const std::int32_t queue = ready_.front();
                ready_.pop_front();
                is_ready_[queue] = 0;
                advance(queue);
            }
        } while (!declared_ && deepen());
        run_.complete = static_cast<std::int32_t>(run_.order.size()) == p_.num_ops();
        for (const auto* lists : {&messages_, &signals_})
            for (const List& list : *lists)
                if (run_.unmatched < 0) run_.unmatched = list.head;
        return std::move(run_);
    }

  private:
    // Deepens every channel by one place if a queue waits for a full one; else returns false.
    bool deepen() {
        std::vector<std::int32_t> full;
        for (const std::int32_t queue : listed_) {
            is_listed_[queue] = 0;
            if (is_full_[queue]) full.push_back(queue);
        }
        listed_.clear();
        if (full.empty()) return false;
        ++run_.depth;
        std::sort(full.begin(), full.end());
        for (const std::int32_t queue : full) on_place_[p_.chan_out[head(queue)]] = {};
        for (const std::int32_t queue : full) wake(queue);
        return true;
    }

    std::int32_t head(std::int32_t queue) const { return q_.rows[q_.start[queue] + run_.done[queue]]; }

    void advance(std::int32_t queue) {
        const std::int64_t length = q_.start[queue + 1] - q_.start[queue];
        while (run_.done[queue] < length) {
            const std::int32_t op = head(queue);
            if (List* event = missing(queue, op)) {
                event->push(next_queue_, queue);
                return;
            }
            if (p_.kind[op] != kCollective)
                finish(op);
            else if (!join(op))
                return;
        }
    }

    // The list of queues asleep on the event that `op` waits for; null if the op may run.
    List* missing(std::int32_t queue, std::int32_t op) {
        for (std::int64_t i = p_.dep_start[op]; i < p_.dep_start[op + 1]; ++i)
            if (!has_run_[p_.dep[i]]) return &on_op_[p_.dep[i]];
        const std::uint8_t kind = p_.kind[op];
        if (receives(kind) && messages_[p_.chan_in[op]].size == 0) return &on_message_[p_.chan_in[op]];
        if (kind == kWait && signals_[p_.chan_in[op]].size == 0) return &on_signal_[p_.chan_in[op]];
        if (!sends(kind)) return nullptr;
        const std::int32_t out = p_.chan_out[op];
        if (messages_[out].size < (declared_ ? p_.chan_depth[out] : run_.depth)) return nullptr;
        is_full_[queue] = 1;
        if (!is_listed_[queue]) listed_.push_back(queue);
        is_listed_[queue] = 1;
        return &on_place_[out];
    }

    void finish(std::int32_t op) {
        const std::uint8_t kind = p_.kind[op];
        if (receives(kind)) {
            run_.matched[op] = messages_[p_.chan_in[op]].pop(next_op_);
            happened(on_place_[p_.chan_in[op]]);
        } else if (kind == kWait) {
            run_.matched[op] = signals_[p_.chan_in[op]].pop(next_op_);
        }
        if (sends(kind)) {
            messages_[p_.chan_out[op]].push(next_op_, op);
            happened(on_message_[p_.chan_out[op]]);
        } else if (kind == kSignal) {
            signals_[p_.chan_out[op]].push(next_op_, op);
            happened(on_signal_[p_.chan_out[op]]);
        }
        ran(op);
    }

    void ran(std::int32_t op) {
        has_run_[op] = 1;
        run_.order.push_back(op);
        ++run_.done[q_.queue_of[op]];
        if (!on_op_.empty()) happened(on_op_[op]);
    }

    bool join(std::int32_t op) {
        Calls& calls = calls_[p_.call[op]];
        auto& arrived = calls.arrived[calls.place.at(p_.rank[op])];
        const std::size_t number = arrived.size();
        arrived.push_back(op);
        if (calls.count.size() == number) calls.count.push_back(0);
        if (++calls.count[number] < static_cast<std::int32_t>(calls.arrived.size())) return false;
        const auto seat = static_cast<std::int32_t>(run_.seats.size());
        for (const auto& ops : calls.arrived) run_.seats.push_back(ops[number]);
        for (const auto& ops : calls.arrived) {
            run_.matched[ops[number]] = seat;
            ran(ops[number]);
            if (ops[number] != op) wake(q_.queue_of[ops[number]]);
        }
        return true;
    }

    void happened(List& sleepers) {
        std::int32_t queue = sleepers.head;
        sleepers = {};
        while (queue >= 0) {
            const std::int32_t next = next_queue_[queue];
            wake(queue);
            queue = next;
        }
    }

    void wake(std::int32_t queue) {
        is_full_[queue] = 0;
        if (is_ready_[queue]) return;
        is_ready_[queue] = 1;
        ready_.push_back(queue);
    }

    const Program& p_;
    const Queues& q_;
    const bool declared_;
    Run run_;
    std::vector<std::uint8_t> has_run_;
    std::vector<std::int32_t> next_op_;
    std::vector<List> messages_, signals_;                         // ops, by channel
    std::vector<List> on_message_, on_signal_, on_place_, on_op_;  // queues asleep, by channel or op
    std::vector<std::int32_t> next_queue_;
    std::vector<std::uint8_t> is_ready_, is_full_, is_listed_;
    std::vector<std::int32_t> listed_;  // queues that waited for a full channel since the last deepening
    std::deque<std::int32_t> ready_;
    std::vector<Calls> calls_;
};

}  // namespace

Queues::Queues(const Program& p) : rows(p.num_ops()), queue_of(p.num_ops()), position(p.num_ops()) {
    const auto key = [&](std::int32_t op) { return std::int64_t{p.rank[op]} * p.num_lanes + p.lane[op]; };
    std::iota(rows.begin(), rows.end(), 0);
    const auto less = [&](std::int32_t a, std::int32_t b) { return key(a) < key(b); };
    if (!std::is_sorted(rows.begin(), rows.end(), less)) std::stable_sort(rows.begin(), rows.end(), less);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i == 0 || key(rows[i]) != key(rows[i - 1])) start.push_back(static_cast<std::int64_t>(i));
        queue_of[rows[i]] = static_cast<std::int32_t>(start.size()) - 1;
        position[rows[i]] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) - start.back());
    }
    start.push_back(static_cast<std::int64_t>(rows.size()));
}

Run run_greedily(const Program& program, const Queues& queues, bool declared) {
    return Greedy(program, queues, declared)();
}

}  // namespace dovetail::ir
