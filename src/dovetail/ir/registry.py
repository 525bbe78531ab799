"""registry: all operators and subjects by name (see `core.registry`), and operators of nests in a user's file.

A row of an operator names its class, or a loop nest; the class of a nest is made at the first look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import shorten
from traceback import extract_tb
from types import ModuleType
from typing import Any

from dovetail.core import DovetailError, OperatorError, Registry
from dovetail.core.registry import at
from dovetail.ir import Certificate, KernelForm, Operator, Program, Schedule, Subject, verify

BUILT_IN = {
    "all_gather_matmul": "dovetail.matmul.all_gather:AllGatherMatmul",
    "all_gather_columns_matmul": "dovetail.matmul.all_gather_columns:AllGatherColumnsMatmul",
    "all_to_all_matmul": "dovetail.matmul.all_to_all_first:AllToAllMatmul",
    "matmul_all_reduce": "dovetail.matmul.all_reduce:MatmulAllReduce",
    "matmul_all_to_all": "dovetail.matmul.all_to_all_last:MatmulAllToAll",
    "matmul_reduce_scatter": "dovetail.matmul.reduce_scatter:MatmulReduceScatter",
    "matmul_shift": "dovetail.matmul.shift:MatmulShift",
    "all_reduce": "dovetail.collective:AllReduce",
    "all_gather": "dovetail.collective:AllGather",
    "reduce_scatter": "dovetail.collective:ReduceScatter",
    "all_to_all": "dovetail.collective:AllToAll",
    "all_to_next": "dovetail.collective:AllToNext",
    "broadcast": "dovetail.collective:Broadcast",
    "jacobi1d": "dovetail.loops.problems.jacobi1d:jacobi1d",
    "jacobi2d": "dovetail.loops.problems.jacobi2d:jacobi2d",
    "jacobi3d": "dovetail.loops.problems.jacobi3d:jacobi3d",
    "heat3d": "dovetail.loops.problems.heat3d:heat3d",
    "acoustic3d": "dovetail.loops.problems.acoustic3d:acoustic3d",
    "acoustic3d_4": "dovetail.loops.problems.acoustic3d:acoustic3d_4",
    "acoustic3d_6": "dovetail.loops.problems.acoustic3d:acoustic3d_6",
    "acoustic3d_8": "dovetail.loops.problems.acoustic3d:acoustic3d_8",
    "fdtd2d": "dovetail.loops.problems.fdtd2d:fdtd2d",
    "laplace2d": "dovetail.loops.problems.laplace2d:laplace2d",
    "red_black2d": "dovetail.loops.problems.red_black2d:red_black2d",
    "wave1d": "dovetail.loops.problems.wave1d:wave1d",
    "sync_p2p": "dovetail.loops.problems.sync_p2p:sync_p2p",
    "gauss_seidel2d": "dovetail.loops.problems.gauss_seidel2d:gauss_seidel2d",
    "sor2d": "dovetail.loops.problems.sor2d:sor2d",
    "ssor2d": "dovetail.loops.problems.ssor2d:ssor2d",
    "seidel1d": "dovetail.loops.problems.seidel1d:seidel1d",
    "seidel2d": "dovetail.loops.problems.seidel2d:seidel2d",
    "lcs": "dovetail.loops.problems.lcs:lcs",
    "smith_waterman": "dovetail.loops.problems.smith_waterman:smith_waterman",
    "triple_nest": "dovetail.loops.problems.triple_nest:triple_nest",
}
NEST = "dovetail.loops.nest:Nest"
OPERATOR_OF_NEST = "dovetail.call.nest_operators:operator_of"
NESTS_OF_FILE = "dovetail.call.nest_operators:nests_in"


def _class_of(name: str, found: Any) -> Any:
    """Return the class of operators of a nest, named as its row is; anything else unchanged."""
    if isinstance(found, type) or not isinstance(found, at(NEST)):
        return found
    return at(OPERATOR_OF_NEST)(found, *([name] if name != found.name else []))


OPERATORS = Registry[type[Operator]](
    "dovetail.operators",
    "an operator",
    BUILT_IN,
    ("name", "options", "families", "by_size"),
    error=OperatorError,
    made=_class_of,
)
SUBJECTS = Registry[type[Subject]](
    "dovetail.subjects",
    "a subject",
    {"matmul": "dovetail.matmul:ProductAlone"},
    ("name", "options", "points"),
    error=OperatorError,
)
KERNELS = {"matmul": "dovetail.matmul:MATMUL"}  # kernels that mean the same in every operator's programs


def kernel_form(name: str) -> KernelForm:
    """Return the KernelForm of the kernel of that name.

    >>> kernel_form("matmul").name
    'matmul'
    """
    found: KernelForm = at(KERNELS[name])
    return found


def operator_names() -> Mapping[str, str]:
    """Return the operators' names by the names of their classes, without importing any.

    >>> operator_names()["MatmulAllReduce"], operator_names()["SyncP2p"]
    ('matmul_all_reduce', 'sync_p2p')
    """
    things = {name: OPERATORS.place(name).rpartition(":")[2] for name in OPERATORS}
    return {thing if thing[:1].isupper() else class_name(name): name for name, thing in things.items()}


def class_name(name: str) -> str:
    """Return the name of the class of operators for a nest.

    >>> class_name("acoustic3d_4"), class_name("sync_p2p")
    ('Acoustic3d4', 'SyncP2p')
    """
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def operator_class(name: str) -> type[Operator]:
    """Return the class of an operator, by its name or by the file and name of a nest (`loops.py:heat`).

    Raises OperatorError, with the nearest name, if there is none.

    >>> operator_class("matmul_all_reduce").families[0]
    'serial'
    >>> operator_class("matmul_all_reduced")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: no operator 'matmul_all_reduced'
      try         did you mean 'matmul_all_reduce'?
    """
    if is_in_file(name):
        return _in_file(name)
    if name.endswith(".py") and name not in OPERATORS:
        raise OperatorError(f"{name} is a file: which of its nests?", hint=f"{name}:NAME")
    return OPERATORS[name]


def is_in_file(name: str) -> bool:
    """Return whether a name refers to a nest in a user's file, as `loops.py:heat` does."""
    return ".py:" in name


