"""progress: the type of the callback by which long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str, float], None]  # (what is being done, share of the whole that is done: 0 to 1)
