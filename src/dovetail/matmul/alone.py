"""alone: a matrix product in isolation, as a subject to benchmark: its cuts along M, N and K."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dovetail.core import OperatorError, parse_count
from dovetail.ir import Builder, Kind, LibraryCall, Option, Program, Region, Sample, Slot, Workload, dtype_bytes
from dovetail.matmul.kernels import MATMUL
from dovetail.matmul.product import DTYPES
from dovetail.matmul.samples import add_products, add_slices
from dovetail.passes.regions import split

SHAPE = re.compile(r"(\d+)[x×*](\d+)[x×*](\d+)")
# Default shapes: 10 to 170 FLOP per byte, many and few rows relative to K, at most 20 ms each on a fast core.
LADDER = (
    "4096x64x64, 64x4096x64, 256x256x256, 4096x256x512, 256x4096x512, 512x512x512, 2048x512x512, 512x2048x512, "
    "1024x1024x1024"
)


@dataclass(frozen=True)
class ProductAlone:
    """A matrix product without communication: C (m, n) = A (m, k)·B (k, n) on every rank, cut along m, n and k.

    >>> [each.title for each in ProductAlone.points(shapes="8x4x2,16x4x2", dtype="float64")]
    ['8 × 4 × 2', '16 × 4 × 2']
    """

    name: ClassVar[str] = "matmul"
    options: ClassVar[tuple[Option, ...]] = (
        Option("shapes", str, "Products of a rank, as MxKxN,… or a file of these.", LADDER),
        Option("dtype", str, "Element type.", "float32", choices=DTYPES),
    )
    aspect: ClassVar[str] = "M / K"

    m: int
    k: int
    n: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            object.__setattr__(self, name, parse_count(getattr(self, name), name, least=1))
        dtype_bytes(self.dtype)

    @classmethod
    def points(cls, **asked: Any) -> tuple[ProductAlone, ...]:
        """Return one product of each shape, in the order given."""
        shapes = shapes_of(asked.get("shapes") or LADDER)
        return tuple(cls(*shape, asked.get("dtype") or "float32") for shape in dict.fromkeys(shapes))

    @property
    def title(self) -> str:
        return f"{self.m} × {self.k} × {self.n}"

    @property
    def shape(self) -> float:
        return self.m / self.k

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def ways(self) -> tuple[Sample, ...]:
        """Return the ways to split the product: by rows; by columns of B and of the result; by slices of K, whose
        products are added. The operands of a piece are contiguous, as they are after a transfer."""
        return (
            Sample("rows", self.m, self._add_rows),
            Sample("columns", self.n, self._add_columns),
            Sample("K", self.k, self._add_depths),
        )

    def samples(self, ranks: int) -> tuple[Sample, ...]:
        """Return the benchmark of slices of K, one for each rank, by rows."""
        if ranks == 1 or self.k < ranks:
            return ()
        return (Sample(f"K / {ranks}, by rows", self.m, self._add_slices),)

    def library_calls(self, ranks: int) -> tuple[LibraryCall, ...]:
        """Return the all_gather of A, of which every rank has a share."""
        return (LibraryCall("all_gather", self.m * self.k * dtype_bytes(self.dtype)),) if ranks > 1 else ()

    def workload(self, program: Program) -> Workload:
        """Describe a program of samples: the slots of the buffers of each split. By rows: A, B, P (rows). By columns:
        BN, CN (columns). By K: AK, BK (indices of K). Slices of K: G, B0 (slices, which may differ in width)."""
        m, k, n = self.m, self.k, self.n
        shapes: dict[str, tuple[int, ...]] = {"A": (k,), "B": (k, n), "P": (n,)}
        shapes |= {"BN": (k, 1), "CN": (m, 1), "AK": (m, 1), "BK": (n,)}
        held = {buffer.name: buffer.slots[0] for buffer in program.buffers}
        slots = {name: (Slot(shapes[name], self.dtype),) * program.num_ranks for name in held if name in shapes}
        if "B0" not in held:
            return Workload(slots, (MATMUL,))
        widths = np.array(split(k, held["B0"]))
        sizes = {"G": np.repeat(widths, m), "B0": widths * n}
        ranks, flat = range(program.num_ranks), (Slot((), self.dtype),) * program.num_ranks
        slots |= dict.fromkeys(sizes, flat)
        return Workload(slots, (MATMUL,), {name: (each,) * len(ranks) for name, each in sizes.items()})

    def _add_rows(self, b: Builder, ranks: int, rows: Sequence[int]) -> dict[int, list[int]]:
        return add_products(b, ranks, rows, self.m)

    def _add_slices(self, b: Builder, ranks: int, rows: Sequence[int]) -> dict[int, list[int]]:
        return add_slices(b, ranks, rows, self.m, ranks)

    def _add_columns(self, b: Builder, ranks: int, columns: Sequence[int]) -> dict[int, list[int]]:
        b.buffer("A", "input", self.m), b.buffer("BN", "input", self.n), b.buffer("CN", "scratch", self.n)
        pieces = [
            ((Region("A", 0, self.m), Region("BN", start, count)), Region("CN", start, count), False)
            for start, count in walk(columns, self.n)
        ]
        return _added(b, ranks, pieces)

    def _add_depths(self, b: Builder, ranks: int, depths: Sequence[int]) -> dict[int, list[int]]:
        b.buffer("AK", "input", self.k), b.buffer("BK", "input", self.k), b.buffer("P", "scratch", self.m)
        pieces = [
            ((Region("AK", start, count), Region("BK", start, count)), Region("P", 0, self.m), start > 0)
            for start, count in walk(depths, self.k)
        ]
        return _added(b, ranks, pieces)


def _added(
    b: Builder, ranks: int, pieces: Sequence[tuple[tuple[Region, Region], Region, bool]]
) -> dict[int, list[int]]:
    """Append a product for each ((A, B), C, whether it adds to C), on every rank; return the ops' numbers by rank."""
    lane, rows = b.lane("compute", "compute"), dict[int, list[int]]()
    for rank in range(ranks):
        rows[rank] = [
            b.add(
                Kind.compute,
                rank,
                lane,
                reads=reads,
                writes=[into],
                call=b.kernel("matmul", ("all", "all"), accumulate=adds),
            )
            for reads, into, adds in pieces
        ]
    return rows


def walk(amounts: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Place amounts one after the other, from the start again if the next does not fit; yield (begin, amount).

    >>> list(walk([4, 4, 2, 4], 10))
    [(0, 4), (4, 4), (8, 2), (0, 4)]
    """
    start = 0
    for count in amounts:
        start = start if start + count <= most else 0
        yield start, count
        start += count


def shapes_of(text: str) -> list[tuple[int, int, int]]:
    """Return the shapes in a text, or in the file of that name, separated by commas or newlines; `#` starts a comment.

    >>> shapes_of("8x4x2, 16x4x2")
    [(8, 4, 2), (16, 4, 2)]
    """
    words = _words(text)
    if not any(SHAPE.fullmatch(word) for word in words) and Path(text).is_file():
        words = _words(Path(text).read_text(encoding="utf-8"))
    found = [SHAPE.fullmatch(word) for word in words]
    bad = next((word for word, match in zip(words, found, strict=True) if not match), None if words else text)
    if bad is not None:
        raise OperatorError("shapes are MxKxN, with commas between them, or a file of these", found=repr(bad[:80]))
    return [(int(m[1]), int(m[2]), int(m[3])) for m in found if m]


def _words(text: str) -> list[str]:
    lines = (line.split("#")[0] for line in text.splitlines())
    return [word.strip() for line in lines for word in line.split(",") if word.strip()]
