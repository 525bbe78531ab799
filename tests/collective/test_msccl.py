"""MSCCL XML: the corpus and its verdicts, round trips, real data, traps, hostile files."""

from __future__ import annotations

import json
import random
import re
import time
from dataclasses import replace

import msccl_files as files
import numpy as np
import pytest
from effort import assert_quick
from msccl_files import index, verdict, xml

from dovetail.collective import build
from dovetail.collective.msccl import DIALECTS, FIFO_DEPTHS, certify, read, safe_up_to_bytes, write, write_file
from dovetail.collective.msccl.lower import in_pieces, lower
from dovetail.core import ProgramError
from dovetail.ir import COLUMNS, Certificate, Op, Program, Slot, Workload, canonical, parse, verify
from dovetail.run.local import execute_local

# Two ranks exchange and add, in place: the smallest all_reduce.
PAIR = {
    (0, 0): ("1 1 0", "s i0 - 1", "r - s0 1 !"),
    (0, 1): ("-1 -1 0", "re s0 i0 1 0.1"),
    (1, 0): ("0 0 0", "s i0 - 1", "r - s0 1 !"),
    (1, 1): ("-1 -1 0", "re s0 i0 1 0.1"),
}
RELAY = {(0, 0): ("1 1 0", "s i0 - 1", "r - i0 1"), (1, 0): ("0 0 0", "rrcs i0 i0 1")}
SHOWN = index()
corpus = pytest.mark.needs("shared")
AT_ONCE = 200  # as long as so many plain loops of a million turns


def pair(**changes: object) -> str:
    return xml(PAIR, scratch=1, **changes)  # type: ignore[arg-type]


def failures(certificate: Certificate) -> dict[str, str]:
    """Checks that failed, not those that were not reached."""
    checks = certificate.checks.items()
    return {name: c.message for name, c in checks if not c.ok and not c.message.startswith("not reached")}


def judged(text: str, target: str | None = None) -> Certificate:
    return certify(read(text, name="t.xml"), target)


def assert_same(one: Program, other: Program) -> None:
    """Equal but for source lines."""
    tables = ("name", "num_ranks", "buffers", "lanes", "channels", "posts")
    assert [getattr(one, name) for name in tables] == [getattr(other, name) for name in tables]
    for name in set(COLUMNS) - {"line"}:
        np.testing.assert_array_equal(one.columns[name], other.columns[name], name)


# The corpus


@corpus
def test_the_corpus_is_there():
    assert len(SHOWN) > 30


@pytest.mark.parametrize("row", SHOWN, ids=lambda row: row["file"])
def test_a_file_gets_its_verdict(row):
    if verdict(row) == "unreadable":
        with pytest.raises(ProgramError, match="the file is empty"):
            read(files.path(row))
        return
    found = certify(read(files.path(row)))
    failed = failures(found)
    assert (verdict(row) in failed) if verdict(row) != "valid" else not failed
    assert found.min_fifo_depth == int(row["min_fifo_slots"])
    kind = read(files.path(row)).header.kind
    if verdict(row) in ("valid", "deadlock") and kind != "custom":
        assert found.collective_found == kind
    if verdict(row) == "deadlock":
        assert certify(read(files.path(row)), fifo_depth=found.min_fifo_depth).ok
        assert not certify(read(files.path(row)), fifo_depth=found.min_fifo_depth - 1).ok


@pytest.mark.slow
@corpus
def test_the_whole_corpus_takes_seconds_of_one_core():
    def judge_all():
        for row in SHOWN:
            if verdict(row) != "unreadable":
                certify(read(files.path(row)))

    assert_quick(judge_all, 500)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in SHOWN if verdict(row) == "valid"], ids=lambda row: row["file"])
def test_import_export_import_is_the_identity(row):
    file = read(files.path(row))
    tried = [name for name in file.dialects if verify(file.program, name).ok]
    assert tried
    for dialect in tried:
        text = write(file.program, dialect, header=file.header)
        again = read(text, dialect)
        assert_same(again.program, file.program)
        if dialect == tried[0]:
            assert write(again.program, dialect, header=again.header) == text
        if file.header.kind != "custom":  # whose header lies: see below
            assert again.header == file.header
            for ours, theirs in zip(again.uses, file.uses, strict=True):
                assert_same(ours.program, theirs.program)


@pytest.mark.parametrize("row", [row for row in SHOWN if verdict(row) == "valid"], ids=lambda row: row["file"])
def test_conversion_to_the_other_dialects(row):
    file = read(files.path(row))
    for dialect in set(DIALECTS) - set(file.dialects):
        if not verify(file.program, dialect).ok or file.header.kind == "custom":
            continue
        other = read(write(file.program, dialect, header=file.header), dialect)
        assert_same(other.program, file.program)
        assert certify(other, dialect).ok


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in SHOWN if verdict(row) == "valid"], ids=lambda row: row["file"])
def test_real_data_against_the_definition(row):
    file = read(files.path(row))
    for use in file.uses if file.header.kind != "custom" else file.uses[:1]:
        for elements in (1, 7, 64):
            _run(use.program, file.header.kind, use.in_place, elements)


