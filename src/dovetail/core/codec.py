"""codec: read and write JSON files with a `schema` field. Writing replaces a file atomically."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dovetail.core.errors import DovetailError, EnvironmentFault

Read = TypeVar("Read")
CACHED = 0o600  # mode of files in the cache: only this user can read and write them


def save_text(path: str | Path, text: str, mode: int = 0o666) -> Path:
    """Write `text` to `path` atomically, and return the path: readers see either the old file or the new one.

    Parameters
    ----------
    path : path
        A device or pipe, such as /dev/stdout, is written to, not replaced. For a symbolic link, its target is replaced.
    text : str
        Written as UTF-8.
    mode : int
        Permissions of a new file, before the umask.

    Raises
    ------
    EnvironmentFault
        If the file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
        else:
            with replacing(target.resolve(), mode) as partial:
                partial.write_text(text, encoding="utf-8")
    except (OSError, RuntimeError) as error:
        found = getattr(error, "strerror", None) or str(error)
        hint = "free some space, or choose another place: --out, or for the cache DOVETAIL_CACHE"
        raise EnvironmentFault(f"cannot write {target}", found=found, hint=hint) from error
    return target


@contextmanager
def replacing(target: Path, mode: int = CACHED) -> Iterator[Path]:
    """Yield a new, empty file beside `target`; at the end of the block, rename it to `target`.

    No other process uses its name. `mode`: its permissions, before the umask. If the block fails, the file is removed.
    """
    partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def save_json(path: str | Path, document: Mapping[str, Any], mode: int = 0o666) -> Path:
    """Write a JSON document as `save_text` does, and return its path. NumPy numbers and arrays become Python's."""
    return save_text(path, json_text(document) + "\n", mode)


def json_text(document: Any, *, canonical: bool = False) -> str:
    """Return the JSON text of a document. NumPy numbers and arrays become Python's.

    `canonical`: sort the keys, so that equal documents have equal texts.

    >>> json_text({"b": np.int64(1), "a": (2,)}, canonical=True)
    '{"a":[2],"b":1}'
    """
    return json.dumps(document, default=_plain, sort_keys=canonical, separators=(",", ":") if canonical else None)


def load_json(path: str | Path, what: str = "file") -> dict[str, Any]:
    """Read a JSON object. Raise DovetailError, naming the file and the fault, if it cannot be read."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DovetailError(f"cannot read {what} {path}", found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        hint = "it was truncated, or edited by hand: write it again"
        raise DovetailError(f"{what} {path} is not JSON", found=str(error), hint=hint) from error
    if not isinstance(document, dict):
        raise DovetailError(f"{what} {path} is not a JSON object", found=type(document).__name__)
    return document


def load_document(path: str | Path, read: Callable[[dict[str, Any]], Read], what: str) -> Read:
    """Return `read(document)` for the JSON object in a file; for a folder, in its file `what`.json.

    A DovetailError that `read` raises keeps its class; the file's name is added to its text.
    """
    place = Path(path)
    place = place / f"{what}.json" if place.is_dir() else place
    document = load_json(place, what)
    try:
        return read(document)
    except DovetailError as error:
        where, found, hint = error.where, error.found, error.hint
        raise type(error)(f"{what} {place}: {error.what}", where=where, found=found, hint=hint) from error


def check_schema(document: Any, schema: str) -> None:
    """Raise DovetailError if a document is of another kind or version than `schema`.

    >>> check_schema({"schema": "dovetail.plan/2"}, "dovetail.plan/2")
    >>> check_schema(1e999, "dovetail.plan/2")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.DovetailError: expected a document of schema 'dovetail.plan/2'
      found       inf
    """
    if not isinstance(document, Mapping):
        raise DovetailError(f"expected a document of schema '{schema}'", found=repr(document)[:80])
    found = document.get("schema")
    if found != schema:
        raise DovetailError(f"expected a document of schema '{schema}'", found=f"schema {found!r}")


@contextmanager
def reading(what: str, kind: type[DovetailError] = DovetailError) -> Iterator[None]:
    """Convert Python's exceptions on a malformed document (KeyError, TypeError, …) into the error class `kind`.

    >>> with reading("recipe"):
    ...     {}["flour"]
    Traceback (most recent call last):
    ...
    dovetail.core.errors.DovetailError: malformed recipe
      found       no field 'flour'
    """
    try:
        yield
    except DovetailError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        found = f"no field {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise kind(f"malformed {what}", found=found) from error


def read_arrays(document: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the named columns of `document` as read-only 1-D arrays of the given dtypes.

    Raises DovetailError, naming the column, if one is missing or is not a flat list of numbers.

    >>> read_arrays({"rank": [0, 1]}, {"rank": "i4"})
    {'rank': array([0, 1], dtype=int32)}
    """
    columns = {}
    for name, dtype in dtypes.items():
        try:
            column = np.asarray(document[name], dtype=dtype)
        except KeyError:
            raise DovetailError(f"column '{name}' is missing") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise DovetailError(f"column '{name}' is not a list of numbers", found=str(error)) from error
        if column.ndim != 1:
            raise DovetailError(f"column '{name}' must be a flat list", found=f"{column.ndim} dimensions")
        column.flags.writeable = False
        columns[name] = column
    return columns


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
