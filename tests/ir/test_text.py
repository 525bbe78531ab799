"""The text form of Programs: golden files, round trips, and errors with the line and the expected token."""

from __future__ import annotations

import random

import ir_programs
import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.core import ProgramError
from dovetail.ir import Builder, Kind, Program, canonical, parse, to_text
from dovetail.ir.shapes import ring_all_reduce
from dovetail.ir.text.lines import op_lines

GOLDEN = needs.GOLDEN
HEADER = "program p ranks 2\nbuffer x input 4\nbuffer y output 4\nlane net net\nchannel 0->1 0 depth 8\nkernel f each\n"


@pytest.mark.parametrize("name", ["every_kind", "matmul_all_reduce", "ring_all_reduce"])
def test_golden_texts_survive_a_round_trip(name: str) -> None:
    text = (GOLDEN / f"ir_{name}.txt").read_text()
    assert to_text(parse(text)) == text


def test_the_ring_is_printed_as_in_its_golden_file() -> None:
    program = ring_all_reduce(3, 1, 2)
    assert to_text(program) == (GOLDEN / "ir_ring_all_reduce.txt").read_text()
    assert parse(to_text(program)) == program


@settings(max_examples=some(150), deadline=None)
@given(st.integers(0, 2**32).map(random.Random), st.integers(0, 25))
def test_round_trip(rng: random.Random, num_ops: int) -> None:
    program = canonical(ir_programs.Maker(rng, num_ops).program())
    assert parse(to_text(program)) == program
    assert canonical(program) == program
    assert Program.from_json(program.to_json()) == program


@pytest.mark.slow
@settings(max_examples=some(150), deadline=None)
@given(st.integers(0, 2**32).map(random.Random), st.integers(1, 25))
def test_round_trip_of_faulty_programs_that_have_a_text(rng: random.Random, num_ops: int) -> None:
    program = ir_programs.mutated(ir_programs.Maker(rng, num_ops).program(), rng)
    try:
        text = to_text(program)
    except ProgramError:
        return
    assert to_text(parse(text)) == text


@pytest.mark.parametrize("kind", [Kind.compute, Kind.collective])
def test_an_op_without_its_kernel_or_collective_is_listed_by_its_kind(kind: Kind) -> None:
    builder = Builder("p", 1)
    builder.add(Kind.nop, 0, builder.lane("only", "net"))
    made = builder.build()
    wrong = made.with_columns({**made.columns, "kind": np.array([kind]), "call": np.array([3])}, made.lines)
    assert op_lines(wrong) == [kind.name]
    with pytest.raises(ProgramError, match="calls nothing"):
        to_text(wrong)


def test_canonical_sorts_rows_by_queue_and_keeps_dependencies_and_lines() -> None:
    builder = Builder("p", 2)
    net, copy = builder.lane("net", "net"), builder.lane("copy", "copy")
    late = builder.add(Kind.nop, 1, copy, line="a.py:9")
    builder.add(Kind.nop, 1, net, after=[late], line="a.py:5")
    builder.add(Kind.nop, 0, net, after=[])
    program = canonical(builder.build())
    assert [(op.rank, op.lane, op.after, op.line) for op in program.ops()] == [
        (0, net, (), None),
        (1, net, (2,), "a.py:5"),
        (1, copy, (), "a.py:9"),
    ]
    assert program.lines == ("a.py:5", "a.py:9")


@pytest.mark.parametrize(
    "name", ["two words", "ünïcode", 'quo"te', "", "a->b", "3", "x[0:1]", "a#b", "back\\slash", "a\nb"]
)
def test_any_name_survives(name: str) -> None:
    builder = Builder(name, 1)
    builder.buffer(name, "scratch", 2)
    lane = builder.lane(name, "net")
    first = builder.add(Kind.nop, 0, lane, line=name or None)
    builder.add(Kind.nop, 0, lane, after=[first])
    builder.kernel(name, ["each"])
    program = builder.build()
    assert parse(to_text(program)) == program


def test_comments_blank_lines_and_spaces_are_skipped() -> None:
    text = HEADER + "\n# a comment\nrank 0   lane net # here\n\tsend  x[0:4; 1 x 0]  to 1   # so\n"
    assert to_text(parse(text)).endswith("rank 0 lane net\n  send x[0:4] to 1\n")


def test_a_named_file_gives_ops_their_source_lines() -> None:
    program = parse(HEADER + "rank 0 lane net\n  nop\n  nop at other.py:3\n", name="p.txt")
    assert [op.line for op in program.ops()] == ["p.txt:8", "other.py:3"]
    assert all(op.line is None for op in parse(HEADER + "rank 0 lane net\n  nop\n").ops())


BODY = HEADER + "rank 0 lane net\n"


