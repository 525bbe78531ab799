"""messages: a send or receive of a process group as work that torch waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.run.ranks.messages import Messages
from dovetail.torch.work import GroupError, Work


class MessageWork(Work):
    """A send or receive. It makes progress while the program waits for it, and in the background."""

    def __init__(self, messages: Messages, kept: tuple[Any, Any], explain: Callable[[Any], Any]) -> None:
        super().__init__(kept[:1])
        self._messages, self._span, self._explain, self._source = messages, kept[1], explain, -1

    def end(self, error: Exception | None, source: int) -> None:
        """Mark it as ended: `source` has sent the data."""
        if error is None and self._span.back is not None:
            self._span.back()
        self._source = source
        self.finish(self._explain(error))

    def _await(self, limit_s: float) -> None:
        if not self._messages.wait(self.is_completed, max(limit_s, 0.0)):
            raise GroupError(f"the message did not arrive within {limit_s:g} s")

    def source_rank(self) -> int:
        """Return the rank that sent the data."""
        return self._source

    _source_rank = source_rank