def _run(program: Program, kind: str, in_place: bool, elements: int) -> None:
    slots = {b.name: (Slot((elements,), "int32"),) * program.num_ranks for b in program.buffers}
    rng = np.random.default_rng(elements)
    shapes = [(n, elements) for n in program.buffer("input").slots]
    inputs = [rng.integers(-999, 999, shape).astype(np.int32) for shape in shapes]
    left, _ = execute_local(program, Workload(slots), {"input": inputs})
    if kind == "custom":  # the one in the corpus: each rank's input goes to the next
        for rank in range(1, program.num_ranks):
            np.testing.assert_array_equal(left["output"][rank], inputs[rank - 1])
        return
    part = len(inputs[0]) // program.num_ranks
    for rank, want in enumerate(files.expected(kind, inputs, in_place)):
        held = left["input" if in_place else "output"][rank]
        own = slice(rank * part, (rank + 1) * part) if in_place and kind == "reduce_scatter" else slice(None)
        np.testing.assert_array_equal(held[own], want)


@corpus
def test_alltonext_is_right_apart_and_wrong_in_place():
    """Its header says inplace=1, for which msccl gives input and output the same memory: there it races."""
    file = read(files.CORPUS / "msccl-tools/alltonext_forward_3x8_i1_nofusion.xml")
    found = certify(file)
    assert found.ok
    assert found.collective_found == "all_to_next"
    assert "msccl would run it in place" in found.checks["limits"].message
    assert list(failures(certify(file, "msccl"))) == ["races"]
    assert certify(read(write(file.program, "msccl", header=file.header)), "msccl").ok  # its header mended


# Four programs that the public compiler accepts, and that are wrong (reference, section 0, facts 2 to 5)


@corpus
def test_fused_alltonext_collides_in_scratch():
    found = certify(read(files.CORPUS / "msccl-tools/alltonext_forward_3x8_i1.xml")).checks["races"]
    assert not found.ok
    assert "scratch[0] of rank 9" in found.message
    assert {line.rpartition(":")[2].rstrip(")") for line in found.schedule} == {"145", "157"}


@corpus
def test_remote_reduce_reads_the_local_operand():
    found = certify(read(files.CORPUS / "msccl-tools/probe_remote_reduce_from_scratch.xml"))
    assert set(failures(found)) == {"bounds", "result"}
    assert found.checks["bounds"].where.endswith(":15")
    assert "unwritten scratch@1[0]" in found.checks["result"].found
    assert any(line.endswith("from_scratch.xml:15)") for line in found.checks["result"].schedule)


def test_mixed_counts_replicated_interleaved():
    """Chunks come singly, but are copied in pairs: of instance k they are k and 2 + k, the pair is 2k and 2k + 1."""
    steps = {
        (0, 0): ("1 -1 0", "s i0 - 1", "s i2 - 1"),
        (0, 1): ("1 -1 1", "s i1 - 1", "s i3 - 1"),
        (1, 0): ("-1 0 0", "r - s0 1", "r - s2 1", "cpy s0 o0 2"),
        (1, 1): ("-1 0 1", "r - s1 1", "r - s3 1", "cpy s2 o2 2"),
    }
    text = xml(steps, "custom", chunks=4, io=(4, 4), scratch=4, head='inplace="0"', channels=2)
    found = judged(text).checks["races"]
    assert not found.ok
    assert "scratch[1] of rank 1" in found.message
    assert [line.rpartition(":")[2] for line in found.schedule] == ["19)", "16)"]
    assert "cpy" in text.splitlines()[15]


def test_nine_exchanges_on_one_threadblock():
    """Each rank sends nine messages before it takes one: eight places are too few."""
    sends, takes = [f"s i{k} - 1" for k in range(9)], [f"r - s{k} 1 !" for k in range(9)]
    adds = [f"re s{k} i{k} 1 0.{9 + k}" for k in range(9)]
    steps = {}
    for rank in (0, 1):
        steps[rank, 0] = (f"{1 - rank} {1 - rank} 0", *sends, *takes)
        steps[rank, 1] = ("-1 -1 0", *adds)
    text = xml(steps, chunks=9, scratch=9, proto="LL")
    found = judged(text)
    assert set(failures(found)) == {"deadlock"}
    assert (found.min_fifo_depth, found.collective_found) == (9, "all_reduce")
    assert found.checks["deadlock"].where == "t.xml:12"  # the ninth send of rank 0
    assert certify(read(text), fifo_depth=9).ok


def test_chunks_of_one_step_may_be_sent_one_by_one():
    """Three chunks a step are one message of a small buffer, three of a large one."""
    steps = {}
    for rank in (0, 1):
        steps[rank, 0] = (f"{1 - rank} {1 - rank} 0", "s i0 - 3", "r - s0 3", "re s0 i0 3")
    found = judged(xml(steps, chunks=3, scratch=3))
    assert (found.ok, found.min_fifo_depth) == (True, 1)
    assert found.safe_up_to_bytes == 3 << 20  # a message of 2 MiB holds two of three chunks
    assert "safe up to 3145728 bytes" in found.checks["deadlock"].message
    assert "need up to 3 places in a channel; Simple has 2" in found.checks["deadlock"].message
    assert judged(xml(steps, chunks=3, scratch=3, proto="LL")).safe_up_to_bytes is None
    assert certify(read(xml(steps, chunks=3, scratch=3)), fifo_depth=3).safe_up_to_bytes is None


# What a file means


