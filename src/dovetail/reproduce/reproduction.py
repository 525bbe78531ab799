"""reproduction: all rows of one source or of all, and how many have which verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

from dovetail.core import OperatorError, Say, did_you_mean
from dovetail.reproduce.rows import FACTOR, STEP, VERDICTS, Curves, Row

SCHEMA = "dovetail.reproduction/1"
ALL = "all"


class Source(NamedTuple):
    """A source: its title, and what its figures are about."""

    title: str
    about: str


SOURCES = {
    "mc2": Source("MC² Operator Performance Optimization (Ascend)", "tiles of two lengths of an all-reduced product"),
    "ficco": Source("DMA based Finer-Grain Compute Communication Overlap (FiCCO)", "an all-gathered product on 8 GPUs"),
    "mscclang": Source("MSCCLang: Microsoft Collective Communication Language", "collectives on A100 and V100 GPUs"),
    "goumas": Source("Loop Tiling with Computation and Communication Overlapping", "tiles and schedules of loop nests"),
    "tsukuba": Source("Optimization 2: communication (University of Tsukuba)", "MPI on Gigabit Ethernet, InfiniBand"),
}


@dataclass(frozen=True)
class Reproduction:
    """The rows of one or several sources, in the order of `SOURCES`, and the curves behind some of them."""

    rows: tuple[Row, ...]
    curves: tuple[Curves, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows by verdict, zeros included."""
        return {verdict: sum(row.verdict == verdict for row in self.rows) for verdict in VERDICTS}

    def of(self, source: str) -> tuple[Row, ...]:
        """Return the rows of one source."""
        return tuple(row for row in self.rows if row.source == source)

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field."""
        rules = {"factor": FACTOR, "sizes_that_double": STEP}
        rows, curves = [row.to_json() for row in self.rows], [each.to_json() for each in self.curves]
        return {"schema": SCHEMA, "within": rules, "counts": self.counts, "rows": rows, "curves": curves}


def reproduce(source: str = ALL, say: Say | None = None) -> Reproduction:
    """Reproduce the figures of a source, or of all five.

    Parameters
    ----------
    source : str
        A name of `SOURCES`, or "all".
    say : callable, optional
        Called with the name of each source before its rows are made, and the share of sources done.

    Returns
    -------
    Reproduction
        A row for each printed figure. Nothing is measured; simulations are deterministic.

    Raises
    ------
    OperatorError
        If there is no such source.

    Examples
    --------
    >>> found = reproduce("goumas")
    >>> found.counts["missed"], found.rows[0].item
    (0, 'V_comp of P1')
    """
    if source not in (ALL, *SOURCES):
        known = (*SOURCES, ALL)
        hint = did_you_mean(source, known) or "name one of those"
        raise OperatorError(f"no source '{source}'", found=f"sources {', '.join(known)}", hint=hint)
    found: list[Row | Curves] = []
    names = tuple(SOURCES) if source == ALL else (source,)
    for number, name in enumerate(names):
        if say is not None:
            say(name, number / len(names))
        found += [replace(each, source=name) for each in _found_in(name)]
    rows = tuple(each for each in found if isinstance(each, Row))
    return Reproduction(rows, tuple(each for each in found if isinstance(each, Curves)))


def _found_in(name: str) -> Iterator[Row | Curves]:
    found: Iterator[Row | Curves] = import_module(f"dovetail.reproduce.{name}").rows()
    return found
