"""Product: what all matrix products with a collective have in common: sizes, dtype, options, and one product's work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError, parse_count
from dovetail.ir import (
    Builder,
    Gemm,
    Heuristic,
    Kind,
    Option,
    Program,
    Region,
    Sample,
    Schedule,
    Studied,
    Work,
    Workload,
    dtype_bytes,
)
from dovetail.ir.operator import Arrays, Collected, Costs, OfFields, Times
from dovetail.ir.types import Mode
from dovetail.matmul.kernels import work_of
from dovetail.matmul.tiles import READINGS
from dovetail.passes.regions import split

MODES: tuple[Mode, ...] = ("each_sum", "sum")  # of a product whose K is cut
DTYPES = ("float16", "bfloat16", "float32", "float64")
SIZES = (
    Option("m", int, "Rows of A and of the result.", least=0, needed=True),
    Option("k", int, "Columns of A, over all ranks unless the machine counts them per rank.", least=0, needed=True),
    Option("n", int, "Columns of the result, over all ranks.", least=0, needed=True),
    Option("dtype", str, "Element type. Default: the machine's, else float32.", choices=DTYPES),
)
TILING = (
    Option("reading", str, "Rule of MC2's short block.", "max", choices=READINGS, of="schedules"),
    Option("floor", int, "Least rows of a tile of the optimum.", least=1, of="schedules"),
    Option("align", int, "Rows that tile lengths of the optimum are multiples of.", least=1, of="schedules"),
    Option("max_tiles", int, "Tiles at most.", least=1, of="schedules"),
    Option("rows_per_message", int, "Rows of one of our own messages at most.", least=1, of="schedules"),
)
SIDE_S = 0.06  # of either side of a balanced operator: long beside what starting it costs, short enough to run often
MOST_BYTES = 32 << 20  # that it communicates
MOST_HELD = 1 << 50  # bytes of a matrix: far from where counts of bytes overflow
ROWS, BLOCK = 2048, 64  # so many rows, and columns in whole blocks
DRAWN = 256, 65536  # sizes of a product that is drawn at random
LEAST_DEPTH, MOST_DEPTH = 8, 1 << 16  # of the dimension that only computation knows, on a rank


def shard(size: int, ranks: int) -> tuple[int, ...]:
    """What each rank holds of `size` rows or columns; shares differ by at most 1 and may be 0.

    >>> shard(10, 4), shard(1, 2)
    ((3, 3, 2, 2), (1, 0))
    """
    return split(parse_count(size, "size"), parse_count(ranks, "ranks", least=1))


def checked_shares(shares: Any, total: int, what: str) -> tuple[int, ...] | None:
    """What each rank holds, as whole numbers that add up to `total`; None where it is shared evenly. OperatorError."""
    if shares is None:
        return None
    if not isinstance(shares, list | tuple | np.ndarray):
        raise OperatorError(f"shares of {what} are a list, one for each rank", found=repr(shares))
    held = tuple(parse_count(value, f"a share of {what}") for value in shares)
    if sum(held) != total:
        raise OperatorError(f"the shares of {what} do not add up to {total}", found=f"{list(held)}, {sum(held)}")
    return held


def shares_for(held: tuple[int, ...] | None, total: int, ranks: int, what: str) -> tuple[int, ...]:
    """What each of `ranks` ranks holds: as given, else even; OperatorError where it was given for other ranks."""
    if held is None:
        return shard(total, ranks)
    if len(held) != ranks:
        raise OperatorError(f"the shares of {what} are for {len(held)} ranks", found=f"{ranks} ranks")
    return held


class Share(NamedTuple):
    """What each rank has of a size of a product, which an operator lets a caller say: the size, its name in errors."""

    size: str
    what: str


class Said(NamedTuple):
    """What a call may say beside its arrays: how it is read (OperatorError for what cannot be), and its default."""

    read: Callable[[Any], Any]
    default: Any = None


def parse_flag(value: Any, name: str) -> bool:
    """True or False, and nothing that merely counts as one.

    >>> parse_flag("no", "gathered")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: gathered must be True or False
      found       'no'
    """
    if not isinstance(value, bool | np.bool_):
        raise OperatorError(f"{name} must be True or False", found=repr(value))
    return bool(value)


class RankArguments(NamedTuple):
    """What a rank tells the others of its arguments: shapes of A and B, how many B, dtype, and what else was said."""

    a: tuple[int, int]
    b: tuple[int, int]
    several: int
    dtype: str
    said: dict[str, Any]


def the_same(arguments: Sequence[RankArguments], read: Callable[[RankArguments], Any], what: str) -> Any:
    """What all ranks must say alike; OperatorError, on all of them, naming the first that differs.

    >>> ranks = [RankArguments((2, 4), (4, 3), 1, "float32", {}), RankArguments((3, 5), (5, 3), 1, "float32", {})]
    >>> the_same(ranks, lambda rank: rank.b[1], "columns of B")
    3
    >>> the_same(ranks, lambda rank: rank.a[1], "columns of A")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: rank 1 has 5 columns of A
      found       rank 0 has 4
    """
    first = read(arguments[0])
    for rank, each in enumerate(arguments):
        if read(each) != first:
            raise OperatorError(f"rank {rank} has {read(each)} {what}", found=f"rank 0 has {first}")
    return first


def uneven_or_none(shares: Sequence[int]) -> tuple[int, ...] | None:
    """Shares; None where they are those that an even cut makes."""
    held = tuple(shares)
    return None if held == shard(sum(held), len(held)) else held


@dataclass(frozen=True)
class Product(OfFields):
    """C = A·B with A (m, k) and B (k, n), shared among ranks as each operator says; a front door's operator
    (`ir.Operator`).

    Half types accumulate in float32; C and the messages have the input dtype. Any size may be 0. Raises OperatorError
    for negative or fractional sizes and other dtypes.
    """

    name: ClassVar[str] = "product"
    options: ClassVar[tuple[Option, ...]] = (*SIZES, *TILING)
    families: ClassVar[tuple[str, ...]] = ("serial",)
    by_size: ClassVar[bool] = False
    heuristics: ClassVar[tuple[Heuristic, ...]] = ()
    said: ClassVar[Mapping[str, Said]] = {}  # what a call on arrays may say, beside the arrays
    cuts: ClassVar[Mapping[str, Share]] = {}  # by the fields that hold them
    cut_alike: ClassVar[bool] = True  # whether a rank's B has as many rows as its A has columns

    m: int
    k: int
    n: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            if isinstance(getattr(self, name), np.ndarray):
                hint = f"dovetail.{self.name}(a, b, comm) takes arrays"
                raise OperatorError(f"{self.name} is made of sizes: {name} is an array", hint=hint)
            object.__setattr__(self, name, parse_count(getattr(self, name), name))
        if self.dtype not in DTYPES:
            raise OperatorError(f"no matrix product of dtype {self.dtype!r}", hint=f"one of {', '.join(DTYPES)}")
        for rows, columns in ((self.m, self.k), (self.k, self.n), (self.m, self.n)):
            if rows * columns * self.element_bytes > MOST_HELD:
                raise OperatorError(
                    f"no memory holds a matrix of {rows} × {columns} {self.dtype}", hint="at most 1 PiB"
                )
        for field, (size, what) in self.cuts.items():
            object.__setattr__(self, field, checked_shares(getattr(self, field), getattr(self, size), what))

    def share(self, field: str, ranks: int) -> tuple[int, ...]:
        """What each rank has, by one of `cuts`."""
        size, what = self.cuts[field]
        return shares_for(getattr(self, field), getattr(self, size), ranks, what)

    @classmethod
    def studied(cls) -> Sequence[Studied]:
        """Products that others published figures of."""
        return ()

    @classmethod
    def drawn(cls, rng: np.random.Generator, ranks: int) -> Self:
        """One whose every size is drawn from DRAWN rows or columns of a rank and up, by its logarithm."""
        (least, most), unit = DRAWN, 8
        m, k, n = (unit * round(2 ** rng.uniform(np.log2(least), np.log2(most)) / unit) for _ in range(3))
        return cls(ranks * m, k, ranks * n, str(rng.choice(DTYPES)))

    @classmethod
    def of_ranks(cls, arguments: Sequence[RankArguments]) -> Product:
        """The operator that these arguments of all ranks make; OperatorError, naming the rank, where they do not
        fit."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole product, over all ranks.

        >>> Product(4096, 3072, 8192, "float16").flops
        206158430208
        """
        return 2 * self.m * self.k * self.n

    @property
    def title(self) -> str:
        return f"{self.name} {self.m} × {self.k} × {self.n} {self.dtype}"

    def settled(self, facts: Mapping[str, Any], ranks: int) -> tuple[Product, tuple[str, ...]]:
        return self, ()

    def modelled(self, schedule: Schedule, ranks: int) -> tuple[Program, Workload, Times]:
        program = self.program(schedule, ranks)
        return program, self.workload(program), 1.0

    def program(self, schedule: Schedule, ranks: int) -> Program:
        raise NotImplementedError

    def plain(self, schedule: Schedule, ranks: int) -> Program | None:
        return None

    def space(self, schedule: Schedule, ranks: int) -> None:
        """None: its tiles are in the timeline."""
        return

    def workload(self, program: Program) -> Workload:
        raise NotImplementedError

    def explained(self, schedule: Schedule, ranks: int) -> str:
        raise NotImplementedError

    def arguments(self, program: Program, rank: int, given: Sequence[Any], out: Any) -> tuple[Arrays, Arrays]:
        raise NotImplementedError

    def result(self, program: Program, rank: int, held: Arrays) -> Any:
        raise NotImplementedError

    def usual(self, ranks: int) -> Schedule:
        """Return what is run where nothing was tuned."""
        return self.serial(ranks)

    def serial(self, ranks: int) -> Schedule:
        raise NotImplementedError

    def schedules(self, costs: Costs) -> Iterator[Schedule]:
        raise NotImplementedError

    def improved(self, costs: Costs, ranked: Sequence[Schedule], turn: int) -> Iterator[Schedule]:
        return iter(())

    def neighbours(self, schedule: Schedule) -> Iterator[Schedule]:
        return iter(())

    def collected(self, ranks: int) -> Sequence[Collected]:
        return ()

    def samples(self, ranks: int) -> Sequence[Sample]:
        return ()

    @property
    def element_bytes(self) -> int:
        return dtype_bytes(self.dtype)


def ways_of(kind: type[Product], *ways: str) -> tuple[Option, ...]:
    """The options of `kind`, of which `by` offers these ways only."""
    return tuple(replace(each, choices=("auto", *ways)) if each.name == "by" else each for each in kind.options)


def row_work(k: int, n: int, dtype: str) -> Work:
    """The work of one row of a product."""
    return work_of(Gemm(1, k, n), dtype)


def add_products(
    b: Builder, ranks: int, rows: Sequence[int], held: int, names: tuple[str, str, str] = ("A", "B", "P")
) -> dict[int, list[int]]:
    """Append products of these numbers of rows on every rank, walking through an A of `held` rows, so that it is cold;
    returns their rows in the program, by rank."""
    a, weights, p = names
    b.buffer(a, "input", held), b.buffer(weights, "input", 1), b.buffer(p, "scratch", held)
    lane, call = b.lane("compute", "compute"), b.kernel("matmul", ("each", "all"))
    added: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    start = 0
    for count in rows:
        start = start if start + count <= held else 0
        reads, writes = [Region(a, start, count), Region(weights, 0, 1)], [Region(p, start, count)]
        for rank in range(ranks):
            added[rank].append(b.add(Kind.compute, rank, lane, reads=reads, writes=writes, call=call))
        start += count
    return added


def add_slices(
    b: Builder, ranks: int, rows: Sequence[int], held: int, slices: int, names: tuple[str, str, str] = ("G", "B0", "P")
) -> dict[int, list[int]]:
    """Append products of slices of K, of these numbers of rows, on every rank: block of rows after block, each slice
    added to the one before, as schedules of slices have them in `held` rows; returns their rows in the program, by
    rank."""
    g, weights, p = names
    b.buffer(g, "input", held * slices), b.buffer(weights, "input", slices), b.buffer(p, "scratch", held)
    lane = b.lane("compute", "compute")
    first, further = (b.kernel("matmul", MODES, accumulate=adds) for adds in (False, True))
    added: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    start = block = done = 0  # the block of rows that is multiplied, and how many of its slices were
    for count in rows:
        if done == slices or count > block:
            start = start + block if start + block + count <= held else 0
            block, done = count, 0
        reads = [Region(g, done * held + start, count), Region(weights, done, 1)]
        for rank in range(ranks):
            call, writes = further if done else first, [Region(p, start, count)]
            added[rank].append(b.add(Kind.compute, rank, lane, reads=reads, writes=writes, call=call))
        done += 1
    return added


class Balance(NamedTuple):
    """Sizes of a balanced product: `rows` × `width` elements are communicated, `depth` more are in each rank's product
    (what is contracted, or the columns that each rank has)."""

    rows: int
    width: int
    depth: int


def balance(element_bytes: int, flop_per_s: float, bytes_per_s: float) -> Balance:
    """Sizes of which either side takes SIDE_S at these speeds of a rank and of the collective.

    >>> balance(4, 110e9, 118e6), balance(4, 110e9, 11.8e6)
    (Balance(rows=2048, width=896, depth=1864), Balance(rows=2752, width=64, depth=18648))
    """
    elements = min(SIDE_S * bytes_per_s, MOST_BYTES) / element_bytes
    width = _whole(elements / ROWS, BLOCK)
    rows = ROWS if width > BLOCK else _whole(elements / width, BLOCK)
    comm_s = rows * width * element_bytes / bytes_per_s
    return Balance(rows, width, min(_whole(comm_s * flop_per_s / (2 * rows * width), LEAST_DEPTH), MOST_DEPTH))


def _whole(count: float, block: int) -> int:
    """The nearest number of whole blocks, at least one."""
    return max(round(count / block), 1) * block


def array_of(given: Any, dtype: str) -> NDArray[Any]:
    """What a caller gave, as an array: of this dtype where it has none of its own."""
    return np.asarray(given if hasattr(given, "dtype") else np.asarray(given, None if dtype == "bfloat16" else dtype))


def arrays_of(operator: Product, given: Sequence[Any], shapes: Mapping[str, tuple[int, int]]) -> list[NDArray[Any]]:
    """What a caller gave, as arrays of these shapes, by the names that errors give them; OperatorError."""
    if len(given) != len(shapes):
        hint = "out=… takes the result" if len(given) > len(shapes) else None
        raise OperatorError(f"{operator.name} takes {', '.join(shapes)}", found=f"{len(given)} arrays", hint=hint)
    arrays = [array_of(each, operator.dtype) for each in given]
    for array, (name, shape) in zip(arrays, shapes.items(), strict=True):
        if array.shape != shape:
            raise OperatorError(f"'{name}' has shape {array.shape}, and the plan wants {shape}")
    return arrays


def results_in(out: Any, names: Sequence[str]) -> dict[str, Any]:
    """What the caller wants results in, by buffer: one array, or one for each; nothing where there is no `out`."""
    if out is None:
        return {}
    held = tuple(out) if isinstance(out, list | tuple) else (out,)
    if len(held) != len(names):
        raise OperatorError(f"there are {len(names)} results, and `out` has {len(held)} arrays")
    for each in held:
        if not isinstance(each, np.ndarray):
            raise OperatorError("`out` takes NumPy arrays", found=type(each).__name__)
    return dict(zip(names, held, strict=True))
