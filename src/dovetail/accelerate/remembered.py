"""remembered: answers of compilers and `ldd` about a command, until a file that they depend on changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.accelerate.counter import SOURCES
from dovetail.core import check_schema
from dovetail.store.store import LAUNCHES, Item, Recalled, item, recall, save
from dovetail.trace.recorder.gate import HEADERS
from dovetail.trace.recorder.launch import executable

SCHEMA = "dovetail.accelerate.launch/1"
_VARIABLES = ("PATH", "CC", "LD_", "PYTHON", "MPI4PY", "VIRTUAL_ENV", "CONDA", "MPICH_", "OMPI_", "DOVETAIL_")
Mark = list[Any]


def remembered(what: str, words: Sequence[str], find: Callable[[], tuple[Any, list[Path]]]) -> Any:
    """Return the answer of `find` about a command, from the store if it was found before.

    Parameters
    ----------
    what : str
        The question: another one has another answer.
    words : sequence of str
        The command.
    find : callable
        Returns the answer, as JSON has it, and the files that the answer depends on: beside the programs of the
        command, our sources and the environment, which are always considered. What it raises is not remembered.
    """
    place = answer_item(what, words)
    found = recall_answer(place).value
    if found is not None:
        return found["answer"]
    answer, files = find()
    save_answer(place, f"{what}: {' '.join(words)[:80]}", answer, files)
    return answer


def answer_item(what: str, words: Sequence[str]) -> Item:
    """Return the item for a question about a command."""
    programs = [path for word in words if (path := executable(word))]
    return item(LAUNCHES, what, list(words), sys.executable, _environment(), _marks([*programs, *_own_files()]))


def recall_answer(place: Item) -> Recalled[Mapping[str, Any] | None]:
    """Return the document with the `answer`; None if there is none, or if a file that it depends on has changed."""
    return recall(place, _read)


def save_answer(place: Item, about: str, answer: Any, files: Iterable[Path]) -> Path | None:
    """Save an answer and the state of the files that it depends on; None, with a warning, if it cannot be written."""
    return save(place, about, {"schema": SCHEMA, "answer": answer, "files": _marks(files)})


def _read(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a document whose files are unchanged, else None."""
    check_schema(document, SCHEMA)
    marks = document["files"]
    return document if marks == _marks(Path(mark[0]) for mark in marks) else None


def _marks(paths: Iterable[Path]) -> list[Mark]:
    """Return each file's path, size and time; of a missing one the path alone."""
    return [_mark(path) for path in paths]


def _mark(path: Path) -> Mark:
    try:
        facts = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), facts.st_size, facts.st_mtime_ns]


def _own_files() -> list[Path]:
    """Return the sources that the wrappers and the gate are made of."""
    package = Path(__file__).parents[1]
    folders = (SOURCES, HEADERS, package / "accelerate", package / "trace" / "recorder")
    return [path for folder in folders for ending in ("*.h", "*.py") for path in sorted(folder.glob(ending))]


def _environment() -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
