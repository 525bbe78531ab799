"""advise: find changes to a traced program, and predict the effect of each by a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from dovetail.advise.crowding import crowding, settled
from dovetail.advise.disturbance import disturbance
from dovetail.advise.finding import Finding, counted_s, ranked_by
from dovetail.advise.flood_remedies import FloodCost, flood_cost
from dovetail.advise.places import Places
from dovetail.advise.remedy import CAUSE, LEAST_SHARE, Remedy, Site, duration
from dovetail.advise.replay import changed_s, makespan_s, with_curve
from dovetail.advise.roots import Root, Roots
from dovetail.advise.sources import SOURCES
from dovetail.advise.spread import Cost, chance_s
from dovetail.advise.thread_level import level_notes
from dovetail.advise.unexplained import unexplained
from dovetail.advise.words import hidden_notes, in_words
from dovetail.core.collector import paused
from dovetail.machine import Machine
from dovetail.run.load import Load
from dovetail.trace import Trace, TraceFile
from dovetail.trace.analysis.excerpts import excerpts
from dovetail.trace.analysis.model_of_trace import model_of, model_with
from dovetail.trace.analysis.replay_model import ReplayModel
from dovetail.trace.partial import partial_words

SCHEMA = "dovetail.advice/1"
MOST_ROWS = 1 << 16  # a longer trace is represented by excerpts: its replays would take more than 2 s
EXCERPTS, EXCERPT_ROWS = 8, 8192  # number of excerpts, and rows of each
SUMS = ("saves_s", "bound_s", "disturbed_s")  # fields of a finding that excerpts' sums give
MOST_MAINS = 4  # findings with which later ones are compared, whether they save the same seconds
MODEL_ERROR = 0.1  # share of a trace's time by which its replay may be longer, and savings are still counted from that


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
        Changes that save less than the difference between the given runs, or than `excess_s`.
    spread_s : float
        Run-to-run spread: between the given runs, or estimated from a single run (`advise.spread`).
    excess_s : float
        Seconds by which the replay of the unmodified trace takes longer than the trace: the model then lets ranks wait
        that did not. Findings that save less may be about those waits.
    num_runs : int
        Number of given runs.
    num_rows, read_rows : int
        Rows of the traces, and how many of them were replayed: fewer if excerpts represent a long trace.
    notes : tuple of str
        Further advice, whose effect no replay predicts.
    load : Load
        Shares of the ranks' cores that other programs and the hypervisor took, of the run that lost most.
    disturbed : tuple of str
        Sentences on these shares, if they are too large to trust times.
    crowded : tuple of str
        A sentence if there are more ranks than cores. Savings are then those with a core for each rank.
    """

    findings: tuple[Finding, ...]
    traced_s: float
    replayed_s: float
    doubtful: tuple[Finding, ...] = ()
    spread_s: float = 0.0
    num_runs: int = 1
    excess_s: float = 0.0
    num_rows: int = 0
    read_rows: int = 0
    notes: tuple[str, ...] = ()
    load: Load = field(default_factory=Load)
    disturbed: tuple[str, ...] = ()
    crowded: tuple[str, ...] = ()

    @property
    def least_s(self) -> float:
        """Seconds up to which savings are uncertain."""
        return max(self.spread_s, self.excess_s)

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; findings as objects."""
        times = {"traced_s": self.traced_s, "replayed_s": self.replayed_s, "spread_s": self.spread_s}
        times |= {"excess_s": self.excess_s}
        findings, doubtful = ([it.to_json() for it in those] for those in (self.findings, self.doubtful))
        rows = {"rows": self.num_rows, "replayed_rows": self.read_rows}
        found = {"findings": findings, "doubtful": doubtful, "notes": list(self.notes)}
        found |= {"crowded": list(self.crowded)}
        return {"schema": SCHEMA, **times, "runs": self.num_runs, **rows, **self.load.to_json(), **found}


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
    with paused():  # models are millions of tuples without cycles
        found = together([advise_run(run, machine) for run in (trace, *again)])
    lost = [it for run in (trace, *again) if (it := disturbance(run.meta, run.num_ranks))]
    load, warnings = Load.worst([it.load for it in lost]), max((it.warnings for it in lost), key=len, default=())
    crowds = [cores for run in (trace, *again) if (cores := crowding(run.meta, run.num_ranks)) is not None]
    crowded = max((it.warnings for it in crowds), key=len, default=())
    notes = (*(f"{text}." for text in partial_words(trace.meta)), *level_notes(trace), *hidden_notes(trace))
    notes += max((it.notes for it in crowds), key=len, default=())
    found = replace(found, notes=notes, load=load, disturbed=warnings, crowded=crowded)
    named: Advice = in_words(found, trace.meta.get("words", {}))
    return named


def advise_run(trace: Trace | TraceFile, machine: Machine | None = None) -> Advice:
    """Advise on one run, with its estimated run-to-run spread."""
    if isinstance(trace, TraceFile):
        if trace.num_rows > MOST_ROWS:
            return _from_excerpts(trace, machine)
        trace = trace.read()
    found = _advise_part(trace, model_of(trace), machine)
    return replace(_with_noise(found), num_rows=trace.num_rows, read_rows=trace.num_rows)


def _advise_part(trace: Trace, model: ReplayModel, machine: Machine | None, compares: bool = True) -> Advice:
    where = Places(trace)
    lost = disturbance(trace.meta, trace.num_ranks)
    lost_s = None if lost is None else model.makespan_s * float(lost.shares_lost().max())
    spread_s = chance_s(trace, model, where.site, lost_s)
    calm, left = settled(model, crowding(trace.meta, trace.num_ranks), where.site)
    roots = Roots(trace, where.site, left, model.core_waits if calm is not model else None)
    if machine is not None:
        calm = with_curve(calm, machine)
    found = advise_model(calm, where.site, where.of, Cost(trace), roots, compares)
    excess_s = max(found.replayed_s - found.traced_s, 0.0) if machine is None else 0.0
    return replace(_from_trace(found, excess_s), spread_s=spread_s)


def _from_trace(advice: Advice, excess_s: float) -> Advice:
    """Return the advice with `excess_s`. If that is large, count savings from the trace's time; bounds stay."""
    less_s = excess_s if excess_s > MODEL_ERROR * advice.traced_s else 0.0
    findings = (replace(it, saves_s=max(it.saves_s - less_s, 0.0)) for it in advice.findings)
    return replace(advice, findings=tuple(findings), excess_s=excess_s)