def test_a_small_file_in_words():
    file = read(pair(), name="t.xml")
    assert (file.dialects, file.protocol, file.header.kind) == (("msccl",), "Simple", "all_reduce")
    assert file.program.op(1).line == "t.xml:5"
    want = """
    program t ranks 2
    buffer input input 1
    buffer scratch scratch 1
    lane tb0 net
    lane tb1 net
    channel 0->1 0 depth 2
    channel 1->0 0 depth 2
    post 0 1 input[0:1] = input@0[0:1] + input@1[0:1]
    rank 0 lane tb0
      send input[0:1] to 1
      recv from 1 -> scratch[0:1]
    rank 0 lane tb1
      reduce scratch[0:1] -> input[0:1] after tb0.1
    rank 1 lane tb0
      send input[0:1] to 0
      recv from 0 -> scratch[0:1]
    rank 1 lane tb1
      reduce scratch[0:1] -> input[0:1] after tb0.1
    """
    assert_same(file.program, parse(want))
    assert judged(pair()).ok


@pytest.mark.parametrize(("proto", "depth"), [("Simple", 2), ("LL", 8), ("LL128", 8)])
def test_depth_is_the_protocols(proto, depth):
    assert {channel.depth for channel in read(pair(proto=proto)).program.channels} == {depth}


def test_buffers_in_place_and_out_of_place():
    """An all_gather of one chunk each that copies its own; in place that copy is onto itself."""
    steps = {}
    for rank in (0, 1):
        steps[rank, 0] = ("-1 -1 0", f"cpy i0 o{rank} 1")
        steps[rank, 1] = (f"{1 - rank} {1 - rank} 0", "s i0 - 1", f"r - o{1 - rank} 1")
    both = 'inplace="1" outofplace="1" minBytes="0" maxBytes="0"'
    file = read(xml(steps, "allgather", chunks=2, io=(1, 2), head=both))
    assert [use.in_place for use in file.uses] == [False, True]
    assert [b.name for b in file.program.buffers] == ["input", "output"]
    ours = [op for op in file.uses[1].program.ops() if op.rank == 1]
    assert [op.kind.name for op in ours] == ["nop", "send", "recv"]  # in place its own part is there already
    assert str(ours[1].reads[0]) == "input[1:2]"
    assert certify(file).ok
    again = read(write(file.program, "rccl", header=file.header), "rccl")
    for ours, theirs in zip(again.uses, file.uses, strict=True):
        assert_same(ours.program, theirs.program)
    wrong = {key: lines for key, lines in steps.items() if key[1] == 1} | {
        (rank, 0): ("-1 -1 0", "cpy i0 o0 1") for rank in (0, 1)
    }
    found = certify(read(xml(wrong, "allgather", chunks=2, io=(1, 2), head=both)))
    assert failures(found)["races"].startswith("out of place: ")


def test_only_one_use_is_wrong():
    """Without the copy of its own part an all_gather is right in place only."""
    steps = {(rank, 0): (f"{1 - rank} {1 - rank} 0", "s i0 - 1", f"r - o{1 - rank} 1") for rank in (0, 1)}
    for head, ok in (('inplace="1"', True), ('inplace="1" outofplace="1"', False), ('inplace="0"', False)):
        found = certify(read(xml(steps, "allgather", chunks=2, io=(1, 2), head=head)))
        assert found.ok is ok
        if "out" in head:
            assert failures(found)["result"].startswith("out of place: output[0] of rank 0")


def test_reduce_scatter_in_place_and_its_two_names():
    steps = {(rank, 0): (f"{1 - rank} {1 - rank} 0", f"s i{1 - rank} - 1", f"rrc i{rank} o0 1") for rank in (0, 1)}
    text = xml(steps, "reduce_scatter", chunks=2, io=(2, 1))
    assert judged(text).collective_found == "reduce_scatter"
    assert "no collective 'reduce_scatter'" in failures(judged(text, "azure"))["limits"]
    file = read(text)
    for dialect, word in (("msccl", "reduce_scatter"), ("azure", "reducescatter"), ("rccl", "reducescatter")):
        written = write(file.program, dialect, header=file.header)
        assert f'coll="{word}"' in written
        assert certify(read(written, dialect), dialect).ok


@pytest.mark.parametrize(("coll", "root"), [("broadcast", 1), ("reduce", 0)])
def test_the_root_is_found(coll, root):
    word = {"broadcast": ("s i0 - 1", "r - i0 1"), "reduce": ("s i0 - 1", "rrc i0 i0 1")}[coll]
    found = judged(xml({(0, 0): ("-1 1 0", word[1]), (1, 0): ("0 -1 0", word[0])}, coll))
    assert (found.ok, found.collective_found) == (True, coll)
    assert read(xml({(0, 0): ("-1 1 0", word[1]), (1, 0): ("0 -1 0", word[0])}, coll)).program.posts[0].ranks == (
        (0, 1) if coll == "broadcast" else (root,)
    )


def test_nops_carry_waits():
    steps = {
        (0, 0): ("1 -1 0", "cpy i0 s0 1 !", "s i1 - 1"),
        (0, 1): ("-1 -1 0", "cpy i0 s1 1 !", "nop - - 0"),
        (0, 2): ("-1 -1 0", "nop - - 0 0.0", "cpy s0 s2 1 1.0", "nop - - 0 1.0"),
        (1, 0): ("-1 0 0", "r - i1 1"),
    }
    file = read(xml(steps, "custom", chunks=2, scratch=3))
    assert file.program.op(3).after == (0, 2)
    assert file.program.num_ops == 5
    text = write(file.program, "msccl", collective="custom")
    assert text.count('type="nop"') == 1
    again = read(text).program
    assert_same(again, file.program)


