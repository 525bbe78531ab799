"""codec: JSON on disk, with a `schema` field; files are replaced whole or not at all."""

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
CACHED = 0o600  # mode of files in the cache: this user's alone


def save_text(path: str | Path, text: str, mode: int = 0o666) -> Path:
    """Write `text` to `path` in one step: readers see the old file or the new one, never half. `mode` is that of a new
    file, less what the umask takes.

    A device or a pipe, /dev/stdout say, is written to and not replaced; of a symbolic link, the file it leads to is.
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
    """Yield an empty file beside `target`, of a name that no other process uses; it becomes `target` at the end.

    Its mode is `mode` less what the umask takes. It is removed where what is done with it fails.
    """
    partial = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def save_json(path: str | Path, document: Mapping[str, Any], mode: int = 0o666) -> Path:
    """Write a JSON document; numpy numbers and arrays become plain ones."""
    return save_text(path, json_text(document) + "\n", mode)


def json_text(document: Any, *, canonical: bool = False) -> str:
    """Return the JSON text of a document; numpy numbers and arrays become plain ones. `canonical`: equal documents
    have equal texts, for any order of their names.

    >>> json_text({"b": np.int64(1), "a": (2,)}, canonical=True)
    '{"a":[2],"b":1}'
    """
    return json.dumps(document, default=_plain, sort_keys=canonical, separators=(",", ":") if canonical else None)


def load_json(path: str | Path, what: str = "file") -> dict[str, Any]:
    """Read a JSON object, or raise a DovetailError that names the file and the fault."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DovetailError(f"cannot read {what} {path}", found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        hint = "it was cut, or changed by hand: write it anew"
        raise DovetailError(f"{what} {path} is not JSON", found=str(error), hint=hint) from error
    if not isinstance(document, dict):
        raise DovetailError(f"{what} {path} is not a JSON object", found=type(document).__name__)
    return document


def load_document(path: str | Path, read: Callable[[dict[str, Any]], Read], what: str) -> Read:
    """Return what `read` makes of the JSON object in a file; of a folder, in the file `what`.json in it.

    Every DovetailError that `read` raises keeps its class, and names the file.
    """
    place = Path(path)
    place = place / f"{what}.json" if place.is_dir() else place
    document = load_json(place, what)
    try:
        return read(document)
    except DovetailError as error:
        where, found, hint = error.where, error.found, error.hint
        raise type(error)(f"{what} {place}: {error.what}", where=where, found=found, hint=hint) from error


def check_schema(document: Mapping[str, Any], schema: str) -> None:
    """Refuse a document of another kind or version.

    >>> check_schema({"schema": "dovetail.plan/2"}, "dovetail.plan/2")
    """
    found = document.get("schema")
    if found != schema:
        raise DovetailError(f"expected a document of schema '{schema}'", found=f"schema {found!r}")


@contextmanager
def reading(what: str, kind: type[DovetailError] = DovetailError) -> Iterator[None]:
    """Convert Python's exceptions on a malformed document (KeyError, TypeError, …) into a `kind` while reading it.

    >>> with reading("recipe"):
    ...     {}["flour"]
    Traceback (most recent call last):
    ...
    dovetail.core.errors.DovetailError: malformed recipe
      found       KeyError: 'flour'
    """
    try:
        yield
    except DovetailError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise kind(f"malformed {what}", found=f"{type(error).__name__}: {error}") from error


def read_arrays(document: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The named columns of `document` as read-only 1-D arrays of the given dtypes.

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
