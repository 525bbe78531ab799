"""words: name calls in advice as the traced program does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any


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
