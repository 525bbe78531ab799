"""Program as a document: the round trip through JSON, and tables and columns that do not fit together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

from dovetail.core import DovetailError, load_json, save_json
from dovetail.ir import Builder, Kind, Program, Region, Term, check_columns, parse, verify

TEXT = (needs.GOLDEN / "ir_every_kind.txt").read_text()


def document() -> dict[str, Any]:
    return json.loads(json.dumps(parse(TEXT).to_json()))


def test_json_round_trip(tmp_path: Path) -> None:
    program = parse(TEXT)
    assert Program.from_json(document()) == program
    assert Program.from_json(load_json(save_json(tmp_path / "p.json", program.to_json()))) == program


def test_columns_are_frozen_and_parts_of_other_arrays_are_copied() -> None:
    program = parse(TEXT)
    whole, both = np.array(program.rank), np.tile(program.lane, 2)
    made = program.with_columns({**program.columns, "rank": whole, "lane": both[: program.num_ops]})
    assert made == program
    with pytest.raises(ValueError, match="read-only"):
        whole[0] = 7
    both[0] += 1
    assert made == program
    assert not any(column.flags.writeable for column in made.columns.values())


def change(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(doc: dict[str, Any]) -> None:
        for key in path[:-1]:
            doc = doc[key]
        doc[path[-1]] = to

    return apply


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def apply(doc: dict[str, Any]) -> None:
        for key in path[:-1]:
            doc = doc[key]
        del doc[path[-1]]

    return apply


def again(table: str) -> Callable[[dict[str, Any]], None]:
    return lambda doc: doc[table].append(doc[table][0])


@pytest.mark.parametrize(
    "fault",
    [
        change("schema", to="dovetail.program/2"),
        change("num_ranks", to=0),
        change("num_ranks", to=1),
        change("num_ranks", to="two"),
        drop("lanes"),
        drop("columns", "dep"),
        drop("columns", "kind", -1),
        change("columns", "kind", 0, to=15),
        change("columns", "kind", 0, to=-1),
        change("columns", "kind", 0, to="nop"),
        change("columns", "kind", 0, to=[1, 2]),
        change("columns", "rank", 0, to=2),
        change("columns", "rank", 0, to=-1),
        change("columns", "lane", 0, to=2),
        change("columns", "chan_in", 0, to=3),
        change("columns", "chan_out", 0, to=-2),
        change("columns", "line", 0, to=2),
        change("columns", "call", 3, to=3),  # a compute's kernel
        change("columns", "call", -1, to=2),  # a collective's row
        change("columns", "call", -1, to=-2),
        change("columns", "read_start", 0, to=1),
        change("columns", "read_start", 2, to=10**6),
        change("columns", "write_start", -1, to=3),
        change("columns", "dep_start", 3, to=9),
        change("columns", "dep", 0, to=10**6),
        change("columns", "read_buffer", 0, to=3),
        change("columns", "write_buffer", 0, to=-1),
        drop("columns", "read_stride", 0),
        change("buffers", 0, 1, to="inout"),
        change("buffers", 0, 2, to=[4]),
        change("buffers", 0, 2, to=[4, -1]),
        change("buffers", 0, 2, to=[1 << 50, 1]),
        change("lanes", 0, 1, to="gpu"),
        change("channels", 0, 0, to=2),
        change("channels", 0, 1, to=-1),
        change("channels", 0, 3, to=0),
        change("kernels", 0, 1, to=["some"]),
        change("collectives", 0, 1, to=[0, 2]),
        change("collectives", 0, 1, to=[0, 0]),
        change("collectives", 0, 1, to=[]),
        change("posts", 0, "ranks", to=[2]),
        change("posts", 0, "ranks", to=[]),
        change("posts", 0, "region", 0, to="nothing"),
        change("posts", 0, "terms", 0, 1, 0, 0, to=2),
        again("buffers"),
        again("lanes"),
        again("channels"),
        again("kernels"),
        again("collectives"),
    ],
)
def test_broken_documents_are_refused(fault: Callable[[dict[str, Any]], None]) -> None:
    broken = document()
    fault(broken)
    with pytest.raises(DovetailError):
        Program.from_json(broken)


def test_columns_of_other_dtypes_or_shapes_are_refused() -> None:
    program = parse(TEXT)
    for name, column in program.columns.items():
        for other in (column.astype("f8"), column[None]):
            with pytest.raises(DovetailError, match=f"column '{name}' is not a flat array"):
                check_columns(Program(**{**vars(program), "columns": {**program.columns, name: other}}))


def test_verify_reads_columns_of_any_memory_layout() -> None:
    program = parse(TEXT)
    strided = {name: np.repeat(column, 2)[::2] for name, column in program.columns.items()}
    assert verify(Program(**{**vars(program), "columns": strided})).to_json() == verify(program).to_json()


def test_regions_list_their_slots() -> None:
    assert Region("x", 3, 0, 5, 1 << 60).slots().tolist() == []
    assert Region("x", 1, 2, 0, 2).slots().tolist() == [1, 2, 1, 2]
    assert str(Region("x", 4, 2, 8, 3)) == "x[4:6; 3 x 8]"


def test_queues_and_positions() -> None:
    builder = Builder("p", 2)
    net, copy = builder.lane("net", "net"), builder.lane("copy", "copy")
    for rank, lane in ((1, copy), (0, net), (1, copy), (0, copy)):
        builder.add(Kind.nop, rank, lane)
    program = builder.build()
    assert {key: rows.tolist() for key, rows in program.queues().items()} == {
        (0, net): [1],
        (0, copy): [3],
        (1, copy): [0, 2],
    }
    assert program.positions().tolist() == [0, 0, 1, 0]
    assert Builder("none", 1).build().queues() == {}


def test_posts_and_terms_survive() -> None:
    builder = Builder("p", 2)
    builder.buffer("x", "input", 4)
    builder.kernel("f", ["each", "all"])
    whole = Region("x", 0, 4)
    builder.post([0, 1], whole, [Term("f", ((0, whole), (1, whole))), Term(None, ((1, Region("x", 0, 2, 2, 2)),))])
    program = builder.build()
    assert Program.from_json(program.to_json()).posts == program.posts


def test_bare_ops_are_ops_without_regions() -> None:
    def program(is_bare: bool) -> Program:
        builder = Builder("p", 2)
        x, own = builder.buffer("x", "input", 2), builder.kernel("own", ())
        cpu, net = builder.lane("cpu", "compute"), builder.lane("net", "net")
        rows: list[int] = []
        for rank in (0, 1):
            out, back = builder.channel(rank, 1 - rank), builder.channel(1 - rank, rank)
            rows.append(builder.add(Kind.send, rank, net, reads=[Region(x, rank, 1)], chan_out=out))
            if is_bare:
                rows.append(builder.add_bare(int(Kind.compute), rank, cpu, -1, -1, own, rows[-1:]))
            else:
                rows.append(builder.add(Kind.compute, rank, cpu, call=own, after=rows[-1:]))
            rows.append(builder.add(Kind.recv, rank, net, writes=[Region(x, 0, 2)], chan_in=back))
        assert rows == [*range(6)]
        return builder.build()

    assert program(True) == program(False)
