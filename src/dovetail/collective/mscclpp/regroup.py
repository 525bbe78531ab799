"""regroup: recover a plan's steps from the Program that was read from it; ops of one source line are one step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from dovetail.collective.mscclpp.parts import OPS, REDUCES, SIGNALS, WAITS, Link, Place, Step
from dovetail.collective.mscclpp.steps import PACKET_IDS, PORT_IDS
from dovetail.core import ProgramError
from dovetail.ir import Kind, Op, Program, Region

_LANE = re.compile(r"tb(\d+)(?:\.(?:\d+|relaxed|port\d+))?")
_NAME = re.compile(r"\((\w+)\)")


def is_of_a_plan(program: Program) -> bool:
    """Return whether all lanes have names of threadblocks, and all ops have names of a plan's ops."""
    return all(_LANE.fullmatch(lane.name) for lane in program.lanes) and all(_name(op) for op in program.ops())


def _name(op: Op) -> str | None:
    found = _NAME.findall(op.line or "")
    return found[-1] if found and found[-1] in OPS else None


class Regroup:
    """The steps of each threadblock of each rank. The source line of an op names its step; the step's reads, writes
    and waits are those of its ops. The caller checks that reading the steps gives the same Program.
    """

    def __init__(self, program: Program, letters: dict[str, str]) -> None:
        self.program, self.letters, self.ops = program, letters, list(program.ops())
        self.block_of = [int(_LANE.fullmatch(program.lanes[op.lane].name)[1]) for op in self.ops]  # type: ignore[index]
        self.rows: dict[tuple[int, int], list[Op]] = {}
        for op, block in zip(self.ops, self.block_of, strict=True):
            self.rows.setdefault((op.rank, block), []).append(op)
        self.barriers: list[dict[frozenset[int], int]] = [{} for _ in range(program.num_ranks)]
        self.semaphores = [0] * program.num_ranks
        self.semaphore_of: dict[int, int] = {}  # by row that releases or acquires
        self._pair()

    def blocks(self, rank: int) -> tuple[tuple[Step, ...], ...]:
        last = max((block for owner, block in self.rows if owner == rank), default=-1)
        return tuple(self._steps(self.rows.get((rank, block), [])) for block in range(last + 1))

    def _steps(self, rows: Sequence[Op]) -> tuple[Step, ...]:
        return tuple(self._step([*group]) for _, group in groupby(rows, key=lambda op: op.line))

    def _step(self, rows: list[Op]) -> Step:
        name, where = _name(rows[0]) or "", rows[0].line or ""
        rows = [op for op in rows if self._id(op) < PACKET_IDS]
        if not rows or any(self._id(op) >= PORT_IDS for op in rows):
            raise ProgramError(f"'{name}' cannot be written back: it uses port channels", where=where)
        step = Step(name, where)
        if name in SIGNALS or name in WAITS:
            return step._replace(links=tuple(map(self._link, rows)), by="memory")
        if name in ("sem_release", "sem_acquire"):
            return step._replace(semaphores=tuple(map(self._semaphore, rows)))
        if name == "barrier":
            return step._replace(barrier=self._barrier(rows[-1]))
        if name in REDUCES and name != "glres":
            return self._reduce(step, rows)
        if name in ("copy", "cpkt", "upkt"):
            return step._replace(reads=(self._read(rows[0]),), writes=(self._write(rows[0]),))
        if name in ("put", "get", "ppkt", "rppkt"):
            reads, writes = tuple(map(self._read, rows)), tuple(map(self._write, rows))
            links = tuple(map(self._link, rows)) if name == "get" else ()
            return step._replace(reads=reads[: 1 if name == "rppkt" else None], writes=writes, by="memory", links=links)
        if name != "nop":
            raise ProgramError(f"'{name}' cannot be written back from a Program", where=where)
        return step

    def _id(self, op: Op) -> int:
        row = max(op.chan_in, op.chan_out)
        return self.program.channels[row].id if row >= 0 else 0

    def _link(self, op: Op) -> Link:
        channel = self.program.channels[max(op.chan_in, op.chan_out)]
        return Link("memory", channel.dst if channel.src == op.rank else channel.src, channel.id)

    def _read(self, op: Op) -> Place:
        return self._place(op.reads[0], self.program.channels[op.chan_in].src if op.kind == Kind.get else op.rank)

    def _write(self, op: Op) -> Place:
        return self._place(op.writes[0], self.program.channels[op.chan_out].dst if op.kind == Kind.put else op.rank)

    def _reduce(self, step: Step, rows: list[Op]) -> Step:
        """A reduction: its rows are gets, then the sum, then copies and puts of it."""
        held = {op.writes[0]: self._read(op) for op in rows if op.kind == Kind.get}
        rows = [op for op in rows if op.kind != Kind.get]
        adds = [number for number, op in enumerate(rows) if op.kind == Kind.reduce]
        if not adds or adds[-1] >= len(adds) + 1:
            raise ProgramError(f"'{step.name}' cannot be written back", where=step.where)
        total = rows[adds[0]].writes[0]
        parts = [total] * (adds[0] == 0) + [op.reads[0] for op in rows[: adds[-1] + 1]]
        reads = tuple(held.get(part) or self._place(part, rows[0].rank) for part in parts)
        writes = (self._place(total, rows[0].rank), *map(self._write, rows[adds[-1] + 1 :]))
        remote = any(each.ranks[0] != rows[0].rank for each in (*reads, *writes))
        return step._replace(reads=reads, writes=writes, by="memory" if remote else "none")

    def _pair(self) -> None:
        """Assign semaphores to releases and acquires that meet. Each has the same order at both ends."""
        last: dict[tuple[int, int, int], dict[int, int]] = {}  # rank and blocks -> semaphore -> its last release
        for op in self.ops:
            if _name(op) != "sem_acquire":
                continue
            givers = [row for row in op.after if _name(self.ops[row]) == "sem_release"]
            if len(givers) != 1:
                raise ProgramError(
                    "an acquire that meets no release, or several, cannot be written back", where=op.line
                )
            known = last.setdefault((op.rank, self.block_of[givers[0]], self.block_of[op.index]), {})
            number = next((number for number, row in known.items() if row < givers[0]), -1)
            if number < 0:
                number, self.semaphores[op.rank] = self.semaphores[op.rank], self.semaphores[op.rank] + 1
            known[number] = givers[0]
            self.semaphore_of[op.index] = self.semaphore_of[givers[0]] = number

    def _semaphore(self, op: Op) -> int:
        if op.index not in self.semaphore_of:
            raise ProgramError("a release that meets no acquire cannot be written back", where=op.line)
        return self.semaphore_of[op.index]

    def _barrier(self, leave: Op) -> tuple[int, int]:
        others = frozenset({self.block_of[row] for row in leave.after} | {self.block_of[leave.index]})
        known = self.barriers[leave.rank]
        return known.setdefault(others, len(known)), len(others)

    def _place(self, region: Region, rank: int) -> Place:
        """A region as a place, with one chunk for each slot."""
        if region.blocks != 1:
            raise ProgramError("MSCCL++ has no strided places", found=str(region))
        letter = self.letters.get(region.buffer, "s")
        return Place((rank,), letter, region.offset, region.count, region.buffer == "packets")
