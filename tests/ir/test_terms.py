"""Nested terms, and kernels that sum over slots: text, JSON, columns, bounds, proofs, and planted faults."""

from __future__ import annotations

import json

import needs
import pytest

from dovetail.core import ProgramError
from dovetail.ir import Certificate, Post, Program, Region, Term, canonical, parse, to_text, verify, verify_reference
from dovetail.ir.op_lists import OpLists
from dovetail.ir.posts import Posts
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.proof.native import judge
from dovetail.ir.proof.symbolic import Execution
from dovetail.ir.proof.symbols import Symbols
from dovetail.ir.text.document import json_text
from dovetail.ir.types import MAX_NESTING

GOLDEN = needs.GOLDEN
HEAD = """program p ranks 2
buffer A input 12
buffer B input 3
buffer x input 4
buffer y output 4
buffer t scratch 12
buffer u scratch 4
lane a compute
lane b compute
kernel f each
kernel g each all
kernel h all
kernel three each each each
kernel product each_sum sum
kernel product each_sum sum accumulate
kernel rows each_sum
kernel total sum
kernel scaled sum each
"""


def program(body: str, *posts: str) -> Program:
    """Return a program of HEAD, post-conditions, and ops on lane a of rank 0."""
    lines = [HEAD, *(f"post {post}" for post in posts), "rank 0 lane a", *(f"  {op}" for op in body.split("\n"))]
    return parse("\n".join(line for line in lines if line.strip()))


def certificate(checked: Program) -> Certificate:
    found = verify(checked)
    assert found.to_json() == verify_reference(checked).to_json()
    return found


def failing(checked: Program) -> dict[str, str]:
    checks = certificate(checked).checks.items()
    return {name: c.message for name, c in checks if not c.ok and not c.message.startswith("not reached")}


def nested(depth: int, leaf: str = "x@0[0:1]") -> str:
    return "f(" * depth + leaf + ")" * depth


@pytest.fixture
def golden() -> Program:
    return parse((GOLDEN / "ir_terms.txt").read_text())


def test_the_golden_text_survives_a_round_trip(golden: Program) -> None:
    assert to_text(golden) == (GOLDEN / "ir_terms.txt").read_text()


def test_documents_survive_a_round_trip(golden: Program) -> None:
    assert Program.from_json(json.loads(json_text(golden))) == golden
    assert json_text(golden) == json.dumps(golden.to_json())
    whole = Region("x", 0, 4)
    inner = Term(None, (Term("f", ((1, whole),)), (0, Region("x", 0, 2, 1, 2))))
    product = Term("product", ((1, Region("A", 0, 1, 3, 4)), (0, Region("B", 0, 1))))
    assert golden.posts[1] == Post((1,), Region("y", 0, 4), (Term("g", (Term("f", (inner,)), product)),))


def test_documents_of_earlier_versions_are_read(golden: Program) -> None:
    document = golden.to_json()
    document["posts"] = [{"ranks": [0], "region": ["y", 0, 1, 0, 1], "terms": [["f", [[1, ["x", 2, 1, 0, 1]]]]]}]
    assert Program.from_json(document).posts == (
        Post((0,), Region("y", 0, 1), (Term("f", ((1, Region("x", 2, 1)),)),)),
    )


def test_posts_in_columns_and_one_by_one(golden: Program) -> None:
    posts = Posts.of(golden.posts)
    assert (tuple(posts), posts[1], posts[-1], posts[1:]) == (
        golden.posts,
        golden.posts[1],
        golden.posts[-1],
        golden.posts[1:],
    )
    assert posts == Posts.of(tuple(posts))
    assert posts != Posts.of(golden.posts[::-1])
    assert posts.columns["arg_term"].tolist() == [0, 0, 0, 1, 4, 1, 1, 0, 0, 0, 0, 1, 2, 0, 1, 0, 0, 0]


