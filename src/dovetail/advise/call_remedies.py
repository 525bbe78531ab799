"""call_remedies: fewer of the calls that wait for nobody: datatypes and communicators made again, probes, small I/O."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from dovetail.advise.remedy import Remedy, Site, call_s, dropped, duration
from dovetail.trace.analysis.delays import LATENCY_BYTES
from dovetail.trace.analysis.replay_model import ReplayModel, Step

_MADE = {  # what calls make and free, by their names
    "datatypes": r"MPI_Type_(?!get_|size|extent).*",
    "communicators": r"MPI_(Comm_(i?dup|split|create|free|disconnect).*|Cart_(create|sub)|(Dist_)?[Gg]raph_create.*"
    r"|Intercomm_(create|merge).*|Group_(?!rank|size|translate|compare).*)",
    "windows": r"MPI_Win_(create|allocate|free).*",
    "files": r"MPI_File_(open|close|set_view)",
}
_MOVES = r"MPI_File_(i?(read|write).*|sync)|libc .*"
_LOOKS = r"MPI_I(m)?probe"


def setup(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by what is made, that make it once per call site, and keep it."""
    for thing, pattern in _MADE.items():
        steps = _steps(model, pattern, ("own", "join", "joined"))
        again = _but_first(steps, site)
        if not again:
            continue
        evidence = f"{_count(model, again)} to make and free {thing} again take {_most(model, again)} of a rank"
        action = f"make the {thing} once, before the loop, and keep them, if they are the same each time"
        changed = _without(model, {step.row for _, step in again})
        yield Remedy("setup", tuple(step.row for _, step in again), evidence, action, changed, is_sure=False)


def probe(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that probe for messages less often during work; at most: never."""
    for steps in _by_place(_steps(model, _LOOKS), site).values():
        evidence = f"probes ({_count(model, steps)}) take {_most(model, steps)} of a rank between pieces of work"
        action = "probe after more work, every k-th time: saves (k - 1)/k of this; messages are noticed later"
        changed = _without(model, {step.row for _, step in steps})
        yield Remedy("probe", tuple(step.row for _, step in steps), evidence, action, changed, is_sure=False)


def file_calls(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, for reads and writes of files: fewer and larger ones, or beside the work."""
    for steps in _by_place(_steps(model, _MOVES), site).values():
        again = _but_first(steps, site)
        if not again:
            continue
        most = max(model.calls[step.row][1] for _, step in steps)
        size = f", each of up to {most} bytes" if most else ""
        evidence = f"{_count(model, steps)}{size} take {_most(model, steps)} of a rank"
        fewer = "collect many records, and write or read them by one call (MPI_File_write_at_all shares it among ranks)"
        beside = "read or write beside other work (MPI_File_iwrite, a thread)"
        action = (
            fewer if 0 < most <= LATENCY_BYTES else beside if most else f"if they are small, {fewer}; else {beside}"
        )
        changed = _without(model, {step.row for _, step in again})
        yield Remedy("io", tuple(step.row for _, step in again), evidence, action, changed, is_sure=False)


def _steps(model: ReplayModel, pattern: str, kinds: Sequence[str] = ("own",)) -> list[tuple[int, Step]]:
    """Return the steps (rank, step) of the calls whose names fit, one of these kinds for each call."""
    known = {name for name, _ in model.calls.values()} | {it.name for it in model.collectives}
    fits = {name: bool(re.fullmatch(pattern, name.removesuffix("_c"))) for name in known}
    return [
        (rank, step)
        for rank, steps in enumerate(model.steps)
        for step in steps
        if step.kind in kinds and step.kind != "joined" and (name := _name(model, step)) and fits[name]
    ]


def _name(model: ReplayModel, step: Step) -> str:
    """Return the name of the collective that a step joins, or of its call that waits for nobody; "": neither."""
    if step.kind == "join":
        return model.collectives[step.number].name
    return model.calls[step.row][0] if step.row in model.calls else ""


def _by_place(steps: Sequence[tuple[int, Step]], site: Site) -> Mapping[str, list[tuple[int, Step]]]:
    found: dict[str, list[tuple[int, Step]]] = defaultdict(list)
    for rank, step in steps:
        found[site(step.row)].append((rank, step))
    return found


def _but_first(steps: Sequence[tuple[int, Step]], site: Site) -> list[tuple[int, Step]]:
    """Return the steps without each rank's first at each call site."""
    seen: Counter[tuple[int, str]] = Counter()
    found = []
    for rank, step in steps:
        if seen[rank, site(step.row)]:
            found.append((rank, step))
        seen[rank, site(step.row)] += 1
    return found


def _count(model: ReplayModel, steps: Sequence[tuple[int, Step]]) -> str:
    """Return in words how many calls of each name these steps stand for; the most frequent names only."""
    names = Counter[str]()
    for _, step in steps:
        names[_name(model, step)] += model.counts.get(step.row, 1)
    return ", ".join(f"{count} calls of {name}" for name, count in names.most_common(3))


def _most(model: ReplayModel, steps: Sequence[tuple[int, Step]]) -> str:
    """Return in words the seconds within these calls of the rank that spends most there."""
    spent: Counter[int] = Counter()
    for rank, step in steps:
        own_s = model.collectives[step.number].seconds if step.kind == "join" else call_s(step)
        spent[rank] += own_s  # type: ignore[assignment]
    return duration(max(spent.values()))


def _without(model: ReplayModel, rows: set[int]) -> ReplayModel:
    """Return the model without these calls; the work between them stays."""
    return model.with_steps([_without_calls(_without_meetings(steps, rows), rows) for steps in model.steps])


def _without_meetings(steps: Sequence[Step], rows: set[int]) -> Sequence[Step]:
    return dropped(steps, {i for i, s in enumerate(steps) if s.row in rows and s.kind in ("join", "joined")})


def _without_calls(steps: Sequence[Step], rows: set[int]) -> Iterator[Step]:
    own_s = within_s = 0.0
    for step in steps:
        if step.kind == "own" and step.row in rows:
            own_s, within_s = own_s + step.seconds - call_s(step), within_s + step.after_s
            continue
        yield step._replace(seconds=own_s + step.seconds, within_s=within_s + step.within_s) if own_s > 0 else step
        own_s = within_s = 0.0
