"""verify against a reference program: equal programs, descriptions of differences, and what cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matmul_programs import program as matmul

from dovetail.core import ProgramError
from dovetail.ir import Certificate, Program, parse, verify, verify_reference
from dovetail.matmul import MatmulAllReduce

STENCIL = """program {name} ranks 2
buffer x input 6
buffer y output 4
buffer t scratch 6
buffer u scratch 6
lane a compute
lane n net
channel 0->1 0 depth 8
channel 1->0 0 depth 8
kernel step each each each
kernel norm each all
"""
SERIAL = """
rank 0 lane a
  compute step x[0:4] x[1:5] x[2:6] -> t[1:5]
  compute step t[1:3] t[2:4] t[3:5] -> y[0:2]
rank 0 lane n
  send t[1:3] to 1 after a.0
rank 1 lane a
  compute step x[0:4] x[1:5] x[2:6] -> t[1:5]
  compute norm t[1:3] t[1:5] -> y[0:2]
rank 1 lane n
  recv from 0 -> y[2:4]
"""
OVERLAPPED = """
rank 0 lane a
  compute step x[2:4] x[3:5] x[4:6] -> u[3:5]
  compute step x[0:2] x[1:3] x[2:4] -> u[1:3]
  compute step u[2:3] u[3:4] u[4:5] -> y[1:2]
  compute step u[1:2] u[2:3] u[3:4] -> y[0:1]
rank 0 lane n
  send u[1:2] to 1 after a.1
  send u[2:3] to 1
rank 1 lane a
  compute step x[0:1] x[1:2] x[2:3] -> t[0:1]
  compute step x[1:4] x[2:5] x[3:6] -> t[1:4]
  compute norm t[0:2] t[0:4] -> y[0:2]
rank 1 lane n
  recv from 0 -> y[2:3]
  recv from 0 -> y[3:4]
