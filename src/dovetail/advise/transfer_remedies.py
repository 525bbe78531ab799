"""transfer_remedies: a remedy for many small one-sided transfers in a row: one larger transfer."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from dovetail.advise.remedy import GRAIN_S, Remedy, Site, call_s, duration, gap_s
from dovetail.trace.analysis.delays import LATENCY_BYTES
from dovetail.trace.analysis.replay_model import ReplayModel, Step

_TRANSFERS = r"MPI_R?(put|get|accumulate|get_accumulate)|MPI_(Fetch_and_op|Compare_and_swap)"
_ENDS = r"MPI_Win_(un)?lock(_all)?|MPI_Win_flush.*"  # what each transfer of a row may be enclosed in
MANY = 4  # fewer transfers in a row are not worth packing


def transfers(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that move by one call what a rank moves by many calls in a row, without work.

    Of each row the first call of each name stays, and takes as long as before.
    """
    runs: dict[str, list[tuple[int, list[int]]]] = defaultdict(list)
    for rank, steps in enumerate(model.steps):
        for at in _runs(model, steps):
            runs[site(steps[at[0]].row)].append((rank, at))
    for place, found in runs.items():
        gone = [set[int]() for _ in model.steps]
        rows, spent = list[int](), Counter[int]()
        for rank, at in found:
            steps, seen = model.steps[rank], set[str]()
            for i in at:
                name = model.calls[steps[i].row][0]
                gone[rank] |= {i} if name in seen else set()
                seen.add(name)
                spent[rank] += call_s(steps[i])  # type: ignore[assignment]
            rows += [steps[i].row for i in at]
        names = Counter(model.calls[row][0] for row in rows)
        each = sum(len(at) for _, at in found) / len(found)
        evidence = (
            f"{names.total()} calls of {', '.join(name for name, _ in names.most_common(3))} at {place}, {each:.3g} "
        )
        evidence += f"in a row, take {duration(max(spent.values()))} of a rank"
        action = "move them by one call: pack them, or describe them by a datatype; lock or flush once for all of them"
        changed = model.with_steps([list(_without(s, g)) for s, g in zip(model.steps, gone, strict=True)])
        yield Remedy("block", tuple(rows), evidence, action, changed)


def _runs(model: ReplayModel, steps: Sequence[Step]) -> Iterator[list[int]]:
    """Yield runs of small transfers, with the calls around each, as indices of steps."""
    run: list[int] = []
    for i, step in enumerate(steps):
        fits = _is_small(model, step)
        if run and not (fits and gap_s(step) <= GRAIN_S):
            if sum(_is_transfer(model, steps[k]) for k in run) >= MANY:
                yield run
            run = []
        if fits:
            run.append(i)
    if sum(_is_transfer(model, steps[k]) for k in run) >= MANY:
        yield run


def _is_transfer(model: ReplayModel, step: Step) -> bool:
    return bool(re.fullmatch(_TRANSFERS, model.calls[step.row][0].removesuffix("_c"), re.IGNORECASE))


def _is_small(model: ReplayModel, step: Step) -> bool:
    """Return whether a step is a small transfer, or a call that may enclose one."""
    if step.kind != "own" or step.row not in model.calls:
        return False
    name, num_bytes = model.calls[step.row]
    ends = re.fullmatch(_ENDS, name, re.IGNORECASE) is not None
    return num_bytes <= LATENCY_BYTES and (ends or _is_transfer(model, step))


def _without(steps: Sequence[Step], gone: set[int]) -> Iterator[Step]:
    """Yield a rank's steps without these calls, and without what one more call costs its loop."""
    each_s = float(np.percentile([gap_s(steps[i]) for i in gone], 25)) if gone else 0.0
    own_s = within_s = 0.0
    for i, step in enumerate(steps):
        if i in gone:
            less_s = call_s(step) + min(gap_s(step), each_s)
            own_s, within_s = own_s + step.seconds - less_s, within_s + step.after_s
            continue
        yield step._replace(seconds=own_s + step.seconds, within_s=within_s + step.within_s) if own_s > 0 else step
        own_s = within_s = 0.0
