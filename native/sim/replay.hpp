// replay: the makespan of a traced program's model: what `simulate` finds of the Program that dovetail.trace.to_program
// writes of it, without that Program.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dovetail::sim {

enum class StepKind : std::uint8_t { kSend, kRecv, kSent, kReceived, kJoin, kJoined, kOwn, kEnd };
enum class Way : std::uint8_t { kAll, kFromRoot, kToRoot };

// dovetail.trace.analysis.replay_model.Step: own work, then an action on a message or a collective call.
struct ReplayStep {
    double seconds;
    std::int64_t row;
    std::int32_t number;
    StepKind kind;
};

// Columns of dovetail.trace.replay_columns: one entry per message, or per collective call, unless noted.
struct ReplayModel {
    std::vector<std::vector<ReplayStep>> steps;  // by rank
    std::span<const std::int32_t> channel;       // of messages between the same ranks with one key
    std::span<const bool> rendezvous, stalls, held;
    std::span<const double> wire_s, latency_s;
    std::span<const std::int32_t> call, group, rooted, root;  // call: by name and group; rooted: by way and group
    std::span<const std::uint8_t> way;
    std::span<const bool> quiet;
    std::span<const double> seconds;
    std::span<const std::int64_t> group_start;  // group g has the ranks members[group_start[g]:group_start[g + 1]]
    std::span<const std::int32_t> members;
};

// Returns the end of the last op; NaN if ranks wait for one another without end.
double replay_makespan_s(const ReplayModel& model);

}  // namespace dovetail::sim
