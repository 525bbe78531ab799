"""watch: a thread of each rank that learns at once which rank has died, on whatever host.

Every rank holds a connection to rank 0, which the kernel closes when a process ends. Rank 0 passes on which rank that
was. No rank sends signs of life, so that a rank which computes long without Python's lock is not taken for dead; a
host that disappears is noticed by the keep-alive messages of TCP.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import ref

from dovetail.core import RunError
from dovetail.run.ranks.lines import CONNECT_S, listener, own_addresses, rank_at, reached

KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5}  # a host that is gone counts as dead after 7 s
OnMessage = Callable[[Mapping[str, Any]], None]


class Watch:
    """The connections of one rank. All ranks make one together.

    Parameters
    ----------
    rank, size : int
        Of this process, and of all.
    share : callable
        Given rank 0's text, returns it on every rank.
    on_message : callable
        Called by the thread of the watch with each message: `{"gone": rank, "why": text}` for a rank that has ended,
        and what other ranks `send`.
    prefer : str
        An address of rank 0 that the others try first.
    """

    def __init__(
        self, rank: int, size: int, share: Callable[[str], str], on_message: OnMessage, prefer: str = ""
    ) -> None:
        self.rank, self.size, self.gone = rank, size, dict[int, str]()
        self._on_message, self._lock, self._all_left = on_message, threading.Lock(), threading.Event()
        self._left: set[int] = set()  # ranks that have said that they end
        self._lines: dict[int, socket.socket] = {}  # by rank
        self._parts: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self.address = ""  # of rank 0, as this rank reaches it
        if rank == 0:
            self._accept_all(share, prefer)
        else:
            self._connect(json.loads(share("")), prefer)
        for line in self._lines.values():
            _keep_alive(line)
            self._parts[line] = b""
            self._selector.register(line, selectors.EVENT_READ)
        own = ref(self)
        os.register_at_fork(after_in_child=lambda: watch._forget() if (watch := own()) else None)
        threading.Thread(target=self._listen, name="dovetail watch", daemon=True).start()

    def _accept_all(self, share: Callable[[str], str], prefer: str) -> None:
        token = secrets.token_hex(16)
        with listener(self.size) as listens:
            self.address = prefer or next(iter(own_addresses()), "127.0.0.1")
            share(json.dumps([token, listens.getsockname()[1], own_addresses()]))
            listens.settimeout(CONNECT_S * self.size)
            while len(self._lines) < self.size - 1:
                try:
                    line, _ = listens.accept()
                except TimeoutError:
                    absent = min(set(range(1, self.size)) - set(self._lines))
                    raise RunError(f"rank {absent} does not reach rank 0", hint="look at its output") from None
                if (rank := rank_at(line, token)) is not None:
                    self._lines[rank] = line

    def _connect(self, found: Sequence[Any], prefer: str) -> None:
        token, port, addresses = found
        if (found_line := reached([*filter(None, [prefer]), *addresses], port, token, self.rank)) is not None:
            self._lines[0], self.address = found_line
            return
        tried = ", ".join(addresses) or "no address"
        raise RunError(f"rank {self.rank} does not reach rank 0", found=f"tried {tried}, port {port}")

    def send(self, **message: Any) -> None:
        """Give a message to the watches of all ranks, this one included."""
        if self.rank == 0:
            self._spread(message)
        else:
            self._send(0, message)

    def farewell(self, limit_s: float) -> bool:
        """Say that this process ends. Return whether all ranks have said it within `limit_s`, and none has died."""
        self.send(left=self.rank)
        until = time.monotonic() + limit_s
        while not self.gone and time.monotonic() < until:
            if self._all_left.wait(0.02):
                return True
        return False

    def close(self) -> None:
        """End the connections, as the end of the process does."""
        with self._lock, suppress(OSError):
            for line in self._lines.values():
                line.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        """Close the connections in a forked process: else they outlive this one, and no rank notices its end."""
        for line in list(self._lines.values()):
            line.close()

    def _spread(self, message: Mapping[str, Any]) -> None:
        self._hear(message)
        for rank in list(self._lines):
            self._send(rank, message)

    def _send(self, rank: int, message: Mapping[str, Any]) -> None:
        with self._lock, suppress(OSError, KeyError):  # of a rank that has ended, as this thread will hear
            self._lines[rank].sendall(json.dumps(message).encode() + b"\n")

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "left" in message:
            self._left.add(message["left"])
            if len(self._left) == self.size:
                self._all_left.set()
        elif "gone" in message:
            if message["gone"] in self.gone:
                return
            self.gone[message["gone"]] = message["why"]
        self._on_message(message)

    def _listen(self) -> None:
        while self._lines:
            for key, _ in self._selector.select():
                line: Any = key.fileobj
                try:
                    found = line.recv(1 << 16)
                except OSError:
                    found = b""
                *lines, self._parts[line] = (self._parts[line] + found).split(b"\n")
                for text in lines:
                    (self._spread if self.rank == 0 else self._hear)(json.loads(text))
                if not found:
                    self._lose(line)

    def _lose(self, line: socket.socket) -> None:
        self._selector.unregister(line)
        rank = next(rank for rank, its in self._lines.items() if its is line)
        with self._lock:
            del self._lines[rank]
            line.close()
        if len(self._left) < self.size:
            why = "has ended, and was waited for" if rank in self._left else "has died"
            message = {"gone": rank, "why": why}
            self._spread(message) if self.rank == 0 else self._hear(message)


def _keep_alive(line: socket.socket) -> None:
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
