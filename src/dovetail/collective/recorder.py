"""recorder: records the chunk operations of an algorithm, and which operation wrote every slot."""

from __future__ import annotations

import operator
import os
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from dovetail.collective.spec import Spec
from dovetail.core import OperatorError, ProgramError

COPY, REDUCE, SEND_COPY, SEND_REDUCE = range(4)  # on one rank, on one rank, between ranks, between ranks
FIELDS = (
    *("what", "src", "src_buffer", "src_index", "add_buffer", "add_index", "dst", "dst_buffer", "dst_index"),
    *("count", "channel", "send_lane", "recv_lane", "line", "copies"),
)
MOST_SLOTS = 1 << 24  # slots of one buffer on one rank
MOST = 1 << 20  # highest channel or lane
MOST_INSTANCES = 1 << 10  # parallel instances of one operation, nested ones multiplied
MOST_OPS = 1 << 23  # operations of one program
_PACKAGE = str(Path(__file__).resolve().parents[2])


class Store:
    """One buffer. `written[rank][slot]`: number of the operation that wrote it last, from 1; 0: input; -1: empty."""

    __slots__ = ("is_scratch", "name", "number", "written")

    def __init__(self, name: str, number: int, written: list[list[int]], is_scratch: bool) -> None:
        self.name, self.number, self.written, self.is_scratch = name, number, written, is_scratch