def test_an_early_flag_is_waited_for_by_the_next():
    """Step 0 does not publish, step 1 does: who waits for step 0 goes on after step 1."""
    steps = {
        (0, 0): ("-1 -1 0", "cpy i0 s0 1", "cpy i0 s1 1 !"),
        (0, 1): ("-1 -1 0", "cpy s0 i0 1 0.0"),
        (1, 0): ("-1 -1 0", "cpy i0 s0 1"),
    }
    assert read(xml(steps, "custom", scratch=2)).program.op(2).after == (1,)


def test_a_wait_that_nothing_ends():
    text = pair().replace('hasdep="1"', 'hasdep="0"')
    found = judged(text)
    assert "no step from there on publishes" in failures(found)["deadlock"]
    assert found.checks["deadlock"].where == "t.xml:8"
    assert found.min_fifo_depth is None


def test_waits_in_a_circle():
    steps = {
        (0, 0): ("-1 -1 0", "cpy i0 s0 1 1.0 !"),
        (0, 1): ("-1 -1 0", "cpy i0 s1 1 0.0 !"),
        (1, 0): ("-1 -1 0", "cpy i0 s0 1 0.0 !"),
    }
    found = judged(xml(steps, "custom", scratch=2))
    assert set(failures(found)) == {"deadlock"}
    assert found.checks["deadlock"].where == "t.xml:4"


def test_two_threadblocks_on_one_connection():
    """They are ordered by a wait, but each counts the connection's messages by itself."""
    steps = {
        (0, 0): ("1 -1 0", "s i0 - 1 !"),
        (0, 1): ("1 -1 0", "s i1 - 1 0.0"),
        (1, 0): ("-1 0 0", "r - i0 1", "r - i1 1"),
    }
    found = judged(xml(steps, "broadcast", chunks=2))
    assert set(failures(found)) == {"races"}
    assert "threadblocks 0 and 1 of gpu 0 both send to gpu 1 on channel 0" in failures(found)["races"]


def test_a_header_that_misstates_the_collective():
    found = judged(pair(coll="broadcast"))
    assert set(failures(found)) == {"result"}
    assert found.collective_found == "all_reduce"


def test_neighbouring_reductions_take_the_last_count():
    adds = ("re s0 i0 2", "re s2 i0 1", "s i0 - 2")
    steps = {
        (0, 0): ("1 1 0", "s i0 - 2", "r - s0 2", "r - s2 2", *adds, "r - i0 2"),
        (1, 0): ("0 0 0", "s i0 - 2", "s i0 - 2", "r - s0 2", "r - i0 2", "s i0 - 2"),
    }
    file = read(xml(steps, "custom", chunks=2, scratch=4))
    reduces = [op for op in file.program.ops() if op.kind.name == "reduce"]
    assert [op.reads[0].count for op in reduces] == [1, 1]
    ours = parse(
        "program p ranks 1\nbuffer input input 2\nbuffer s scratch 4\nlane a net\nrank 0 lane a\n"
        "  copy input[0:2] -> s[0:2]\n  copy input[0:2] -> s[2:4]\n"
        "  reduce s[0:2] -> input[0:2]\n  reduce s[2:3] -> input[0:1]\n"
    )
    again = read(write(ours, "msccl")).program  # what would be joined is kept apart
    assert [op.reads[0].count for op in again.ops()] == [2, 2, 2, 1]


def test_too_long_a_row_of_reductions():
    """The interpreter ends a row at the 16th reduction of a threadblock, and never after."""
    steps = {(r, 0): ("-1 -1 0", *(f"re s{k} i0 1" for k in range(34))) for r in (0, 1)}
    text = xml(steps, "custom", scratch=34)
    assert "line 21 is the 17th of a row" not in failures(judged(text, "msccl"))["limits"]
    assert "line 36 is the 17th of a row" in failures(judged(text, "msccl"))["limits"]
    assert certify(read(write(read(text).program, "msccl", collective="custom")), "msccl").checks["limits"].ok


# Headers and dialects


@pytest.mark.parametrize(
    ("change", "dialect", "why"),
    [
        (('inplace="1"', 'inplace="1"'), "azure", "the algo has no minBytes"),
        (('inplace="1"', 'inplace="1" minBytes="0" maxBytes="0"'), "rccl", "the algo has no outofplace"),
        (('inplace="1"', 'inplace="1" minBytes="8" maxBytes="4"'), "msccl", "minBytes=8 and maxBytes=4"),
        (('inplace="1"', 'inplace="1" nthreads="33"'), "msccl", "no multiple of 32"),
        (('nchunksperloop="1"', 'nchunksperloop="2"'), "msccl", "i_chunks=1 does not agree with nchunksperloop=2"),
        (('chan="0"', 'chan="3"'), "msccl", "uses channel 3, but nchannels=1"),
        (('recv="-1" chan="0"', 'recv="-1" chan="-1"'), "msccl", "the threadblock on line 7 has chan=-1"),
    ],
)
def test_what_a_runtime_refuses(change, dialect, why):
    text = pair().replace(*change)
    assert why in failures(judged(text, dialect))["limits"]
    with pytest.raises(ProgramError, match=re.escape(why)):
        read(text, dialect)


