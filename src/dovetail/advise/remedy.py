"""remedy: a change to a traced program, in words and as a changed model of the trace that a replay can time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from dovetail.trace.analysis.call_classes import IO, ONE_SIDED, class_of
from dovetail.trace.analysis.floods import AT_ONCE_S
from dovetail.trace.analysis.replay_model import ReplayModel, Step, StepKind

CAUSE = "cause"  # kind of a finding without a remedy: the largest cause of waits
# Order of remedies that save nearly the same time: little work for the user comes first. A remedy that always helps
# comes before a remedy that helps only if some work does not depend on the message.
KINDS = (
    *("slow_link", "slow_rank", "poll", "lock", "progress", "eager", "setup", "pickle", "unchanged", "needless"),
    *("post_earlier", "standard", "collective", "any_order", "merge", "block", "tasks", "io", "dispatch", "probe"),
    *("rendezvous", "lockstep", "turns", "send_earlier", "pipeline", "volume", "pace", "nonblocking", "overlap"),
    *("answer_first", "temporal_block", "barrier", "imbalance", "seldom", CAUSE),
)
LEAST_SHARE = 0.01  # a remedy is reported if it saves at least this share of the makespan
_WAITS = ("received", "sent", "join", "joined")  # steps that wait, in the call that they belong to
Found = TypeVar("Found")
GRAIN_S = AT_ONCE_S  # calls with less work than this between them count as consecutive


@dataclass(frozen=True)
class Remedy:
    """One change.

    `kind`: one of KINDS. `rows`: rows of the trace that show why. `evidence`, `action`: in words. `changed`: the model
    with the change. `is_sure`: whether the trace shows that the change is possible. `bound`: the model with the most
    that such a change can do, if the trace does not show how much is possible. `root`: why ranks wait, and the rank
    that lets them wait, if that is known; else it is looked for in the trace. `is_meant`: the program begins the call
    without waiting, so that it is likely to have work for that time.
    """

    kind: str
    rows: tuple[int, ...]
    evidence: str
    action: str
    changed: ReplayModel
    is_sure: bool = True
    bound: ReplayModel | None = None
    root: tuple[str, int] | None = None
    is_meant: bool = False


Site = Callable[[int], str]  # row of the trace -> the call site


def own_s(steps: Sequence[Step]) -> float:
    """Return the seconds of a rank's work outside MPI."""
    return sum(step.seconds - step.within_s for step in steps)


def gap_s(step: Step) -> float:
    """Return the seconds of a rank's work outside MPI directly before a step."""
    seconds = step.seconds - step.within_s
    return seconds if seconds > 0 else 0.0  # a changed model may have a little less


def call_s(step: Step) -> float:
    """Return the seconds within a call that waits for nobody, of its step of kind "own"."""
    return step.within_s - step.after_s


def dropped(steps: Sequence[Step], gone: set[int]) -> Sequence[Step]:
    """Return the steps without those at the indices `gone`.

    The work before a removed step stays; the time within its call is removed. If the call also has other steps, only
    the removed steps' share of its time is removed.
    """
    if not gone:
        return steps
    gone_of = Counter(steps[i].row for i in gone)
    all_of = Counter(step.row for step in steps if step.row in gone_of)
    own_s, within_s, lost_share, found = 0.0, 0.0, 0.0, list[Step]()
    for i, step in enumerate(steps):
        is_gone = i in gone
        if is_gone or lost_share or own_s or within_s:
            lost_s = step.after_s * lost_share
            own_s, within_s = own_s + step.seconds - lost_s, within_s + step.within_s - lost_s
            if not is_gone:
                found.append(step._replace(seconds=own_s, within_s=within_s, after_s=step.after_s - lost_s))
                own_s = within_s = 0.0
        else:
            found.append(step)
        lost_share = gone_of[step.row] / all_of[step.row] if step.row in gone_of else 0.0
    return found


def later(
    steps: Sequence[Step], moved: Callable[[Step], bool], before: tuple[StepKind, ...] = ("end",)
) -> Iterator[Step]:
    """Yield the steps in a new order: waits for which `moved` is true come after the work that follows them.

    Waits also end before the next step of a kind in `before`.
    """
    held: list[Step] = []
    for step in steps:
        if moved(step):
            if not held and step.seconds > 0:
                yield step._replace(seconds=step.seconds, kind="own", number=-1)
                step = step._replace(seconds=0.0, within_s=0.0)
            held.append(step)
            continue
        if held and (gap_s(step) > GRAIN_S or step.kind in before):
            yield held[0]._replace(seconds=step.seconds, within_s=step.within_s)
            yield from held[1:]
            held, step = [], step._replace(seconds=0.0, within_s=0.0)
        yield step
    yield from held


