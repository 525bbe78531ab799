"""collectives: tune a collective: probe → predict → measure against the MPI library's call → selection table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dovetail.collective.operators import CollectiveOperator
from dovetail.core import OperatorError, RunError, Say
from dovetail.ir import Operator, Schedule
from dovetail.machine import Machine
from dovetail.planner.costs import Costs, Scored
from dovetail.planner.search import ranked_schedules
from dovetail.planner.shortlist import MOST, shortlist
from dovetail.run.executor import Executor, executor_on
from dovetail.run.options import MPI, SHARED
from dovetail.store.machines import machine_item
from dovetail.store.selection import LEVELS, Choice, Point, Row, Selection, rows_of, save_selection
from dovetail.tuner.baselines import Compared, compare, level_note
from dovetail.tuner.contest import FINALISTS, Contest, Judged, contest, fastest
from dovetail.tuner.doubts import contradicted_whole, note_doubts
from dovetail.tuner.machines import hosts_of, machine_of
from dovetail.tuner.measure import Entry
from dovetail.tuner.tune import fresh_seed

SCHEMA = "dovetail.collective_tune/1"
ALONE, MANY, BESIDE = 0.5, 0.2, 0.3  # of the budget: calls of one thread, of any thread, the library's own program


@dataclass(frozen=True)
class TunedCollective:
    """Result of tuning one collective: the contest at each size, the selection table, and the files written.

    On ranks of MPI, `contest` is at MPI_THREAD_SERIALIZED, `at_multiple` at MPI_THREAD_MULTIPLE, and `compared` has by
    bytes the library's own C program beside ours (see `tuner.baselines`).
    """

    contest: Contest
    selection: Selection
    ranks: int
    machine: Machine
    files: tuple[Path, ...]
    seed: int
    notes: tuple[str, ...] = ()
    at_multiple: Contest | None = None
    compared: Mapping[int, Compared] = field(default_factory=dict)

    @property
    def is_wrong(self) -> bool:
        """Return whether any schedule computed wrong elements."""
        judged = (*self.contest.judged, *(self.at_multiple.judged if self.at_multiple else ()))
        return any(each.wrong for each in judged)

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field and one row per size; seconds and bytes."""
        operator = _collective(self.contest.judged[0].entry.operator)
        head = {"collective": operator.name, "ranks": self.ranks, "nodes": operator.nodes, "dtype": operator.dtype}
        about = {"machine": self.machine.name, "facts": self.contest.facts, "seed": self.seed}
        rows = [row_of(each) | self._beside(point_of(each).num_bytes) for each in self.contest.judged]
        files = [str(path) for path in self.files]
        return {"schema": SCHEMA, **head, "rows": rows, "files": files, **about, "notes": list(self.notes)}

    def _beside(self, num_bytes: int) -> dict[str, Any]:
        """What was found beside the contest at one size: the library's own program, programs of many threads."""
        judged = self.at_multiple.judged if self.at_multiple else ()
        many = [row_of(each) for each in judged if point_of(each).num_bytes == num_bytes]
        found = self.compared.get(num_bytes)
        return {"beside": found and found.to_json(), "at_multiple": many[0] if many else None}


