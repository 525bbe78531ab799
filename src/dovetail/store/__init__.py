"""store: files saved between runs. See store.py for the kinds, the format, and the handling of broken files."""

from dovetail.store.store import KINDS, Entry, Item, Kind, Recalled, clear, entries, item, recall, save

__all__ = ["KINDS", "Entry", "Item", "Kind", "Recalled", "clear", "entries", "item", "recall", "save"]
