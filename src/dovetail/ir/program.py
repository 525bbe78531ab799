"""Program: for each rank, what each engine does to which bytes, and in what order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError, check_schema, load_document, read_arrays, reading, save_json
from dovetail.ir.posts import Posts
from dovetail.ir.rewrites import Rewrites
from dovetail.ir.types import (
    COLUMNS,
    MAX_NESTING,
    Buffer,
    Channel,
    Collective,
    Engine,
    Kernel,
    Kind,
    Lane,
    Mode,
    Op,
    Post,
    Region,
    Role,
    Term,
)

SCHEMA = "dovetail.program/1"
MAX_SLOTS = 1 << 40  # of one buffer on one rank


@dataclass(frozen=True, eq=False)
class Program(Rewrites):
    """The only schedule IR: tables of names, and columns of arrays with a row for each op.

    Ops of one (rank, lane) run in the order of their rows. What an op's regions mean:

    | kind | reads | writes |
    |---|---|---|
    | copy | src | dst |
    | reduce | src | dst, to which src is added |
    | send | src | |
    | recv | | dst |
    | recv_reduce | src | dst = src + message |
    | recv_copy_send | | dst = message, forwarded |
    | recv_reduce_send | src | (src + message forwarded, not stored) |
    | recv_reduce_copy_send | src | dst = src + message, forwarded |
    | put | src | dst on the channel's other rank |
    | get | src on the channel's other rank | dst |
    | compute | the kernel's arguments | its results |
    | collective | src; for an uneven all_to_all one for each member, in the order of its group | dst; likewise |
    """

    name: str
    num_ranks: int
    buffers: tuple[Buffer, ...]
    lanes: tuple[Lane, ...]
    channels: tuple[Channel, ...]
    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    posts: Sequence[Post]
    lines: tuple[str, ...]
    columns: dict[str, NDArray[Any]] = field(repr=False)

    def __repr__(self) -> str:
        return f"<Program '{self.name}': {self.num_ranks} ranks, {len(self.lanes)} lanes, {self.num_ops} ops>"

    @property
    def num_ops(self) -> int:
        return len(self.columns["kind"])

    @property
    def in_place(self) -> bool:
        """Whether results overwrite inputs: there are no output buffers."""
        return all(buffer.role != "output" for buffer in self.buffers)

    def channel_table(self) -> NDArray[np.int64]:
        """Return an array of shape (channels, 4): source, destination, id, depth."""
        numbers = chain.from_iterable(self.channels)
        return np.fromiter(numbers, dtype=np.int64, count=4 * len(self.channels)).reshape(-1, 4)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name in COLUMNS:
            column: NDArray[Any] = self.columns[name]
            return column
        raise AttributeError(f"Program has no attribute '{name}'")

    def op(self, index: int) -> Op:
        """Return row `index` of the columns as an Op."""
        col = self.columns
        line = int(col["line"][index])
        return Op(
            index,
            Kind(int(col["kind"][index])),
            int(col["rank"][index]),
            int(col["lane"][index]),
            int(col["chan_in"][index]),
            int(col["chan_out"][index]),
            int(col["call"][index]),
            self._regions("read", index),
            self._regions("write", index),
            tuple(int(d) for d in col["dep"][col["dep_start"][index] : col["dep_start"][index + 1]]),
            self.lines[line] if line >= 0 else None,
        )

    def ops(self) -> Iterator[Op]:
        return map(self.op, range(self.num_ops))

    def queues(self) -> dict[tuple[int, int], NDArray[np.int64]]:
        """Return the rows of each (rank, lane) that has ops, in the order in which they run."""
        key = self.columns["rank"].astype(np.int64) * max(len(self.lanes), 1) + self.columns["lane"]
        order = np.argsort(key, kind="stable").astype(np.int64)
        keys, starts = np.unique(key[order], return_index=True)
        parts = np.split(order, starts[1:])[: len(keys)]
        named = [divmod(int(k), len(self.lanes)) for k in keys]
        return dict(zip(named, parts, strict=True))

    def positions(self) -> NDArray[np.int64]:
        """Return each op's index within its queue (rank, lane)."""
        position = np.empty(self.num_ops, dtype=np.int64)
        for rows in self.queues().values():
            position[rows] = np.arange(len(rows))
        return position

    def op_names(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Return (names, rows): op i is shown as `names[rows[i]]`, the name of its kernel, collective, or kind."""
        col, kinds, kernels = self.columns, len(Kind), len(self.kernels)
        names = (*(k.name for k in Kind), *(k.name for k in self.kernels), *(c.kind for c in self.collectives))
        if len(names) == kinds:
            return names, col["kind"].astype(np.int32)
        row, called = col["kind"].astype(np.int32), col["call"] >= 0
        compute, collective = called & (row == Kind.compute), called & (row == Kind.collective)
        row[compute] = kinds + col["call"][compute]
        row[collective] = kinds + kernels + col["call"][collective]
        return names, row

    def fingerprint(self) -> str:
        """Return a hash of buffers, lanes, channels, kernels, collectives and ops, but not of the name, the
        post-conditions and the source lines."""
        about = repr((self.buffers, self.lanes, self.channels, self.kernels, self.collectives)).encode()
        columns = (self.columns[name].tobytes() for name in COLUMNS if name != "line")
        return sha256(b"".join([about, *columns])).hexdigest()

    def slots_of(self, buffer: str, rank: int) -> int:
        """Return the number of slots that `buffer` has on a rank."""
        return self.buffer(buffer).slots[rank]

    def buffer(self, name: str) -> Buffer:
        """Return a buffer by name. Raises ProgramError if there is none."""
        for entry in self.buffers:
            if entry.name == name:
                return entry
        raise ProgramError(f"program '{self.name}' has no buffer '{name}'")

    def with_depth(self, depth: int) -> Program:
        """Return the same program with every channel `depth` messages deep."""
        if all(channel.depth == depth for channel in self.channels):
            return self
        return replace(self, channels=tuple(c._replace(depth=depth) for c in self.channels))

    def with_columns(self, columns: Mapping[str, NDArray[Any]], lines: tuple[str, ...] | None = None) -> Program:
        """Return a program with the same tables and other columns: all those of COLUMNS, converted to their dtypes and
        made read-only. Arrays of the right dtype are not copied."""
        new = {name: _frozen(columns[name], dtype) for name, dtype in COLUMNS.items()}
        return replace(self, columns=new, lines=self.lines if lines is None else lines)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document. `ir.text.document.json_text` writes the same text in less time and memory."""
        columns = {name: self.columns[name].tolist() for name in COLUMNS}
        return {**self.tables_json([_post_to_json(p) for p in self.posts]), "columns": columns}

    def tables_json(self, posts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the document without its columns. `posts`: the post-conditions as JSON."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "num_ranks": self.num_ranks,
            "buffers": [list(b) for b in self.buffers],
            "lanes": [list(lane) for lane in self.lanes],
            "channels": [list(c) for c in self.channels],
            "kernels": [list(k) for k in self.kernels],
            "collectives": [list(c) for c in self.collectives],
            "posts": posts,
            "lines": list(self.lines),
        }

    def save(self, path: str | Path) -> Path:
        """Write the program to a JSON file that `load`, and every verb of the command line, reads; return its path."""
        return save_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Return the program in a JSON file (for text: `dovetail.ir.parse`). Raises DovetailError for other files."""
        return load_document(path, cls.from_json, "program")

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Program:
        """Return the program that `to_json` wrote. Raises ProgramError if tables and columns do not fit together;
        whether the program is correct is for `verify` to say."""
        check_schema(document, SCHEMA)
        with reading("program document", ProgramError):
            program = cls(
                str(document["name"]),
                int(document["num_ranks"]),
                tuple(Buffer(_word(b[0]), b[1], tuple(int(n) for n in b[2])) for b in document["buffers"]),
                tuple(Lane(_word(name), engine) for name, engine in document["lanes"]),
                tuple(Channel(*map(int, c)) for c in document["channels"]),
                tuple(Kernel(_word(k[0]), tuple(k[1]), bool(k[2])) for k in document["kernels"]),
                tuple(Collective(_word(c[0]), tuple(c[1])) for c in document["collectives"]),
                tuple(_post_from_json(p) for p in document["posts"]),
                tuple(map(_word, document["lines"])),
                read_arrays(document["columns"], COLUMNS),
            )
            check_columns(program)
        return program

    def _regions(self, side: Literal["read", "write"], index: int) -> tuple[Region, ...]:
        col = self.columns
        rows = range(int(col[f"{side}_start"][index]), int(col[f"{side}_start"][index + 1]))
        return tuple(
            Region(
                self.buffers[int(col[f"{side}_buffer"][row])].name,
                *(int(col[f"{side}_{part}"][row]) for part in ("offset", "count", "stride", "blocks")),
            )
            for row in rows
        )


def _frozen(column: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return the column, read-only and in this dtype: a copy if its dtype differs or it is a view."""
    found = column if column.dtype == dtype and column.flags.owndata else np.array(column, dtype=dtype)
    found.flags.writeable = False
    return found


def check_columns(program: Program) -> None:
    """Raise ProgramError if lengths or rows of tables and columns do not fit together. C++ relies on this check."""
    check_tables(program)
    check_types(program)
    col, n = program.columns, program.num_ops
    for side in ("read", "write", "dep"):
        start, first = col[f"{side}_start"], "dep" if side == "dep" else f"{side}_buffer"
        size = len(col[first])
        good = len(start) == n + 1 and start[0] == 0 and start[-1] == size and bool((start[1:] >= start[:-1]).all())
        _require(good, f"column '{side}_start' does not index '{first}'")
    for side in ("read", "write"):
        sizes = {len(col[f"{side}_{part}"]) for part in ("buffer", "offset", "count", "stride", "blocks")}
        _require(len(sizes) == 1, f"the {side}_* columns differ in length")
    limits = (
        ("rank", 0, program.num_ranks),
        ("lane", 0, len(program.lanes)),
        ("chan_in", -1, len(program.channels)),
        ("chan_out", -1, len(program.channels)),
        ("line", -1, len(program.lines)),
        ("read_buffer", 0, len(program.buffers)),
        ("write_buffer", 0, len(program.buffers)),
        ("dep", 0, n),
    )
    for name, low, high in limits:
        _require(_within(col[name], low, high), f"column '{name}' has values outside its table")
    for kind, table in ((Kind.compute, program.kernels), (Kind.collective, program.collectives)):
        calls = col["call"][col["kind"] == kind]
        _require(_within(calls, -1, len(table)), f"column 'call' of a {kind.name} has values outside its table")


def check_types(program: Program) -> None:
    """Raise ProgramError if a column has another type or length than it should, or a kind is unknown."""
    for name, dtype in COLUMNS.items():
        column = program.columns.get(name)
        good = column is not None and column.ndim == 1 and column.dtype == np.dtype(dtype)
        _require(good, f"column '{name}' is not a flat array of {np.dtype(dtype)}")
    col, n = program.columns, program.num_ops
    _require(n < 1 << 31, f"{n} ops are more than a program may have")
    for name in ("rank", "lane", "chan_in", "chan_out", "call", "line"):
        _require(len(col[name]) == n, f"column '{name}' has {len(col[name])} rows, not {n}")
    _require(len(col["dep_start"]) == n + 1, "column 'dep_start' does not index 'dep'")
    _require(_within(col["kind"], 0, len(Kind)), "column 'kind' has values outside its table")


def check_tables(program: Program) -> None:
    """Check the tables that columns refer to: names are unique, keywords known, ranks exist, sizes are valid."""
    ranks, buffers = range(program.num_ranks), {buffer.name for buffer in program.buffers}
    _require(program.num_ranks >= 1, f"num_ranks is {program.num_ranks}, not at least 1")
    for what, names in (
        ("buffer", [b.name for b in program.buffers]),
        ("lane", [lane.name for lane in program.lanes]),
        ("kernel", list(program.kernels)),
        ("collective", list(program.collectives)),
    ):
        _require(len(set(names)) == len(names), f"a {what} is declared twice")
    for buffer in program.buffers:
        _require(buffer.role in get_args(Role), f"buffer '{buffer.name}' has role '{buffer.role}'")
        sizes = len(buffer.slots) == program.num_ranks and all(0 <= n <= MAX_SLOTS for n in buffer.slots)
        _require(sizes, f"buffer '{buffer.name}' needs a number of slots for each rank")
    for lane in program.lanes:
        _require(lane.engine in get_args(Engine), f"lane '{lane.name}' has engine '{lane.engine}'")
    _check_channels(program)
    for kernel in program.kernels:
        _require(all(mode in get_args(Mode) for mode in kernel.modes), f"kernel '{kernel.name}' has an unknown mode")
    for collective in program.collectives:
        group = collective.group
        good = len(group) > 0 and len(set(group)) == len(group) and all(rank in ranks for rank in group)
        _require(good, f"the group of a collective is not a set of ranks: {group}")
    _check_posts(Posts.of(program.posts), program.num_ranks, buffers)


def _check_channels(program: Program) -> None:
    """Check all channels, vectorised: a program with packet flags has hundreds of thousands."""
    try:
        table = program.channel_table()
    except OverflowError:
        raise ProgramError("malformed program: a channel has a number beyond 64 bits") from None
    _require(len({channel[:3] for channel in program.channels}) == len(table), "a channel is declared twice")
    for rows, what in (
        (((table[:, :2] < 0) | (table[:, :2] >= program.num_ranks)).any(axis=1), "joins ranks that do not exist"),
        ((table[:, 3] < 1) | (table[:, 3] >= 1 << 31), "has a depth that is not at least 1"),
    ):
        if rows.any():
            bad = program.channels[int(np.argmax(rows))]
            raise ProgramError(f"malformed program: channel {bad.src}->{bad.dst} {what}")


def _check_posts(posts: Posts, num_ranks: int, buffers: set[str]) -> None:
    col = posts.columns
    named = bool((np.diff(col["post_rank_start"]) > 0).all())
    good = named and all(_within(col[side], 0, num_ranks) for side in ("post_rank", "arg_rank"))
    _require(good, "a post-condition names no rank, or one that does not exist")
    _require(not len(posts) or buffers.issuperset(posts.buffers), "a post-condition names a buffer that does not exist")


def _within(values: NDArray[Any], low: int, high: int) -> bool:
    return not len(values) or bool(values.min() >= low and values.max() < high)


def _require(good: bool, what: str) -> None:
    if not good:
        raise ProgramError(f"malformed program: {what}")


def _post_to_json(post: Post) -> dict[str, Any]:
    return {"ranks": list(post.ranks), "region": list(post.region), "terms": [_term_to_json(t) for t in post.terms]}


def _term_to_json(term: Term) -> list[Any]:
    """Return [kernel, operands]. An operand is [rank, region], or a nested term in this same form."""
    return [term.kernel, [_term_to_json(a) if isinstance(a, Term) else [a[0], list(a[1])] for a in term.args]]


def _post_from_json(document: dict[str, Any]) -> Post:
    terms = tuple(_term_from_json(*term) for term in document["terms"])
    return Post(tuple(map(index, document["ranks"])), _region_from_json(*document["region"]), terms)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a name is of type {type(value).__name__}, not str")
    return value


def _region_from_json(buffer: str, *numbers: int) -> Region:
    return Region(buffer, *map(index, numbers))


def _term_from_json(kernel: str | None, args: list[Any], depth: int = 0) -> Term:
    if depth > MAX_NESTING:
        raise ValueError(f"terms within terms, more than {MAX_NESTING} deep")
    return Term(
        kernel,
        tuple(
            _term_from_json(head, rest, depth + 1)
            if head is None or isinstance(head, str)
            else (index(head), _region_from_json(*rest))
            for head, rest in args
        ),
    )
