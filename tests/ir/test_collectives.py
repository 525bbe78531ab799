"""Collectives: one Python table names the kinds; enums in C and C++ have the same order."""

import ast
import re

import numpy as np
import pytest
from needs import ROOT

from dovetail.call.collective_arguments import even_sides, part_of, uneven_sides
from dovetail.collective import KINDS as CALLS
from dovetail.collective import spec_of
from dovetail.collective.library import library_call
from dovetail.core import OperatorError
from dovetail.ir import Kind, to_text
from dovetail.ir.collectives import COLLECTIVES, OP_COLLECTIVES, collectives_that, kind_of_mpi
from dovetail.ir.proof.symbolic import collective_values
from dovetail.ir.proof.symbols import Symbols
from dovetail.ir.standard import standard_posts
from dovetail.run.collectives import received
from dovetail.run.ranks.comm import KINDS, REDUCED
from dovetail.run.reduce import REDUCE_OPS
from dovetail.tuner.timing import bus_factor

PROGRAM = (ROOT / "native/ir/program.hpp").read_text(encoding="utf-8")
MPI_TABLE = (ROOT / "native/run/mpi_table.h").read_text(encoding="utf-8")


def enum(header: str, first: str) -> list[str]:
    """Return the names of the enum that begins with `first`; none of them has an explicit value."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.S)
    (body,) = re.findall(rf"enum[^{{]*{{\s*({first}\b[^}}]*)}}", plain)
    return [name.strip() for name in body.split(",") if name.strip()]


def camel(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.split("_"))


def upper(name: str) -> str:
    return f"DT_{name.upper()}"


NUMBERED = {
    "ops": (PROGRAM, [camel(kind.name) for kind in sorted(Kind)]),
    "collectives of Programs": (PROGRAM, [*map(camel, OP_COLLECTIVES), "kUnknown"]),
    "dtypes": (MPI_TABLE, [*map(upper, REDUCED), "DT_NUM_TYPES"]),
    "reductions": (MPI_TABLE, [*map(upper, REDUCE_OPS)]),
}


@pytest.mark.parametrize("what", NUMBERED)
def test_c_numbers_them_as_the_table_does(what):
    header, names = NUMBERED[what]
    assert enum(header, names[0]) == names


def listed(header: str) -> list[tuple[str, str]]:
    """Return the rows of C's list of kinds, of which its numbers and names are made."""
    return re.findall(r'kind\((\w+), "(\w+)"\)', header)


def test_c_lists_the_kinds_as_the_table_does():
    assert listed(MPI_TABLE) == [(kind.upper(), kind) for kind in COLLECTIVES]


def test_planted_fault_another_order_of_kinds_is_noticed():
    row = '    kind(REDUCE, "reduce") \\\n'
    assert row in MPI_TABLE
    assert listed(MPI_TABLE.replace(row, "") + row) != listed(MPI_TABLE)
    header, names = NUMBERED["collectives of Programs"]
    assert enum(header.replace("kAllToAll, ", ""), names[0]) != names


def test_collectives_of_programs_come_first():
    """The engine passes the numbers in Programs on to MPI unchanged."""
    assert KINDS[: len(OP_COLLECTIVES)] == OP_COLLECTIVES


def test_every_kind_has_a_meaning():
    assert set(CALLS) == {*COLLECTIVES} - {"barrier"}
    assert {kind for kind in CALLS if "reduce" in kind} == set(collectives_that("reduces"))
    for kind, traits in COLLECTIVES.items():
        assert traits.even == (kind.removesuffix("_v") if kind.endswith("_v") else "")
        if traits.even:  # moves the same parts as the even one
            assert traits[:7] == COLLECTIVES[traits.even][:7]


def sides_of(kind, rank, root, out):
    """Return the shapes that the arguments of a call get, or the error."""
    array, out = np.zeros((6, 2)), np.zeros((6, 2)) if out else None
    try:
        if COLLECTIVES[kind].even:
            counts = np.arange(9).reshape(3, 3) if COLLECTIVES[kind].exchanges else np.array([3, 6, 6])
            found = uneven_sides(kind, rank, array[: counts[rank].sum()], out, counts)
        else:
            found = even_sides(kind, rank, 3, array, out, root)
        return [(side is array, side is out, np.shape(side)) for side in found], part_of(kind, 3, *found)
    except OperatorError as error:
        return str(error).replace(kind, "?")


