"""supply: what a room offers by name and a room above it makes; whoever knows both fills in where it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Supply:
    """Things looked up by name in a source that is filled in from above, before the first look-up.

    >>> calls = Supply("calls")
    >>> calls["double"]
    Traceback (most recent call last):
    ...
    LookupError: nothing supplies calls, as 'double' is
    >>> calls.fill({"double": lambda number: 2 * number}.__getitem__)
    >>> calls["double"](3)
    6
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._source: Callable[[str], Any] | None = None

    def fill(self, source: Callable[[str], Any]) -> None:
        """From now on, look names up with `source`."""
        self._source = source

    def __getitem__(self, name: str) -> Any:
        if self._source is None:
            raise LookupError(f"nothing supplies {self._what}, as {name!r} is")
        return self._source(name)


CALLS = Supply("calls on arrays")  # offered by the front doors; the package says where they are when it is imported