class Recorder:
    """The operations recorded so far: `rows` has the FIELDS of each operation, one operation after another.

    `lines`: source lines, to which `rows` refer. Checks raise ProgramError that names the line.
    """

    def __init__(self, spec: Spec, overwrite_input: bool) -> None:
        self.spec, self.num_ranks = spec, spec.num_ranks
        self.rows, self.time, self.copies = array("i"), 0, 1
        self.lines: dict[tuple[str, int], int] = {}
        self.read_only = None if spec.in_place or overwrite_input else "input"
        self.stores: dict[str, Store] = {}
        self.shift = {name: spec.place(1, name, 0)[1] for name in ("input", "output")}  # of rank 1
        whole = min(self.shift, key=lambda name: self.shift[name])
        for number, (name, _, slots) in enumerate(spec.buffers):
            if sum(slots) > MOST_SLOTS * 2:
                raise OperatorError(f"{spec.kind} of {sum(slots)} slots", hint="fewer ranks or chunks")
            start = 0 if name == "input" else -1
            shown = whole if spec.in_place else name
            self.stores[name] = Store(shown, number, [[start] * n for n in slots], False)
        if spec.in_place:
            self.stores["output"] = self.stores["input"]

    @property
    def has_fragments(self) -> bool:
        """Return whether any operation is cut into parallel instances."""
        return max(self.rows[FIELDS.index("copies") :: len(FIELDS)], default=1) > 1

    def line(self) -> int:
        """Return the index in `lines` of the user's line: the caller of the method that calls this one."""
        frame = sys._getframe(2)
        return self.lines.setdefault((frame.f_code.co_filename, frame.f_lineno), len(self.lines))

    def text(self, line: int) -> str:
        """Return a line as `ring.py:12`, its path relative to the working directory or the package."""
        return _text(*list(self.lines)[line])

    def texts(self) -> list[str]:
        return [_text(*key) for key in self.lines]

    def fail(self, what: str, line: int, found: str | None = None, hint: str | None = None) -> NoReturn:
        raise ProgramError(what, where=self.text(line), found=found, hint=hint)

    def whole(self, value: Any, what: str, line: int, least: int = 0, most: int = 1 << 62) -> int:
        """Return a value as int. Raise ProgramError if it is not whole, or not from `least` to `most`."""
        try:
            number = operator.index(value)
        except TypeError:
            self.fail(f"{what} is {value!r}", line, hint="a whole number")
        if not least <= number <= most:
            self.fail(f"{what} is {number}", line, hint=f"at least {least}" if number < least else f"at most {most}")
        return number

    def rank(self, value: Any, line: int) -> int:
        rank = value if value.__class__ is int else self.whole(value, "the rank", line)
        if not 0 <= rank < self.num_ranks:
            self.fail(f"rank {rank} does not exist", line, f"{self.num_ranks} ranks, 0 to {self.num_ranks - 1}")
        return rank

    def find(self, rank: int, buffer: str, index: Any, count: int, line: int) -> tuple[Store, int]:
        """Return the store and first slot of a chunk. Raise ProgramError if it does not lie inside its buffer.

        In place, "input" and "output" lead to the same store.
        """
        store = self.stores.get(buffer)
        if store is None:
            known = ", ".join(self.stores)
            self.fail(f"no buffer '{buffer}'", line, f"buffers {known}", "copy a chunk to a scratch buffer to make it")
        first = index if index.__class__ is int else self.whole(index, "the index", line)
        shift = self.shift.get(buffer)
        size = len(store.written[rank])
        if shift:
            place, first = first, first + rank * shift
            inside = place >= 0 and place + count <= shift
        else:
            inside = first >= 0 and first + count <= size
        if not inside:
            found = f"{shift or size} slots, asked for {index} to {index + count - 1}"
            self.fail(f"outside buffer {buffer} of rank {rank}", line, found)
        return store, first

    def target(self, rank: int, buffer: str, index: int | None, like: int, count: int, line: int) -> tuple[Store, int]:
        """Return the store and first slot of a place to write.

        A new scratch buffer is created, and grows as needed; without an index, slots are appended to it.
        """
        if buffer in ("input", "output"):
            if buffer not in self.stores:
                self.fail(f"this {self.spec.kind} has no {buffer}", line)
            return self.find(rank, buffer, like if index is None else index, count, line)
        store = self.stores.get(buffer)
        if store is None:
            if buffer.__class__ is not str or not buffer:
                self.fail(f"a buffer's name must be a text, not {buffer!r}", line)
            number = len(self.spec.buffers) + sum(store.is_scratch for store in self.stores.values())
            store = self.stores[buffer] = Store(buffer, number, [[] for _ in range(self.num_ranks)], True)
        held = store.written[rank]
        first = len(held) if index is None else self.whole(index, "the index", line)
        if first + count > MOST_SLOTS:
            self.fail(f"scratch {buffer}[{first}] on rank {rank}", line, hint=f"at most {MOST_SLOTS} slots")
        held.extend([-1] * (first + count - len(held)))
        return store, first

    def check_filled(self, store: Store, rank: int, first: int, count: int, line: int) -> None:
        """Raise ProgramError if a slot was never written."""
        held = store.written[rank]
        if held[first] < 0 or (count > 1 and min(held[first : first + count]) < 0):
            empty = next(slot for slot in range(first, first + count) if held[slot] < 0)
            hint = "copy a chunk there first"
            self.fail(f"{store.name}[{empty}] of rank {rank} holds nothing yet", line, hint=hint)

    def check_current(self, store: Store, rank: int, first: int, count: int, time: int, line: int) -> None:
        """Raise ProgramError if a slot was written after `time`: a Ref made then is stale."""
        held = store.written[rank]
        last = held[first] if count == 1 else max(held[first : first + count])
        if last > time:
            place = f"{store.name}[{held.index(last, first)}] of rank {rank}"
            by = self.rows[(last - 1) * len(FIELDS) + FIELDS.index("line")]
            found = f"written since at {self.text(by)}"
            self.fail(
                f"{place} no longer holds this chunk", line, found, "use what that line returned, or call `chunk` again"
            )

    def check_writable(self, store: Store, rank: int, first: int, line: int) -> None:
        if store.name == self.read_only:
            hint = "write to another buffer (buffer=…), or set in_place=True or overwrite_input=True"
            self.fail(f"this writes input[{first}] of rank {rank}, which is the caller's data", line, hint=hint)

    def record(self, fields: Iterable[int], store: Store, rank: int, first: int, count: int) -> None:
        """Record one operation that writes `count` slots of a store from `first` on."""
        if self.time >= MOST_OPS:
            raise OperatorError(f"more than {MOST_OPS} operations", hint="fewer ranks or chunks")
        self.rows.extend(fields)
        self.time += 1
        if count == 1:
            store.written[rank][first] = self.time
        else:
            store.written[rank][first : first + count] = [self.time] * count


def _text(path: str, line: int) -> str:
    for base in (_PACKAGE, os.getcwd()):
        if path.startswith(base + os.sep):
            return f"{path[len(base) + 1 :]}:{line}"
    return f"{path}:{line}"
