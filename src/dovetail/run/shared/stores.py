"""stores: keys and values through which the ranks of one host find each other."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from dovetail.core import EnvironmentFault, RunError
from dovetail.core.trust import folder_danger, read_own
from dovetail.run.ranks.lines import line_of

POLL_S = 0.005
ENDED = "ended"  # the key to which a launcher sets the first rank that has ended
CALL_S = 5.0  # seconds that one exchange with the socket of rank 0 may take


class Store(Protocol):
    """Texts by key, which all ranks see."""

    def set(self, key: str, value: str) -> None:
        """Set a key, once."""
        ...

    def get(self, key: str) -> str | None:
        """Return the value of a key; None while it is not set."""
        ...

    def close(self) -> None:
        """Forget all keys. Rank 0 calls it once all ranks have read what they need."""
        ...


def wait_for(store: Store, keys: Sequence[str], limit_s: float) -> list[str | None]:
    """Return the values of `keys`; None for those that are not set within `limit_s` seconds."""
    until, found = time.monotonic() + limit_s, dict[str, str]()
    while missing := [key for key in keys if key not in found]:
        for key in missing:
            if (value := store.get(key)) is not None:
                found[key] = value
        if len(found) < len(keys):
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)
    return [found.get(key) for key in keys]


class Job:
    """The keys of one job. The store may still hold keys of an earlier job that was killed while its ranks met.

    Rank 0 chooses a prefix. Every other rank writes a random number, and takes the prefix that rank 0
    writes together with this number.

    Raises
    ------
    RunError
        On other ranks, if rank 0 writes none within `limit_s` seconds. In every call, if the launcher wrote that a
        rank has ended, as `dovetail launch` does in a folder.
    """

    def __init__(self, store: Store, rank: int, size: int, limit_s: float) -> None:
        self._store, self._rank, self._size, self._prefix = store, rank, size, secrets.token_hex(8)
        self._sees_ended = isinstance(store, FileStore)
        self._others, self._answered = [f"knock.{other}" for other in range(1, size)], [""]
        if rank:
            self._prefix = self._heard(secrets.token_hex(8), limit_s)

    def _heard(self, own: str, limit_s: float) -> str:
        self._store.set(f"knock.{self._rank}", own)
        until = time.monotonic() + limit_s
        while own not in (answer := (self._get("job") or "").split()):
            if time.monotonic() > until:
                raise RunError(f"rank 0 did not come within {limit_s:.0f} s", hint="look at its output")
            time.sleep(POLL_S)
        return answer[0]

    def _answer(self) -> None:
        knocks = [self._store.get(key) or "" for key in self._others]
        if knocks != self._answered:
            self._store.set("job", " ".join([self._prefix, *knocks]))
            self._answered = knocks

    def set(self, key: str, value: str) -> None:
        """Set a key of this job."""
        self._store.set(f"{self._prefix}.{key}", value)

    def get(self, key: str) -> str | None:
        """Return the value of a key of this job; None while it is not set."""
        if self._rank == 0:
            self._answer()
        return self._get(f"{self._prefix}.{key}")

    def _get(self, key: str) -> str | None:
        if self._sees_ended and (rank := self._store.get(ENDED)) is not None:
            raise RunError(f"rank {rank} of {self._size} has ended before all ranks had met")
        return self._store.get(key)

    def close(self) -> None:
        """Forget all keys, those of earlier jobs too."""
        self._store.close()


class FileStore:
    """A folder that only this user can write, with one file for each key.

    Raises
    ------
    EnvironmentFault
        If another user could write there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            danger = folder_danger(folder.resolve())
        except OSError as error:
            raise EnvironmentFault(f"ranks cannot meet in {folder}", found=error.strerror) from error
        if danger:
            raise EnvironmentFault(f"ranks do not meet in {folder}: others could disturb them", found=danger)

    def set(self, key: str, value: str) -> None:
        """Write a file under another name and rename it, so that no rank reads half of it."""
        part = self.folder / f".{key}.{os.getpid()}"
        try:
            part.write_text(value)
            part.replace(self.folder / key)
        except OSError as error:
            hint = "set TMPDIR, or DOVETAIL_STORE, to a folder that you can write"
            raise EnvironmentFault(f"ranks cannot meet in {self.folder}", found=error.strerror, hint=hint) from error

    def get(self, key: str) -> str | None:
        """Return the text of a file that this user wrote; None if there is none."""
        try:
            return read_own(self.folder / key).decode()
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Remove the folder and its files."""
        with suppress(OSError):  # another rank that gives up may still write here
            for path in self.folder.iterdir():
                path.unlink(missing_ok=True)
            self.folder.rmdir()


class SocketStore:
    """Keys that rank 0 serves at an address, to those who know the token.

    Parameters
    ----------
    address : tuple of str and int
        Host and port, of $MASTER_ADDR and $MASTER_PORT.
    serves : bool
        Whether this is rank 0.
    tokens : Store
        Where ranks of this user find the token, unless $DOVETAIL_TOKEN has it.
    """

    def __init__(self, address: tuple[str, int], serves: bool, tokens: Store) -> None:
        self.address, self.tokens = address, tokens
        self.values: dict[str, str] = {}
        self._listener: socket.socket | None = None
        self._given = os.environ.get("DOVETAIL_TOKEN")
        if serves:
            self._token = self._given or secrets.token_hex(16)
            self._listen()

    def _listen(self) -> None:
        try:
            self._listener = socket.create_server(self.address)
        except OSError as error:
            what = "rank 0 cannot serve at {}:{}".format(*self.address)
            hint = "MASTER_ADDR is an address of this host, MASTER_PORT a free port; or set DOVETAIL_STORE to a folder"
            raise EnvironmentFault(what, found=error.strerror, hint=hint) from error
        if self._given is None:
            self.tokens.set(self._key, self._token)
        threading.Thread(target=self._serve, args=(self._listener,), name="dovetail ranks", daemon=True).start()

    @property
    def _key(self) -> str:
        return f"token.{self.address[1]}"

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                line, _ = listener.accept()
                with suppress(OSError, ValueError, KeyError, TypeError), line:  # from a process that is no rank
                    line.settimeout(CALL_S)
                    line.sendall(self._answer(json.loads(line_of(line))).encode() + b"\n")

    def _answer(self, asked: dict[str, str]) -> str:
        if not hmac.compare_digest(asked["token"], self._token):
            return json.dumps({"fault": "token"})
        if "value" in asked:
            self.values[asked["key"]] = asked["value"]
        return json.dumps({"value": self.values.get(asked["key"])})

    def _ask(self, **asked: str) -> str | None:
        """Return the answer of rank 0; None while it does not answer, or serves another job's ranks."""
        token = self._given or self.tokens.get(self._key)
        with suppress(OSError, ValueError), socket.create_connection(self.address, CALL_S) as line:
            line.sendall(json.dumps({"token": token or "", **asked}).encode() + b"\n")
            value: str | None = json.loads(line_of(line)).get("value")
            return value
        return None

    def set(self, key: str, value: str) -> None:
        """Set a key. Raises RunError if rank 0 does not answer."""
        if self._listener is not None:
            self.values[key] = value
        elif self._ask(key=key, value=value) != value:
            raise RunError("rank 0 does not answer at {}:{}".format(*self.address))

    def get(self, key: str) -> str | None:
        """Return the value of a key that rank 0 has; None while it is not set."""
        return self.values.get(key) if self._listener is not None else self._ask(key=key)

    def close(self) -> None:
        """End the service."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self.tokens.close()
