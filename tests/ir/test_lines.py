"""Writers of programs work in bulk: no Python call per op, and the same output as writing op by op."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import ir_programs
import needs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import some

from dovetail.collective import make_algorithm, msccl
from dovetail.core import ProgramError
from dovetail.ir import Program, parse, to_text
from dovetail.ir.text.document import json_text
from dovetail.ir.text.lines import op_lines, post_lines
from dovetail.ir.text.write import op_text

GOLDEN = needs.GOLDEN
FORMS: dict[str, Callable[[Program], str]] = {
    "text": to_text,
    "json": json_text,
    "msccl": partial(msccl.write, dialect="msccl", collective="all_reduce"),
    "msccl and its limit": lambda program: _xml_and_limit(program)[0],
}


def _xml_and_limit(program: Program) -> tuple[str, int | None]:
    """Return MSCCL's XML and limit as `dovetail compile --to msccl` makes them, without parsing the output again."""
    xml = msccl.write_file(program, "msccl", collective="all_reduce")
    return xml.text, msccl.safe_up_to_bytes(xml.file, "msccl")


def _ring(num_ranks: int, form: str) -> Program:
    return make_algorithm("ring_all_reduce", num_ranks).compile(strided="msccl" not in form)


def _calls(work: Callable[[], object]) -> int:
    """Count calls of our functions, with comprehensions and each resumption of a generator."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call" and "dovetail" in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("form", FORMS)
def test_no_call_for_each_op(form: str) -> None:
    """Eight times the ranks make 64 times the ops: calls grow with the ranks, not with the ops."""
    small, large = (_ring(num_ranks, form) for num_ranks in (16, 128))
    FORMS[form](small)  # imports and fills caches
    more = _calls(lambda: FORMS[form](large)) - _calls(lambda: FORMS[form](small))
    assert large.num_ops - small.num_ops > 30_000
    assert more < 0.25 * (large.num_ops - small.num_ops)
    assert _calls(lambda: [op_text(small, row) for row in range(small.num_ops)]) > 5 * small.num_ops  # they are counted


@settings(max_examples=some(100), deadline=None)
@given(st.integers(0, 2**32).map(random.Random), st.integers(1, 40), st.booleans())
def test_bulk_output_equals_output_op_by_op(rng: random.Random, num_ops: int, changed: bool) -> None:
    program = ir_programs.Maker(rng, num_ops).program()
    program = ir_programs.mutated(program, rng) if changed else program
    assert json_text(program) == json.dumps(program.to_json())
    for row, line in enumerate(op_lines(program, source=False)):
        with suppress(ProgramError):  # some programs have no text form
            assert line.partition(" after ")[0] == op_text(program, row)


@pytest.mark.parametrize("place", sorted(GOLDEN.glob("ir_*.txt")), ids=lambda place: place.name)
def test_golden_programs(place: Path) -> None:
    program = parse(place.read_text())
    assert json_text(program) == json.dumps(program.to_json())
    posts = [line for line in to_text(program).splitlines() if line.startswith("post ")]
    assert posts == post_lines(program.posts)
    assert parse("\n".join(to_text(program).splitlines())) == parse(to_text(program))