def whole_of(kind):
    """Return all that the packages know about a kind."""
    found = [bus_factor(kind, 3)]
    for in_place in (False, True):
        try:
            spec = spec_of(kind, 3, chunks=2, in_place=in_place, root=1)
        except OperatorError as error:
            found.append(str(error).replace(kind, "?"))
            continue
        traits = COLLECTIVES[kind]
        counts = 7 if not traits.even else [[1, 2, 3]] * 3 if traits.exchanges else [1, 2, 3]
        sizes = {name: [each.tolist() for each in by_rank] for name, by_rank in spec.sizes(counts).items()}
        posts = [str(post) for post in standard_posts(kind, 3, 2, in_place=in_place, root=1)]
        found += [spec.buffers, posts, list(map(str, spec.posts)), sizes, spec.place(2, "input", 1)]
        found.append(spec.place(2, "output", 1))
    found += [sides_of(kind, rank, root, out) for rank in range(3) for root in (0, 1) for out in (False, True)]
    return found


@pytest.mark.parametrize("kind", CALLS)
def test_a_new_kind_is_a_new_row(kind, monkeypatch):
    """A copy of a kind's row under another name is enough for all packages to support it."""
    monkeypatch.setitem(COLLECTIVES, "twin", COLLECTIVES[kind]._replace(mpi=("Twin",)))
    assert whole_of("twin") == whole_of(kind)
    assert kind_of_mpi("Twin") == (COLLECTIVES[kind].even or "twin")


@pytest.mark.parametrize("kind", OP_COLLECTIVES)
def test_a_new_kind_of_an_op_is_proved_and_executed_by_its_row(kind, monkeypatch):
    monkeypatch.setitem(COLLECTIVES, "twin", COLLECTIVES[kind])
    given = [np.arange(1.0, 5.0), np.arange(5.0, 9.0)]
    sources = [np.split(each, 2) for each in given] if COLLECTIVES[kind].exchanges else given

    def results(name):
        found = received(name, sources, [2, 2], "sum")
        symbols = Symbols()
        values = [[symbols.start(True, "x", rank, slot) for slot in range(4)] for rank in range(2)]
        proved = collective_values(symbols, name, values, [2, 2], [[2, 2], [2, 2]])
        return [each.tolist() for each in found], proved

    assert [len(side) for side in results(kind)[1]] == [len(side) for side in results(kind)[0]]
    assert results("twin") == results(kind)
    assert to_text(library_call("twin", 3)).replace("twin", kind) == to_text(library_call(kind, 3))


# These may name kinds: the name is part of another name, not a fact about the kind.
NAMED = {
    "call/collectives.py": "the functions",
    "ir/collectives.py": "the table",
    "ir/registry.py": "operators of that name",
    "collective/algorithms/__init__.py": "an algorithm of that name",
    "collective/msccl/parts.py": "words of files that ask for nothing",
    "prober/baselines.py": "the names of libraries' settings",
    "accelerate/counter.py": "the calls that are counted apart",
    "accelerate/expected.py": "the limits of the replaced calls",
    "torch/compiled/overlap_pass.py": "torch's functional collectives",
    "torch/base.py": "the methods of torch's process groups",
    "torch/native.py": "those of them that are made in C++",
    "torch/devices.py": "those of them that take tensors",
    "trace/exchange/kineto.py": "PyTorch's names in profiles",
    "trace/schedules/chakra.py": "the numbers of Chakra's enumeration",
    "torch/linear/kinds.py": "the layers, each named after the collective of its forward pass",
}
WORDS = {name for kind, traits in COLLECTIVES.items() for name in (kind, traits.nccl, *traits.mpi) if name}
OTHER_USES = {*Kind.__members__, "barrier"}  # words that also name ops, or barriers of threads


def words_of(node):
    """Return the names of kinds, in our or other libraries' spelling, among the constants of a literal."""
    if isinstance(node, ast.Constant):
        return {node.value} & WORDS if isinstance(node.value, str) else set()
    if isinstance(node, ast.Dict):
        parts = [*filter(None, node.keys), *node.values]
    else:
        parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else []
    return set().union(*map(words_of, parts))


def lists_of_kinds(source):
    """Return the lines that list kinds, or compare with the name of one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            found = set().union(*map(words_of, (node.left, *node.comparators))) - OTHER_USES
        else:
            found = words_of(node) if not isinstance(node, ast.Constant) else set()
            found = found if len(found) > 1 else set()
        if found:
            yield node.lineno


def test_no_package_has_its_own_list_of_kinds():
    root, found = ROOT / "src/dovetail", {}
    quoted = re.compile("[\"'](" + "|".join(WORDS) + ")[\"']")
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = sorted(set(lists_of_kinds(text))) if quoted.search(text) else []
        found |= {str(path.relative_to(root)): lines} if lines else {}
    assert set(found) == set(NAMED), found


@pytest.mark.parametrize(
    "line",
    [
        "x = kind == 'all_gather'",
        "x = kind in ('reduce_scatter', 'y')",
        "x = {'Bcast': 1, 'Gatherv': 2}",
        "x = ['allreduce', 'allgather']",
    ],
)
def test_a_list_of_kinds_is_found(line):
    assert list(lists_of_kinds(line))
    assert not list(lists_of_kinds("x = kind == 'reduce' or {'reduce': 1, 'copy': 2}"))
