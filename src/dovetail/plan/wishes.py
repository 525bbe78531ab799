"""wishes: one table of all that may be wished for, by name, and one of what may be characterised by itself; others add
theirs by an entry point."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from textwrap import shorten
from typing import Any

from dovetail.core import DovetailError, WishError
from dovetail.ir import Wish

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
}
SUBJECT_GROUP = "dovetail.subjects"
SUBJECTS = {"matmul": "dovetail.matmul:ProductAlone"}


@cache
def subjects() -> Mapping[str, str]:
    """The place of every subject, by name, likewise."""
    return {**{point.name: point.value for point in entry_points(group=SUBJECT_GROUP)}, **SUBJECTS}


def subject_class(name: str) -> Any:
    """The class of the subject called `name`.

    >>> subject_class("matmul").aspect
    'M / K'
    """
    return _at(subjects()[name])


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
    return _at(place)


def _at(place: str) -> Any:
    """What is at "package.module:Name"."""
    module, _, found = place.partition(":")
    return getattr(import_module(module), found)


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
    name = schema.removeprefix("dovetail.wish.").split("/")[0]
    if not schema.startswith("dovetail.wish."):
        raise DovetailError("expected a document of a wish", found=f"schema {document.get('schema')!r}")
    wish: Wish = wish_class(name).from_json(document)
    return wish
