"""wishes: one table of all that may be wished for, by name, and one of what may be characterised by itself; others add
theirs by an entry point."""

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

from dovetail.core import DovetailError, WishError
from dovetail.ir import Certificate, KernelForm, Program, Schedule, Wish, verify

GROUP = "dovetail.wishes"  # of entry points: name = "package.module:Class"
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
    "jacobi1d": "dovetail.loops.stencils:Jacobi1d",
    "jacobi2d": "dovetail.loops.stencils:Jacobi2d",
    "jacobi3d": "dovetail.loops.stencils:Jacobi3d",
    "heat3d": "dovetail.loops.stencils:Heat3d",
    "acoustic3d": "dovetail.loops.stencils:Acoustic3d",
    "acoustic3d_4": "dovetail.loops.stencils:Acoustic3d4",
    "acoustic3d_6": "dovetail.loops.stencils:Acoustic3d6",
    "acoustic3d_8": "dovetail.loops.stencils:Acoustic3d8",
    "fdtd2d": "dovetail.loops.stencils:Fdtd2d",
    "laplace2d": "dovetail.loops.stencils:Laplace2d",
    "red_black2d": "dovetail.loops.stencils:RedBlack2d",
    "sync_p2p": "dovetail.loops.pipelines:SyncP2p",
    "gauss_seidel2d": "dovetail.loops.pipelines:GaussSeidel2d",
    "sor2d": "dovetail.loops.pipelines:Sor2d",
    "ssor2d": "dovetail.loops.pipelines:Ssor2d",
    "seidel1d": "dovetail.loops.pipelines:Seidel1d",
    "seidel2d": "dovetail.loops.pipelines:Seidel2d",
    "lcs": "dovetail.loops.pipelines:Lcs",
    "smith_waterman": "dovetail.loops.pipelines:SmithWaterman",
    "triple_nest": "dovetail.loops.pipelines:TripleNest",
}
SUBJECT_GROUP = "dovetail.subjects"
SUBJECTS = {"matmul": "dovetail.matmul:ProductAlone"}


PARTS = ("name", "options", "families", "by_size")  # that every class of wishes has
KERNELS = {"matmul": "dovetail.matmul:MATMUL"}  # whose name says what they compute, whatever the wish


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


def subject_class(name: str) -> Any:
    """The class of the subject called `name`.

    >>> subject_class("matmul").aspect
    'M / K'
    """
    return _at(subjects()[name])


@cache
def wishes() -> Mapping[str, str]:
    """The place of every wish, by name; those of other packages may not replace ours."""
    return {**_others(GROUP, BUILT_IN), **BUILT_IN}


@cache
def usable_wishes() -> tuple[str, ...]:
    """Names of the wishes whose classes can be had. A package whose class cannot be is named in a warning, and left
    aside: it is no reason for all others to fail."""
    usable = [*BUILT_IN]
    for name in (name for name in wishes() if name not in BUILT_IN):
        try:
            wish_class(name)
        except WishError as error:
            warnings.warn(f"a package's wish is left aside: {error}", RuntimeWarning, stacklevel=2)
        else:
            usable.append(name)
    return tuple(usable)


def _others(group: str, ours: Mapping[str, str]) -> dict[str, str]:
    """The places that other packages give, by name. A RuntimeWarning names a package that takes one of our names."""
    found = {}
    for point in entry_points(group=group):
        if point.name in ours:
            package = f" of package {point.dist.name}" if getattr(point, "dist", None) else ""
            warnings.warn(f"entry point {point.name!r}{package} is left aside: the name is ours", RuntimeWarning, 3)
        found[point.name] = point.value
    return found


@cache
def wish_class(name: str) -> Any:
    """The class of the wish called `name`, or made of a nest in a file of the user's (`loops.py:heat`); a WishError
    that offers the nearest where there is none.

    >>> wish_class("matmul_all_reduce").families[0]
    'serial'
    >>> wish_class("matmul_all_reduced")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.WishError: no wish 'matmul_all_reduced'
      try         did you mean 'matmul_all_reduce'?
    """
    if is_in_file(name):
        return _in_file(name)
    place = wishes().get(name)
    if place is None and name.endswith(".py"):
        raise WishError(f"{name} is a file: which of its nests?", hint=f"{name}:NAME")
    if place is None:
        near = difflib.get_close_matches(name, wishes(), 1, cutoff=0.4)
        raise WishError(f"no wish '{name}'", hint=f"did you mean '{near[0]}'?" if near else ", ".join(sorted(wishes())))
    return _at(place) if name in BUILT_IN else _of_package(name, place)


