"""store: save items between runs, one file per item in the cache folder, with one format and one key scheme.

An item of a kind with columns is an .npz archive with the envelope inside; every other item is its envelope, as JSON:

    {"schema": "dovetail.store/1", "kind": "schedules", "about": "one sentence for people",
     "made": "2026-01-31T12:00:00+00:00", "document": {…}}

A file that is broken, truncated, of another version, unreadable, or writable by somebody else is ignored: `recall`
returns the reason, and never raises. If a file cannot be written, `save` warns and goes on.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.core import (
    CACHED,
    LIBRARIES,
    DovetailError,
    cache_dir,
    check_schema,
    file_danger,
    json_text,
    replacing,
    warn_once,
)

T = TypeVar("T")
Columns = Mapping[str, NDArray[Any]]
SCHEMA = "dovetail.store/1"
ENVELOPE = "envelope"  # name of the envelope among the columns of an archive
PARTIAL_S = 3600.0  # age from which a partial file is taken to be one of a killed process


@dataclass(frozen=True)
class Kind:
    """A kind of item.

    Parameters
    ----------
    name : str
        The folder in the cache, and the kind's name on the command line.
    what : str
        What one item of the kind is, for messages.
    most : int
        Largest number of files; beyond it, the least recently used are removed.
    columns : bool
        Whether documents have `columns`, a mapping of arrays, which are saved as such.
    """

    name: str
    what: str
    most: int
    columns: bool = False

    @property
    def ending(self) -> str:
        """The extension of file names."""
        return ".npz" if self.columns else ".json"


MACHINES = Kind("machines", "probed machine", 256)
COSTS = Kind("costs", "costs of an operator", 1024)
SCHEDULES = Kind("schedules", "tuned schedule", 4096)
PROGRAMS = Kind("programs", "written program", 16, columns=True)
PROOFS = Kind("proofs", "proof of a program", 1024)
SELECTIONS = Kind("selections", "selection table", 256)
SETTINGS = Kind("settings", "library settings of a program", 1024)
LAUNCHES = Kind("launches", "answer about a command", 256)
KINDS = {kind.name: kind for kind in (MACHINES, COSTS, SCHEDULES, PROGRAMS, PROOFS, SELECTIONS, SETTINGS, LAUNCHES)}
FOLDERS = (*KINDS, LIBRARIES)


@dataclass(frozen=True)
class Item:
    """An item that may be in the store: its kind, and a key that is unique within the kind."""

    kind: Kind
    key: str

    @property
    def path(self) -> Path:
        """The file. Raises EnvironmentFault if no folder for it can be made, not even a temporary one."""
        return cache_dir(self.kind.name) / f"{self.key}{self.kind.ending}"


def item(kind: Kind, *parts: Any) -> Item:
    """Return the item of `kind` whose key is a hash of these parts, which must have JSON forms.

    >>> item(SCHEDULES, {"m": 1, "k": 2}, ["a"]) == item(SCHEDULES, {"k": 2, "m": 1}, ("a",))
    True
    >>> item(SCHEDULES, "a", "b") == item(SCHEDULES, "ab")
    False
    """
    return Item(kind, sha256(json_text([SCHEMA, kind.name, *parts], canonical=True).encode()).hexdigest()[:32])


class Recalled(NamedTuple, Generic[T]):
    """A value from the store; or None, with a sentence if there is a file that cannot be used."""

    value: T | None
    why_not: str = ""

    def warned(self) -> T | None:
        """Return the value; warn, once in a process, if a file cannot be used."""
        if self.why_not:
            warn_once(self.why_not)
        return self.value


def recall(place: Item, read: Callable[[dict[str, Any]], T]) -> Recalled[T]:
    """Return what `read` makes of an item's document; None, with a sentence, if its file cannot be used.

    Never raises and never waits, whatever the file contains, so that no rank leaves the others waiting. If there is no
    file, there is no sentence.
    """
    path = None
    try:
        path = place.path
        return Recalled(read(_document(path, place.kind)))
    except FileNotFoundError:
        return Recalled(None)
    except Exception as error:  # a malformed file may make `read` raise anything
        what = f"the cached {place.kind.what}{f' {path}' if path else ''} is not used: {_why(error)}"
        return Recalled(None, f"{what}. Try: dovetail cache clear --kind {place.kind.name}")


def save(place: Item, about: str, document: Mapping[str, Any]) -> Path | None:
    """Save the document of an item and return its file; None, with a warning, if it cannot be written.

    Replaces the whole file; if several processes save an item at once, the last one wins. `about`: a description for
    `dovetail cache list`.
    """
    kind, made = place.kind, datetime.now(UTC).isoformat(timespec="seconds")
    bare = {name: value for name, value in document.items() if not kind.columns or name != "columns"}
    head = {"schema": SCHEMA, "kind": kind.name, "about": about, "made": made}
    text = json_text(head | {"document": bare}).encode()
    try:
        path = place.path
        with replacing(path, CACHED) as partial, partial.open("wb") as file:
            if kind.columns:
                arrays: dict[str, Any] = {**document["columns"], ENVELOPE: np.frombuffer(text, np.uint8)}
                np.savez_compressed(file, **arrays)
            else:
                file.write(text + b"\n")
        _thin(path.parent, kind)
    except (OSError, DovetailError) as error:
        warn_once(f"the {kind.what} ({about}) is not saved: {_why(error)}")
        return None
    return path


@dataclass(frozen=True)
class Entry:
    """A file in the store. `about`: describes its content; `age_s`: seconds since it was written."""

    kind: str
    about: str
    num_bytes: int
    age_s: float
    path: Path

    def to_json(self) -> dict[str, Any]:
        """Return the fields, the path as text."""
        return {**vars(self), "path": str(self.path)}


def entries(kinds: Iterable[str] = FOLDERS) -> Iterator[Entry]:
    """Yield every file of these kinds, the newest of each kind first; `libraries` are compiled libraries."""
    now, root = time.time(), cache_dir()
    for name in kinds:
        found = []
        for path in (root / name).iterdir() if (root / name).is_dir() else ():
            with suppress(FileNotFoundError):  # removed meanwhile
                facts = path.lstat()
                age_s = max(now - facts.st_mtime, 0.0)
                if not stat.S_ISDIR(facts.st_mode) and not (path.name.startswith(".") and age_s < PARTIAL_S):
                    found.append(Entry(name, _about(path, name), facts.st_size, age_s, path))
        yield from sorted(found, key=lambda entry: (entry.age_s, entry.path))


def clear(kinds: Iterable[str] = FOLDERS, older_than_s: float = 0.0) -> list[Entry]:
    """Remove files of these kinds of at least the given age; return what was removed.

    Raises OSError for a file that cannot be removed. Running programs are not disturbed.
    """
    removed = [entry for entry in entries(kinds) if entry.age_s >= older_than_s]
    for entry in removed:
        entry.path.unlink(missing_ok=True)
    return removed


def _document(path: Path, kind: Kind) -> dict[str, Any]:
    """Return the document in a file, and mark the file as used now. Raises an error of any kind if it is malformed."""
    envelope, columns = _contents(path, kind)
    document = _opened(envelope, kind)
    with suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return document | {"columns": columns} if kind.columns else document


def _contents(path: Path, kind: Kind, *, with_columns: bool = True) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the envelope in a file, and the columns beside it."""
    if danger := file_danger(path):
        raise DovetailError(danger)
    with path.open("rb") as file:
        if not kind.columns:
            return json.load(file), {}
        with np.load(file) as held:
            names = [name for name in held.files if with_columns and name != ENVELOPE]
            return json.loads(held[ENVELOPE].tobytes()), {name: held[name] for name in names}


