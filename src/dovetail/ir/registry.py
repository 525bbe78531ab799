"""registry: all operators and all subjects by name (see `core.registry`), and operators of nests in a file."""

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
    "all_gather_matmul": "dovetail.matmul:AllGatherMatmul",
    "all_gather_columns_matmul": "dovetail.matmul:AllGatherColumnsMatmul",
    "all_to_all_matmul": "dovetail.matmul:AllToAllMatmul",
    "matmul_all_reduce": "dovetail.matmul:MatmulAllReduce",
    "matmul_all_to_all": "dovetail.matmul:MatmulAllToAll",
    "matmul_reduce_scatter": "dovetail.matmul:MatmulReduceScatter",
    "all_reduce": "dovetail.collective:AllReduce",
    "all_gather": "dovetail.collective:AllGather",
    "reduce_scatter": "dovetail.collective:ReduceScatter",
    "all_to_all": "dovetail.collective:AllToAll",
    "all_to_next": "dovetail.collective:AllToNext",
    "broadcast": "dovetail.collective:Broadcast",
    "jacobi1d": "dovetail.stencil.problems:Jacobi1d",
    "jacobi2d": "dovetail.stencil.problems:Jacobi2d",
    "jacobi3d": "dovetail.stencil.problems:Jacobi3d",
    "heat3d": "dovetail.stencil.problems:Heat3d",
    "acoustic3d": "dovetail.stencil.problems:Acoustic3d",
    "acoustic3d_4": "dovetail.stencil.problems:Acoustic3d4",
    "acoustic3d_6": "dovetail.stencil.problems:Acoustic3d6",
    "acoustic3d_8": "dovetail.stencil.problems:Acoustic3d8",
    "fdtd2d": "dovetail.stencil.problems:Fdtd2d",
    "laplace2d": "dovetail.stencil.problems:Laplace2d",
    "red_black2d": "dovetail.stencil.problems:RedBlack2d",
    "sync_p2p": "dovetail.pipeline.problems:SyncP2p",
    "gauss_seidel2d": "dovetail.pipeline.problems:GaussSeidel2d",
    "sor2d": "dovetail.pipeline.problems:Sor2d",
    "ssor2d": "dovetail.pipeline.problems:Ssor2d",
    "seidel1d": "dovetail.pipeline.problems:Seidel1d",
    "seidel2d": "dovetail.pipeline.problems:Seidel2d",
    "lcs": "dovetail.pipeline.problems:Lcs",
    "smith_waterman": "dovetail.pipeline.problems:SmithWaterman",
    "triple_nest": "dovetail.pipeline.problems:TripleNest",
}
OPERATORS = Registry[type[Operator]](
    "dovetail.operators", "an operator", BUILT_IN, ("name", "options", "families", "by_size"), error=OperatorError
)
SUBJECTS = Registry[type[Subject]](
    "dovetail.subjects",
    "a subject",
    {"matmul": "dovetail.matmul:ProductAlone"},
    ("name", "options", "points"),
    error=OperatorError,
)
KERNELS = {"matmul": "dovetail.matmul:MATMUL"}  # kernels that mean the same in every operator
OPERATOR_OF_NEST = "dovetail.call.nest_operators:operator_of"
NESTS_OF_FILE = "dovetail.call.nest_operators:nests_in"


def kernel_form(name: str) -> KernelForm:
    """Return the form of the kernel of that name.

    >>> kernel_form("matmul").name
    'matmul'
    """
    found: KernelForm = at(KERNELS[name])
    return found


def operator_names() -> Mapping[str, str]:
    """Return the operators' names by the names of their classes.

    >>> operator_names()["MatmulAllReduce"]
    'matmul_all_reduce'
    """
    return {OPERATORS.place(name).rpartition(":")[2]: name for name in OPERATORS}


def operator_class(name: str) -> type[Operator]:
    """Return the class of an operator, or the one that a nest in a file makes (`loops.py:heat`).

    Raises OperatorError, with the nearest name, where there is none.

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
    """Whether a name is that of a nest in a file of the user's, as in `loops.py:heat`."""
    return ".py:" in name


@cache
def _in_file(name: str) -> type[Operator]:
    """The class of operators for a nest in a Python file, which is run; it goes by the name it was asked for."""
    path, _, wanted = name.rpartition(":")
    try:
        _run_file(path)
    except OSError as error:
        raise OperatorError(f"cannot read {path}", found=error.strerror, hint="FILE.py:NAME of a nest") from None
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
    """Return the certificate of a schedule's Program, also against the operator's reference, where it has one."""
    return verify(program, against=operator.reference(schedule, program.num_ranks))


def checked_operator(operator: object) -> Operator:
    """What was given, where it is an operator; else OperatorError.

    >>> checked_operator("matmul_all_reduce")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: no operator, but str
      found       'matmul_all_reduce'
      try         dovetail.MatmulAllReduce(m, k, n), say
    """
    if isinstance(operator, type) or not isinstance(operator, Operator):
        kind = "a class" if isinstance(operator, type) else type(operator).__name__
        found = shorten(repr(operator), 80)
        raise OperatorError(f"no operator, but {kind}", found=found, hint="dovetail.MatmulAllReduce(m, k, n), say")
    return operator


def operator_from(document: Mapping[str, Any]) -> Operator:
    """The operator in a document that its `to_json` wrote."""
    schema = str(document.get("schema"))
    name = schema.removeprefix("dovetail.operator.").rpartition("/")[0]
    if not schema.startswith("dovetail.operator."):
        raise DovetailError("expected a document of an operator", found=f"schema {document.get('schema')!r}")
    return operator_class(name).from_json(document)