def test_the_nesting_of_terms_is_limited() -> None:
    deepest = program("nop", f"0 y[0:1] = {nested(MAX_NESTING + 1)}")
    assert parse(to_text(deepest)) == canonical(deepest)
    assert Program.from_json(deepest.to_json()) == deepest
    with pytest.raises(ProgramError, match="expected terms at most 64 deep"):
        program("nop", f"0 y[0:1] = {nested(MAX_NESTING + 2)}")
    with pytest.raises(ProgramError, match="expected terms at most 64 deep"):
        program("nop", f"0 y[0:1] = {nested(100_000)}")
    term = Term("f", ((0, Region("x", 0, 1)),))
    for _ in range(MAX_NESTING + 1):
        term = Term("f", (term,))
    with pytest.raises(ProgramError, match="nests terms more than 64 deep"):
        Posts.of([Post((0,), Region("y", 0, 1), (term,))])
    document = deepest.to_json()
    document["posts"][0]["terms"] = [["f", document["posts"][0]["terms"]]]
    with pytest.raises(ProgramError, match="malformed program document"):
        Program.from_json(document)


@pytest.mark.parametrize(
    ("post", "message"),
    [
        ("0 y[0:2] = f(f(x@0[0:3]))", "x[0:3] and f(...) differ in size"),
        ("0 y[0:2] = f(g(x@0[0:2]))", "a term of g has 2 operands, not 1"),
        ("0 y[0:2] = f(f(t@0[0:2]))", "'t' is not an input"),
        ("0 y[0:2] = f(f(x@0[3:5]))", "x[3:5], but buffer x has 4 slots on rank 0"),
        ("0 y[0:2] = f(none(x@0[0:2]))", "no kernel 'none'"),
        ("0 y[0:2] = f(x@0[0:2] + f(x@0[0:1]))", "x[0:1] and f(...) differ in size"),
        ("0 y[0:2] = g(x@0[0:2], f(x@0[0:2] + x@0[0:1]))", "x[0:1] and a sum(...) differ in size"),
        (
            "0 y[0:2] = product(A@0[0:5], B@0[0:2])",
            "its operand A[0:5] of mode each_sum has 5 slots, where 4, 2 x 2, are summed",
        ),
        (
            "0 y[0:2] = product(f(A@0[0:5]), B@0[0:2])",
            "A[0:5] and f(...) differ in size",
        ),
        ("0 y[0:2] = product(A@0[0:0], B@0[0:0])", "it sums over zero slots for a result of 2 slots"),
        (
            "0 y[0:2] = product(A@0[0:4], f(B@0[0:3]))",
            "its operand A[0:4] of mode each_sum has 4 slots, where 6, 2 x 3,",
        ),
    ],
)
def test_bounds_of_terms(post: str, message: str) -> None:
    assert message in failing(program("nop", post))["bounds"]


def test_sums_without_a_text_form_are_refused() -> None:
    one, two = (0, Region("x", 0, 1)), Term(None, ((0, Region("x", 0, 1)), (0, Region("x", 1, 1))))
    for arg in (Term(None, (one,)), Term(None, (one, two)), Term(None, ())):
        checked = program("nop")
        post = Post((0,), Region("y", 0, 1), (Term("f", (arg,)),))
        checked = Program(**{**vars(checked), "posts": (post,)})
        assert "a sum that is an operand of a kernel has two operands or more" in failing(checked)["bounds"]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            "product A[0:5] B[0:2] -> y[0:2]",
            "its operand A[0:5] of mode each_sum has 5 slots, where 4, 2 x 2, are summed",
        ),
        ("product A[0:0] B[0:0] -> y[0:2]", "it sums over zero slots for a result of 2 slots"),
        ("rows A[0:5] -> y[0:2]", "its operand A[0:5] of mode each_sum has 5 slots, where 4, 2 x 2, are summed"),
        ("rows A[0:1] -> y[0:2]", "its operand A[0:1] of mode each_sum has 1 slots, where 0, 2 x 0, are summed"),
        ("scaled B[0:0] x[0:2] -> y[0:2]", "it sums over zero slots for a result of 2 slots"),
        ("scaled B[0:3] x[0:3] -> y[0:2]", "it reads B[0:3] and x[0:3], writes y[0:2]: sizes differ"),
        ("product A[0:4] B[0:2]", "its operand A[0:4] of mode each_sum has 4 slots, where 2, 1 x 2, are summed"),
    ],
)
def test_bounds_of_sums_over_slots(op: str, message: str) -> None:
    assert message in failing(program(f"compute {op.replace('product', 'product#4')}"))["bounds"]


