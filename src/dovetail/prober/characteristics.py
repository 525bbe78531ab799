"""characteristics: results of `characterise`: what cutting computations costs (DIL), and contention (CIL)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dovetail.run.load import Load

SCHEMA = "dovetail.characteristics/1"


class Ratio(NamedTuple):
    """Median and quartiles, over rounds, of a ratio of two times that were measured in the same round."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Ratio:
        """Return median and quartiles of values.

        >>> Ratio.of([1.0, 3.0, 2.0])
        Ratio(median=2.0, low=1.5, high=2.5)
        """
        low, median, high = np.percentile(list(values), [25, 50, 75])
        return Ratio(float(median), float(low), float(high))


@dataclass(frozen=True)
class Cut:
    """A computation cut into `pieces` along `way`.

    `dil`: Σ seconds of the pieces / seconds of the whole. `flops`, `num_bytes`: of the largest piece.
    """

    way: str
    pieces: int
    dil: Ratio
    flops: float
    num_bytes: float


@dataclass(frozen=True)
class Beside:
    """Slowdown (CIL) of a computation and of the traffic beside it, `num_bytes` per message or call.

    `net` is None if too few messages ended during the computation.
    """

    traffic: str
    num_bytes: int
    compute: Ratio
    net: Ratio | None


@dataclass(frozen=True)
class Characteristic:
    """One computation, measured whole, cut, and beside traffic.

    Attributes
    ----------
    title : str
        The computation, in words.
    sizes : dict
        Its sizes by name.
    flops, num_bytes : float
        FLOP of the whole computation, and bytes that it reads and writes once.
    shape : float
        A figure for the shape; `Characteristics.aspect` says which.
    whole : Ratio
        Seconds of the whole computation on the slowest rank.
    cuts : tuple of Cut
        DIL of each way of cutting.
    beside : tuple of Beside
        CIL beside each kind of traffic.
    rounds, disturbed : int
        Rounds that count, and rounds that were repeated because other processes disturbed them.
    """

    title: str
    sizes: dict[str, Any]
    flops: float
    num_bytes: float
    shape: float
    whole: Ratio
    cuts: tuple[Cut, ...]
    beside: tuple[Beside, ...]
    rounds: int
    disturbed: int

    @property
    def intensity(self) -> float:
        """Return the op-to-byte ratio: `flops / num_bytes`."""
        return self.flops / self.num_bytes

    def dil(self, way: str, pieces: int) -> Ratio | None:
        """Return the DIL of one cut; None if not measured."""
        return next((cut.dil for cut in self.cuts if (cut.way, cut.pieces) == (way, pieces)), None)

    def cil(self, traffic: str, num_bytes: int) -> Beside | None:
        """Return the CIL beside one kind and size of traffic; None if not measured."""
        return next((each for each in self.beside if (each.traffic, each.num_bytes) == (traffic, num_bytes)), None)


@dataclass(frozen=True)
class Characteristics:
    """Computations of one kind, measured on `ranks` ranks of one machine.

    `aspect`: what `Characteristic.shape` means. `load`: the largest shares of the ranks' cores that other processes
    used. `notes`: sentences for the user.
    """

    subject: str
    ranks: int
    aspect: str
    found: tuple[Characteristic, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    notes: tuple[str, ...] = ()

    def cuts(self) -> list[tuple[str, int]]:
        """Return the measured (way, pieces), in order of first appearance."""
        return list(dict.fromkeys((cut.way, cut.pieces) for each in self.found for cut in each.cuts))

    def traffics(self) -> list[tuple[str, int]]:
        """Return the measured (traffic, num_bytes)."""
        return list(dict.fromkeys((each.traffic, each.num_bytes) for one in self.found for each in one.beside))

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; seconds, FLOP and bytes."""
        head = {"schema": SCHEMA, "subject": self.subject, "label": "measured", "ranks": self.ranks}
        about = {"aspect": self.aspect, "facts": self.facts, "load": self.load.to_json(), "notes": list(self.notes)}
        rows = [asdict(each) | {"flop_per_byte": each.intensity} for each in self.found]
        return {**head, **about, "characteristics": [_plain(row) for row in rows]}


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with ratios as dicts, and `whole` renamed to `whole_s`."""

    def ratio(value: Ratio | None) -> dict[str, float] | None:
        return None if value is None else dict(zip(Ratio._fields, value, strict=True))

    cuts = [cut | {"dil": ratio(cut["dil"])} for cut in row["cuts"]]
    beside = [each | {side: ratio(each[side]) for side in ("compute", "net")} for each in row["beside"]]
    return row | {"cuts": cuts, "beside": beside, "whole_s": ratio(row.pop("whole"))}
