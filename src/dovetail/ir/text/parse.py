"""parse: read the text form of a Program (see `ir.text.write`); errors name the line and what was expected."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core import ProgramError
from dovetail.ir.build import Builder
from dovetail.ir.program import Program, check_columns
from dovetail.ir.text.lines import kernel_text
from dovetail.ir.text.scan import Line, unquote
from dovetail.ir.types import MAX_NESTING, Arg, Channel, Collective, Engine, Kernel, Kind, Mode, Role, Term

_ROLES: dict[str, Role] = {"input": "input", "output": "output", "scratch": "scratch"}
_ENGINES: dict[str, Engine] = {"compute": "compute", "copy": "copy", "net": "net"}
_MODES: dict[str, Mode] = {"each": "each", "all": "all", "sum": "sum", "each_sum": "each_sum"}
MAX_RANKS = 1 << 20
_FORMS = "the text of a Program begins with 'program'; to run a Python file, use `dovetail compile`"
_KINDS = {kind.name: kind for kind in Kind}


def parse(text: str, name: str | None = None) -> Program:
    """Return the Program that a text describes.

    `name`: the file that the text came from. Errors show it, and ops without a source line of their own get
    `name:line`. Raises ProgramError for the first line that is not understood, with what was expected there.

    >>> parse("program one ranks 1\\nlane net net\\nrank 0 lane net\\n  nop\\n").num_ops
    1
    """
    shown = name or "<text>"
    lines = [Line(line, f"{shown}:{number}") for number, line in enumerate(text.splitlines(), 1)]
    lines = [line for line in lines if not line.is_over]
    if not lines:
        raise ProgramError("expected 'program'", where=f"{shown}:1", found="an empty text", hint=_FORMS)
    start = next((i for i, line in enumerate(lines) if i and line.has("rank")), len(lines))
    header = _Header(lines[:start])
    _Body(header, lines[start:], has_origin=name is not None).read()
    program = header.builder.build()
    try:
        check_columns(program)
    except ProgramError as error:
        raise ProgramError(error.what, where=shown) from None
    return program


class _Header:
    """Everything before the first `rank`: tables and post-conditions."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lanes: dict[str, int] = {}
        self.channels: set[tuple[int, int, int]] = set()
        self.kernels: list[Kernel] = []
        self.collectives: set[Collective] = set()
        first = lines[0]
        if not first.has("program"):
            raise ProgramError(
                "expected 'program'", where=first.where, found=repr(first.text.strip()[:80]), hint=_FORMS
            )
        name = first.name()
        first.must("ranks")
        num_ranks = first.number()
        if not 1 <= num_ranks <= MAX_RANKS:
            raise ProgramError(f"expected 1 to {MAX_RANKS} ranks", where=first.where, found=str(num_ranks))
        self.builder = Builder(name, num_ranks)
        self._end(first)
        words = ("buffer", "lane", "channel", "kernel", "collective", "post")
        for line in lines[1:]:
            word = line.one_of(words)
            try:
                getattr(self, f"_{word}")(line)
            except ProgramError as error:
                raise ProgramError(error.what, where=line.where, found=error.found, hint=error.hint) from None
            self._end(line)

    def _end(self, line: Line) -> None:
        if not line.is_over:
            line.fail("the end of the line")

    def _buffer(self, line: Line) -> None:
        name, role = line.name(), _ROLES[line.one_of(_ROLES)]
        counts = [int(n) for n in line.word("numbers")[0].split(",")]
        self.builder.buffer(name, role, counts if len(counts) > 1 else counts * self.builder.num_ranks)

    def _lane(self, line: Line) -> None:
        name = line.name()
        if name in self.lanes:
            raise ProgramError(f"lane '{name}' is declared twice")
        self.lanes[name] = self.builder.lane(name, _ENGINES[line.one_of(_ENGINES)])

    def _channel(self, line: Line) -> None:
        src, dst = map(int, line.word("a channel (source->destination)").groups())
        number = line.number()
        line.must("depth")
        if (src, dst, number) in self.channels:
            raise ProgramError(f"channel {src}->{dst} {number} is declared twice")
        self.channels.add((src, dst, number))
        self.builder.channel(*Channel(src, dst, number, line.number()))

    def _kernel(self, line: Line) -> None:
        name, modes, accumulate = line.name(), [], False
        while not (line.is_over or accumulate):
            accumulate = line.has("accumulate")
            modes += [] if accumulate else [_MODES[line.one_of(_MODES)]]
        self.kernels.append(Kernel(name, tuple(modes), accumulate))
        self.builder.kernel(*self.kernels[-1])

    def _collective(self, line: Line) -> None:
        entry = Collective(line.name(), tuple(line.numbers()))
        self.collectives.add(entry)
        self.builder.collective(*entry)

    def _post(self, line: Line) -> None:
        ranks, region, terms = line.numbers(), line.region()[1], []
        line.must("=")
        if not line.has("0"):
            terms.append(self._term(line))
            while line.has("+"):
                terms.append(self._term(line))
        self.builder.post(ranks, region, terms)

    def _term(self, line: Line, depth: int = 0) -> Term:
        if line.sees("a region"):
            return Term(None, (line.region(with_rank=True),))
        if depth > MAX_NESTING:
            line.fail(f"terms at most {MAX_NESTING} deep")
        name, args = line.name(), []
        line.must("(")
        while not line.has(")"):
            args.append(self._operand(line, depth + 1))
            if not line.has(","):
                line.must(")")
                break
        return Term(name, tuple(args))

    def _operand(self, line: Line, depth: int) -> Arg:
        """Read an operand of a kernel: a region of a rank, a term, or a sum of these."""
        parts = [self._term(line, depth)]
        while line.has("+"):
            parts.append(self._term(line, depth))
        args = [part.source if part.kernel is None else part for part in parts]
        return args[0] if len(args) == 1 else Term(None, tuple(args))