def tune_collective(
    operators: Sequence[CollectiveOperator],
    ranks: int,
    *,
    out: Path | str = "dovetail-tune",
    executor: Executor | None = None,
    machine: Machine | None = None,
    rounds: int = 9,
    budget_s: float = 60.0,
    fresh: bool = False,
    seed: int | None = None,
    say: Say | None = None,
) -> TunedCollective:
    """Measure which algorithm of a collective is the fastest at each size, and save the choices as a table.

    Later collectives on arrays follow the table.

    Parameters
    ----------
    operators : sequence of CollectiveOperator
        One collective at several sizes (see `CollectiveOperator.points`).
    out : path
        Folder for `selection.json`. The cache gets a copy.
    rounds : int
        Rounds of each final.
    ranks, executor, machine, budget_s, fresh, seed, say
        As in `tune`.

    Returns
    -------
    TunedCollective
        The contest at each size, the selection table, and the files written.

    Raises
    ------
    OperatorError
        If there are no sizes, or the collective cannot run on these ranks.
    RunError
        If a rank fails.
    """
    place, (runner, seed, notify) = Path(out), prepared(operators, ranks, executor, seed, say)
    runner = runner.in_folder(place / "runs")
    base = machine or machine_of(runner, ranks, fresh=fresh, say=notify)  # executor → machine, cached
    entries, notes = entries_of(operators, base, ranks, shared=runner.shares_memory)  # → predicted, by size
    about: dict[str, Any] = {"rounds": rounds, "seed": seed, "say": notify}
    single, share = runner.at_level("serialized"), ALONE if runner.starts_mpi else 1.0
    found = contest(entries, single, budget_s=share * budget_s, **about)  # → measured interleaved
    many, more = _at_multiple(found, runner, budget_s=MANY * budget_s, **about)  # → also for programs of many threads
    library, chosen = found.facts["mpi"], [(each.entry, each.schedule, each.taken.median_s) for each in found.judged]
    beside, said = compare(chosen, single, library, budget_s=BESIDE * budget_s, **about)  # → the library's own program
    table = selection_of(found, many)  # → ranges of sizes
    kept = save_selection(table, found.facts["mpi"], hosts_of(found.facts, ranks))
    files = tuple(filter(None, (kept, table.save(place / "selection.json"))))
    path = None if machine else machine_item(runner.launched_by, ranks)
    by_mpi = [each for each in found.judged if Choice.of(each.schedule).transport == MPI]
    wrong = [each for judged in by_mpi for each in contradicted_whole(judged, base, _called(judged))]
    doubts = note_doubts(wrong, {each.side: path for each in wrong})
    remarks = (*notes, *found.notes, *more, *said, *level_note(beside, library), *doubts)
    return TunedCollective(found, table, ranks, base, files, seed, remarks, many, beside)


def prepared(
    operators: Sequence[CollectiveOperator], ranks: int, executor: Executor | None, seed: int | None, say: Say | None
) -> tuple[Executor, int, Say]:
    """Return executor, seed and `say`, or their defaults. Raise OperatorError for ranks that an operator cannot use."""
    for operator in operators:
        operator.check_ranks(ranks)
    return executor or executor_on(), fresh_seed(seed), say or (lambda what, done: None)


def _at_multiple(found: Contest, runner: Executor, **about: Any) -> tuple[Contest | None, tuple[str, ...]]:
    """Return the contest of what was fastest, at MPI_THREAD_MULTIPLE; None where ranks are no processes of MPI."""
    if not runner.starts_mpi:
        return None, ()
    entries = []
    for each in found.judged:
        best = fastest(each.tried, each.entry.serial)[:FINALISTS]
        predicted = {schedule: each.entry.predicted.get(schedule, each.tried[schedule]) for schedule in best}
        entries.append(replace(each.entry, predicted=predicted))
    try:
        many = contest(entries, runner.at_level("multiple"), **about)
    except RunError as error:
        return None, (f"Not measured at MPI_THREAD_MULTIPLE: {error.what}.",)
    return many, tuple(f"At MPI_THREAD_MULTIPLE: {text}" for text in many.notes)


def _called(judged: Judged) -> tuple[str, str]:
    """Return the names of the library's call and of the schedule taken, at one size."""
    return f"{judged.entry.name} by the library", f"{judged.entry.name} by {judged.schedule.family}"


