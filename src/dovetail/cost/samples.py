"""samples: raw timings with size, repeat and provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError, check_schema, read_arrays

SCHEMA = "dovetail.samples/1"
COLUMNS = {"x": "f8", "seconds": "f8", "repeat": "i8"}


@dataclass(frozen=True, eq=False)
class Samples:
    """Timings of one cost at several sizes, as columns with a row for each timing.

    `x` in `x_unit` (bytes, rows, flop); `seconds`; `repeat`: number of the sweep over all sizes in which a timing was
    taken. It separates drift between sweeps from noise between timings.

    >>> samples = Samples.of({64: [1.0e-6, 1.2e-6, 1.1e-6], 128: [2e-6]}, "bytes")
    >>> samples.sizes.tolist(), samples.medians.tolist()
    ([64.0, 128.0], [1.1e-06, 2e-06])
    """

    x: NDArray[np.float64]
    seconds: NDArray[np.float64]
    repeat: NDArray[np.int64]
    x_unit: str = "bytes"
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, dtype in COLUMNS.items():
            column = np.array(getattr(self, name), dtype=dtype)
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        _check(self)

    @classmethod
    def of(cls, timings: Mapping[float, Sequence[float]], x_unit: str = "bytes", **provenance: Any) -> Samples:
        """Build from size → timings in seconds; the k-th timing of every size belongs to repeat k."""
        rows = [(x, seconds, k) for x, times in timings.items() for k, seconds in enumerate(times)]
        x, seconds, repeat = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(x), np.array(seconds), np.array(repeat), x_unit, dict(provenance))

    @property
    def sizes(self) -> NDArray[np.float64]:
        """The distinct x, ascending."""
        return self._grouped[0]

    @property
    def medians(self) -> NDArray[np.float64]:
        """Median seconds at each of `sizes`."""
        return np.array([np.median(group) for group in self.groups])

    @property
    def rows(self) -> list[NDArray[np.int64]]:
        """Rows of the columns with each of `sizes`, ordered by repeat."""
        sizes, starts, order = self._grouped
        return np.split(order, starts[1:]) if len(sizes) else []

    @property
    def groups(self) -> list[NDArray[np.float64]]:
        """Seconds of the timings at each of `sizes`, ordered by repeat."""
        return [self.seconds[rows] for rows in self.rows]

    def to_json(self) -> dict[str, Any]:
        """Return a document with a `schema` field; columns as lists."""
        columns = {name: getattr(self, name).tolist() for name in COLUMNS}
        return {"schema": SCHEMA, "x_unit": self.x_unit, "provenance": dict(self.provenance), "columns": columns}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Samples:
        """Read what `to_json` wrote."""
        check_schema(document, SCHEMA)
        try:
            columns = read_arrays(document["columns"], COLUMNS)
            return cls(**columns, x_unit=str(document["x_unit"]), provenance=dict(document.get("provenance", {})))
        except (KeyError, TypeError) as error:
            raise CostError("malformed samples document", found=f"{type(error).__name__}: {error}") from error

    @cached_property
    def _grouped(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        order = np.lexsort((self.repeat, self.x))
        sizes, starts = np.unique(self.x[order], return_index=True)
        return sizes, starts.astype(np.int64), order.astype(np.int64)


def _check(samples: Samples) -> None:
    lengths = {name: getattr(samples, name).shape for name in COLUMNS}
    if len(set(lengths.values())) != 1 or len(lengths["x"]) != 1:
        raise CostError("samples need one x, one time and one repeat for each timing", found=repr(lengths))
    for name in ("x", "seconds"):
        column = getattr(samples, name)
        bad = np.flatnonzero(~np.isfinite(column) | (column < 0))
        if len(bad):
            found = f"{column[bad[0]]} in row {bad[0]}"
            raise CostError(f"'{name}' of every sample must be a number of at least 0", found=found)
    bad = np.flatnonzero((samples.seconds == 0) & (samples.x > 0))
    if len(bad):
        raise CostError(
            f"a timing of 0 s at {samples.x[bad[0]]:g} {samples.x_unit}",
            found=f"{len(bad)} of {len(samples.x)} timings",
            hint="the clock is too coarse: time more iterations at once",
        )