"""


def stencil(body: str, name: str = "overlapped") -> Program:
    return parse(STENCIL.format(name=name) + body.strip())


def certificate(checked: Program, against: Program) -> Certificate:
    """Return the certificate of C++, which must equal that of the Python reference word for word."""
    found = verify(checked, against=against)
    assert found.to_json() == verify_reference(checked, against=against).to_json()
    return found


serial = stencil(SERIAL, "serial")


def test_steps_in_another_order_and_in_parts_are_equal() -> None:
    found = certificate(stencil(OVERLAPPED), serial)
    assert found.ok
    message = "every output that 'serial' writes is the same; 2 output slots were not checked"
    assert found.checks["result"].message == message
    assert certificate(serial, stencil(OVERLAPPED)).ok


@pytest.mark.parametrize(
    ("change", "where", "found"),
    [
        # swapped operands
        (
            ("step u[2:3] u[3:4] u[4:5]", "step u[3:4] u[2:3] u[4:5]"),
            "y[1] of rank 0 should hold step(step(x@0[1], x@0[2], x@0[3]), step(x@0[2], x@0[3], x@0[4]), "
            "step(x@0[3], x@0[4], x@0[5])) (as in program 'serial'), but holds step(step(x@0[2]",
            "missing step(step(x@0[1], x@0[2], x@0[3]), step(x@0[2], ",
        ),
        # one step too few
        (("  compute norm t[0:2] t[0:4] -> y[0:2]", "  copy t[0:2] -> y[0:2]"), "y[0] of rank 1", "missing norm("),
        # too old a value
        (
            ("step x[2:4] x[3:5] x[4:6]", "step x[2:4] x[2:4] x[4:6]"),
            "y[0] of rank 0",
            "missing x@0[3]; surplus x@0[2]",
        ),
        # another message
        (
            ("  send u[2:3] to 1", "  send u[3:4] to 1"),
            "y[3] of rank 1",
            "missing step(x@0[1], x@0[2], x@0[3]); surplus",
        ),
        # another list
        (("norm t[0:2] t[0:4]", "norm t[0:2] t[0:3]"), "y[0] of rank 1", ""),
        # nothing written
        (
            ("  recv from 0 -> y[3:4]", "  recv from 0 -> t[5:6]"),
            "y[3] of rank 1 should hold step(",
            "writes nearest to it",
        ),
    ],
)
def test_differences_are_reported(change: tuple[str, str], where: str, found: str) -> None:
    assert change[0] in OVERLAPPED
    check = certificate(stencil(OVERLAPPED.replace(*change)), serial).checks["result"]
    assert not check.ok
    assert check.message.startswith(where)
    assert "(as in program 'serial')" in check.message
    assert found in str(check.found)
    assert check.schedule


def test_the_op_at_which_a_value_goes_wrong_is_reported() -> None:
    wrong = stencil(OVERLAPPED.replace("step x[0:2] x[1:3] x[2:4]", "step x[0:2] x[1:3] x[1:3]"))
    check = certificate(wrong, serial).checks["result"]
    assert check.hint == "look at op 1 first: there it goes wrong"
    assert check.message.startswith("y[0] of rank 0")


def test_post_conditions_still_hold() -> None:
    asked = stencil("post 0 y[0:1] = x@0[0:1]\n" + OVERLAPPED.strip())
    check = certificate(asked, serial).checks["result"]
    assert "(post-condition 0)" in check.message
    asked = stencil("post 1 y[2:3] = step(x@0[0:1], x@0[1:2], x@0[2:3])\n" + OVERLAPPED.strip())
    message = (
        "every post-condition holds; every output that 'serial' writes is the same; 2 output slots were not checked"
    )
    assert certificate(asked, serial).checks["result"].message.startswith(message)


@pytest.mark.parametrize("all_reduce", ["library", "exchange", "ring"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_tiled_product_is_the_serial_one(all_reduce, ranks: int) -> None:
    operator = MatmulAllReduce(24, 12, 8)
    plain, tiled = matmul(operator, ranks, [24]), replace(matmul(operator, ranks, [6, 12, 6], all_reduce), posts=())
    assert certificate(tiled, plain).ok
    if ranks == 1 and all_reduce != "library":
        return
    columns = {name: column.copy() for name, column in tiled.columns.items()}
    columns["write_offset"][columns["write_offset"] == 6] = 7
    columns["read_offset"][columns["read_offset"] == 6] = 7
    assert not certificate(tiled.with_columns(columns), plain).ok


CUT = """program {name} ranks 2
buffer A input 12
buffer B input 3
buffer C output 4
buffer P scratch 4
lane a compute
lane n net
kernel matmul each_sum sum
kernel matmul each_sum sum accumulate
collective all_reduce 0 1
collective reduce_scatter 0 1
collective all_gather 0 1
"""
WHOLE = "compute matmul#0 A[0:12] B[0:3] -> P[0:4]"
BLOCKS = [
    "compute matmul#0 A[0:1; 4 x 3] B[0:1] -> P[0:4]",
    "compute matmul#1 A[1:2; 4 x 3] B[1:2] -> P[0:4]",
    "compute matmul#1 A[2:3; 4 x 3] B[2:3] -> P[0:4]",
]
ALL_REDUCE = ["collective all_reduce P[0:4] -> C[0:4] group 0 1"]
TWO_STEPS = [
    "collective reduce_scatter P[0:4] -> P[{0}:{1}] group 0 1",
    "collective all_gather P[{0}:{1}] -> C[0:4] group 0 1",
]


def cut(computes: list[str], reduces: list[str], name: str = "cut") -> Program:
    lines = [CUT.format(name=name).strip()]
    for rank in (0, 1):
        after = f" after a.{len(computes) - 1}"
        own = [line.format(2 * rank, 2 * rank + 2) for line in reduces]
        lines += [f"rank {rank} lane a", *computes, f"rank {rank} lane n", own[0] + after, *own[1:]]
    return parse("\n".join(lines))


def test_products_cut_along_k_and_with_another_all_reduce_are_equal() -> None:
    plain = cut([WHOLE], ALL_REDUCE, "plain")
    for computes in ([WHOLE], BLOCKS):
        for reduces in (ALL_REDUCE, TWO_STEPS):
            assert certificate(cut(computes, reduces), plain).ok
            assert certificate(plain, cut(computes, reduces)).ok


@pytest.mark.parametrize(
    ("computes", "found"),
    [
        (BLOCKS[:2], "missing matmul(A@0[2], B@0[2]) + matmul(A@1[2], B@1[2])"),
        ([*BLOCKS, BLOCKS[1]], "surplus matmul(A@0[1], B@0[1]) + matmul(A@1[1], B@1[1])"),
    ],
)
def test_a_block_missing_or_added_twice(computes: list[str], found: str) -> None:
    check = certificate(cut(computes, TWO_STEPS), cut([WHOLE], ALL_REDUCE, "plain")).checks["result"]
    assert check.message.startswith("C[0] of rank 0 should hold matmul(A@0[0], B@0[0]) + ")
    assert check.found == found


def test_in_place_the_inputs_that_are_written_are_compared() -> None:
    head = "program p ranks 2\nbuffer x input 2\nbuffer t scratch 2\nlane n net\ncollective all_reduce 0 1\n"
    plain = head + "\n".join(f"rank {r} lane n\n  collective all_reduce x[0:1] -> x[0:1] group 0 1" for r in (0, 1))
    moved = plain.replace("x[0:1] ->", "t[0:1] ->").replace("lane n\n  coll", "lane n\n  copy x[0:1] -> t[0:1]\n  coll")
    assert certificate(parse(moved), parse(plain)).ok
    wrong = certificate(parse(plain.replace("x[0:1]", "x[1:2]")), parse(plain)).checks["result"]
    assert wrong.message.startswith("x[0] of rank 0 should hold x@0[0] + x@1[0]")


def test_slots_that_no_op_wrote_are_never_equal() -> None:
    reads = "rank 0 lane a\n  copy t[0:1] -> y[0:1]\n"
    check = certificate(stencil(reads), stencil(reads, "serial")).checks["result"]
    assert check.found == "missing unwritten the reference's t@0[0]; surplus unwritten t@0[0]"


SMALL = (
    "program {0} ranks {1}\nbuffer x input {2}\nbuffer y output 2\nlane a compute\nkernel f {3}\nrank 0 lane a\n  {4}\n"
)
GOOD = "compute f x[0:2] -> y[0:2]"


@pytest.mark.parametrize(
    ("parts", "message", "found"),
    [
        ((2, 2, "each", GOOD), "they have different ranks", "1 and 2"),
        ((1, 3, "each", GOOD), "buffer 'x' differs", "input of 2 slots and input of 3 slots"),
        ((1, 2, "all", GOOD), "kernel 'f' differs", "modes each and all"),
        ((1, 2, "each", "nop"), "which writes no output: nothing would be compared", None),
        ((1, 2, "each", "compute f x[0:3] -> y[0:3]"), "which is itself wrong: program 'plain' fails the bounds", None),
    ],
)
def test_programs_that_cannot_be_compared_are_refused(
    parts: tuple[object, ...], message: str, found: str | None
) -> None:
    checked, plain = parse(SMALL.format("p", 1, 2, "each", GOOD)), parse(SMALL.format("plain", *parts))
    for judge in (verify, verify_reference):
        with pytest.raises(ProgramError, match=message) as caught:
            judge(checked, against=plain)
        assert caught.value.what.startswith("program 'p' cannot be compared with 'plain'")
        assert found is None or caught.value.found == found


def test_an_output_that_only_one_has_is_named() -> None:
    plain = parse(SMALL.format("plain", 1, 2, "each", GOOD))
    more = parse(SMALL.format("p", 1, 2, "each", GOOD).replace("lane a c", "buffer z output 1\nlane a c"))
    with pytest.raises(ProgramError, match="buffer 'z' differs") as caught:
        verify(more, against=plain)
    assert caught.value.found == "output of 1 slots and no such input or output"


def test_a_bad_program_is_judged_before_it_is_compared() -> None:
    found = certificate(stencil(OVERLAPPED.replace(" after a.1", "")), serial)
    assert not found.checks["races"].ok
    found = certificate(stencil(OVERLAPPED.replace("  recv from 0 -> y[3:4]\n", "")), serial)
    assert not found.checks["deadlock"].ok


def test_scratch_of_one_name_and_different_size_is_kept_apart() -> None:
    wide = STENCIL.replace("buffer t scratch 6", "buffer t scratch 600").replace(
        "buffer u", "buffer v scratch 7\nbuffer u"
    )
    other = parse(wide.format(name="wide") + OVERLAPPED.strip())
    assert certificate(other, serial).ok
    assert certificate(serial, other).ok


def test_a_differing_slot_is_reported_although_rows_share_cells() -> None:
    head = "program {}\nbuffer A input 16\nbuffer B input 2\nbuffer y output 8\nbuffer t scratch 4\nlane a compute\n"
    head += "kernel product each_sum sum\nrank 0 lane a\n"
    head += "  compute product A[0:8] B[0:2] -> t[0:4]\n  copy A[0:8] -> y[0:8]\n"
    plain = parse(head.format("plain ranks 1"))
    wrong = parse(head.format("wrong ranks 1") + "  copy A[8:9; 4 x 2] -> y[1:2; 4 x 2]\n")
    assert certificate(wrong, plain).checks["result"].message.startswith("y[1] of rank 0 should hold A@0[1]")