@pytest.mark.parametrize(
    ("text", "where", "what", "found"),
    [
        ("", 1, "expected 'program'", "an empty text"),
        ("programme p ranks 2", 1, "expected 'program'", "'programme p ranks 2'"),
        ("import dovetail\n" * 9, 1, "expected 'program'", "'import dovetail'"),
        ("program p ranks two", 1, "expected a number", "'two'"),
        ("program p ranks 0", 1, "expected 1 to 1048576 ranks", "0"),
        ("program p ranks 2 lanes", 1, "expected the end of the line", "'lanes'"),
        (
            HEADER + "buffers z input 3",
            7,
            "expected one of buffer, lane, channel, kernel, collective, post",
            "'buffers z input 3'",
        ),
        (HEADER + "buffer z inputs 3", 7, "expected one of input, output, scratch", "'inputs 3'"),
        (HEADER + "buffer x input 3", 7, "buffer 'x' is declared twice, or not for 2 ranks", None),
        (HEADER + "buffer z input 1,2,3", 7, "buffer 'z' is declared twice, or not for 2 ranks", None),
        (HEADER + "lane net copy", 7, "lane 'net' is declared twice", None),
        (HEADER + "channel 0->1 0 depth 4", 7, "channel 0->1 0 is declared twice", None),
        (HEADER + "channel 0-1 0 depth 4", 7, "expected a channel (source->destination)", "'0-1 0 depth 4'"),
        (HEADER + "kernel g each every", 7, "expected one of each, all", "'every'"),
        (HEADER + "post 0 y[0:4] x@0[0:4]", 7, "expected '='", "'x@0[0:4]'"),
        (HEADER + "post 0 y[0:4] = x[0:4]", 7, "expected a region with its rank, as A@0[0:4]", "'x[0:4]'"),
        (
            HEADER + "post 0 z[0:4] = x@0[0:4]",
            None,
            "malformed program: a post-condition names a buffer that does not exist",
            None,
        ),
        (HEADER + "rank 2 lane net", 7, "rank 2 does not exist", "2 ranks, 0 to 1"),
        (HEADER + "rank 0 lane copy", 7, "no lane 'copy'", "net"),
        (BODY + "  sends x[0:4] to 1", 8, "expected one of nop, copy", "'sends x[0:4] to 1'"),
        (BODY + "  send z[0:4] to 1", 8, "no buffer 'z' in program 'p'", None),
        (
            BODY + "  send x[0-4] to 1",
            8,
            "expected a region, '->', 'to', 'after', 'at' or the end of the line",
            "'x[0-4] to 1'",
        ),
        (BODY + "  send x@0[0:4] to 1", 8, "expected a region of this rank, without '@'", "'x@0[0:4] to 1'"),
        (BODY + "  send x[0:4] to", 8, "expected a peer", "the end of the line"),
        (BODY + "  send x[0:4] to 1:3", 8, "no channel 0->1 3 in the header", None),
        (BODY + "  compute g x[0:4] -> y[0:4]", 8, "no kernel 'g'", None),
        (BODY + "  collective all_reduce x[0:1] -> y[0:1]", 8, "expected 'group'", "the end of the line"),
        (
            BODY + "  collective all_reduce x[0:1] -> y[0:1] group 0 1",
            8,
            "no collective all_reduce of the ranks 0 1",
            None,
        ),
        (BODY + "  nop after net.1", 8, "no op net.1 on rank 0", None),
        (BODY + "  nop after net", 8, "expected an op (lane.index)", "'net'"),
        (BODY + '  nop at "a', 8, "expected a source line", "'\"a'"),
        (BODY + "  nop nop", 8, "expected a region, '->', 'to', 'after', 'at' or the end of the line", "'nop'"),
    ],
)
def test_errors_name_the_line_and_what_was_expected(text: str, where: int | None, what: str, found: str | None) -> None:
    with pytest.raises(ProgramError) as caught:
        parse(text, name="p.txt")
    assert caught.value.what.startswith(what)
    assert caught.value.where == ("p.txt" if where is None else f"p.txt:{where}")
    assert found is None or caught.value.found == found


@pytest.mark.slow
@settings(max_examples=some(300), deadline=None)
@given(st.data())
def test_no_text_crashes_the_parser(data) -> None:
    """Randomly cut and spliced texts are parsed, or refused with a ProgramError."""
    text = (GOLDEN / "ir_every_kind.txt").read_text()
    start, end = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    middle = data.draw(st.text(st.sampled_from('ab01 9:>-[]@,;."#\\x\n'), max_size=6))
    rest = text[data.draw(st.sampled_from([start, end])) :]
    try:
        program = parse(text[:start] + middle + rest)
    except ProgramError as error:
        good = error.where is not None
    else:
        good = parse(to_text(program)) == canonical(program)
    assert good
