"""Random algorithms on chunks; a model of plain dictionaries predicts their results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from dovetail.collective import Algorithm, custom

SLOTS = {"input": 4, "output": 4, "tmp": 4}
Place = tuple[int, str, int]


@dataclass
class Model:
    """What each slot holds: how often each input slot is in it. `steps` are arguments for `play`."""

    num_ranks: int
    held: dict[Place, Counter] = field(default_factory=dict)
    steps: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for rank in range(self.num_ranks):
            for index in range(SLOTS["input"]):
                self.held[rank, "input", index] = Counter([(rank, index)])

    def filled(self, count: int) -> list[Place]:
        """Places whose next `count` slots all hold something."""
        return [p for p in sorted(self.held) if all((p[0], p[1], p[2] + i) in self.held for i in range(count))]

    def move(self, to: Place, sources: list[Place], count: int) -> None:
        sums = [sum((self.held[r, b, i + j] for r, b, i in sources), Counter()) for j in range(count)]
        for j, total in enumerate(sums):
            self.held[to[0], to[1], to[2] + j] = total


def clash(one: Place, other: Place, count: int) -> bool:
    """Whether two places share slots."""
    return one[:2] == other[:2] and abs(one[2] - other[2]) < count


@st.composite
def models(draw: st.DrawFn, most_ranks: int = 4, most_steps: int = 12) -> Model:
    model = Model(draw(st.integers(1, most_ranks)))
    for _ in range(draw(st.integers(1, most_steps))):
        count = draw(st.integers(1, 2))
        source = draw(st.sampled_from(model.filled(count)))
        ch, copies = draw(st.sampled_from([None, None, 0, 1])), draw(st.sampled_from([1, 1, 1, 2, 3]))
        if draw(st.booleans()):
            add = draw(st.sampled_from(model.filled(count)))
            to = (add[0], *draw(places(count))) if draw(st.booleans()) else add
            if clash(source, add, count) or (clash(add, to, count) and add != to):
                continue
            if clash(source, to, count) and source != to:
                continue
            model.move(to, [add, source], count)
            model.steps.append(("reduce", source, add, to, count, ch, copies))
        else:
            to = (draw(st.integers(0, model.num_ranks - 1)), *draw(places(count)))
            if clash(source, to, count):
                continue
            model.move(to, [source], count)
            model.steps.append(("copy", source, None, to, count, ch, copies))
    return model


@st.composite
def places(draw: st.DrawFn, count: int) -> tuple[str, int]:
    buffer = draw(st.sampled_from(sorted(SLOTS)))
    return buffer, draw(st.integers(0, SLOTS[buffer] - count))


def play(model: Model, fragments: bool = True, **settings: Any) -> Algorithm:
    """The model's steps as an Algorithm whose post-condition is what the model holds at the end."""

    def want(rank: int, slot: int) -> list[tuple[int, int]]:
        return list(model.held.get((rank, "output", slot), Counter()).elements())

    spec = custom(model.num_ranks, SLOTS["input"], SLOTS["output"], want)
    p = Algorithm("random", spec, overwrite_input=True, **settings)
    for what, source, add, to, count, ch, copies in model.steps:
        with p.parallelize(copies if fragments else 1):
            chunk = p.chunk(*source, count)
            if what == "copy":
                chunk.copy(*to, ch=ch)
            else:
                p.chunk(*add, count).reduce(chunk, *to[1:], ch=ch)
    return p
