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

// Notes the slice of the first slot that breaks a post-condition of the program or differs from the reference.
void note_slices(const Runs& runs, const Layout& layout, Verdict& verdict) {
    const Program& p = runs.program;
    const Wrong& wrong = verdict.results.wrong[0];
    const Difference& differs = verdict.results.differs;
    if (wrong.post >= 0) {
        const Region region = p.posts.region[wrong.post], cells = layout.cells(region);
        cells.each([&](std::int64_t place, std::int64_t cell) {
            if (layout.first_slot(region, place) != wrong.place) return true;
            verdict.slice = slice(p, runs.run, layout, region.buffer, wrong.rank, cell);
            return false;
        });
    } else if (differs.buffer >= 0) {
        const std::int64_t cell = layout.cell(differs.buffer, differs.slot);
        verdict.slice = slice(p, runs.run, layout, differs.buffer, differs.rank, cell);
        verdict.origin = slice(*runs.reference, *runs.reference_run, layout, differs.buffer, differs.rank, cell);
    }
}

void note_result(const Program& p, const Queues& queues, const Run& run, const Key& key, std::int32_t num_sets,
                 const Program* reference, Verdict& verdict) {
    std::vector<const Program*> programs{&p};
    Run reference_run;
    if (reference != nullptr) {
        programs.push_back(reference);
        reference_run = run_greedily(*reference, Queues(*reference), false);
    }
    const Layout layout(programs);
    verdict.has_result = true;
    verdict.races = find_races(p, queues, run, layout);
    const Runs runs{p, run, reference, &reference_run, verdict.races.any()};
    verdict.results = execute(runs, layout, key, num_sets);
    note_slices(runs, layout, verdict);
}

}  // namespace

Verdict verify(const Program& p, const Key& key, std::int32_t num_sets, const Program* reference) {
    Verdict verdict;
    verdict.unfit = first_unfit(p);
    if (verdict.unfit >= 0) return verdict;
    const Queues queues(p);
    Run run = run_greedily(p, queues, false);
    verdict.complete = run.complete;
    verdict.depth = run.depth;
    verdict.unmatched = run.unmatched;
    note_mismatch(p, run, verdict);
    if (run.complete && verdict.mismatch < 0 && num_sets > 0)
        note_result(p, queues, run, key, num_sets, reference, verdict);
    verdict.done = std::move(run.done);
    const auto least = std::min_element(p.chan_depth.begin(), p.chan_depth.end());
    if (run.complete && least != p.chan_depth.end() && *least < run.depth) {
        Run shallow = run_greedily(p, queues, true);
        verdict.deep_enough = shallow.complete;
        if (!shallow.complete) verdict.done = std::move(shallow.done);
    }
    return verdict;
}

Results ask(const Program& p, const Key& key, std::int32_t num_sets) {
    const Run run = run_greedily(p, Queues(p), false);
    const std::vector<const Program*> programs{&p};
    return execute({p, run}, Layout(programs), key, num_sets);
}

}  // namespace dovetail::ir
