"""wishes: one table of everything that may be wished for, by name; others add theirs by an entry point."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from dovetail.core import DovetailError, WishError
from dovetail.ir import Wish

GROUP = "dovetail.wishes"  # of entry points: name = "package.module:Class"
BUILT_IN = {
    "all_gather_matmul": "dovetail.matmul:AllGatherMatmul",
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
    "jacobi1d": "dovetail.loops.stencils:jacobi1d",
    "jacobi2d": "dovetail.loops.stencils:jacobi2d",
    "jacobi3d": "dovetail.loops.stencils:jacobi3d",
    "heat3d": "dovetail.loops.stencils:heat3d",
    "acoustic3d": "dovetail.loops.stencils:acoustic3d",
    "fdtd2d": "dovetail.loops.stencils:fdtd2d",
}


@cache
def wishes() -> Mapping[str, str]:
    """The place of every wish, by name; those of other packages may not replace ours."""
    others = {point.name: point.value for point in entry_points(group=GROUP)}
    return {**others, **BUILT_IN}


@cache
def wish_class(name: str) -> Any:
    """The class of the wish called `name`; a WishError that offers the nearest where there is none.

    >>> wish_class("matmul_all_reduce").families[0]
    'serial'
    >>> wish_class("matmul_all_reduced")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.WishError: no wish 'matmul_all_reduced'
      try         did you mean 'matmul_all_reduce'?
    """
    place = wishes().get(name)
    if place is None:
        near = difflib.get_close_matches(name, wishes(), 1, cutoff=0.4)
        raise WishError(f"no wish '{name}'", hint=f"did you mean '{near[0]}'?" if near else ", ".join(sorted(wishes())))
    module, _, found = place.partition(":")
    return getattr(import_module(module), found)


def wish_from(document: Mapping[str, Any]) -> Wish:
    """The wish in a document that its `to_json` wrote."""
    schema = str(document.get("schema"))
    name = schema.removeprefix("dovetail.wish.").split("/")[0]
    if not schema.startswith("dovetail.wish."):
        raise DovetailError("expected a document of a wish", found=f"schema {document.get('schema')!r}")
    wish: Wish = wish_class(name).from_json(document)
    return wish
