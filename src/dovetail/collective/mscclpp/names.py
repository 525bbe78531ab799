"""names: describe rows and slots of a launched plan in its author's terms: gpus, threadblocks, ops, chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dovetail.collective.mscclpp.columns import Launched
from dovetail.collective.mscclpp.launch import KERNEL
from dovetail.collective.mscclpp.lower import Lowering
from dovetail.collective.mscclpp.parts import KIND_OF_WORD
from dovetail.collective.mscclpp.steps import PACKET_IDS, PORT_IDS, End, Row
from dovetail.ir import Kind, Region
from dovetail.ir.collectives import traits_of

_SLOTS = re.compile(r"\b(input|output|scratch|packets|temp)(1?)(?:@(\d+))?\[(\d+)(?::(\d+))?\]")


class Touch(NamedTuple):
    """A region of one gpu that a row reads or writes."""

    rank: int
    region: Region
    writes: bool


class Names:
    """Descriptions of the rows and slots of a launched plan."""

    def __init__(self, lowering: Lowering, launched: Launched) -> None:
        self.document, self.how = lowering.document, lowering.memory.how
        self.in_place, self.launched = lowering.memory.in_place, launched

    def op(self, row: Row) -> str:
        """`gpu 3, threadblock 0, op 1 (upkt)`."""
        return row.line.removeprefix(f"{self.document.place}, ")

    def actor(self, row: Row) -> str:
        """Return who accesses memory: an op, or the caller of a gpu."""
        if row.lane != KERNEL:
            return self.op(row)
        return f"the caller of gpu {row.rank}, {'before' if row.line.endswith('starts') else 'once'} {_its(row)},"

    def chunk(self, buffer: str, slot: int, rank: int | None = None) -> str:
        """Return, for example, `input[3] of gpu 1`; if chunks are cut, also the part."""
        name = buffer.removesuffix("1")
        size = self.how.kept if name == "scratch" else self.how.grain
        chunk, part = divmod(slot, size)
        if name == "temp":
            return "its threads' registers"
        kind = KIND_OF_WORD.get(self.document.collective, "")
        if name == "input" and self.in_place and traits_of(kind).input_is_part:
            name = "output"
        text = f"{'scratch' if name == 'packets' else name}[{chunk}]"
        text += f" (part {part + 1} of {size})" if size > 1 else ""
        text += " in packets" if name == "packets" else ""
        text += " in the other half of double scratch" if buffer.endswith("1") else ""
        return text + (f" of gpu {rank}" if rank is not None else "")

    def chunks(self, text: str) -> str:
        """Return a text with slots renamed to chunks."""
        return _SLOTS.sub(self._renamed, text).replace(" rank ", " gpu ")

    def _renamed(self, found: re.Match[str]) -> str:
        buffer, half, rank, slot, _ = found.groups()
        return self.chunk(buffer + half, int(slot), int(rank) if rank else None)

    def channel(self, end: End) -> str:
        """`memory channel 0 from gpu 1 to gpu 2`: the number among those of its kind between the two."""
        if end.id >= PACKET_IDS:
            return f"packets from gpu {end.src} to gpu {end.dst}"
        kind = "port" if end.id >= PORT_IDS else "memory"
        return f"{kind} channel {end.id % PORT_IDS} from gpu {end.src} to gpu {end.dst}"

    def touches(self, index: int) -> Iterator[Touch]:
        """Yield the regions that row `index` of the launched program reads and writes."""
        op, program = self.launched.program.op(index), self.launched.program
        source = program.channels[op.chan_in].src if op.kind == Kind.get else op.rank
        target = program.channels[op.chan_out].dst if op.kind == Kind.put else op.rank
        yield from (Touch(source, region, False) for region in op.reads)
        yield from (Touch(target, region, True) for region in op.writes)

    def line(self, index: int) -> str:
        """Return the description of a row in a counterexample."""
        row, words = self.launched.row(index), []
        for touch in self.touches(index):
            verb = "writes" if touch.writes else "reads"
            words.append(f"{verb} {self.chunk(touch.region.buffer, touch.region.offset, touch.rank)}")
        if row.chan_in and row.kind == Kind.wait:
            words.append(f"waits for {self.channel(row.chan_in)}")
        if row.chan_out and row.kind == Kind.signal:
            words.append(f"signals {self.channel(row.chan_out)}")
        run = self.launched.run(index)
        return f"{self.op(row)}{f', call {run + 1}' if run else ''}{': ' if words else ''}{', '.join(words)}"


def _its(row: Row) -> str:
    return row.line.rsplit(": ", 1)[-1]