def test_a_header_that_no_runtime_takes_is_a_remark_without_target():
    found = judged(pair().replace('nchunksperloop="1"', 'nchunksperloop="2"'))
    assert found.ok
    assert "no runtime accepts the file" in found.checks["limits"].message


def test_limits_of_a_target():
    steps = {(r, 0): ("-1 -1 0", *(f"cpy i0 s{k} 1" for k in range(65))) for r in (0, 1)}
    text = xml(steps, "custom", scratch=65)
    assert judged(text, "msccl").ok
    assert "has 65 steps; rccl allows 64" in failures(judged(text, "rccl"))["limits"]


# Writing


BUILT = {"ring_all_reduce": 4, "ring_all_gather": 3, "ring_reduce_scatter": 3, "direct_all_to_all": 2}


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_write_what_was_built(name, dialect):
    program = build(name, BUILT[name])
    text = write(program, dialect, protocol="LL", name="mine", min_bytes=1024, max_bytes=65536)
    file = read(text, dialect)
    assert (file.header.name, file.header.min_bytes, file.header.max_bytes) == ("mine", 1024, 65536)
    assert (file.header.kind, file.protocol) == (name.partition("_")[2], "LL")
    assert certify(file, dialect).ok
    assert certify(file, dialect).collective_found == file.header.kind
    written = write_file(program, dialect, protocol="LL", name="mine", min_bytes=1024, max_bytes=65536)
    assert written.text == text
    same = read(text, dialect, name=written.file.place)
    assert replace(written.file, uses=same.uses) == same
    assert safe_up_to_bytes(written.file, dialect) == safe_up_to_bytes(same, dialect)
    proved = write_file(program, dialect, protocol="LL", certificate=verify(program.with_depth(FIFO_DEPTHS["LL"])))
    assert proved.text == write(program, dialect, protocol="LL")


def test_what_has_no_word_of_its_own_is_custom():
    program = build("direct_all_to_next", 3)
    assert 'coll="custom"' in write(program, "msccl")
    with pytest.raises(ProgramError, match="azure has no word for an all_to_next"):
        write(program, "azure")


def test_write_refuses_what_does_not_hold():
    good = read(pair()).program
    bad = read(pair().replace('depid="0" deps="1"', 'depid="-1" deps="-1"')).program
    with pytest.raises(ProgramError, match="races check"):
        write(bad, "msccl")
    with pytest.raises(ProgramError, match="not proved to be a broadcast"):
        write(good, "msccl", collective="broadcast")
    with pytest.raises(ProgramError, match="azure has no word for a custom collective"):
        write(replace(good, posts=()), "azure", collective="custom")
    with pytest.raises(ProgramError, match="no protocol"):
        write(good, "msccl", protocol="Fast")
    with pytest.raises(ProgramError, match="no MSCCL dialect"):
        write(good, "nccl")


def test_write_finds_the_collective_by_itself():
    assert 'coll="allreduce"' in write(replace(read(pair()).program, posts=()), "azure")


def test_write_cuts_long_and_strided_regions():
    text = """
    program p ranks 2
    buffer input input 100
    buffer output output 100
    lane a net
    channel 0->1 0 depth 2
    channel 1->0 0 depth 2
    rank 0 lane a
      copy input[0:100] -> output[0:100]
      send input[0:25; 2 x 50] to 1
      recv from 1 -> output[0:25; 2 x 50]
    rank 1 lane a
      copy input[0:100] -> output[0:100]
      recv from 0 -> output[0:50]
      send input[0:50] to 0
    """
    written = read(write(parse(text), "msccl", protocol="LL")).program
    assert [str(op.reads[0]) for op in written.ops() if op.kind.name == "copy"][:2] == ["input[0:71]", "input[71:100]"]
    sends = [str(op.reads[0]) for op in written.ops() if op.kind.name == "send"]
    assert sends == ["input[0:25]", "input[50:75]", "input[0:25]", "input[25:50]"]
    assert verify(written, "msccl").ok


def test_names_with_quotes_survive():
    program = replace(read(pair()).program, name='a "b" & <c>')
    assert read(write(program, "msccl")).header.name == 'a "b" & <c>'


def test_canonical_order_of_elements_does_not_matter():
    lines = pair().splitlines()
    swapped = [lines[0], *lines[10:19], *lines[1:10], lines[-1]]
    assert_same(read("\n".join(swapped)).program, canonical(read(pair()).program))


# Hostile files


def _changed(old: str, new: str, count: int = 1) -> str:
    assert old in pair(), old
    return pair().replace(old, new, count)


