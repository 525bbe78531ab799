"""Product: base class of all matrix products with a collective: sizes, dtype, options, and the work of one product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from dovetail.core import OperatorError, parse_count
from dovetail.ir import Gemm, Heuristic, Option, Program, PublishedCase, Schedule, Slot, Work, Workload, dtype_bytes
from dovetail.ir.abilities import CallOption, RankArguments
from dovetail.ir.arrays import ArraySpec
from dovetail.ir.operator import OfFields
from dovetail.ir.types import Mode
from dovetail.matmul.kernels import MATMUL, work_of
from dovetail.matmul.local_search import as_optimal
from dovetail.matmul.tiles import READINGS
from dovetail.matmul.variations import floor_of
from dovetail.passes.regions import split

MODES: tuple[Mode, ...] = ("each_sum", "sum")  # modes of A and B in a product whose K is cut
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
    Option("max_tiles", int, "Most tiles.", least=1, of="schedules"),
    Option("rows_per_message", int, "Most rows in one of our own messages.", least=1, of="schedules"),
)
MOST_HELD = 1 << 50  # most bytes of a matrix, far below where byte counts overflow
DRAWN = 256, 65536  # least and greatest size, per rank, of a random product


def shard(size: int, ranks: int) -> tuple[int, ...]:
    """Return the share of each rank of `size` rows or columns; shares differ by at most 1 and may be 0.

    >>> shard(10, 4), shard(1, 2)
    ((3, 3, 2, 2), (1, 0))
    """
    return split(parse_count(size, "size"), parse_count(ranks, "ranks", least=1))


def checked_shares(shares: Any, total: int, what: str) -> tuple[int, ...] | None:
    """Return shares as whole numbers, or None. Raises OperatorError if they do not add up to `total`."""
    if shares is None:
        return None
    if not isinstance(shares, list | tuple | np.ndarray):
        raise OperatorError(f"shares of {what} are a list, one for each rank", found=repr(shares))
    held = tuple(parse_count(value, f"a share of {what}") for value in shares)
    if sum(held) != total:
        raise OperatorError(f"the shares of {what} do not add up to {total}", found=f"{list(held)}, {sum(held)}")
    return held


def shares_for(held: tuple[int, ...] | None, total: int, ranks: int, what: str) -> tuple[int, ...]:
    """Return the share of each rank: as given, else even. Raises OperatorError if the shares are for other ranks."""
    if held is None:
        return shard(total, ranks)
    if len(held) != ranks:
        raise OperatorError(f"the shares of {what} are for {len(held)} ranks", found=f"{ranks} ranks")
    return held


class Share(NamedTuple):
    """A field with the shares of each rank: the size that they add up to, and its name in errors."""

    size: str
    what: str


def parse_flag(value: Any, name: str) -> bool:
    """Return a bool. Raises OperatorError for any other value, even one that counts as true or false.

    >>> parse_flag("no", "gathered")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: gathered must be True or False
      found       'no'
    """
    if not isinstance(value, bool | np.bool_):
        raise OperatorError(f"{name} must be True or False", found=repr(value))
    return bool(value)


def the_same(arguments: Sequence[RankArguments], read: Callable[[RankArguments], Any], what: str) -> Any:
    """Return the value on which all ranks must agree. Raises OperatorError, naming the first rank that differs.

    >>> ranks = [RankArguments(((2, 4), (4, 3)), "float32", {}), RankArguments(((3, 5), (5, 3)), "float32", {})]
    >>> the_same(ranks, lambda rank: shape_of_b(rank)[1], "columns of B")
    3
    >>> the_same(ranks, lambda rank: shape_of_a(rank)[1], "columns of A")
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


def shape_of_a(rank: RankArguments) -> tuple[int, int]:
    """Return rows and columns of a rank's A; (0, 0) if it passed none."""
    return _matrix(rank, 0)


def shape_of_b(rank: RankArguments) -> tuple[int, int]:
    """Return rows and columns of a rank's matrices B, all of which have one shape."""
    return _matrix(rank, 1)


def _matrix(rank: RankArguments, place: int) -> tuple[int, int]:
    rows, columns = rank.shapes[place] if place < len(rank.shapes) and len(rank.shapes[place]) == 2 else (0, 0)
    return rows, columns


def uneven_or_none(shares: Sequence[int]) -> tuple[int, ...] | None:
    """Return shares; None if they are those of an even cut."""
    held = tuple(shares)
    return None if held == shard(sum(held), len(held)) else held


