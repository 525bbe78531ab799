"""Store: what is kept between runs. See store.py for the kinds, the format and what becomes of a broken file."""

from dovetail.store.store import KINDS, Entry, Item, Kind, Recalled, clear, entries, item, recall, save

__all__ = ["KINDS", "Entry", "Item", "Kind", "Recalled", "clear", "entries", "item", "recall", "save"]