MALFORMED = {
    "empty": ("", "1", "the file is empty"),
    "truncated": (pair()[:-40], "17", "it is not XML"),
    "no xml": ("<algo <", "1", "it is not XML"),
    "another root": ("<html></html>", "1", "its root is <html>"),
    "entity bomb": (
        '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>\n<algo name="&b;"/>',
        "1",
        "declares a document type",
    ),
    "external entity": ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><algo/>', "1", "declares a document type"),
    "not utf-8": (b'<algo name="\xff\xfe"/>', "1", "it is not XML"),
    "no attributes": ("<algo/>", "1", "this algo has no proto and no nchannels"),
    "protocol": (_changed('"Simple"', '"Fast"'), "1", "no protocol 'Fast'"),
    "collective": (_changed('"allreduce"', '"all_reduce"'), "1", "no collective 'all_reduce'"),
    "absurd ngpus": (_changed('ngpus="2"', 'ngpus="1000000000"'), "1", "ngpus=1000000000"),
    "too few gpus": (_changed('ngpus="2"', 'ngpus="3"'), "1", "gpu 2 is missing"),
    "a gpu too many": (_changed('ngpus="2"', 'ngpus="1"'), "11", "gpu 1, but ngpus=1"),
    "a gpu twice": (_changed('gpu id="1"', 'gpu id="0"'), "11", "gpu 0 occurs twice"),
    "a tb twice": (_changed('tb id="1"', 'tb id="0"'), "7", "tb 0 of gpu 0 occurs twice"),
    "tbs with a gap": (_changed('tb id="1"', 'tb id="2"'), "7", "tb 2 of gpu 0, but no tb 1"),
    "chunks": (_changed('i_chunks="1"', 'i_chunks="1000000000"'), "2", "i_chunks=1000000000"),
    "fewer than no chunks": (_changed('s_chunks="1"', 's_chunks="-1"'), "2", "s_chunks=-1"),
    "a peer": (_changed('send="1"', 'send="7"'), "3", "send=7 in tb 0 of gpu 0"),
    "itself": (_changed('send="1"', 'send="0"'), "3", "send=0 in tb 0 of gpu 0"),
    "channel": (_changed('chan="0"', 'chan="-1"'), "3", "chan=-1 in tb 0 of gpu 0"),
    "no peer": (_changed('send="1"', 'send="-1"'), "4", "it sends, and its threadblock has send=-1"),
    "op": (_changed('type="re"', 'type="ra"'), "8", "no op 'ra'"),
    "buffer": (_changed('srcbuf="s"', 'srcbuf="x"'), "8", "no buffer srcbuf='x'"),
    "negative offset": (_changed('srcoff="0"', 'srcoff="-5"'), "4", "srcoff=-5"),
    "offset": (_changed('srcoff="0"', 'srcoff="9"'), "4", "srcoff=9 with cnt=1, but buffer i has 1 chunks"),
    "count": (_changed('cnt="1"', 'cnt="1000000000"'), "4", "cnt=1000000000"),
    "no count": (_changed('cnt="1"', 'cnt="0"'), "4", "cnt=0"),
    "a number in words": (_changed('cnt="1"', 'cnt="one"'), "4", "cnt of this step: 'one' is not a whole number"),
    "octal": (_changed('cnt="1"', 'cnt="01"'), "4", "cnt of this step: '01' is not a whole number"),
    "order": (_changed(' s="1"', ' s="0"'), "5", "step s=0 is out of order"),
    "flag": (_changed('hasdep="1"', 'hasdep="2"'), "5", "hasdep=2"),
    "waits for no tb": (_changed('depid="0"', 'depid="5"'), "8", "it waits for threadblock 5"),
    "attribute": (_changed(' deps="1"', ""), "8", "this step has no deps"),
    "misplaced": ("<algo><step/></algo>", "1", "a <step> outside a <tb>"),
    "nested": ("<algo><algo/></algo>", "1", "a <algo> inside another element"),
    "deep": ("<algo>" + "<a>" * 100000, "1", "nested more than 16 deep"),
    "shares": (f"<!-- by hand -->\n{pair(coll='alltoall')}", "2", "1 chunks cannot be shared among 2 gpus"),
    "parts": (xml({}, "allgather", 1024, 1024, io=(1024, 1024)), "1", "1048576 chunks on each of 1024 gpus"),
    "loops": (xml({}, chunks=1 << 24, io=(0, 0)), "1", "16777216 chunks on each of 2 gpus"),
    "comment": (_changed("<gpu", f"<!--{' ' * (1 << 26)}-->\n<gpu"), "2", "more than 4 MiB"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_refused_at_once(name):
    text, line, what = MALFORMED[name]

    def refused():
        with pytest.raises(ProgramError) as raised:
            certify(read(text, name="bad.xml"))
        assert what in raised.value.what
        assert raised.value.where == f"bad.xml:{line}"

    assert_quick(refused, AT_ONCE)


@pytest.mark.slow
def test_a_million_steps_are_refused_at_once(tmp_path):
    step = pair().splitlines()[3].replace('s="0"', 's="{}"')
    head, tail = pair().splitlines()[:3], pair().splitlines()[5:]
    lines = [step.replace("{}", str(number)) for number in range(1_000_000)]
    for steps, what in ((100_000, "more than 4096 steps in one threadblock"), (1_000_000, "more than 524288 gpus")):
        (tmp_path / "long.xml").write_text("\n".join([*head, *lines[:steps], *tail]))
        where = f"{tmp_path}/long.xml:{4100 if steps < 1_000_000 else 524_289}"

        def refused(what=what, where=where):
            with pytest.raises(ProgramError, match=what) as raised:
                read(tmp_path / "long.xml")
            assert raised.value.where == where

        assert_quick(refused, AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coll", "in_place"), [("alltoall", 0), ("reduce_scatter", 1), ("allgather", 0), ("custom", 1)]
)
def test_a_thousand_gpus_are_judged_at_once(coll, in_place):
    """Up to a million post-conditions, and hardly a step."""
    steps = {(rank, 0): ("-1 -1 0", "cpy i0 o0 1") for rank in range(1024)}
    io = (1 if coll == "allgather" else 1024, 1 if coll == "reduce_scatter" else 1024)
    text = xml(steps, coll, 1024, 1024, io=io, head=f'inplace="{in_place}"')
    assert assert_quick(lambda: judged(text), AT_ONCE).ok == (coll == "custom")


WIDE = {
    "doublings": {(r, 0): ("-1 -1 0", *["re i0 i0 32767"] * 4000) for r in (0, 1)},
    "messages": {(r, 0): (f"{1 - r} {1 - r} 0", *["s i0 - 32767", "r - i0 32767"] * 2000) for r in (0, 1)},
    "sums": {(r, 0): (f"{r ^ 1} {r ^ 1} 0", "s i0 - 999", *["rrs i0 - 999"] * 999, "r - i0 999") for r in range(64)},
    "rivals": {(r, t): (f"{1 - r} {1 - r} 0", "s i0 - 1", "r - i0 1") for t in range(1000) for r in (0, 1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_small_files_of_large_steps_are_judged_at_once(name):
    ranks = 1 + max(rank for rank, _ in WIDE[name])
    text = xml(WIDE[name], chunks=32767, ranks=ranks)
    assert "result" in failures(assert_quick(lambda: judged(text), AT_ONCE))


def slots_of(regions):
    return [[r.offset + block * r.stride + k for block in range(r.blocks) for k in range(r.count)] for r in regions]


@pytest.mark.parametrize("most", [1, 2, 3, 100])
@pytest.mark.parametrize("name", ["bruck_all_to_all", "binomial_tree_scatter", "hierarchical_all_reduce"])
def test_steps_are_single_runs_of_what_the_ops_moved(name, most):
    """Op by op: the same slots in the same order, cut alike at both ends; the first step waits for last ones."""
    whole = build(name, 8, **{"nodes": 2} if name.startswith("hier") else {}).split_slots(5)
    pieces, ops = [*in_pieces(whole, most).ops()], [*whole.ops()]
    last, lengths, at = dict[int, int](), dict[int, list[list[int]]](), 0
    for op in ops:
        wanted, mine = slots_of((*op.reads, *op.writes)), list[Op]()
        moved = [list[int]() for _ in wanted]
        while not mine or moved != wanted:
            mine.append(pieces[at])
            regions = (*pieces[at].reads, *pieces[at].writes)
            assert len({region.count for region in regions}) <= 1
            assert all(region.blocks == 1 and region.count <= most for region in regions)
            for so_far, more in zip(moved, slots_of(regions), strict=True):
                so_far += more
            at += 1
        assert {(p.kind, p.rank, p.lane, p.chan_in, p.chan_out) for p in mine} == {
            (op.kind, op.rank, op.lane, op.chan_in, op.chan_out)
        }
        assert [p.after for p in mine] == [tuple(last[row] for row in op.after), *[()] * (len(mine) - 1)]
        last[op.index] = at - 1
        if op.chan_out >= 0:
            lengths.setdefault(op.chan_out, []).append([p.reads[0].count for p in mine if p.reads])
        if op.chan_in >= 0:
            lengths.setdefault(~op.chan_in, []).append([p.writes[0].count for p in mine if p.writes])
    assert at == len(pieces)
    for channel in (each for each in lengths if each >= 0):
        pairs = zip(lengths[channel], lengths[~channel], strict=True)
        assert all(sent == taken or [] in (sent, taken) for sent, taken in pairs)


@pytest.mark.slow
@corpus
def test_in_pieces_needs_the_depth_of_lower():
    for row in SHOWN:
        if verdict(row) != "unreadable":
            program = read(files.path(row)).program
            for most in (1, 2):
                assert verify(in_pieces(program, most)).min_fifo_depth == verify(lower(program, most)).min_fifo_depth


def test_unfinished_chain_of_nops():
    steps = {
        (0, 0): ("-1 -1 0", "cpy i0 s0 1 !"),
        (0, 1): ("-1 -1 0", "nop - - 0 0.0", "cpy s0 i0 1"),
        (1, 0): ("-1 -1 0", "cpy i0 s0 1"),
    }
    with pytest.raises(ProgramError, match="passes to the step on line 8, which has depid=-1"):
        read(xml(steps, "custom", scratch=1))


@pytest.mark.slow
def test_mutated_files_raise_nothing_but_what_they_should():
    """Every file that random changes make is judged or refused, quickly: the slowest is judged once more for that."""
    rng, slowest, judged_files = random.Random(7), (0.0, ("", None, None)), 0
    seeds = [pair(), xml(RELAY), xml(RELAY, "custom", chunks=3), pair(coll="broadcast", proto="LL")]
    seeds += [pair(head='inplace="1" outofplace="1" minBytes="0" maxBytes="0"', io=(1, 1))]
    for _ in range(1500):
        text = _mutated(rng, rng.choice(seeds))
        how = rng.choice((None, *DIALECTS)), rng.choice((None, 1, 9)), rng.choice(DIALECTS)
        start = time.process_time()
        judged_files += _is_read(text, *how)
        slowest = max(slowest, (time.process_time() - start, (text, *how)), key=lambda found: found[0])
    assert judged_files > 250
    assert_quick(lambda: _is_read(*slowest[1]), AT_ONCE)


def _is_read(text, target, fifo_depth, dialect):
    """Whether the file can be read, judged as what it is or refused with the error meant for that and no other."""
    is_read = False
    try:
        file = read(text)
        is_read = True
        certify(file, target, fifo_depth)
        write(file.program, dialect, header=file.header)
    except ProgramError:
        pass
    return is_read


def _mutated(rng: random.Random, text: str) -> str | bytes:
    numbers = ["-1", *"000111233", "71", "72", "32767", "-7", "1e3", "9" * 30]
    for _ in range(rng.randint(1, 2)):
        lines, kind = text.splitlines(keepends=True), rng.choice((0, 0, 0, 0, 0, 3, 4, 5))
        at = rng.randrange(len(lines)) if lines else 0
        if kind == 0:
            found = list(re.finditer(r'"(-?\d+|[a-z]{1,4})"', text))
            if found:
                m = rng.choice(found)
                words = (
                    numbers if m[1].lstrip("-").isdigit() else ["i", "o", "s", "r", "rrc", "re", "cpy", "nop", "rcs"]
                )
                text = text[: m.start(1)] + rng.choice(words) + text[m.end(1) :]
        elif kind == 3 and lines:
            text = "".join(lines[:at] + lines[at + 1 :])
        elif kind == 4 and lines:
            text = "".join([*lines[:at], lines[rng.randrange(len(lines))], *lines[at:]])
        elif text:
            cut = rng.randrange(len(text))
            text = text[:cut] + chr(rng.choice((0, 34, 38, 60, 62, 200, 0x2028))) + text[cut + rng.randint(0, 2) :]
    return text.encode("utf-8", "surrogatepass") if rng.random() < 0.2 else text


# The command


def test_verify_a_file(call, tmp_path):
    good, bad = tmp_path / "good.xml", tmp_path / "bad.xml"
    good.write_text(pair())
    bad.write_text(pair().replace('depid="0" deps="1"', 'depid="-1" deps="-1"'))
    code, out, _ = call("verify", good)
    assert (code, out.splitlines()[-1]) == (0, "t: valid; it computes all_reduce; least FIFO depth 1")
    assert call("verify", good, "--target", "azure")[0] == 1
    code, out, _ = call("verify", bad, "--json", "--out", tmp_path / "pages")
    found = json.loads(out)
    assert (code, found["ok"], found["checks"]["races"]["where"]) == (1, False, f"{bad}:8")
    assert "nothing orders the two" in (tmp_path / "pages" / "bad.html").read_text()
    assert found["page"] == str(tmp_path / "pages" / "bad.html")


def test_verify_depth_on_the_command_line(call, tmp_path):
    steps = {(r, 0): (f"{1 - r} {1 - r} 0", *["s i0 - 1"] * 3, *["r - s0 1"] * 3) for r in (0, 1)}
    (tmp_path / "deep.xml").write_text(xml(steps, "custom", scratch=1))
    assert call("verify", tmp_path / "deep.xml")[0] == 1
    assert call("verify", tmp_path / "deep.xml", "--fifo-depth", "3")[0] == 0
    code, _, err = call("verify", tmp_path / "deep.xml", "--fifo-depth", str(1 << 31))
    assert (code, "less than or equal to 2147483647" in err) == (2, True)
    code, out, _ = call("verify", tmp_path / "deep.xml", "--json", "--out", tmp_path)
    assert (code, json.loads(out)["min_fifo_depth"]) == (1, 3)
    assert (tmp_path / "deep.html").exists()


@pytest.mark.parametrize("text", ["", "<algo", pair()[:200]])
def test_verify_a_malformed_file(call, tmp_path, text):
    place = tmp_path / "x.xml"
    place.write_text(text)
    code, out, err = call("verify", place)
    assert (code, out) == (2, "")
    assert err.startswith("FileError: ")
    assert str(place) in err
    code, out, _ = call("verify", place, "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["checks"]["bounds"]["ok"]) == (2, False, False)


def test_show_and_diff(call, tmp_path):
    one, other = tmp_path / "one.xml", tmp_path / "other.txt"
    one.write_text(pair())
    code, out, _ = call("show", one)
    assert code == 0
    assert out.startswith("program t ranks 2\n")
    sums = "# t: all_reduce, 2 ranks; at most 2 lanes and 3 steps a rank; it moves 1 messages, 1 × the buffer"
    assert out.splitlines()[-1] == sums
    other.write_text(out)
    assert call("diff", one, other)[:2] == (0, "the same program\n")
    other.write_text(
        out.replace("  recv from 1 -> scratch[0:1]", "  recv from 1 -> input[0:1]").replace("depth 2", "depth 8")
    )
    code, out, _ = call("diff", one, other)
    assert code == 1
    assert "rank 0 lane tb0\n  - recv from 1 -> scratch[0:1]\n  + recv from 1 -> input[0:1]" in out
    code, out, _ = call("diff", one, other, "--json")
    found = json.loads(out)
    assert [change["where"] for change in found["changes"]] == ["channels", "rank 0 lane tb0"]
