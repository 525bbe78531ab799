"""layers: what became of the layers of a model whose plan was given to `overlapped`, for `explain`."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

_notes: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


def note(group: Any, text: str) -> None:
    """Record what became of a layer on a group."""
    texts = _notes.setdefault(group, {})
    texts[text] = texts.get(text, 0) + 1


def noted(group: Any = None) -> list[str]:
    """Return what was recorded, of one group or of all: each text once, with the number of layers."""
    found = [texts for each, texts in list(_notes.items()) if group is None or each is group]
    return [text + (f" ({count} times)" if count > 1 else "") for texts in found for text, count in texts.items()]
