"""advise: find changes to a traced program, and predict the effect of each by a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from dovetail.advise import balance_remedies as remedies_balance
from dovetail.advise import order_remedies as remedies_order
from dovetail.advise import traffic_remedies as remedies_traffic
from dovetail.advise import waiting_remedies as remedies_waiting
from dovetail.advise.remedy import KINDS, Remedy, Site, duration
from dovetail.advise.replay import makespan_s, with_curve
from dovetail.advise.spread import Cost, chance_s
from dovetail.advise.thread_level import level_notes
from dovetail.machine import Machine
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.excerpts import excerpts
from dovetail.trace.analysis.replay_model import ReplayModel, model_of, model_with
from dovetail.trace.analysis.sites import call_sites

SCHEMA = "dovetail.advice/1"
LEAST_SHARE = 0.01  # a remedy is reported if it saves at least this share of the makespan
MOST_ROWS = 1 << 18  # a longer trace is represented by excerpts
EXCERPTS, EXCERPT_ROWS = 8, 20_000  # number of excerpts, and rows of each
UNSURE = 0.7  # weight, in the ranking, of changes of which the trace does not show whether they are possible
UNSURE_KINDS = ("barrier", "seldom", "imbalance")
MUCH_THE_SAME = 0.2  # savings that differ by less than this share are ranked by effort
SOURCES: tuple[Callable[[ReplayModel, Site], Iterator[Remedy]], ...] = (
    *(remedies_waiting.overlap, remedies_waiting.nonblocking, remedies_waiting.sends, remedies_waiting.post_earlier),
    *(remedies_waiting.progress, remedies_waiting.collective_progress, remedies_waiting.sender_progress),
    *(remedies_traffic.merge, remedies_traffic.block, remedies_traffic.temporal_block),
    *(remedies_balance.balance, remedies_balance.slow_link),
    *(remedies_order.barrier, remedies_order.any_order, remedies_order.standard, remedies_order.send_and_receive),
    *(remedies_order.poll, remedies_order.seldom),
)


@dataclass(frozen=True)
class Finding:
    """One change to a traced program.

    Attributes
    ----------
    kind : str
        One of `advise.remedy.KINDS`.
    where : str
        Call site, as function, file and line.
    evidence : str
        What the trace shows, with figures.
    action : str
        What to change.
    saves_s : float
        Seconds of makespan that a replay with the change saves.
    """

    kind: str
    where: str
    evidence: str
    action: str
    saves_s: float

    def to_json(self) -> dict[str, Any]:
        """Return all attributes by name."""
        return {name: getattr(self, name) for name in ("kind", "where", "evidence", "action", "saves_s")}


@dataclass(frozen=True)
class Advice:
    """Findings about a traced program.

    Attributes
    ----------
    findings : tuple of Finding
        Changes whose saving exceeds the run-to-run spread, ranked by saving, then by effort.
    traced_s, replayed_s : float
        Makespan of the trace, and of a replay of the unmodified trace. For several runs: medians.
    doubtful : tuple of Finding
        Changes that save less than the difference between the given runs.
    spread_s : float
        Run-to-run spread: between the given runs, or estimated from a single run (`advise.spread`).
    num_runs : int
        Number of given runs.
    num_rows, read_rows : int
        Rows of the traces, and how many of them were replayed: fewer if excerpts represent a long trace.
    notes : tuple of str
        Further advice, whose effect no replay predicts.
    """

    findings: tuple[Finding, ...]
    traced_s: float
    replayed_s: float
    doubtful: tuple[Finding, ...] = ()
    spread_s: float = 0.0
    num_runs: int = 1
    num_rows: int = 0
    read_rows: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; findings as objects."""
        times = {"traced_s": self.traced_s, "replayed_s": self.replayed_s, "spread_s": self.spread_s}
        findings, doubtful = ([it.to_json() for it in those] for those in (self.findings, self.doubtful))
        rows = {"rows": self.num_rows, "replayed_rows": self.read_rows}
        found = {"findings": findings, "doubtful": doubtful, "notes": list(self.notes)}
        return {"schema": SCHEMA, **times, "runs": self.num_runs, **rows, **found}


def advise(trace: Trace | TraceFile, machine: Machine | None = None, again: Sequence[Trace | TraceFile] = ()) -> Advice:
    """Return what to change in a traced program, and the seconds that each change saves by a replay of the trace.

    Parameters
    ----------
    trace : Trace or TraceFile
        One run. A trace on disk with more than `MOST_ROWS` rows is represented by `EXCERPTS` excerpts.
    machine : Machine, optional
        Its cost curves give the times of changed messages. Default: a curve through the traced messages.
    again : sequence of Trace or TraceFile
        Further runs of the same program. Savings and makespans are then medians over the runs.

    Returns
    -------
    Advice
        Each remedy that saves at least 1 % of the makespan, ranked by seconds, then by effort.

    Notes
    -----
    Unchanged messages and work keep their traced times. The tracer's overhead in calls that a remedy removes does not
    count as saved. A trace does not show whether work depends on a message; check this before moving work ahead of it.
    """
    found = together([advise_run(run, machine) for run in (trace, *again)])
    return replace(found, notes=level_notes(trace))


def advise_run(trace: Trace | TraceFile, machine: Machine | None = None) -> Advice:
    """Advise on one run, with its estimated run-to-run spread."""
    if isinstance(trace, TraceFile):
        if trace.num_rows > MOST_ROWS:
            return _from_excerpts(trace, machine)
        trace = trace.read()
    found = _advise_part(trace, model_of(trace), machine)
    return replace(found, num_rows=trace.num_rows, read_rows=trace.num_rows)