def _with_noise(advice: Advice) -> Advice:
    """Return the advice with low confidence in findings that noise, or others, may have caused."""
    return replace(advice, findings=tuple(_judged(it, advice.least_s) for it in advice.findings))


def _judged(finding: Finding, least_s: float) -> Finding:
    is_sure = counted_s(finding) > least_s and not finding.is_disturbed
    return finding if is_sure else replace(finding, confidence="low")


def _from_excerpts(file: TraceFile, machine: Machine | None) -> Advice:
    """Advise by excerpts of a long trace. Each represents equally many rows; its savings are scaled by their number.

    Excerpts lie evenly among the rows, not in time: time that an excerpt does not show, as of work without calls, stays
    as it is, and none represents more time than its part of the trace takes. Which findings save the same seconds is
    found in the middle excerpt only: it takes as long as all else.
    """
    pieces, floods, seconds = excerpts(file, EXCERPTS, EXCERPT_ROWS)
    traced_s = sum(seconds)
    parts = [
        (it.trace.num_rows, _advise_part(it.trace, model_with(*it), machine, compares=i == len(pieces) // 2))
        for i, it in enumerate(pieces)
    ]
    same = {(it.kind, it.where): it.instead_of for it in parts[len(parts) // 2][1].findings}
    times = [
        (rows, part, min(file.num_rows / len(parts) / rows, part_s / part.traced_s))
        for (rows, part), part_s in zip(parts, seconds, strict=True)
        if part.traced_s > 0
    ]
    seen: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for _, part, factor in times:
        for finding in part.findings:
            evidence = f"{finding.evidence} (in an excerpt of {duration(part.traced_s)})"
            saves_s, bound_s = finding.saves_s * factor, finding.bound_s * factor
            disturbed_s = finding.disturbed_s * factor
            whole = replace(finding, evidence=evidence, saves_s=saves_s, bound_s=bound_s, disturbed_s=disturbed_s)
            seen[finding.kind, finding.where].append(whole)
    most = [max(those, key=lambda it: it.saves_s) for those in seen.values()]
    sums = {key: [sum(getattr(x, name) for x in those) for name in SUMS] for key, those in seen.items()}
    whole_of = {
        key: dict(zip(SUMS, those, strict=True)) | {"instead_of": same.get(key, "")} for key, those in sums.items()
    }
    found = [replace(it, **whole_of[it.kind, it.where]) for it in most]
    replayed_s = traced_s - sum((part.traced_s - part.replayed_s) * factor for _, part, factor in times)
    if not any(it.kind == "block" for it in found) and (flood := flood_cost(file, floods)):
        found.append(_of_flood(flood, min(replayed_s / traced_s, 1.0)))
    spread_s = sum(part.spread_s**2 * factor for _, part, factor in times) ** 0.5
    kept = tuple(ranked_by([it for it in found if it.kind == CAUSE or it.saves_s >= LEAST_SHARE * replayed_s]))
    rows = sum(rows for rows, _, _ in times)
    advice = Advice(kept, traced_s, replayed_s, spread_s=spread_s, num_rows=file.num_rows, read_rows=rows)
    excess_s = sum(part.excess_s * factor for _, part, factor in times)
    return _with_noise(replace(advice, excess_s=excess_s))


def _of_flood(it: FloodCost, share: float) -> Finding:
    """Return the finding; `share`: of the traced time that replays have, without waits for cores."""
    saves_s = share * it.saves_s
    about = "block", it.place, it.evidence, "pack them into one message", saves_s
    return Finding(*about, "calls", (it.rank, it.place), "medium", saves_s, is_sure=False)


def advise_model(
    model: ReplayModel,
    site: Site,
    where: Callable[[tuple[int, ...]], str],
    cost: Cost | None = None,
    roots: Roots | None = None,
    compares: bool = True,
) -> Advice:
    """Advise on a model. `site(row)` and `where(rows)` name call sites; `cost` is the tracer's overhead by call.

    `roots` finds the causes of waits in the trace of the model. `compares`: find which findings save the same seconds.
    """
    replayed = makespan_s(model)
    found: dict[int, _Weighed] = {}
    cost = cost or Cost()
    for source in SOURCES:
        for remedy in source(model, site):
            least_s = changed_s(remedy.changed)
            saved = replayed - least_s
            if saved >= LEAST_SHARE * replayed:  # most save nothing
                saved -= cost.of_removed_s(model, remedy.changed)
            if saved >= LEAST_SHARE * replayed:
                finding = _finding(remedy, where(remedy.rows), saved, roots)
                if remedy.bound is not None:
                    finding = replace(finding, bound_s=max(replayed - changed_s(remedy.bound), saved))
                found[id(finding)] = _Weighed(finding, remedy, source, least_s)
    ranked = [found[id(finding)] for finding in ranked_by([it.finding for it in found.values()])]
    findings = tuple(_with_alternatives(ranked, site) if compares else (it.finding for it in ranked))
    return Advice((*findings, *unexplained(model, findings, replayed, roots)), model.makespan_s, replayed)


class _Weighed(NamedTuple):
    """A finding, and how it was found; `makespan_s`: of the replay with its change."""

    finding: Finding
    remedy: Remedy
    source: Callable[[ReplayModel, Site], Iterator[Remedy]]
    makespan_s: float


def _finding(remedy: Remedy, where: str, saved_s: float, roots: Roots | None) -> Finding:
    finding = Finding(remedy.kind, where, remedy.evidence, remedy.action, saved_s, bound_s=saved_s)
    if roots is not None:
        root = roots.polling(remedy.rows, where) if remedy.kind == "poll" else roots.of(remedy.rows, where)
        root = Root(*remedy.root, where) if remedy.root is not None else root
        calls = roots.calls(remedy.rows)
        disturbed_s = roots.disturbed_s(calls, saved_s)
        finding = replace(finding, cause=root.kind, root=(root.rank, root.place))
        finding = replace(finding, calls=calls.longest(), disturbed_s=disturbed_s)
    return finding if remedy.is_sure else replace(finding, confidence="medium", is_sure=remedy.is_meant)


def _with_alternatives(ranked: Sequence[_Weighed], site: Site) -> Iterator[Finding]:
    """Yield the findings; one whose saving is mostly gone once an earlier one is followed names that one.

    The later remedy is looked for again in the model that the earlier one changed, and replayed there.
    """
    mains: list[_Weighed] = []
    again = _Again(site)
    for it in ranked:
        main = next((m for m in mains if again.saves_s(it, m) < 0.5 * it.finding.saves_s), None)
        if main is None and len(mains) < MOST_MAINS:
            mains.append(it)
        same = f"{main.finding.kind} at {main.finding.where}" if main else ""
        yield replace(it.finding, instead_of=same)


class _Again:
    """Looks for remedies in models that earlier remedies have changed. Each source is asked once about each model."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.found: dict[tuple[object, int], list[_Rest]] = {}

    def saves_s(self, it: _Weighed, main: _Weighed) -> float:
        """Return the seconds that a remedy still saves where an earlier one was followed."""
        key = it.source, id(main)
        if key not in self.found:
            remedies = it.source(main.remedy.changed, self.site)
            self.found[key] = [
                _Rest(r.kind, frozenset(r.rows), main.makespan_s - changed_s(r.changed)) for r in remedies
            ]
        rest = (
            r.saves_s for r in self.found[key] if r.kind == it.remedy.kind and not r.rows.isdisjoint(it.remedy.rows)
        )
        return max(rest, default=0.0)


class _Rest(NamedTuple):
    """What a remedy of a changed model saves there: its kind, rows, and seconds."""

    kind: str
    rows: frozenset[int]
    saves_s: float


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
    all_of = [_median_of(those, saves[key]) for key, those in seen.items()]
    ranked = [it for it in ranked_by(all_of) if it.kind == CAUSE or it.saves_s >= LEAST_SHARE * replayed_s]
    excess_s = median(run.excess_s for run in runs)
    least_s = max(spread_s, excess_s) if len(runs) > 1 else 0.0  # one run's estimate is too uncertain to hide findings
    sure, doubtful = (tuple(it for it in ranked if (counted_s(it) > least_s) == is_sure) for is_sure in (True, False))
    rows = sum(run.num_rows for run in runs), sum(run.read_rows for run in runs)
    return Advice(sure, traced_s, replayed_s, doubtful, spread_s, len(runs), excess_s, *rows)


def _median_of(those: Sequence[Finding], saves_s: float) -> Finding:
    """Return one finding for several runs; a change that saves less than noise in most of them has low confidence."""
    levels = sorted((it.confidence for it in those), key=("low", "medium", "high").index)
    bound_s = max(median(it.bound_s for it in those), saves_s)
    disturbed_s = median(it.disturbed_s for it in those)
    found = replace(those[0], saves_s=saves_s, bound_s=bound_s, disturbed_s=disturbed_s)
    return replace(found, confidence=levels[len(levels) // 2])
