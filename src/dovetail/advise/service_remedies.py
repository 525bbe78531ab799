"""service_remedies: a remedy for a rank that serves others in a fixed order, while the message of another is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dovetail.advise.balance_remedies import levelled
from dovetail.advise.remedy import Remedy, Site, own_s, places
from dovetail.advise.replay import changed_s, makespan_s
from dovetail.advise.service_order import Part, Unit, as_they_come
from dovetail.trace.analysis.replay_model import ReplayModel, Step

MANY = 8  # fewer units of work are no service
MOSTLY = 0.5  # the order alone is the fault if it saves this share of what it saves with work shared out


@dataclass
class _Reader:
    """Divides a rank's steps into units of service: `parts` are steps, or stretches of units in any order."""

    model: ReplayModel
    parts: list[Part] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)

    def close(self) -> None:
        """End the current stretch; one of a single source stays as steps."""
        if len({unit.source for unit in self.units}) > 1:
            self.parts.append(self.units)
        else:
            self.parts += [step for unit in self.units for step in unit.steps]
        self.units = []


def in_any_order(model: ReplayModel, site: Site) -> Iterator[Remedy]:
    """Yield remedies, by rank, for receives that name their source, though another's message may be there before.

    A unit is what a rank does from one such receive to the next: work, and answers to the rank that sent. In the replay
    the units of several sources come in the order in which their messages do; those of one source keep their order.
    """
    for rank, steps in enumerate(model.steps):
        parts = _parts(model, steps)
        if len(_units(parts)) < MANY:
            continue
        served = as_they_come(model, rank, parts)
        if served is None:
            continue
        taken = [step for unit in _units(parts) for step in unit.steps if step.kind == "received"]
        before = [step.number for step in taken]
        chosen = {*before}
        after = [step.number for step in served if step.kind == "received" and step.number in chosen]
        moved = sum(a != b for a, b in zip(before, after, strict=True))
        if not moved:
            continue
        changed, is_sure = _served(model, rank, served, parts)
        rows = [step.row for step in taken]
        count = len({model.messages[n].src for n in chosen})
        evidence = (
            f"rank {rank} takes messages of {count} ranks in a fixed order at {places(rows, site)}, and waits for "
        )
        evidence += f"one while another's is there; {moved} of {len(rows)} would come elsewhere in the order"
        action = "take what is there first (MPI_ANY_SOURCE, or MPI_Irecv from each rank and MPI_Waitany), and answer it"
        action += "" if is_sure else "; tasks then go to the rank that is free, which shares out the work"
        yield Remedy("any_order", tuple(rows), evidence, action, changed, is_sure, root=("order", rank))


def _served(model: ReplayModel, rank: int, served: Sequence[Step], parts: Sequence[Part]) -> tuple[ReplayModel, bool]:
    """Return the model with this order of service, and whether each of the served does the work that it did.

    Who is served first gets the next task first: if ranks wait mostly since tasks were dealt unevenly, the work of the
    served is shared out, too.
    """
    ordered = _with_rank(model, rank, served)
    own, sources = [own_s(steps) for steps in model.steps], {unit.source for unit in _units(parts)}
    mean_s = sum(own[source] for source in sources) / len(sources)
    shared = levelled(model, own, [mean_s if other in sources else spent for other, spent in enumerate(own)])
    again = as_they_come(shared, rank, parts)
    if again is None:
        return ordered, True
    shared, whole_s = _with_rank(shared, rank, again), makespan_s(model)
    is_sure = whole_s - changed_s(ordered) > MOSTLY * (whole_s - changed_s(shared))
    return (ordered, True) if is_sure else (shared, False)


def _with_rank(model: ReplayModel, rank: int, steps: Sequence[Step]) -> ReplayModel:
    return model.with_steps([steps if other == rank else own for other, own in enumerate(model.steps)])


def _units(parts: Sequence[Part]) -> list[Unit]:
    return [unit for part in parts if isinstance(part, list) for unit in part]


def _parts(model: ReplayModel, steps: Sequence[Step]) -> list[Part]:
    """Return a rank's steps, with stretches of units that may come in another order."""
    found, open_rows = _Reader(model), _blocking(model, steps)
    for step in steps:
        if step.kind == "recv" and step.row in open_rows:
            if found.units and step.seconds > 0:  # what the rank works before this receive belongs to the last unit
                found.units[-1].steps.append(step._replace(kind="own", number=-1, row=-1))
                step = step._replace(seconds=0.0, within_s=0.0, after_s=0.0)
            found.units.append(Unit(model.messages[step.number].src, [step]))
        elif found.units and _belongs(model, step, found.units[-1]):
            found.units[-1].steps.append(step)
        else:
            found.close()
            found.parts.append(step)
    found.close()
    return found.parts


def _blocking(model: ReplayModel, steps: Sequence[Step]) -> set[int]:
    """Return the rows of calls that wait for one message, of a source that they name."""
    done = {step.row: step.number for step in steps if step.kind == "received"}
    begun = [step for step in steps if step.kind == "recv"]
    fits = {step.row for step in begun if done.get(step.row) == step.number and step.number in model.named}
    return fits - {step.row for step in steps if step.kind == "send"}


def _belongs(model: ReplayModel, step: Step, unit: Unit) -> bool:
    """Return whether a step is part of the service of a unit's source: work, its message, or an answer to it."""
    if step.kind in ("received", "recv"):
        return model.messages[step.number].src == unit.source
    if step.kind in ("send", "sent"):
        return model.messages[step.number].dst == unit.source
    return step.kind == "own"