class _Body:
    """Everything from the first `rank` on: queues of ops."""

    def __init__(self, header: _Header, lines: Sequence[Line], has_origin: bool) -> None:
        self.header, self.has_origin = header, has_origin
        self.ops: list[tuple[Line, int, int]] = []
        self.rows: dict[tuple[int, int, int], int] = {}
        rank, lane, length = 0, 0, dict[tuple[int, int], int]()
        for number, line in enumerate(lines):
            if number == 0 or line.has("rank"):
                rank, lane = self._queue(line)
                continue
            index = length.get((rank, lane), 0)
            length[rank, lane] = index + 1
            self.rows[rank, lane, index] = len(self.ops)
            self.ops.append((line, rank, lane))

    def read(self) -> None:
        """Add all ops to the builder."""
        for line, rank, lane in self.ops:
            try:
                self._op(line, rank, lane)
            except ProgramError as error:
                raise ProgramError(error.what, where=line.where, found=error.found, hint=error.hint) from None

    def _queue(self, line: Line) -> tuple[int, int]:
        rank = line.number()
        if not 0 <= rank < self.header.builder.num_ranks:
            last = self.header.builder.num_ranks - 1
            raise ProgramError(f"rank {rank} does not exist", where=line.where, found=f"{last + 1} ranks, 0 to {last}")
        line.must("lane")
        lane = self._lane(line, line.name())
        if not line.is_over:
            line.fail("the end of the line")
        return rank, lane

    def _op(self, line: Line, rank: int, lane: int) -> None:
        kind = _KINDS[line.one_of(_KINDS)]
        call, name = -1, ""
        if kind == Kind.compute:
            call = self._kernel(line)
        elif kind == Kind.collective:
            name = line.name()
        chan_in = self._channel(line, rank, incoming=True) if line.has("from") else -1
        reads = line.regions()
        writes = line.regions() if line.has("->") else []
        chan_out = -1
        if not line.sees("a region") and line.has("to"):
            chan_out = self._channel(line, rank, incoming=False)
        if kind == Kind.collective:
            line.must("group")
            call = self._collective(name, line.numbers())
        after = self._after(line, rank) if line.has("after") else []
        source = unquote(line.word("a source line")[0]) if line.has("at") else line.where if self.has_origin else None
        if not line.is_over:
            line.fail("a region, '->', 'to', 'after', 'at' or the end of the line")
        self.header.builder.add(
            kind,
            rank,
            lane,
            reads=reads,
            writes=writes,
            chan_in=chan_in,
            chan_out=chan_out,
            call=call,
            after=after,
            line=source,
        )

    def _lane(self, line: Line, name: str) -> int:
        if name not in self.header.lanes:
            raise ProgramError(f"no lane '{name}'", where=line.where, found=", ".join(self.header.lanes) or "no lanes")
        return self.header.lanes[name]

    def _kernel(self, line: Line) -> int:
        match = line.word("a kernel")
        name, kernels = unquote(match[1]), self.header.kernels
        rows = [row for row, kernel in enumerate(kernels) if kernel.name == name]
        if match[2] is not None:
            rows = [row for row in rows if row == int(match[2])]
        if len(rows) != 1:
            hint = f"one of {', '.join(kernel_text(tuple(kernels), row) for row in range(len(kernels)))}"
            what = f"{'several kernels' if rows else 'no kernel'} '{match[0]}'"
            raise ProgramError(what, hint=hint if kernels else "declare it in the header")
        return rows[0]

    def _collective(self, kind: str, group: Sequence[int]) -> int:
        entry = Collective(kind, tuple(group))
        if entry not in self.header.collectives:
            raise ProgramError(f"no collective {kind} of the ranks {' '.join(map(str, group))} in the header")
        return self.header.builder.collective(kind, group)

    def _channel(self, line: Line, rank: int, incoming: bool) -> int:
        src, peer, number = line.word("a peer").groups()
        ends = (int(src), int(peer)) if src is not None else (int(peer), rank) if incoming else (rank, int(peer))
        key = (*ends, int(number or 0))
        if key not in self.header.channels:
            raise ProgramError(f"no channel {key[0]}->{key[1]} {key[2]} in the header")
        return self.header.builder.channel(*key)

    def _after(self, line: Line, rank: int) -> list[int]:
        found: list[int] = []
        while line.sees("an op (lane.index)") or not found:
            other, lane, index = line.word("an op (lane.index)").groups()
            key = (int(other) if other else rank, self._lane(line, unquote(lane)), int(index))
            if key not in self.rows:
                raise ProgramError(f"no op {lane}.{index} on rank {key[0]}")
            found.append(self.rows[key])
        return found