def latest(steps: Sequence[Step], rows: set[int]) -> Iterator[Step]:
    """Yield the steps in a new order: waits for these rows' sends come at the rank's next receive or collective."""
    held: list[Step] = []
    for step in steps:
        if step.row in rows and step.kind == "sent":
            if step.seconds > 0:
                yield step._replace(kind="own", number=-1)
            held.append(step._replace(seconds=0.0, within_s=0.0))
            continue
        if held and step.kind in ("recv", "received", "join", "joined", "end") and step.row != held[-1].row:
            yield step._replace(kind="own", number=-1)
            yield from held
            held, step = [], step._replace(seconds=0.0, within_s=0.0)
        yield step
    yield from held


def by_site(model: ReplayModel, site: Site, kind: StepKind) -> dict[str, list[tuple[int, Step]]]:
    """Return the steps of this kind as (rank, step), grouped by call site.

    Sites whose calls took less in all than a change must save are left out: a change to waits there saves no more.
    """
    return kept(_by_site, model, site, kind)


def kept(find: Callable[..., Found], model: ReplayModel, *about: Hashable) -> Found:
    """Return `find(model, *about)`; a second call with the same arguments returns what the first found."""
    key = find, *about
    if key not in model.kept:
        model.kept[key] = find(model, *about)
    found: Found = model.kept[key]
    return found


def _by_site(model: ReplayModel, site: Site, kind: StepKind) -> dict[str, list[tuple[int, Step]]]:
    found: dict[str, list[tuple[int, Step]]] = {}
    for it in model.of_kind.get(kind, ()):
        found.setdefault(site(it[1].row), []).append(it)
    if kind not in _WAITS or not model.spent_s:
        return found
    least_s = LEAST_SHARE * max((sum(step.seconds for step in steps) for steps in model.steps), default=0.0)
    return {place: those for place, those in found.items() if _spent_s(model, those) >= least_s}


def _spent_s(model: ReplayModel, found: Sequence[tuple[int, Step]]) -> float:
    """Return the seconds in the calls of these steps; infinity if these only begin what other calls wait for."""
    if any(step.kind == "join" and not model.collectives[step.number].blocking for _, step in found):
        return inf
    return sum(model.spent_s.get(row, inf) for row in {step.row for _, step in found})


def calls_each(found: Sequence[tuple[int, Step]], name: str) -> str:
    """Describe how often ranks call a collective: a collective counts once for each of its ranks, not for all together.

    `found`: steps as (rank, step).
    """
    counts = Counter(rank for rank, _ in {(rank, step.row) for rank, step in found})
    most = max(counts.values())
    is_same = most == min(counts.values())
    return f"{most} calls of {name} on each rank" if is_same else f"up to {most} calls of {name} on a rank"


def may_need_barriers(model: ReplayModel) -> bool:
    """Return whether ranks use files or windows, whose order a barrier may keep."""
    return any(name.startswith("MPI_") and class_of(name) in (IO, ONE_SIDED) for name in model.names)


def places(rows: Sequence[int], site: Site) -> str:
    """Describe the call sites of these rows: the first, and the number of others."""
    found = list(dict.fromkeys(map(site, rows)))
    more = f" and {len(found) - 1} other place{'s' * (len(found) > 2)}" if len(found) > 1 else ""
    return f"{found[0]}{more}"


def duration(value: float) -> str:
    """Format seconds.

    >>> duration(0.00125), duration(3e-6)
    ('1.25 ms', '3.00 us')
    """
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if value >= s), (1e-9, "ns"))
    return f"{value / scale:.3g} {unit}" if value / scale >= 100 else f"{value / scale:.2f} {unit}"


def crosses(model: ReplayModel, number: int) -> bool:
    """Return whether a message belongs to an exchange: its ranks send to each other before they receive.

    Compares with the last message in the opposite direction that its receiver sends before receiving this one. Messages
    of MPI_Sendrecv belong to an exchange, also at the border of a grid, where a rank only sends, or receives.
    """
    return kept(_crosses, model, number)


def _crosses(model: ReplayModel, number: int) -> bool:
    if number in model.combined:
        return True
    it = model.messages[number]
    back = last_sent(model, it.dst, it.src, model.places[it.dst].get(("received", number), -1))
    mine = model.places[it.src]
    return back >= 0 and mine.get(("received", back), -1) > mine.get(("send", number), -1)


def last_sent(model: ReplayModel, rank: int, to: int, before: int) -> int:
    """Return the last message that a rank sends to another before its step of this index; -1: none."""
    at, numbers = model.sent_to.get((rank, to), ((), ()))
    i = bisect_left(at, before)
    return numbers[i - 1] if i else -1