def entries_of(
    operators: Sequence[CollectiveOperator], machine: Machine, ranks: int, *, shared: bool = False
) -> tuple[list[Entry], tuple[str, ...]]:
    """Return an entry per size, smallest first, with the schedules worth measuring; and notes for the user.

    `shared`: those of ranks on one host through its memory, too.
    """
    if not operators:
        raise OperatorError("no sizes to tune for", hint="give at least one number of bytes")
    found, notes = dict[int, Entry](), dict[str, None]()
    for operator in sorted(operators, key=lambda operator: operator.num_bytes):
        costs, remarks = Costs.of(operator, machine, ranks, extrapolate=True)
        notes |= dict.fromkeys(remarks)
        resolved = _collective(costs.operator)
        if resolved.num_bytes not in found:
            ranked = ranked_schedules(costs)
            predicted = {each.schedule: each.predicted_s for each in shortlist(ranked)}
            if shared and resolved.nodes == 1:
                predicted |= through_memory(ranked, replace(costs, machine=machine.shared))
                predicted = dict(sorted(predicted.items(), key=lambda pair: pair[1]))
            found[resolved.num_bytes] = Entry(resolved.title, resolved, ranks, resolved.serial(ranks), predicted)
    return list(found.values()), tuple(notes)


def through_memory(ranked: Sequence[Scored], costs: Costs) -> dict[Schedule, float]:
    """Return the best predicted algorithms through shared memory, each by its default schedule, with their seconds.

    `ranked`: schedules by MPI's messages. `costs`: of the machine with the costs of shared memory.
    """
    plain = (each.schedule for each in ranked if not each.schedule.is_serial)
    defaults = [each for each in plain if Choice.of(each) == Choice(each["algorithm"])]
    scored = sorted(costs.score(defaults), key=lambda each: each.predicted_s)[:MOST]
    return {each.schedule.with_parameters(transport=SHARED): each.predicted_s for each in scored}


def selection_of(found: Contest, many: Contest | None = None) -> Selection:
    """Return the choices as ranges of sizes. Rows of a reducing collective hold for the measured dtype only.

    `many`: the contest for programs at MPI_THREAD_MULTIPLE. Without one, rows serve programs of any level.
    """
    entry = found.judged[0].entry
    operator = _collective(entry.operator)
    dtype, rows = operator.dtype if operator.reduces else "", list[Row]()
    for level, each in zip(LEVELS if many else ("",), (found, many), strict=False):
        picked = [(Choice.of(judged.schedule), point_of(judged)) for judged in (each.judged if each else ())]
        rows += rows_of(operator.name, entry.ranks, operator.nodes or 1, picked, dtype, level)
    return Selection({**found.facts, "dtype": operator.dtype}, tuple(rows))


def point_of(judged: Judged) -> Point:
    """Return the measurement at one size."""
    taken, predicted_s = judged.taken, judged.entry.predicted.get(judged.schedule)
    num_bytes = _collective(judged.entry.operator).num_bytes
    return Point(num_bytes, taken.median_s, judged.serial.median_s, predicted_s, taken.spread)


def row_of(judged: Judged) -> dict[str, Any]:
    """Return the JSON row of one size: the choice, its seconds, and all measured schedules, fastest first."""
    predicted, point = judged.entry.predicted, point_of(judged)
    rivals = [
        {**Choice.of(schedule)._asdict(), "predicted_s": predicted.get(schedule), "measured_s": seconds}
        for schedule, seconds in sorted(judged.tried.items(), key=lambda item: item[1])
    ]
    taken = Choice.of(judged.schedule)._asdict()
    head = {"num_bytes": point.num_bytes, **taken, **point._asdict(), "speedup": judged.speedup}
    wrong = {str(Choice.of(schedule)): count for schedule, count in judged.wrong.items()}
    checks = {"max_rel_error": judged.taken.max_rel_error, "wrong": wrong, "disturbed": judged.disturbed}
    return {**head, **checks, **judged.load.to_json(), "rivals": rivals}


def collectives_of(kind: type[Operator], **asked: Any) -> list[CollectiveOperator]:
    """Return operators of a class, one for each size asked for (see `CollectiveOperator.points`)."""
    return [_collective(operator) for operator in kind.points(**asked)]


def _collective(operator: Operator) -> CollectiveOperator:
    assert isinstance(operator, CollectiveOperator)
    return operator
