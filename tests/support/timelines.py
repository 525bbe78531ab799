"""Made-up programs, timelines and summaries for tests of what is shown, and a reader of pages."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np

from dovetail.ir import Builder, Kind, Program, Region
from dovetail.report import Losses, Provenance, Row, Summary
from dovetail.timeline import Timeline

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{data}}\x1b[31m"
ROWS = (
    Row("serial", 0.052, 0.053, 0.0, "always a candidate"),
    Row("optimal", 0.033, 0.0352, 0.74, "longer tiles as messages get cheaper", chosen=True, spread_s=2e-4),
)
LOSSES = (Losses("predicted", 0.028, {"head": 0.003, "tail": 0.002}), Losses("measured", 0.028, {"dil": 0.0072}))
SUMMARY = Summary(ROWS, LOSSES, ("optimal beats serial by 36 %.",), Provenance("dovetail tune", "two hosts", "e40cb77"))


class Tags(HTMLParser):
    """The tags, attributes and text of a page, scripts' and styles' text apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.text, self.raw, self._open = [], [], "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._open = tag
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open in ("script", "style"):
            self.raw.append(data)
        else:
            self.text += data


def overlapped(num_ranks: int = 2, num_tiles: int = 4, name: str = "matmul", line: str = "tiles.py:7") -> Program:
    """Each rank multiplies tile after tile and sends each on to the next rank, which adds it."""
    b = Builder("overlapped", num_ranks)
    for buffer, role in (("A", "input"), ("P", "scratch"), ("C", "output")):
        b.buffer(buffer, role, num_tiles)  # type: ignore[arg-type]
    compute, send, recv = b.lane("compute", "compute"), b.lane("send", "net"), b.lane("recv", "net")
    kernel = b.kernel(name, ["each"])
    for rank in range(num_ranks):
        to, source = b.channel(rank, (rank + 1) % num_ranks), b.channel((rank - 1) % num_ranks, rank)
        for tile in range(num_tiles):
            a, p, c = (Region(buffer, tile, 1) for buffer in "APC")
            row = b.add(Kind.compute, rank, compute, reads=[a], writes=[p], call=kernel, line=line)
            b.add(Kind.send, rank, send, reads=[p], chan_out=to, after=[row], line=line)
            b.add(Kind.recv_reduce, rank, recv, reads=[p], writes=[c], chan_in=source, after=[row])
    return b.build()


def run_of(program: Program, label: str = "predicted", slower: float = 1.0, num_bytes: int = 4096) -> Timeline:
    """A timeline of `overlapped`: every op takes 1 ms times `slower`, messages one step after their compute."""
    kinds, position = program.columns["kind"], program.positions()
    late = np.select([kinds == Kind.compute, kinds == Kind.send], [0, 1], 2)
    start = (position + late) * 1e-3 * slower
    columns = {
        "rank": program.columns["rank"],
        "lane": program.columns["lane"],
        "op": np.arange(program.num_ops),
        "name": late.astype("i4"),
        "num_bytes": np.where(late > 0, num_bytes, 0),
        "start_s": start,
        "end_s": start + 1e-3 * slower,
    }
    lanes, names = tuple(lane.name for lane in program.lanes), (program.kernels[0].name, "send", "recv_reduce")
    meta = {"machine": "pretended", "clock_error_s": 2e-6 if label == "measured" else None}
    return Timeline(label, program.num_ranks, lanes, names, columns, meta)  # type: ignore[arg-type]


def pair(num_ranks: int = 2, num_tiles: int = 4) -> tuple[Program, list[Timeline]]:
    """A program, predicted and measured a tenth slower."""
    program = overlapped(num_ranks, num_tiles)
    return program, [run_of(program), run_of(program, "measured", 1.1)]
