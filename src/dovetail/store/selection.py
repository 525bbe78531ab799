"""selection: the table of measured algorithms for a collective by size, looked up at run time."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from math import inf, isqrt
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.collective.compile import PROTOCOLS
from dovetail.collective.library import LIBRARY as LIBRARY
from dovetail.core import DovetailError, PlanError, check_schema, load_json, reading, save_json, warn_once
from dovetail.ir import Schedule
from dovetail.ir.collectives import COLLECTIVES
from dovetail.ir.slots import DTYPE_BYTES
from dovetail.run.options import MPI, TRANSPORTS
from dovetail.store.store import SELECTIONS, Item, Recalled, item, recall, save

SCHEMA = "dovetail.selection/2"
EARLIER = "dovetail.selection/1"  # without `transport`: every row is for the library's messages
DTYPES = (*DTYPE_BYTES, "complex64", "complex128")  # dtypes that collectives reduce
LEVELS = ("serialized", "multiple")  # of thread support; the first also stands for those below
_RANKED = ("", *LEVELS)
MOST = 1 << 62  # greatest count or size: the sum of two fits in 64 bits


class Choice(NamedTuple):
    """An algorithm for a collective: a built-in one with its parameters, or the library's own call.

    `slice_bytes`: longer messages are cut so that forwarding pipelines; 0 leaves them whole. `transport`: "mpi", or
    "shared" where all ranks share a host's memory.
    """

    algorithm: str = LIBRARY
    channels: int = 1
    instances: int = 1
    protocol: str = "Simple"
    slice_bytes: int = 0
    transport: str = MPI

    @staticmethod
    def of(schedule: Schedule) -> Choice:
        """Return the choice of a collective's schedule; `CollectiveOperator.by(*choice)` is the inverse.

        >>> from dovetail.collective.operators import AllReduce
        >>> operator, tree = AllReduce(4096), Choice("double_tree_all_reduce", instances=2, slice_bytes=8192)
        >>> Choice.of(operator.by(*tree)) == tree, Choice.of(operator.serial(2)) == Choice()
        (True, True)
        """
        known = {name: schedule.get(name, usual) for name, usual in Choice._field_defaults.items()}
        return Choice(**known | {"slice_bytes": schedule.slice_bytes})

    @property
    def is_library(self) -> bool:
        return self.algorithm == LIBRARY

    def __str__(self) -> str:
        counts = ((self.channels, "channels"), (self.instances, "instances"))
        parts = [f"{count} {name}" for count, name in counts if count > 1]
        if self.protocol != "Simple":
            parts.append(self.protocol)
        if self.slice_bytes:
            parts.append(f"slices of {self.slice_bytes // 1024}K")
        if self.transport != MPI:
            parts.append("shared memory")
        return ", ".join([self.algorithm, *parts])


class Point(NamedTuple):
    """Measurement at one size, in seconds: medians of the choice and of the library's call, interleaved in one job.

    `spread`: half the interquartile range of the choice over its median.
    """

    num_bytes: int
    measured_s: float
    library_s: float | None = None
    predicted_s: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class Row:
    """One choice for messages of [min_bytes, max_bytes) of a collective on `ranks` ranks of `nodes` nodes.

    Bytes are counted as in nccl-tests: the larger of one rank's input and output. `dtype`: the only dtype that the row
    serves; empty: any, for collectives that do not reduce. `level`: of MPI's thread support that the row was measured
    at, of `LEVELS`; empty: it serves any.
    """

    collective: str
    ranks: int
    nodes: int
    min_bytes: int
    max_bytes: int
    algorithm: str = LIBRARY
    channels: int = 1
    instances: int = 1
    protocol: str = "Simple"
    slice_bytes: int = 0
    transport: str = MPI
    points: tuple[Point, ...] = field(default=(), repr=False)
    dtype: str = ""
    level: str = ""

    @property
    def choice(self) -> Choice:
        """The algorithm and its parameters."""
        return Choice(*(getattr(self, name) for name in Choice._fields))

    @property
    def group(self) -> tuple[str, int, int, str]:
        """Collective, ranks, nodes and level: rows that agree in these are for different sizes."""
        return self.collective, self.ranks, self.nodes, self.level

    def to_json(self) -> dict[str, Any]:
        """Return all attributes by name."""
        return {**vars(self), "points": [point._asdict() for point in self.points]}


@dataclass(frozen=True)
class Selection:
    """Rows sorted by collective, ranks, nodes and size; `facts`: the machine and MPI that they were measured on.

    >>> ring = Row("all_reduce", 4, 1, 65536, 1 << 30, "ring_all_reduce", channels=2)
    >>> table = Selection({}, (Row("all_reduce", 4, 1, 0, 65536), ring))
    >>> table.lookup("all_reduce", 4, 65535).algorithm, table.lookup("all_reduce", 4, 65536).channels
    ('library', 2)
    >>> table.lookup("all_reduce", 8, 65536) is table.lookup("all_reduce", 4, 1 << 30) is None
    True
    """

    facts: dict[str, Any]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        rows = sorted(map(_checked_row, self.rows), key=lambda row: (*row.group, row.min_bytes))
        object.__setattr__(self, "rows", tuple(rows))
        for one, other in pairwise(self.rows):
            if one.group == other.group and other.min_bytes < one.max_bytes:
                found = f"{one.min_bytes} to {one.max_bytes}, and {other.min_bytes} to {other.max_bytes} bytes"
                raise PlanError(f"two rows of {one.collective} on {one.ranks} ranks overlap", found=found)

    def at(self, level: str) -> Selection:
        """Return the rows that serve programs at a level of MPI's thread support: measured there, else at any.

        >>> both = [Row("all_reduce", 2, 1, 0, 64, name, level=level) for name, level in (("a", ""), ("b", "multiple"))]
        >>> [row.algorithm for level in LEVELS for row in Selection({}, tuple(both)).at(level).rows]
        ['a', 'b']
        """
        own = {row.group[:3] for row in self.rows if row.level == level}
        rows = (row for row in self.rows if row.level == level or (not row.level and row.group[:3] not in own))
        return Selection(self.facts, tuple(rows))

    def lookup(
        self, collective: str, ranks: int, num_bytes: int, nodes: int | None = None, dtype: str = ""
    ) -> Row | None:
        """Return the row for a message of `num_bytes`; None if not measured: use the library's call.

        Rows of several levels: those of the first in `LEVELS` (see `at`).
        """
        rows = self._groups.get((collective, ranks, nodes))
        if rows is None:
            return None
        place = bisect_right(rows[0], num_bytes) - 1
        row = rows[1][place] if place >= 0 and num_bytes < rows[1][place].max_bytes else None
        return None if row and dtype and row.dtype not in ("", dtype) else row

    @cached_property
    def _groups(self) -> dict[tuple[str, int, int | None], tuple[list[int], list[Row]]]:
        groups: dict[tuple[str, int, int | None], tuple[list[int], list[Row]]] = {}
        for (collective, ranks, nodes), found in groupby(_of_first_level(self.rows), key=lambda row: row.group[:3]):
            rows = list(found)
            groups[collective, ranks, nodes] = [row.min_bytes for row in rows], rows
            groups.setdefault((collective, ranks, None), groups[collective, ranks, nodes])
        return groups

    def merged(self, newer: Selection) -> Selection:
        """Return the rows of both tables; `newer` wins where both have rows of a collective on the same ranks."""
        fresh = {row.group for row in newer.rows}
        older = [r for r in self.rows if r.group not in fresh and (*r.group[:3], "") not in fresh]
        return Selection({**self.facts, **newer.facts}, (*older, *newer.rows))

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field and one row per range of sizes."""
        return {"schema": SCHEMA, "facts": self.facts, "rows": [row.to_json() for row in self.rows]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Selection:
        """Return the Selection that `to_json` wrote. Raises PlanError, naming the fault, for any other document."""
        is_earlier = isinstance(document, Mapping) and document.get("schema") == EARLIER
        check_schema(document, EARLIER if is_earlier else SCHEMA)
        with reading("selection document", PlanError):
            if not isinstance(facts := document["facts"], dict) or not isinstance(document["rows"], list):
                raise PlanError("malformed selection document", found="`facts` is an object, `rows` is a list")
            return cls(facts, tuple(_read_row(place, row) for place, row in enumerate(document["rows"])))

    def save(self, path: str | Path) -> Path:
        """Write the table to a JSON file, and return its path."""
        return save_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Selection:
        """Read a file that `save` wrote. Raises DovetailError, naming the file and the fault."""
        document = load_json(path, "selection")
        try:
            return cls.from_json(document)
        except DovetailError as error:
            raise PlanError(f"selection {path}: {error.what}", found=error.found, hint=error.hint) from error


def _of_first_level(rows: Sequence[Row]) -> list[Row]:
    """Of each collective the rows of one level: any, else the first in LEVELS."""
    first: dict[tuple[str, int, int], str] = {}
    for row in sorted(rows, key=lambda row: _RANKED.index(row.level)):
        first.setdefault(row.group[:3], row.level)
    return [row for row in rows if row.level == first[row.group[:3]]]


def rows_of(
    collective: str,
    ranks: int,
    nodes: int,
    picked: Iterable[tuple[Choice, Point]],
    dtype: str = "",
    level: str = "",
) -> tuple[Row, ...]:
    """Return rows from the choice at each measured size; equal neighbouring choices share a row.

    Between sizes with two different algorithms of ours, the border is their geometric mean. Between a size where ours
    is faster and one where the library is, the library serves. The table ends at the measured sizes.

    >>> ring, tree = Choice("ring_all_reduce"), Choice("double_tree_all_reduce")
    >>> sizes = [(choice, Point(4**i, 1e-5)) for i, choice in enumerate([Choice(), tree, tree, ring, Choice()], 5)]
    >>> [(row.min_bytes, row.max_bytes, row.algorithm) for row in rows_of("all_reduce", 2, 1, sizes)][:3]
    [(1024, 4096, 'library'), (4096, 32768, 'double_tree_all_reduce'), (32768, 65537, 'ring_all_reduce')]
    """
    found = sorted(picked, key=lambda each: each[1].num_bytes)
    edges = [_edge(*pair) for pair in pairwise(found)]
    edges = [*(point.num_bytes for _, point in found[:1]), *edges, *(point.num_bytes + 1 for _, point in found[-1:])]
    rows, start = [], 0
    for choice, group in groupby(found, key=lambda each: each[0]):
        points = tuple(point for _, point in group)
        end = start + len(points)
        span = edges[start], edges[end]
        row = Row(collective, ranks, nodes, *span, points=points, dtype=dtype, **choice._asdict())
        rows.append(replace(row, level=level))
        start = end
    return tuple(rows)


def _edge(one: tuple[Choice, Point], other: tuple[Choice, Point]) -> int:
    """Return the least size, in bytes, that the second of two neighbouring choices serves."""
    (choice, point), (following, later) = one, other
    if choice.is_library != following.is_library:
        return later.num_bytes if choice.is_library else point.num_bytes + 1
    return isqrt(point.num_bytes * later.num_bytes)


def selection_item(library: str, hosts: Sequence[str]) -> Item:
    """Return the item of the table for these ranks: by the MPI library's name and version, and every rank's host."""
    return item(SELECTIONS, library, list(hosts))


def given_selection() -> Path | None:
    """Return the file that $DOVETAIL_SELECTION names, in a folder `selection.json`; None if the variable is not set."""
    given = os.environ.get("DOVETAIL_SELECTION")
    if not given:
        return None
    return Path(given) / "selection.json" if os.path.isdir(given) else Path(given)


def recall_selection(library: str, hosts: Sequence[str]) -> Recalled[Selection]:
    """Return the table measured for these ranks; None if there is none (see `store.recall`).

    $DOVETAIL_SELECTION names another file, or its folder; None, with a sentence, if there is no such file.
    """
    if (given := given_selection()) is None:
        return recall(selection_item(library, hosts), Selection.from_json)
    try:
        if not given.exists():
            return Recalled(None, f"DOVETAIL_SELECTION names no file: {given}")
        return Recalled(Selection.load(given))
    except (DovetailError, OSError) as error:
        return Recalled(None, f"DOVETAIL_SELECTION: {error}")


def save_selection(selection: Selection, library: str, hosts: Sequence[str]) -> Path | None:
    """Save a table, replacing earlier rows of its collectives.

    Returns the file; None, with a warning, if it cannot be written.
    """
    known = recall_selection(library, hosts).value  # a broken table is replaced completely
    merged = known.merged(selection) if known else selection
    if given := given_selection():
        try:
            return merged.save(given)
        except DovetailError as error:
            warn_once(str(error))
            return None
    kinds = ", ".join(dict.fromkeys(row.collective for row in merged.rows))
    about = f"{kinds} on {len(hosts)} ranks by {library.partition(chr(10))[0]}"
    return save(selection_item(library, hosts), about, merged.to_json())


def _read_row(place: int, document: Any) -> Row:
    """Return row number `place` of a document. Raises PlanError, naming the row and, if one is invalid, the field."""
    try:
        with reading(f"row {place} of a selection", PlanError):
            points = tuple(Point(**point) for point in document.get("points", ()))
            return _checked_row(Row(**{**document, "points": points}))
    except PlanError as error:
        raise PlanError(f"row {place}: {error.what}", found=error.found, hint=error.hint) from error


def _checked_row(row: Row) -> Row:
    """Return the row. Raises PlanError if a field has a wrong type or value."""
    words: dict[str, Iterable[str]] = {"collective": COLLECTIVES, "protocol": PROTOCOLS, "dtype": ("", *DTYPES)}
    for name, known in (words | {"transport": TRANSPORTS, "level": _RANKED}).items():
        if not isinstance(value := getattr(row, name), str) or value not in known:
            raise PlanError(f"no {name} {value!r}", hint=f"one of {', '.join(filter(None, known))}")
    if not isinstance(row.algorithm, str):
        raise PlanError(f"no algorithm {row.algorithm!r}", hint="a name, such as ring_all_reduce")
    counts = ("ranks", "nodes", "channels", "instances")
    for name in (*counts, "min_bytes", "max_bytes", "slice_bytes"):
        value, least = getattr(row, name), int(name in counts)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MOST:
            raise PlanError(f"`{name}` of a row of {row.collective} is out of range", found=repr(value))
    if row.min_bytes >= row.max_bytes:
        found = f"{row.min_bytes} to {row.max_bytes} bytes"
        raise PlanError(
            f"a row of {row.collective} is out of range: min_bytes must be less than max_bytes", found=found
        )
    for point in row.points:
        if not all(_is_time(value) for value in point):
            raise PlanError(f"a row of {row.collective} has a malformed point", found=str(point))
    return row


def _is_time(value: Any) -> bool:
    """Whether a value can be a time, a size or a spread: finite and not negative, or None."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf)