def _opened(envelope: Any, kind: Kind) -> dict[str, Any]:
    """Return the document in an envelope. Raises DovetailError if its version or kind is another."""
    if not isinstance(envelope, dict):
        raise DovetailError("the file contains no JSON object", found=type(envelope).__name__)
    check_schema(envelope, SCHEMA)
    document = envelope.get("document")
    if envelope.get("kind") != kind.name or not isinstance(document, dict):
        raise DovetailError(
            f"the file contains no document of kind '{kind.name}'", found=f"kind {envelope.get('kind')!r}"
        )
    return document


def _about(path: Path, name: str) -> str:
    """Return a sentence that describes a file."""
    if path.name.startswith("."):
        return "left by a process that was killed while it wrote"
    if name == LIBRARIES:
        return f"{'C source' if path.suffix == '.c' else 'compiled'} {path.stem.rpartition('-')[0] or path.stem}"
    try:
        envelope, _ = _contents(path, KINDS[name], with_columns=False)
        _opened(envelope, KINDS[name])
        return str(envelope["about"])
    except Exception as error:  # a malformed file may raise anything
        return f"cannot be used: {_why(error)}"


def _why(error: Exception) -> str:
    if isinstance(error, DovetailError):
        return f"{error.what} (found {error.found})" if error.found else error.what
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"the file is truncated or corrupted ({type(error).__name__}: {error})"


def _thin(folder: Path, kind: Kind) -> None:
    """Remove the least recently used files beyond the limit of a kind."""
    used = {}
    for path in folder.glob(f"*{kind.ending}"):
        with suppress(FileNotFoundError):
            facts = path.stat()
            used[path] = max(facts.st_atime_ns, facts.st_mtime_ns)
    for path in sorted(used, key=used.__getitem__)[: -kind.most]:
        path.unlink(missing_ok=True)
