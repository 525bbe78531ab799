"""collectives: tune a collective: probe → predict → run interleaved with the library's call → table of the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.collective.operators import CollectiveOperator
from dovetail.core import OperatorError, Say
from dovetail.ir import Operator, Schedule
from dovetail.machine import Machine
from dovetail.planner.costs import Costs, Scored
from dovetail.planner.search import ranked_schedules
from dovetail.planner.shortlist import MOST, shortlist
from dovetail.run.executor import Executor, executor_on
from dovetail.run.options import MPI, SHARED
from dovetail.store.machines import machine_item
from dovetail.store.selection import Choice, Point, Selection, rows_of, save_selection
from dovetail.tuner.contest import Contest, Judged, contest
from dovetail.tuner.doubts import contradicted_whole, note_doubts
from dovetail.tuner.machines import hosts_of, machine_of
from dovetail.tuner.measure import Entry
from dovetail.tuner.tune import fresh_seed

SCHEMA = "dovetail.collective_tune/1"


@dataclass(frozen=True)
class TunedCollective:
    """Result of tuning one collective: the contest at each size, the selection table, and the files written."""

    contest: Contest
    selection: Selection
    ranks: int
    machine: Machine
    files: tuple[Path, ...]
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether anything computed wrong elements."""
        return any(each.wrong for each in self.contest.judged)

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field and one row per size; seconds and bytes."""
        operator = _collective(self.contest.judged[0].entry.operator)
        head = {"collective": operator.name, "ranks": self.ranks, "nodes": operator.nodes, "dtype": operator.dtype}
        about = {"machine": self.machine.name, "facts": self.contest.facts, "seed": self.seed}
        rows = [row_of(each) for each in self.contest.judged]
        files = [str(path) for path in self.files]
        return {"schema": SCHEMA, **head, "rows": rows, "files": files, **about, "notes": list(self.notes)}


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
    """Choose by measurement the fastest algorithm of a collective at each of its sizes.

    Saves the choices as a table, which later collectives on arrays follow.

    Parameters
    ----------
    operators : sequence of CollectiveOperator
        One collective at several sizes (see `CollectiveOperator.points`).
    ranks : int
        Number of ranks.
    out : path
        Folder for `selection.json`; the cache has it, too.
    executor : Executor, optional
        Runs the ranks. Default: MPI.
    machine : Machine, optional
        Machine to predict for. Default: probe it, or use the cached one.
    rounds : int
        Rounds of each final.
    budget_s : float
        Approximate seconds that measuring may take.
    fresh, seed, say
        As in `tune`.

    Raises
    ------
    OperatorError
        If there are no sizes, or the collective cannot run on these ranks.
    RunError
        If a rank fails.
    """
    for operator in operators:
        operator.check_ranks(ranks)  # before anything runs
    notify, seed, place = say or (lambda what, done: None), fresh_seed(seed), Path(out)
    runner = (executor or executor_on()).in_folder(place / "runs")
    base = machine or machine_of(runner, ranks, fresh=fresh, say=notify)  # executor → machine, cached
    entries, notes = entries_of(operators, base, ranks, shared=runner.shares_memory)  # → predicted, by size
    found = contest(entries, runner, rounds=rounds, budget_s=budget_s, seed=seed, say=notify)  # → measured interleaved
    table = selection_of(found)  # → ranges of sizes
    kept = save_selection(table, found.facts["mpi"], hosts_of(found.facts, ranks))
    files = tuple(filter(None, (kept, table.save(place / "selection.json"))))
    path = None if machine else machine_item(runner.launched_by, ranks)
    by_mpi = [each for each in found.judged if Choice.of(each.schedule).transport == MPI]
    wrong = [each for judged in by_mpi for each in contradicted_whole(judged, base, _called(judged))]
    doubts = note_doubts(wrong, {each.side: path for each in wrong})
    return TunedCollective(found, table, ranks, base, files, seed, (*notes, *found.notes, *doubts))


def _called(judged: Judged) -> tuple[str, str]:
    """Names of the library's call of a size, and of the schedule taken."""
    return f"{judged.entry.name} by the library", f"{judged.entry.name} by {judged.schedule.family}"


def entries_of(
    operators: Sequence[CollectiveOperator], machine: Machine, ranks: int, *, shared: bool = False
) -> tuple[list[Entry], tuple[str, ...]]:
    """Return an entry per size, smallest first, with the schedules worth measuring; and notes for the user.

    `shared`: those of ranks on one host through its memory, too.
    """
    if not operators:
        raise OperatorError("no sizes to choose for", hint="at least one number of bytes")
    found, notes = dict[int, Entry](), dict[str, None]()
    for operator in sorted(operators, key=lambda operator: operator.num_bytes):
        costs, remarks = Costs.of(operator, machine, ranks, extrapolate=True)
        notes |= dict.fromkeys(remarks)
        resolved = _collective(costs.operator)
        if resolved.num_bytes not in found:
            ranked = ranked_schedules(costs)
            predicted = {each.schedule: each.predicted_s for each in shortlist(ranked)}
            if shared and resolved.nodes == 1:
                predicted |= through_memory(ranked)
            found[resolved.num_bytes] = Entry(resolved.title, resolved, ranks, resolved.serial(ranks), predicted)
    return list(found.values()), tuple(notes)


def through_memory(ranked: Sequence[Scored]) -> dict[Schedule, float]:
    """Each algorithm's plain schedule through shared memory, with the seconds predicted of the library's messages.

    These are too high, for no model of this transport is fitted: they only set the order of measuring.
    """
    plain: dict[str, Scored] = {}
    for each in ranked:
        if not each.schedule.is_serial and Choice.of(each.schedule) == Choice(each.schedule["algorithm"]):
            plain.setdefault(each.schedule["algorithm"], each)
    first = sorted(plain.values(), key=lambda each: each.predicted_s)[:MOST]
    return {each.schedule.with_parameters(transport=SHARED): each.predicted_s for each in first}


def selection_of(found: Contest) -> Selection:
    """Return the choices as ranges of sizes. Rows of a reducing collective hold for the measured dtype only."""
    entry = found.judged[0].entry
    operator = _collective(entry.operator)
    picked = [(Choice.of(each.schedule), point_of(each)) for each in found.judged]
    dtype = operator.dtype if operator.reduces else ""
    rows = rows_of(operator.name, entry.ranks, operator.nodes or 1, picked, dtype)
    return Selection({**found.facts, "dtype": operator.dtype}, rows)


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
    """Return a class's operators, one of each size that is asked for."""
    return [_collective(operator) for operator in kind.points(**asked)]


def _collective(operator: Operator) -> CollectiveOperator:
    assert isinstance(operator, CollectiveOperator)
    return operator