def _advise_part(trace: Trace, model: ReplayModel, machine: Machine | None) -> Advice:
    where = _Places(trace)
    spread_s = chance_s(trace, model, where.site)
    if machine is not None:
        model = with_curve(model, machine)
    return replace(advise_model(model, where.site, where.of, Cost(trace)), spread_s=spread_s)


def _from_excerpts(file: TraceFile, machine: Machine | None) -> Advice:
    """Advise by excerpts of a long trace; each excerpt's savings are scaled to the time that it represents."""
    pieces = excerpts(file, EXCERPTS, EXCERPT_ROWS)
    parts = [(it.trace.num_rows, _advise_part(it.trace, model_with(*it), machine)) for it in pieces]
    traced_s = max(c.end_s for c in file.chunks) - min(c.start_s for c in file.chunks)
    times = [(rows, part, traced_s / len(parts) / part.traced_s) for rows, part in parts if part.traced_s > 0]
    seen: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for _, part, factor in times:
        for finding in part.findings:
            evidence = f"{finding.evidence} (in an excerpt of {duration(part.traced_s)})"
            whole = replace(finding, saves_s=finding.saves_s * factor, evidence=evidence)
            seen[finding.kind, finding.where].append(whole)
    most = [max(those, key=lambda it: it.saves_s) for those in seen.values()]
    found = [replace(it, saves_s=sum(x.saves_s for x in seen[it.kind, it.where])) for it in most]
    replayed_s = sum(part.replayed_s * factor for _, part, factor in times)
    spread_s = sum(part.spread_s**2 * factor for _, part, factor in times) ** 0.5
    kept = tuple(_ranked([it for it in found if it.saves_s >= LEAST_SHARE * replayed_s]))
    rows = sum(rows for rows, _, _ in times)
    return Advice(kept, traced_s, replayed_s, spread_s=spread_s, num_rows=file.num_rows, read_rows=rows)


def advise_model(
    model: ReplayModel, site: Site, where: Callable[[tuple[int, ...]], str], cost: Cost | None = None
) -> Advice:
    """Advise on a model. `site(row)` and `where(rows)` name call sites; `cost` is the tracer's overhead by call."""
    replayed = makespan_s(model)
    found, cost = [], cost or Cost()
    for source in SOURCES:
        for remedy in source(model, site):
            saved = replayed - makespan_s(remedy.changed) - cost.of_removed_s(model, remedy.changed)
            if saved >= LEAST_SHARE * replayed:
                found.append(Finding(remedy.kind, where(remedy.rows), remedy.evidence, remedy.action, saved))
    return Advice(tuple(_ranked(found)), model.makespan_s, replayed)


def together(runs: Sequence[Advice]) -> Advice:
    """Combine runs of one program by medians. A finding that a run lacks counts as 0 s there."""
    traced_s, replayed_s = (median(getattr(run, name) for run in runs) for name in ("traced_s", "replayed_s"))
    alone = runs[0].spread_s
    spread_s = max(run.traced_s for run in runs) - min(run.traced_s for run in runs) if len(runs) > 1 else alone
    seen: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for run in runs:
        for finding in run.findings:
            seen[finding.kind, finding.where].append(finding)
    lacking = {key: [0.0] * max(len(runs) - len(those), 0) for key, those in seen.items()}
    saves = {key: median([*(it.saves_s for it in those), *lacking[key]]) for key, those in seen.items()}
    all_of = [replace(those[0], saves_s=saves[key]) for key, those in seen.items()]
    ranked = [it for it in _ranked(all_of) if it.saves_s >= LEAST_SHARE * replayed_s]
    least_s = spread_s if len(runs) > 1 else 0.0  # the spread estimated from one run is too uncertain to hide findings
    sure, doubtful = (tuple(it for it in ranked if (it.saves_s > least_s) == is_sure) for is_sure in (True, False))
    rows = sum(run.num_rows for run in runs), sum(run.read_rows for run in runs)
    return Advice(sure, traced_s, replayed_s, doubtful, spread_s, len(runs), *rows)


def _ranked(found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings, largest saving first; of findings with nearly equal savings, the least effort first.

    A change of which the trace does not show whether it is possible counts with UNSURE of its saving.
    """
    worth = {id(finding): finding.saves_s * (UNSURE if finding.kind in UNSURE_KINDS else 1) for finding in found}
    rest = sorted(found, key=lambda finding: -worth[id(finding)])
    while rest:
        near = [finding for finding in rest if worth[id(finding)] >= (1 - MUCH_THE_SAME) * worth[id(rest[0])]]
        best = min(near, key=lambda finding: KINDS.index(finding.kind))
        yield best
        rest.remove(best)


class _Places:
    """Call sites of all rows of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = np.flatnonzero(trace.columns["part"] == 0)
        self.sites = dict(zip(rows.tolist(), call_sites(trace, rows), strict=True))

    def site(self, row: int) -> str:
        return self.sites.get(row) or self.trace.names[int(self.trace.columns["name"][row])]

    def of(self, rows: tuple[int, ...]) -> str:
        """Return the sites and the names of some calls, at most three of each."""
        known = [row for row in rows if row >= 0]
        names = dict.fromkeys(self.trace.names[int(self.trace.columns["name"][row])] for row in known)
        places = dict.fromkeys(place for row in known if (place := self.sites.get(row, "")))
        return ", ".join([*list(places)[:3], *list(names)[:3]])
