"""groups: merge the parts of packet ops that several threadblocks share into one more threadblock, for a fast proof.

Each threadblock of a group does its part of an op, element by element. If the same threadblocks share several ops in
the same way, one thread has the same slot in all of them, so these ops are ordered slot by slot, as on one threadblock.
The new threadblock has these ops whole, and takes part in the barriers of those that it replaces. Other order between
them is left out: a plan without races in this form has none; a plan with races in this form may still have none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from dovetail.collective.mscclpp.parts import Document, Gpu, Step

Block = tuple[Step, ...]


class _Team(NamedTuple):
    """Threadblocks, in the order of their parts, and how many chunks they share in an op."""

    blocks: tuple[int, ...]
    size: int


def joined(document: Document) -> Document | None:
    """Return the document with shared ops merged; None if it has none."""
    gpus = tuple(_joined(gpu) for gpu in document.gpus)
    return document._replace(gpus=gpus) if any(a is not b for a, b in zip(gpus, document.gpus, strict=True)) else None


def _joined(gpu: Gpu) -> Gpu:
    if any(step.loop for block in gpu.blocks for step in block):
        return gpu  # a pipeline runs its barriers in every iteration
    taken, more, comers = set[tuple[int, int]](), list[Block](), Counter[int]()
    for team, ops in _teams(gpu).items():
        lists = [_with_barriers(gpu.blocks[number], at) for number, at in zip(team.blocks, ops, strict=True)]
        words = [[_whole(step) for step in steps] for steps in lists]
        if any(each != words[0] for each in words):
            continue  # not in one order
        more.append(tuple(step._replace(part=(0, 1)) for step in lists[0]))
        comers.update({step.barrier[0] for step in lists[0] if step.name == "barrier"})
        taken |= {(number, at) for number, places in zip(team.blocks, ops, strict=True) for at in places}
    if not more:
        return gpu
    left = [tuple(s for at, s in enumerate(b) if (number, at) not in taken) for number, b in enumerate(gpu.blocks)]
    return gpu._replace(blocks=tuple(_widened(block, comers) for block in (*left, *more)))


def _teams(gpu: Gpu) -> dict[_Team, list[set[int]]]:
    """The teams that share ops, and the indices of these ops in each threadblock."""
    found: dict[tuple[Step, int], list[tuple[int, int, int]]] = defaultdict(list)
    for number, block in enumerate(gpu.blocks):
        times = Counter[Step]()
        for at, step in enumerate(block):
            if step.part[1] > 1 and step.name.endswith("pkt") and step.by != "port":
                whole = _whole(step)
                found[whole, times[whole]].append((step.part[0], number, at))
                times[whole] += 1
    teams: dict[_Team, list[set[int]]] = {}
    for (whole, _), parts in found.items():
        numbers, blocks, places = zip(*sorted(parts), strict=True)
        sizes = {place.size for place in (*whole.reads, *whole.writes)}
        if numbers == tuple(range(whole.part[1])) and len(set(blocks)) == len(blocks) and len(sizes) == 1:
            ops = teams.setdefault(_Team(blocks, sizes.pop()), [set() for _ in blocks])
            for op, at in zip(ops, places, strict=True):
                op.add(at)
    return teams


def _whole(step: Step) -> Step:
    """A step without what differs between the parts of a group's op."""
    return step._replace(where="", part=(0, step.part[1]))


def _with_barriers(block: Block, places: set[int]) -> list[Step]:
    return [step for at, step in enumerate(block) if at in places or step.name == "barrier"]


def _widened(block: Block, comers: Counter[int]) -> Block:
    """The block with each barrier's count raised by the new threadblocks that take part."""
    return tuple(
        step._replace(barrier=(step.barrier[0], step.barrier[1] + comers[step.barrier[0]]))
        if step.name == "barrier"
        else step
        for step in block
    )