def test_empty_terms_are_valid() -> None:
    for op in ("product#4 A[0:0] B[0:0] -> y[0:0]", "product#4 A[0:0] B[0:2] -> y[0:0]", "rows A[3:3] -> y[0:0]"):
        assert certificate(program(f"compute {op}")).ok


def test_an_op_that_sums_against_itself() -> None:
    for op, good in (
        ("product#4 t[0:4] B[0:2] -> t[0:2]", False),
        ("product#4 t[0:2] B[0:1] -> t[0:2]", True),  # slot by slot, in place
        ("product#4 t[0:2] B[0:1] -> t[1:3]", False),
        ("product#4 t[0:1; 2 x 9] B[0:1] -> t[0:1; 2 x 9]", True),
        ("product#4 A[0:4] t[0:2] -> t[0:2]", True),  # all arguments are read before a result is written
        ("rows t[4:8; 1 x 0] -> t[0:2]", True),
    ):
        assert certificate(program(f"compute {op}")).checks["races"].ok == good, op


BLOCKS = ("product(A@0[0:12], B@0[0:3])", "product(A@0[0:1; 4 x 3], B@0[0:1]) + product(A@0[1:3; 4 x 3], B@0[1:3])")
WAYS = (
    "compute product#4 A[0:12] B[0:3] -> y[0:4]",
    "compute product#4 A[0:6] B[0:3] -> y[0:2]\ncompute product#4 A[6:12] B[0:3] -> y[2:4]",
    "compute product#4 A[1:2; 4 x 3] B[1:2] -> y[0:4]\ncompute product#5 A[0:1; 4 x 3] B[0:1] -> y[0:4]\n"
    "compute product#5 A[2:3; 4 x 3] B[2:3] -> y[0:4]",
    "compute product#4 A[1:3; 4 x 3] B[1:3] -> y[0:4]\ncompute product#5 A[0:1; 4 x 3] B[0:1] -> y[0:4]",
    "copy A[0:12] -> t[0:12]\ncompute product#4 t[1:3; 4 x 3] B[1:3] -> y[0:4]\n"
    "compute product#5 A[0:1; 4 x 3] B[0:1] -> y[0:4]",
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", BLOCKS)
def test_a_product_is_proved_however_its_contraction_is_cut(way: str, asked: str) -> None:
    assert certificate(program(way, f"0 y[0:4] = {asked}")).ok


@pytest.mark.parametrize(
    ("way", "found"),
    [
        (
            "compute product#4 A[0:1; 4 x 3] B[0:1] -> y[0:4]",
            "missing product(A@0[1], B@0[1]) + product(A@0[2], B@0[2])",
        ),
        (f"{WAYS[2]}\ncompute product#5 A[2:3; 4 x 3] B[2:3] -> y[0:4]", "surplus product(A@0[2], B@0[2])"),
        (
            "compute product#4 A[1:3; 4 x 3] B[0:2] -> y[0:4]\ncompute product#5 A[0:1; 4 x 3] B[2:3] -> y[0:4]",
            "missing product(A@0[0], B@0[0]) + product(A@0[1], B@0[1]) + product(A@0[2], B@0[2]); "
            "surplus product(A@0[0], B@0[2]) + product(A@0[1], B@0[0]) + product(A@0[2], B@0[1])",
        ),
    ],
)
def test_a_missing_surplus_or_wrong_block_is_reported(way: str, found: str) -> None:
    check = certificate(program(way, f"0 y[0:4] = {BLOCKS[0]}")).checks["result"]
    assert check.found == found
    assert "y[0] of rank 0" in check.message


STEPS = """compute three x[0:2] x[1:3] x[2:4] -> u[0:2]
compute f x[0:2] -> u[2:4]
compute three u[0:1] u[1:2] u[2:3] -> y[0:1]"""


@pytest.mark.parametrize(
    ("body", "post"),
    [
        ("compute f x[0:2] -> u[0:2]\ncompute f u[0:2] -> y[0:2]", "f(f(x@0[0:2]))"),
        ("compute f x[0:4] -> u[0:4]\ncompute g x[0:2] u[0:4] -> y[0:2]", "g(x@0[0:2], f(x@0[0:4]))"),
        ("copy x[0:2] -> u[0:2]\nreduce x[2:4] -> u[0:2]\ncompute f u[0:2] -> y[0:2]", "f(x@0[0:2] + x@0[2:4])"),
        ("compute h x[0:4] -> u[0:1]\ncompute g x[0:2] u[0:1] -> y[0:2]", "g(x@0[0:2], h(x@0[0:4]))"),
        ("compute product#4 A[0:6] B[0:3] -> u[0:2]\ncompute f u[0:2] -> y[0:2]", "f(product(A@0[0:6], B@0[0:3]))"),
        (
            "compute f B[0:3] -> t[0:3]\ncompute product#4 A[0:6] t[0:3] -> y[0:2]",
            "product(A@0[0:6], f(B@0[0:3]))",
        ),
        (
            "compute f A[0:12] -> t[0:12]\ncompute product#4 t[0:6] B[0:3] -> y[0:2]",
            "product(f(A@0[0:6]), B@0[0:3])",
        ),
        (
            "compute product#4 A[0:12] B[0:3] -> u[0:4]\ncompute product#4 u[0:4] B[0:2] -> y[0:2]",
            "product(product(A@0[0:12], B@0[0:3]), B@0[0:2])",
        ),
    ],
)
def test_computed_values_are_proved(body: str, post: str) -> None:
    assert certificate(program(body, f"0 y[0:2] = {post}")).ok


def test_two_steps_are_proved_and_a_swapped_operand_is_reported_where_it_is() -> None:
    inner = ["three(x@0[0:1], x@0[1:2], x@0[2:3])", "three(x@0[1:2], x@0[2:3], x@0[3:4])", "f(x@0[0:1])"]
    post = f"0 y[0:1] = three({', '.join(inner)})"
    assert certificate(program(STEPS, post)).ok
    check = certificate(program(STEPS.replace("f x[0:2]", "f x[1:3]"), post)).checks["result"]
    assert not check.ok
    assert "y[0] of rank 0" in check.message
    assert str(check.found).endswith(
        "; that is, in operand 0 of f of operand 2 of three: missing x@0[0]; surplus x@0[1]"
    )
    assert check.hint == "look at op 1 first: there it goes wrong"


def test_a_difference_deep_within_a_term_is_reported() -> None:
    steps = "\n".join(f"compute f u[{i % 2}:{i % 2 + 1}] -> u[{1 - i % 2}:{2 - i % 2}]" for i in range(20))
    check = certificate(
        program(f"copy x[3:4] -> u[0:1]\n{steps}\ncopy u[0:1] -> y[0:1]", f"0 y[0:1] = {nested(20)}")
    ).checks
    assert str(check["result"].found).endswith(": missing x@0[0]; surplus x@0[3]")
    assert check["result"].hint == "look at op 0 first: there it goes wrong"


def test_the_op_that_adds_a_slot_once_too_often_is_named() -> None:
    body = "copy x[0:1] -> u[0:1]\nreduce x[1:2] -> u[0:1]\nreduce x[0:1] -> u[0:1]\ncopy u[0:1] -> y[0:1]"
    check = certificate(program(body, "0 y[0:1] = x@0[0:1] + x@0[1:2]")).checks["result"]
    assert check.found == "surplus x@0[0]"
    assert check.hint == "look at op 2 first: there it goes wrong"


def test_one_wrong_slot_of_a_thousand_in_a_cell_is_reported() -> None:
    lines = ["program p ranks 1", "buffer w input 1001", "buffer y output 1", "buffer t scratch 1000", "lane a compute"]
    lines += ["kernel h all", "kernel f each", "post 0 y[0:1] = f(h(w@0[0:1000]))", "rank 0 lane a"]
    ops = ["  copy w[0:1000] -> t[0:1000]", "  copy w[1000:1001] -> t[700:701]", "  compute h t[0:1000] -> y[0:1]"]
    check = certificate(parse("\n".join([*lines, *ops, "  compute f y[0:1] -> y[0:1]"]))).checks["result"]
    assert "in slot 700 of operand 0 of h of operand 0 of f: missing w@0[700]; surplus w@0[1000]" in str(check.found)
    assert check.hint == "look at op 1 first: there it goes wrong"


def test_values_are_stored_once_however_often_they_are_used() -> None:
    """Repeated doubling: as a tree, the last value would have 2^60 leaves."""
    body = "copy x[0:1] -> u[0:1]\n" + "compute three u[0:1] u[0:1] x[0:1] -> u[0:1]\n" * 60
    checked = program(body.strip())
    plain = OpLists(checked)
    run, symbols = Greedy(plain)(), Symbols()
    Execution(checked, run, symbols).execute(plain.ops, run.order)
    assert len(symbols._atom_list) == 61
    wrong = program(body + "copy u[0:1] -> y[0:1]", "0 y[0:1] = x@0[0:1]")
    assert "three(three(" in certificate(wrong).checks["result"].message


def rows_and_blocks(rows: int, tile: int, blocks: int) -> Program:
    """Return a product of rows in tiles, with the first block computed before the others, and then a kernel on it."""
    wide = rows * blocks
    lines = [f"program p ranks 1\nbuffer A input {wide}\nbuffer B input {blocks}\nbuffer C output {rows}"]
    lines += [f"buffer G scratch {wide}\nbuffer P scratch {rows}\nlane a compute\nkernel f each"]
    lines += ["kernel product each_sum sum\nkernel product each_sum sum accumulate"]
    lines += [f"post 0 C[0:{rows}] = f(product(f(A@0[0:{wide}]), B@0[0:{blocks}]))\nrank 0 lane a"]
    for start in range(0, rows, tile):
        cells, part = f"[{start * blocks}:{(start + tile) * blocks}]", f"P[{start}:{start + tile}]"
        first, others = (
            f"G[{start * blocks + a}:{start * blocks + b}; {tile} x {blocks}]" for a, b in ((0, 1), (1, blocks))
        )
        lines += [f"  compute f A{cells} -> G{cells}", f"  compute product#1 {first} B[0:1] -> {part}"]
        lines += [f"  compute product#2 {others} B[1:{blocks}] -> {part}"]
    return parse("\n".join([*lines, f"  compute f P[0:{rows}] -> C[0:{rows}]"]))


def test_rows_that_correspond_share_a_cell() -> None:
    """The rows of a block in a tile are one value, so that the size of the state does not depend on their number."""
    for tile in (1, 16, 4096):
        checked = rows_and_blocks(4 * tile, tile, 3)
        assert judge(checked, [Posts.of(checked.posts)])["cells"] == 4 * (3 + 3 + 1 + 1) + 3
        assert verify(checked).ok
        columns = {**checked.columns, "read_offset": checked.columns["read_offset"].copy()}
        columns["read_offset"][-3] += 1
        assert not verify(checked.with_columns(columns)).ok


MIXED = """program p ranks 1
buffer A input 16
buffer B input 4
buffer y output 16
buffer t scratch 16
buffer C output 16
lane a compute
kernel product each_sum sum
kernel list all
kernel fill
kernel f each
"""
COLUMNS = "copy A[0:1; 4 x 2] -> t[0:4]\ncopy A[1:2; 4 x 2] -> t[4:8]\n"
ROWS = "compute product A[0:8] B[0:2] -> C[0:4]\n"
FOURS = "compute product A[0:16] B[0:4] -> C[0:4]\n"


@pytest.mark.parametrize(
    ("body", "post", "good"),
    [
        (f"{COLUMNS}{ROWS}compute list t[0:8] -> y[0:1]", "0 y[0:1] = list(A@0[0:8])", False),
        (f"{COLUMNS}{ROWS}compute list t[0:4] -> y[0:1]", "0 y[0:1] = list(A@0[0:1; 4 x 2])", True),
        (f"{COLUMNS}{ROWS}compute product t[0:8] B[0:2] -> y[0:4]", "0 y[0:4] = product(A@0[0:8], B@0[0:2])", False),
        (
            f"copy A[0:1; 4 x 2] -> t[0:4]\n{ROWS}compute product t[0:4] B[0:2] -> C[0:2]\n"
            "copy t[0:1; 2 x 2] -> y[0:2]",
            "0 y[0:2] = A@0[0:1; 2 x 2]",
            False,
        ),
        (
            f"{ROWS}copy A[0:8] -> y[0:8]\ncompute fill -> y[0:1; 4 x 2]\ncompute fill -> y[1:2; 4 x 2]",
            "0 y[0:8] = fill()",
            False,
        ),
        (f"{ROWS}copy A[0:8] -> y[0:8]\ncopy A[8:9; 4 x 2] -> y[1:2; 4 x 2]", "0 y[0:8] = A@0[0:8]", False),
        (f"copy A[0:8] -> t[0:8]\n{ROWS}compute list t[0:8] -> y[0:1]", "0 y[0:1] = list(A@0[0:8])", True),
        (
            f"{FOURS}compute product A[0:2; 4 x 4] B[0:2] -> y[0:4]\ncompute product A[2:4; 4 x 4] B[0:2] -> y[4:8]",
            "0 y[0:8] = product(A@0[0:16], B@0[0:2])",
            False,
        ),
        (f"{FOURS}compute product A[0:16] B[0:2] -> y[0:8]", "0 y[0:8] = product(A@0[0:16], B@0[0:2])", True),
        (
            "compute fill -> t[0:8]\ncompute product t[0:8] B[0:2] -> C[0:4]\ncopy t[0:1; 4 x 2] -> y[0:4]",
            "0 y[0:4] = fill()",
            False,
        ),
        (
            "compute fill -> t[0:1; 4 x 2]\ncompute fill -> t[1:2; 4 x 2]\ncompute product t[0:8] B[0:2] -> y[0:4]",
            "0 y[0:4] = product(fill(), B@0[0:2])",
            False,
        ),
        (
            "compute fill -> t[0:8]\ncompute product t[0:8] B[0:2] -> y[0:4]",
            "0 y[0:4] = product(fill(), B@0[0:2])",
            True,
        ),
        (
            f"{ROWS}compute f A[0:8] -> t[0:8]\ncompute list t[0:8] -> y[0:1]",
            "0 y[0:1] = list(f(A@0[0:8]))",
            True,
        ),
        (
            f"{ROWS}compute f A[0:1; 4 x 2] -> t[0:4]\ncompute f A[1:2; 4 x 2] -> t[4:8]\n"
            "compute list t[0:8] -> y[0:1]",
            "0 y[0:1] = list(f(A@0[0:8]))",
            False,
        ),
        (
            f"{ROWS}compute product A[0:8] B[0:2] -> t[0:4]\ncompute product t[0:4] B[0:4] -> y[0:1]",
            "0 y[0:1] = product(product(A@0[0:8], B@0[0:2]), B@0[0:4])",
            True,
        ),
        (
            f"{ROWS}copy B[0:4] -> t[4:8]\ncompute product A[0:8] B[0:2] -> t[0:4]\n"
            "compute product t[4:8] t[0:4] -> y[0:1]",
            "0 y[0:1] = product(B@0[0:4], product(A@0[0:8], B@0[0:2]))",
            True,
        ),
        (
            f"{ROWS}compute product A[2:8] B[0:2] -> t[0:3]\ncompute product A[0:2] B[0:2] -> t[3:4]\n"
            "compute product B[0:4] t[0:4] -> y[0:1]",
            "0 y[0:1] = product(B@0[0:4], product(A@0[0:8], B@0[0:2]))",
            False,
        ),
    ],
)
def test_rows_and_columns_are_not_confused(body: str, post: str, good: bool) -> None:
    lines = [MIXED.strip(), f"post {post}", "rank 0 lane a", body]
    assert certificate(parse("\n".join(lines))).checks["result"].ok == good


def test_a_message_of_a_column_is_not_confused_with_rows() -> None:
    lines = MIXED.replace("ranks 1", "ranks 2").strip().splitlines()
    lines += ["channel 0->1 0 depth 1", "post 1 y[0:2] = A@0[0:1; 2 x 2]", "rank 0 lane a", ROWS.strip()]
    lines += ["send A[0:1; 4 x 2] to 1", "rank 1 lane a", "recv from 0 -> t[0:4]"]
    lines += ["compute product t[0:4] B[0:2] -> C[0:2]", "copy t[0:1; 2 x 2] -> y[0:2]"]
    assert not certificate(parse("\n".join(lines))).checks["result"].ok
