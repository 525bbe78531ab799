"""pickle_remedies: a remedy for objects that mpi4py pickles: pass arrays as buffers instead."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from dovetail.advise.remedy import Remedy, Site, call_s, dropped, duration
from dovetail.trace.analysis.call_classes import PICKLE
from dovetail.trace.analysis.replay_model import ReplayModel, Step

SIZE_BYTES = 16  # mpi4py sends the sizes of objects ahead: at most this for each rank
ARRAYS = f"{PICKLE}dumps array"  # name of the intervals in which mpi4py pickles an object with arrays


def pickled(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by call site, that pass objects as buffers: without pickling, and without sizes sent ahead.

    Where mpi4py sends sizes ahead, the receiver's time until the data's call goes, too: memory for an object of that
    size. The trace shows whether an object has arrays, which can be buffers; of other objects it is not sure.
    """
    places = defaultdict[str, list[tuple[int, Step]]](list)
    for rank, steps in enumerate(model.steps):
        for step in steps:
            if _is_pickling(model, step):
                places[site(step.row)].append((rank, step))
    for place, found in places.items():
        spent, names = Counter[int](), Counter(model.calls[step.row][0] for _, step in found)
        for rank, step in found:
            spent[rank] += call_s(step)  # type: ignore[assignment]
        has_arrays = ARRAYS in names
        evidence = f"mpi4py pickles objects at {place} {names.total()} times, for {duration(max(spent.values()))} on a "
        evidence += f"rank{': they are arrays, or contain some' if has_arrays else ''}"
        action = "pass arrays as buffers: the calls whose names begin with a capital (comm.Bcast, comm.Send, "
        action += "comm.Allgatherv) move them without a copy" + ("" if has_arrays else ", if these objects are arrays")
        changed = [list(_as_buffers(model, steps, place, site)) for steps in model.steps]
        rows = tuple(step.row for _, step in found)
        yield Remedy("pickle", rows, evidence, action, model.with_steps(changed), has_arrays)


def _is_pickling(model: ReplayModel, step: Step) -> bool:
    return step.kind == "own" and step.row in model.calls and model.calls[step.row][0].startswith(PICKLE)


def _as_buffers(model: ReplayModel, steps: Sequence[Step], place: str, site: Site) -> Iterator[Step]:
    """Yield a rank's steps without the pickling at one place, and without the calls that send sizes ahead there."""
    kept = list(_without_pickling(model, steps, place, site))
    gone = set[int]()
    for i, j in _sizes_ahead(model, kept, place, site):
        gone |= {i, i + 1}
        kept[j] = kept[j]._replace(seconds=kept[j].within_s)
    yield from dropped(kept, gone)


def _without_pickling(model: ReplayModel, steps: Sequence[Step], place: str, site: Site) -> Iterator[Step]:
    own_s = within_s = 0.0
    for step in steps:
        if _is_pickling(model, step) and site(step.row) == place:
            own_s, within_s = own_s + step.seconds - call_s(step), within_s + step.after_s
            continue
        yield step._replace(seconds=own_s + step.seconds, within_s=within_s + step.within_s) if own_s > 0 else step
        own_s = within_s = 0.0


def _sizes_ahead(model: ReplayModel, steps: Sequence[Step], place: str, site: Site) -> Iterator[tuple[int, int]]:
    """Yield the indices of the steps that join a collective of sizes, and the next one at this place, of the data."""
    before = -1
    for i, step in enumerate(steps):
        if step.kind == "join" and site(step.row) == place:
            it = model.collectives[step.number]
            if before >= 0 and i == before + 2:
                yield before, i
                before = -1
            elif it.blocking and it.num_bytes <= SIZE_BYTES * len(it.group):
                before = i
        elif step.kind != "joined":
            before = -1
