// Symbolic execution: see symbolic.hpp.
#include "ir/symbolic.hpp"

#include "ir/execution.hpp"
#include "ir/induction.hpp"

namespace dovetail::ir {
namespace {

// The first cell of a result that does not hold what the reference wrote to it.
Difference difference(const Runs& runs, const Layout& layout, Execution& own, Execution& reference) {
    const Program &p = runs.program, &r = *runs.reference;
    std::vector<std::uint8_t> written(layout.cells(), 0);
    for (std::int64_t op = 0; op < r.num_ops(); ++op)
        for (std::int64_t i = r.write_start[op]; i < r.write_start[op + 1]; ++i) {
            const Region region = r.write[i];
            const std::int64_t start = layout.start(region.buffer, r.target(op));
            layout.cells(region).each([&](std::int64_t, std::int64_t cell) { return written[start + cell] = 1, true; });
        }
    for (std::int32_t buffer = 0; buffer < p.num_buffers; ++buffer)
        for (std::int32_t rank = 0; rank < p.num_ranks && p.buffer_is_result[buffer]; ++rank) {
            const std::int64_t start = layout.start(buffer, rank), end = layout.end(buffer, rank);
            for (std::int64_t cell = 0; cell < end - start; ++cell)
                if (written[start + cell] && own.read(buffer, rank, cell) != reference.read(buffer, rank, cell))
                    return {buffer, rank, layout.slot(buffer, cell)};
        }
    return {};
}

}  // namespace

Results execute(const Runs& runs, const Layout& layout, const Key& key, std::int32_t num_sets) {
    const Program& p = runs.program;
    Results results;
    results.wrong.resize(num_sets);
    results.cells = layout.cells();
    const bool asks = p.posts.size() > 0;
    if (!asks && runs.reference == nullptr) return results;
    results.by_induction = !asks && !runs.races && is_same_by_induction(runs, layout, key, difference, results.work);
    if (results.by_induction) return results;
    Execution execution(p, runs.run, layout, key, false);
    execution.run();
    results.work += execution.work();
    results.wrong = execution.check(num_sets);
    if (runs.reference == nullptr) return results;
    Execution reference(*runs.reference, *runs.reference_run, layout, key, true);
    reference.run();
    results.work += reference.work();
    results.differs = difference(runs, layout, execution, reference);
    return results;
}

}  // namespace dovetail::ir
