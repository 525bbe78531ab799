"""Random products: plain ones, and the same cut into rows and along what is contracted, on what was gathered."""

from __future__ import annotations

import random
from itertools import pairwise

from dovetail.ir import Program, parse

HEAD = """program {name} ranks 2
buffer A input {wide}
buffer B input {blocks}
buffer x input {rows}
buffer C output {rows}
buffer G scratch {wide}
buffer P scratch {rows}
lane a compute
channel 0->1 0 depth 64
kernel f each
kernel matmul each_sum sum
kernel matmul each_sum sum accumulate
kernel norm each all
"""


Part = tuple[tuple[int, int], tuple[int, int]]  # rows and blocks, from and to before


class Products:
    """The choices of one operator: `plain()` and `cut()` compute it, `posts` ask for it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.unit, self.blocks = rng.choice((1, 2, 4)), rng.randint(1, 4)
        self.rows = self.unit * rng.randint(1, 4)
        self.moved, self.before, self.after = rng.random() < 0.6, rng.random() < 0.5, rng.choice(("", "f", "norm"))

    def plain(self) -> Program:
        return self._program("plain", [self._whole(rank) for rank in (0, 1)], [])

    def cut(self) -> Program:
        tiles, blocks = self._cuts(self.rows, self.unit), self._cuts(self.blocks, 1)
        messages = [(tile, part) for tile in tiles for part in blocks]
        posts = self.posts() if self.rng.random() < 0.5 else []
        return self._program("cut", [self._parts(rank, messages) for rank in (0, 1)], posts)

    def posts(self) -> list[str]:
        found = []
        for rank in (0, 1):
            owner = 0 if self.moved else rank
            a, b = f"A@{owner}[0:{self.rows * self.blocks}]", f"B@{rank}[0:{self.blocks}]"
            product = f"matmul({f'f({a})' if self.before else a}, {b})"
            whole = (
                f"norm({product}, {product})" if self.after == "norm" else f"f({product})" if self.after else product
            )
            found.append(f"post {rank} C[0:{self.rows}] = {whole}")
        return found

    def _program(self, name: str, ops: list[list[str]], posts: list[str]) -> Program:
        sizes = {"wide": self.rows * self.blocks, "blocks": self.blocks, "rows": self.rows}
        lines = [HEAD.format(name=name, **sizes).strip(), *posts]
        for rank in (0, 1):
            lines += [f"rank {rank} lane a", *ops[rank]]
        return parse("\n".join(lines))

    def _part(self, buffer: str, rows: tuple[int, int], blocks: tuple[int, int]) -> str:
        """Some blocks of some rows."""
        (a, b), (s, t), w = rows, blocks, self.blocks
        return f"{buffer}[{a * w}:{b * w}]" if t - s == w else f"{buffer}[{a * w + s}:{a * w + t}; {b - a} x {w}]"

    def _cuts(self, size: int, unit: int) -> list[tuple[int, int]]:
        """Random parts, in random order."""
        places = range(unit, size, unit) if self.rng.random() < 0.8 else range(1, size)
        edges = [0, *sorted(self.rng.sample(places, self.rng.randint(0, min(len(places), 3)))), size]
        parts = list(pairwise(edges))
        return self.rng.sample(parts, len(parts))

    def _whole(self, rank: int) -> list[str]:
        rows, blocks = (0, self.rows), (0, self.blocks)
        return [*self._gather(rank, [(rows, blocks)]), *self._compute([(rows, [blocks])], rank), *self._finish([rows])]

    def _parts(self, rank: int, messages: list[Part]) -> list[str]:
        tiles = [(tile, self._cuts(self.blocks, 1)) for tile in self._cuts(self.rows, self.unit)]
        ends = self._finish(self._cuts(self.rows, self.unit))
        return [*self._gather(rank, messages), *self._compute(tiles, rank), *ends]

    def _gather(self, rank: int, parts: list[Part]) -> list[str]:
        """Rank 0 sends its A, which both then use; else, where A is first changed, each its own."""
        if not self.moved:
            return (
                [f"compute f {self._part('A', *part)} -> {self._part('G', *part)}" for part in parts]
                if self.before
                else []
            )
        if rank == 0 and not self.before:
            return [f"send {self._part('A', *part)} to 1" for part in parts]
        if rank == 0:
            computes = [f"compute f {self._part('A', *part)} -> {self._part('G', *part)}" for part in parts]
            return [*computes, *(f"send {self._part('G', *part)} to 1" for part in parts)]
        return [f"recv from 0 -> {self._part('G', *part)}" for part in parts]

    def _compute(self, tiles: list[tuple[tuple[int, int], list[tuple[int, int]]]], rank: int) -> list[str]:
        source = "G" if self.before or (self.moved and rank == 1) else "A"
        return [
            f"compute matmul#{1 + (number > 0)} {self._part(source, rows, block)} B[{block[0]}:{block[1]}] "
            f"-> P[{rows[0]}:{rows[1]}]"
            for rows, blocks in tiles
            for number, block in enumerate(blocks)
        ]

    def _finish(self, parts: list[tuple[int, int]]) -> list[str]:
        word = {"": "copy P{0}", "f": "compute f P{0}", "norm": f"compute norm P{{0}} P[0:{self.rows}]"}[self.after]
        return [f"{word.format(f'[{a}:{b}]')} -> C[{a}:{b}]" for a, b in parts]
