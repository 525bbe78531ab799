"""registry: one table of all operators, by name, and one of all subjects; packages add theirs by entry points."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import shorten
from traceback import extract_tb
from types import ModuleType
from typing import Any

from dovetail.core import DovetailError, OperatorError
from dovetail.ir import Certificate, KernelForm, Operator, Program, Schedule, Subject, verify

GROUP = "dovetail.operators"  # of entry points: name = "package.module:Class"
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
SUBJECT_GROUP = "dovetail.subjects"
SUBJECTS = {"matmul": "dovetail.matmul:ProductAlone"}
OPERATOR_OF_NEST = "dovetail.call.nest_operators:operator_of"
NESTS_OF_FILE = "dovetail.call.nest_operators:nests_in"

PARTS = ("name", "options", "families", "by_size")  # that every class of operators has
KERNELS = {"matmul": "dovetail.matmul:MATMUL"}  # whose name says what they compute, whatever the operator


def kernel_form(name: str) -> KernelForm:
    """The form of the kernel of that name.

    >>> kernel_form("matmul").name
    'matmul'
    """
    found: KernelForm = _at(KERNELS[name])
    return found


@cache
def subjects() -> Mapping[str, str]:
    """The place of every subject, by name, likewise."""
    return {**_others(SUBJECT_GROUP, SUBJECTS), **SUBJECTS}


def subject_class(name: str) -> type[Subject]:
    """The class of the subject called `name`.

    >>> subject_class("matmul").aspect
    'M / K'
    """
    found: type[Subject] = _at(subjects()[name])
    return found


@cache
def operators() -> Mapping[str, str]:
    """The place of every operator, by name; those of other packages may not replace ours."""
    return {**_others(GROUP, BUILT_IN), **BUILT_IN}


@cache
def operator_names() -> Mapping[str, str]:
    """Return the operators' names by the names of their classes.

    >>> operator_names()["MatmulAllReduce"]
    'matmul_all_reduce'
    """
    return {place.rpartition(":")[2]: name for name, place in operators().items()}


@cache
def usable_operators() -> tuple[str, ...]:
    """Names of the operators whose classes can be had. A package whose class cannot be is named in a warning, and left
    aside: it is no reason for all others to fail."""
    usable = [*BUILT_IN]
    for name in (name for name in operators() if name not in BUILT_IN):
        try:
            operator_class(name)
        except OperatorError as error:
            warnings.warn(f"a package's operator is left aside: {error}", RuntimeWarning, stacklevel=2)
        else:
            usable.append(name)
    return tuple(usable)


def _others(group: str, ours: Mapping[str, str]) -> dict[str, str]:
    """The places that other packages give, by name. A RuntimeWarning names a package that takes one of our names."""
    found = {}
    for point in entry_points(group=group):
        if point.name in ours:
            dist = getattr(point, "dist", None)
            package = f" of package {dist.name}" if dist else ""
            warnings.warn(f"entry point {point.name!r}{package} is left aside: the name is ours", RuntimeWarning, 3)
        found[point.name] = point.value
    return found


@cache
def operator_class(name: str) -> type[Operator]:
    """The class of the operator called `name`, or made of a nest in a file of the user's (`loops.py:heat`); a
    OperatorError that offers the nearest where there is none.

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
    place = operators().get(name)
    if place is None and name.endswith(".py"):
        raise OperatorError(f"{name} is a file: which of its nests?", hint=f"{name}:NAME")
    if place is None:
        near = difflib.get_close_matches(name, operators(), 1, cutoff=0.4)
        raise OperatorError(
            f"no operator '{name}'", hint=f"did you mean '{near[0]}'?" if near else ", ".join(sorted(operators()))
        )
    found: type[Operator] = _at(place) if name in BUILT_IN else _of_package(name, place)
    return found


def _at(place: str) -> Any:
    """What is at "package.module:Name"."""
    module, _, found = place.partition(":")
    return getattr(import_module(module), found)


def _of_package(name: str, place: str) -> type[Operator]:
    """The class of an operator of another package. OperatorError where it cannot be imported or is none."""
    try:
        found = _at(place)
    except Exception as error:  # whatever that package raises
        cause = f"{type(error).__name__}: {error}"
        raise OperatorError(
            f"the operator '{name}' of another package cannot be imported", where=place, found=cause
        ) from error
    if not isinstance(found, type) or (lacks := [part for part in PARTS if part not in dir(found)]):
        cause = f"{found!r}" if not isinstance(found, type) else f"it lacks {', '.join(lacks)}"
        raise OperatorError(
            f"the operator '{name}' of another package is no class of operators", where=place, found=cause
        )
    return found


def is_in_file(name: str) -> bool:
    """Whether a name is that of a nest in a file of the user's, as in `loops.py:heat`."""
    return ".py:" in name


def _in_file(name: str) -> type[Operator]:
    """The class of operators for a nest in a Python file, which is run; it goes by the name it was asked for."""
    path, _, wanted = name.rpartition(":")
    try:
        _run_file(path)
    except OSError as error:
        raise OperatorError(f"cannot read {path}", found=error.strerror, hint="FILE.py:NAME of a nest") from None
    nests = _at(NESTS_OF_FILE)(vars(_run_file(path)))
    if wanted not in nests:
        hint = f"it has {', '.join(nests)}" if nests else "@nest(…) makes one"
        raise OperatorError(f"{path} has no nest '{wanted}'", hint=hint)
    found: type[Operator] = _at(OPERATOR_OF_NEST)(nests[wanted], name)
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
