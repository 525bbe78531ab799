"""grown: columns that grow while a trace is read, without a copy at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MORE = 1.25  # a full column is resized to this multiple of the rows needed


class Grown:
    """Columns of one length. `add` appends rows; `give` returns the columns and forgets them.

    >>> rows = Grown()
    >>> rows.add({"rank": np.array([0, 1])})
    >>> rows.add({"rank": np.array([2])})
    >>> rows.give()["rank"].tolist(), len(rows)
    ([0, 1, 2], 0)
    """

    def __init__(self) -> None:
        self._columns: dict[str, NDArray[Any]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: dict[str, NDArray[Any]]) -> None:
        """Append rows, given as columns of one length."""
        count = self._count + len(next(iter(rows.values())))
        for name, values in rows.items():
            column = self._columns.setdefault(name, np.empty(0, values.dtype))
            if count > len(column):
                column.resize(int(count * _MORE), refcheck=False)
            column[self._count : count] = values
        self._count = count

    def give(self) -> dict[str, NDArray[Any]]:
        """Return the columns, trimmed to their rows, and clear the buffer."""
        found, self._columns = self._columns, {}
        for column in found.values():
            column.resize(self._count, refcheck=False)
        self._count = 0
        return found
