// verify: see verify.hpp.
#include "ir/verify.hpp"

#include <algorithm>

#include "ir/bounds.hpp"

namespace dovetail::ir {
namespace {

void note_mismatch(const Program& p, const Run& run, Verdict& verdict) {
    verdict.mismatch = first_mismatch(p, run);
    if (verdict.mismatch < 0) return;
    const auto op = static_cast<std::int32_t>(verdict.mismatch);
    if (p.kind[op] == kCollective) {
        const auto members = run.members(p, op);
        verdict.mismatch_ops.assign(members.begin(), members.end());
    } else {
        verdict.mismatch_ops = {run.matched[op], op};
    }
}

void note_result(const Program& p, const Queues& queues, const Run& run, const Key& key, std::int32_t num_sets,
                 Verdict& verdict) {
    const Layout layout(p);
    verdict.has_result = true;
    verdict.races = find_races(p, queues, run, layout);
    if (num_sets == 0) return;
    verdict.results = execute(p, run, layout, key, num_sets);
    if (verdict.results.wrong.empty() || verdict.results.wrong[0].post < 0) return;
    verdict.slice = slice(p, run, layout, verdict.results.wrong[0]);
}

}  // namespace

Verdict verify(const Program& p, const Key& key, std::int32_t num_sets) {
    Verdict verdict;
    verdict.unfit = first_unfit(p);
    if (verdict.unfit >= 0) return verdict;
    const Queues queues(p);
    Run run = run_greedily(p, queues, false);
    verdict.complete = run.complete;
    verdict.depth = run.depth;
    verdict.unmatched = run.unmatched;
    note_mismatch(p, run, verdict);
    if (run.complete && verdict.mismatch < 0 && num_sets > 0) note_result(p, queues, run, key, num_sets, verdict);
    verdict.done = std::move(run.done);
    const auto least = std::min_element(p.chan_depth.begin(), p.chan_depth.end());
    if (run.complete && least != p.chan_depth.end() && *least < run.depth) {
        Run shallow = run_greedily(p, queues, true);
        verdict.deep_enough = shallow.complete;
        if (!shallow.complete) verdict.done = std::move(shallow.done);
    }
    return verdict;
}

}  // namespace dovetail::ir
