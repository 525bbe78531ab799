"""words: name calls in advice as the traced program does; say what its trace does not show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.trace import Trace, TraceFile


def renaming(words: Mapping[str, str]) -> Callable[[str], str]:
    """Return what replaces names of MPI's calls in a text by the program's own. `words`: these by MPI's.

    >>> renaming({"MPI_Allreduce": "all_reduce", "MPI_Wait": "work.wait()"})("MPI_Allreduce, MPI_Waitall, MPI_Wait")
    'all_reduce, MPI_Waitall, work.wait()'
    """
    if not words:
        return str
    pattern = re.compile("|".join(rf"{re.escape(name)}\b" for name in words))
    return lambda text: pattern.sub(lambda found: words[found[0]], text)


def in_words(advice: Any, words: Mapping[str, str]) -> Any:
    """Return an Advice with calls named as in the traced program."""
    say = renaming(words)

    def said(it: Any) -> Any:
        texts = {name: say(getattr(it, name)) for name in ("where", "evidence", "action", "instead_of")}
        return replace(it, root=(it.root[0], say(it.root[1])), **texts)

    findings, doubtful = (tuple(map(said, those)) for those in (advice.findings, advice.doubtful))
    return replace(advice, findings=findings, doubtful=doubtful, notes=tuple(map(say, advice.notes)))


def hidden_notes(trace: Trace | TraceFile) -> Iterator[str]:
    """Yield sentences if the trace does not show which work is I/O, or pickling."""
    ranks = trace.meta.get("ranks", ({},))
    if any(Path(about.get("program", "")).name.startswith("python") and not about.get("lines") for about in ranks):
        yield "Pickling by mpi4py counts as work: `trace run --python` records it, and the lines of the program."
    if not all(about.get("has_io") for about in ranks):
        yield "Time in read, write and fsync is unknown: this trace was recorded without it, and it counts as work."