@dataclass(frozen=True)
class Product(OfFields):
    """C = A·B with A (m, k) and B (k, n). Derived operators (see `ir.Operator`) define how ranks share them.

    Half types accumulate in float32; C and the messages have the input dtype. Any size may be 0. Raises OperatorError
    for negative or fractional sizes and other dtypes.

    Notes
    -----
    Options of the schedules in `plan` and `tune`: `reading`: the rule of MC²'s short block (seed 000: `max` as in its
    worked example, `min` as in its text); `floor`: least rows of a tile of the optimum; `align`: tile lengths are
    multiples of it; `max_tiles`; `by`: the library's collectives or our own messages; `rows_per_message`: most rows in
    one of these.
    """

    name: ClassVar[str] = "product"
    options: ClassVar[tuple[Option, ...]] = (*SIZES, *TILING)
    families: ClassVar[tuple[str, ...]] = ("serial",)
    by_size: ClassVar[bool] = False
    heuristics: ClassVar[tuple[Heuristic, ...]] = ()
    cuts: ClassVar[Mapping[str, Share]] = {}  # the fields that hold shares
    cut_alike: ClassVar[bool] = True  # whether a rank's B has as many rows as its A has columns

    m: int
    k: int
    n: int
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            if isinstance(getattr(self, name), np.ndarray):
                hint = f"dovetail.{self.name}(a, b, comm) takes arrays"
                raise OperatorError(f"{self.name} takes sizes, but {name} is an array", hint=hint)
            object.__setattr__(self, name, parse_count(getattr(self, name), name))
        if self.dtype not in DTYPES:
            raise OperatorError(f"no matrix product of dtype {self.dtype!r}", hint=f"one of {', '.join(DTYPES)}")
        for rows, columns in ((self.m, self.k), (self.k, self.n), (self.m, self.n)):
            if rows * columns * self.element_bytes > MOST_HELD:
                raise OperatorError(f"a matrix of {rows} × {columns} {self.dtype} is too large", hint="at most 1 PiB")
        for field, (size, what) in self.cuts.items():
            object.__setattr__(self, field, checked_shares(getattr(self, field), getattr(self, size), what))

    def share(self, field: str, ranks: int) -> tuple[int, ...]:
        """Return the share of each rank, from one of the fields in `cuts`."""
        size, what = self.cuts[field]
        return shares_for(getattr(self, field), getattr(self, size), ranks, what)

    @classmethod
    def published_cases(cls) -> Sequence[PublishedCase]:
        return ()

    @classmethod
    def drawn(cls, rng: np.random.Generator, ranks: int) -> Self:
        """Return an operator with random sizes: per rank within DRAWN, uniform in their logarithms."""
        (least, most), unit = DRAWN, 8
        m, k, n = (unit * round(2 ** rng.uniform(np.log2(least), np.log2(most)) / unit) for _ in range(3))
        return cls(ranks * m, k, ranks * n, str(rng.choice(DTYPES)))

    @classmethod
    def call_arrays(cls) -> Mapping[str, str]:
        return {
            "a": f"of two axes, of {', '.join(DTYPES)}, in any memory layout",
            "b": "of two axes and the same dtype",
        }

    @classmethod
    def call_options(cls) -> Mapping[str, CallOption]:
        return {}

    @classmethod
    def fault_of(cls, given: Sequence[Any]) -> str:
        """Return what is wrong with A and every B of a rank; "" if they are valid."""
        for place, each in enumerate(given):
            what = "B" if place else "A"
            if isinstance(each, np.ma.MaskedArray):
                return f"{cls.name} would lose the mask of a masked array: {what}.filled(…), or {what}.data"
            if not isinstance(each, np.ndarray) or each.ndim != 2:
                shape = f"{each.ndim} axes" if isinstance(each, np.ndarray) else type(each).__name__
                return f"{cls.name} takes arrays of two axes, but its {what} has {shape}"
            if each.dtype.name not in DTYPES or not each.dtype.isnative:
                return f"{cls.name} does not take {each.dtype}, but one of {', '.join(DTYPES)}"
            if each.dtype != given[0].dtype:
                return f"its A is {given[0].dtype}, but its {what} is {each.dtype}"
            if cls.cut_alike and place and each.shape[0] != given[0].shape[1]:
                return f"A of {given[0].shape} and B of {each.shape} do not fit"
            if place > 1 and each.shape != given[1].shape:
                return f"all matrices B must have one shape, not {given[1].shape} and {each.shape}"
        return ""

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

    def array(self, buffer: str, shapes: Iterable[tuple[int, int]], **layout: Any) -> ArraySpec:
        """Return the spec of a matrix, of one shape for each rank."""
        return ArraySpec(buffer, self.dtype, tuple(shapes), **layout)

    def counted_as(self, base: Schedule, found: Schedule) -> Schedule:
        return as_optimal(base, found, floor_of(base))

    @property
    def element_bytes(self) -> int:
        return dtype_bytes(self.dtype)


def ways_of(kind: type[Product], *ways: str) -> tuple[Option, ...]:
    """Return the options of `kind`, with only these choices of `by`."""
    return tuple(replace(each, choices=("auto", *ways)) if each.name == "by" else each for each in kind.options)


def workload_of(program: Program, slots: Mapping[str, tuple[Slot, ...]]) -> Workload:
    """Return the workload of the buffers that a program has, out of these."""
    return Workload({buffer.name: slots[buffer.name] for buffer in program.buffers if buffer.name in slots}, (MATMUL,))


def row_work(k: int, n: int, dtype: str) -> Work:
    return work_of(Gemm(1, k, n), dtype)
