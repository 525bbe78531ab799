"""One table names the kinds of collectives; C and C++ number them as it does."""

import re
from pathlib import Path

import pytest

from dovetail.collective import KINDS as CALLS
from dovetail.ir import Kind
from dovetail.ir.collectives import COLLECTIVES, OP_COLLECTIVES, collectives_that
from dovetail.ir.standard import _FORMS as FORMS
from dovetail.run.collectives import COLLECTIVES as SEMANTICS
from dovetail.run.comm import KINDS, REDUCED
from dovetail.run.reduce import REDUCE_OPS

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = (ROOT / "native/ir/program.hpp").read_text(encoding="utf-8")
MPI_TABLE = (ROOT / "src/dovetail/run/mpi_table.h").read_text(encoding="utf-8")


def enum(header: str, first: str) -> list[str]:
    """The names of the enum that begins with `first`, none of which has a number of its own."""
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
    "collectives": (MPI_TABLE, [*map(upper, COLLECTIVES), "DT_NUM_KINDS"]),
    "dtypes": (MPI_TABLE, [*map(upper, REDUCED), "DT_NUM_TYPES"]),
    "reductions": (MPI_TABLE, [*map(upper, REDUCE_OPS)]),
}


@pytest.mark.parametrize("what", NUMBERED)
def test_c_numbers_them_as_the_table_does(what):
    header, names = NUMBERED[what]
    assert enum(header, names[0]) == names


def test_a_kind_out_of_place_is_seen():
    header, names = NUMBERED["collectives"]
    assert enum(header.replace("DT_REDUCE,", "").replace("DT_SCATTER,", "DT_SCATTER, DT_REDUCE,"), names[0]) != names
    header, names = NUMBERED["collectives of Programs"]
    assert enum(header.replace("kAllToAll, ", ""), names[0]) != names


def test_what_an_op_of_a_program_may_be_comes_first():
    """The engine hands the numbers of Programs to MPI as they are."""
    assert KINDS[: len(OP_COLLECTIVES)] == OP_COLLECTIVES == tuple(SEMANTICS)


def test_every_kind_has_a_meaning():
    assert set(CALLS) == {*FORMS, *(f"{kind}_v" for kind in FORMS if f"{kind}_v" in COLLECTIVES)}
    assert {kind for kind in CALLS if "reduce" in kind} == set(collectives_that("reduces"))
