"""messages: messages between the ranks of a World, by tag, from a given rank or from any, in the background."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dovetail import _native
from dovetail.core import RunError
from dovetail.run.ranks.world import World

ANY = -1  # the source of a receive that takes any rank's message

Done = Callable[[Exception | None, int], None]  # called with an error or None, and the sender's rank


class Messages:
    """Sends and receives on addresses: a native Mailbox (native/run/mailbox.hpp). Several threads may use it."""

    def __init__(self, world: World) -> None:
        self._world, self._box = world, _native.Mailbox(world.transport)

    def send(self, address: int, num_bytes: int, target: int, tag: int, done: Done) -> None:
        """Send bytes to a rank. They must not change before `done` is called."""
        self._box.send(address, num_bytes, target, tag, partial(self._end, done))

    def receive(self, address: int, num_bytes: int, source: int | None, tag: int, done: Done) -> None:
        """Receive a message with this tag, from a rank or (None) from any. `done` gets an error if its size differs."""
        self._box.receive(address, num_bytes, ANY if source is None else source, tag, partial(self._end, done))

    def _end(self, done: Done, is_of_transport: bool, text: str, found: str, source: int) -> None:
        done(self.error_of(is_of_transport, text, found), source)

    def error_of(self, is_of_transport: bool, text: str, found: str) -> RunError | None:
        """Return the error of a send or receive; None if it has no fault, an empty text."""
        if not text:
            return None
        if is_of_transport:
            what = f"{self._world.what} failed in test"
            return RunError(what, found=text.partition(" failed: ")[2] or text)
        return RunError(text, found=found or None)

    def wait(self, has_ended: Callable[[], bool], limit_s: float) -> bool:
        """Poll until `has_ended()`, at most `limit_s` seconds (0: without a limit). Return whether it has."""
        return self._box.wait(has_ended, limit_s)

    def lose(self, rank: int, error: RunError) -> None:
        """Let what is sent to a rank or awaited from it fail: it has ended, which the transport may not notice."""
        self._box.lose(rank, error.what)

    def close(self) -> None:
        """Cancel what has not ended. The ranks of the World no longer send to each other."""
        self._box.close()

    def door(self) -> int:
        """Return the address of sends and receives as C functions (native/run/door.h)."""
        return self._box.door()