def _at(place: str) -> Any:
    """What is at "package.module:Name"."""
    module, _, found = place.partition(":")
    return getattr(import_module(module), found)


def _of_package(name: str, place: str) -> Any:
    """The class of a wish of another package. WishError where it cannot be imported or is none."""
    try:
        found = _at(place)
    except Exception as error:  # whatever that package raises
        cause = f"{type(error).__name__}: {error}"
        raise WishError(f"the wish '{name}' of another package cannot be imported", where=place, found=cause) from error
    if not isinstance(found, type) or (lacks := [part for part in PARTS if not hasattr(found, part)]):
        cause = f"{found!r}" if not isinstance(found, type) else f"it lacks {', '.join(lacks)}"
        raise WishError(f"the wish '{name}' of another package is no class of wishes", where=place, found=cause)
    return found


def is_in_file(name: str) -> bool:
    """Whether a name is that of a nest in a file of the user's, as in `loops.py:heat`."""
    return ".py:" in name


def _in_file(name: str) -> Any:
    """The class of wishes for a nest in a Python file, which is run; it goes by the name it was asked for."""
    from dovetail.loops.nest import Nest
    from dovetail.loops.wishes import wish_of

    path, _, wanted = name.rpartition(":")
    try:
        found = vars(_run_file(path)).get(wanted)
    except OSError as error:
        raise WishError(f"cannot read {path}", found=error.strerror, hint="FILE.py:NAME of a nest") from None
    if not isinstance(found, Nest):
        nests = ", ".join(key for key, value in vars(_run_file(path)).items() if isinstance(value, Nest))
        raise WishError(f"{path} has no nest '{wanted}'", hint=f"it has {nests}" if nests else "@nest(…) makes one")
    return wish_of(found, name)


@cache
def _run_file(path: str) -> ModuleType:
    file = Path(path).resolve()
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise WishError(f"{path} is no Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (OSError, DovetailError):
        raise
    except SyntaxError as error:
        where, found = f"{Path(error.filename or path).name}:{error.lineno}", (error.text or "").strip()
        raise WishError(f"{path} is not Python: {error.msg}", where=where, found=found) from error
    except Exception as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename).resolve() == file]
        at, found = f"{file.name}:{lines[-1]}" if lines else None, f"{type(error).__name__}: {error}"
        raise WishError(f"{path} failed", where=at, found=found, hint="--debug shows the traceback") from error
    return module


def prove(wish: Wish, schedule: Schedule, program: Program) -> Certificate:
    """The certificate of a schedule's Program; also against the plain program of the wish, where it has one."""
    return verify(program, against=wish.plain(schedule, program.num_ranks))


def checked_wish(wish: Any) -> Any:
    """What was given, where it is a wish; else WishError.

    >>> checked_wish("matmul_all_reduce")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.WishError: no wish, but str
      found       'matmul_all_reduce'
      try         dovetail.matmul_all_reduce(m, k, n), say
    """
    if isinstance(wish, type) or not hasattr(wish, "schedules"):
        kind = "a class" if isinstance(wish, type) else type(wish).__name__
        found = shorten(repr(wish), 80)
        raise WishError(f"no wish, but {kind}", found=found, hint="dovetail.matmul_all_reduce(m, k, n), say")
    return wish


def wish_from(document: Mapping[str, Any]) -> Wish:
    """The wish in a document that its `to_json` wrote."""
    schema = str(document.get("schema"))
    name = schema.removeprefix("dovetail.wish.").rpartition("/")[0]
    if not schema.startswith("dovetail.wish."):
        raise DovetailError("expected a document of a wish", found=f"schema {document.get('schema')!r}")
    wish: Wish = wish_class(name).from_json(document)
    return wish
