// simulate: discrete-event simulation with the same results as dovetail/sim/reference.py, which explains the rules.
#pragma once

#include <cstdint>
#include <span>

namespace dovetail::sim {

enum State : std::uint8_t {
    kQueued,
    kPartner,
    kTaking,
    kWorking,
    kPlace,
    kLinks,
    kWire,
    kFlight,
    kMeeting,
    kStored,
    kEnded,
};

enum Task : std::uint8_t { kWork, kRecv, kSend, kRecvSend, kPut, kSignal, kWait, kCollective };

// Columns of dovetail.sim.tables.Tables: those of channels and groups are checked there, those of ops here. One entry
// per op unless noted.
struct Tables {
    std::int32_t num_ranks = 0, num_lanes = 0, num_links = 0;
    std::span<const std::uint8_t> task;
    std::span<const std::int32_t> rank, lane, chan_in, chan_out, call;
    std::span<const std::int64_t> dep_start, dep;
    std::span<const bool> computes;                           // per lane
    std::span<const std::int32_t> chan_src, chan_dst, depth;  // per channel
    std::span<const std::int64_t> group_start;
    std::span<const std::int32_t> group;
    std::span<const double> work_s, wire_s, latency_s;
    std::span<const bool> rendezvous;
    std::span<const double> slow_by_net, slow_by_compute;
    std::span<const std::int64_t> route_start, route, uplinks;

    std::int32_t num_ops() const { return static_cast<std::int32_t>(task.size()); }
};

// Per op: when it could start and when it ended (NaN if it never did), and its state.
struct Result {
    std::span<double> start_s, end_s;
    std::span<std::uint8_t> state;
};

// Returns false, having done nothing, if the columns of ops do not fit the other tables.
bool simulate(const Tables& tables, const Result& result);

}  // namespace dovetail::sim