@cache
def _in_file(name: str) -> type[Operator]:
    """Return the class of operators for a nest in a Python file; executes the file. The class is named as asked for."""
    path, _, wanted = name.rpartition(":")
    try:
        _run_file(path)
    except OSError as error:
        raise OperatorError(f"cannot read {path}", found=error.strerror, hint="name a nest as FILE.py:NAME") from None
    nests = at(NESTS_OF_FILE)(vars(_run_file(path)))
    if wanted not in nests:
        hint = f"it has {', '.join(nests)}" if nests else "@nest(…) makes one"
        raise OperatorError(f"{path} has no nest '{wanted}'", hint=hint)
    found: type[Operator] = at(OPERATOR_OF_NEST)(nests[wanted], name)
    return found


@cache
def _run_file(path: str) -> ModuleType:
    file = Path(path).resolve()
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise OperatorError(f"{path} is no Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (OSError, DovetailError):
        raise
    except SyntaxError as error:
        where, found = f"{Path(error.filename or path).name}:{error.lineno}", (error.text or "").strip()
        raise OperatorError(f"{path} is not Python: {error.msg}", where=where, found=found) from error
    except Exception as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename).resolve() == file]
        at, found = f"{file.name}:{lines[-1]}" if lines else None, f"{type(error).__name__}: {error}"
        raise OperatorError(f"{path} failed", where=at, found=found, hint="--debug shows the traceback") from error
    return module


def prove(operator: Operator, schedule: Schedule, program: Program) -> Certificate:
    """Return the certificate of a schedule's Program, compared with the operator's reference if there is one."""
    return verify(program, against=operator.reference(schedule, program.num_ranks))


def checked_operator(operator: object) -> Operator:
    """Return `operator` if it is one. Raises OperatorError for anything else.

    >>> checked_operator("matmul_all_reduce")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: expected an operator, not str
      found       'matmul_all_reduce'
      try         an operator such as dovetail.MatmulAllReduce(m, k, n)
    """
    if isinstance(operator, type) or not isinstance(operator, Operator):
        kind = "a class" if isinstance(operator, type) else type(operator).__name__
        hint = "an operator such as dovetail.MatmulAllReduce(m, k, n)"
        raise OperatorError(f"expected an operator, not {kind}", found=shorten(repr(operator), 80), hint=hint)
    return operator


def operator_from(document: Mapping[str, Any]) -> Operator:
    """Return the operator in a document that its `to_json` wrote."""
    schema = str(document.get("schema"))
    name = schema.removeprefix("dovetail.operator.").rpartition("/")[0]
    if not schema.startswith("dovetail.operator."):
        raise DovetailError("expected a document of an operator", found=f"schema {document.get('schema')!r}")
    return operator_class(name).from_json(document)
