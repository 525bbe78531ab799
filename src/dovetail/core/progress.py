"""progress: the callback by which long work reports how far it has come."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str, float], None]  # what is being done, and the share of the whole that is done
