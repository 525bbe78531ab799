"""written: Programs of many ops are kept in the cache, where they are read in less time than they were written, and
noted there by their content once they were proved."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dovetail
from dovetail.core import DovetailError, cache_dir, is_cached, replacing
from dovetail.ir import Program, Schedule
from dovetail.ir.native import compiled_library
from dovetail.ir.types import COLUMNS

MANY = 1000  # ops, which take some hundredths of a second to write
KEPT = 16  # files; the oldest go
ROOMS = (
    "core",
    "ir",
    "loops",
    "stencil",
    "pipeline",
    "matmul",
    "collective",
    "passes",
)  # whose sources decide what is written, and what proves it
TABLES = "tables"  # what a file has beside the columns
ORDERS = {False: "free", True: "in_order"}


def program_of(operator: Any, schedule: Schedule, ranks: int) -> Program:
    """`operator.program(schedule, ranks)`, read where it was written before. To be proved, unless `known_of` it."""
    place = _folder() / f"{_key(operator, schedule, ranks)}.npz"
    found = _read(place)
    if found is None:
        found = operator.program(schedule, ranks)
        keep_program(operator, schedule, ranks, found)
    assert isinstance(found, Program)
    return found


def keep_program(operator: Any, schedule: Schedule, ranks: int, program: Program) -> None:
    """Puts a Program of a nest that was written already where `program_of` finds it."""
    if program.num_ops >= MANY:
        _keep(_folder() / f"{_key(operator, schedule, ranks)}.npz", program)


class Known(NamedTuple):
    """What was found of a Program: whether it was proved to do what its operator asks, and whether ops of a net lane
    must end one after the other (see `run.engine.needs_order`; None: nobody knows)."""

    is_proved: bool = False
    in_order: bool | None = None


def known_of(operator: Any, schedule: Schedule, program: Program) -> Known:
    """What this very library found of this very Program, op by op; nothing of any other."""
    note = _note(operator, schedule, program)
    with suppress(OSError, ValueError):
        content, order = note.read_text().split() if is_cached(note) else ("", "")
        if content == _content(program):
            return Known(True, order == ORDERS[True])
    return Known()


def keep_proof(operator: Any, schedule: Schedule, program: Program, *, in_order: bool) -> None:
    """Notes that a Program of a nest was proved, and how its net lanes go: by content, whatever the cache may hold."""
    if program.num_ops < MANY:
        return
    place = _note(operator, schedule, program)
    with suppress(OSError), replacing(place) as partial:
        partial.write_text(f"{_content(program)} {ORDERS[in_order]}\n")
    _thin(place)


def _note(operator: Any, schedule: Schedule, program: Program) -> Path:
    return _folder() / f"{_key(operator, schedule, program.num_ranks)}.proved"


def _content(program: Program) -> str:
    """Of every column and table, and of the compiled library that proves."""
    found = hashlib.sha256(compiled_library().read_bytes())
    found.update(json.dumps(program.tables_json([])).encode())
    for name, column in sorted(program.columns.items()):
        found.update(f"{name} {column.dtype} {len(column)}".encode())
        found.update(np.ascontiguousarray(column).data)
    return found.hexdigest()


def _folder() -> Path:
    return cache_dir("programs")


def _key(operator: Any, schedule: Schedule, ranks: int) -> str:
    """Of all that a Program follows from: the nest, not its name alone, and our own sources."""
    nest = getattr(operator, "nest", None)
    text = [str(nest), repr(nest.arrays)] if nest else []
    about = [operator.to_json(), schedule.to_json(), ranks, *text, _sources()]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]


@cache
def _sources() -> str:
    folder, found = Path(dovetail.__file__).parent, hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (folder / room).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def _read(place: Path) -> Program | None:
    """None where there is no such file, or a broken one, or one that somebody else could have written."""
    if not is_cached(place):
        return None
    try:
        with place.open("rb") as file, np.load(file) as held:
            columns = {name: held[name] for name in COLUMNS}
            document = json.loads(held[TABLES].tobytes())
        program = Program.from_json(document | {"columns": columns})
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error, DovetailError):
        return None
    with suppress(OSError):
        os.utime(place)
    return program


def _keep(place: Path, program: Program) -> None:
    """Written beside and moved there, since other ranks may do the same; without room for it, nothing is kept."""
    tables = np.frombuffer(json.dumps(program.tables_json([])).encode(), np.uint8)
    arrays: dict[str, Any] = {**program.columns, TABLES: tables}
    if len(program.posts):
        return
    with suppress(OSError), replacing(place) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    _thin(place)


def _thin(place: Path) -> None:
    """Files of this kind: the oldest go."""
    with suppress(OSError):
        for old in sorted(place.parent.glob(f"*{place.suffix}"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
