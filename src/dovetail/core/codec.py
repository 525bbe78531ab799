"""JSON on disk: a `schema` field first, files replaced whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core.errors import DovetailError, EnvironmentFault


def save_text(path: str | Path, text: str) -> Path:
    """Write `text` to `path` in one step: readers see the old file or the new one, never half."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {target}", found=error.strerror or str(error), hint="choose another place with --out"
        ) from error
    return target


def save_json(path: str | Path, document: Mapping[str, Any]) -> Path:
    """Write a JSON document; numpy numbers and arrays become plain ones."""
    return save_text(path, json.dumps(document, default=_plain) + "\n")


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


def check_schema(document: Mapping[str, Any], schema: str) -> None:
    """Refuse a document of another kind or version.

    >>> check_schema({"schema": "dovetail.plan/2"}, "dovetail.plan/2")
    """
    found = document.get("schema")
    if found != schema:
        raise DovetailError(f"expected a document of schema '{schema}'", found=f"schema {found!r}")


@contextmanager
def reading(what: str, kind: type[DovetailError] = DovetailError) -> Iterator[None]:
    """While a document is read: what Python says of one that is not as it should be becomes an error of ours.

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
