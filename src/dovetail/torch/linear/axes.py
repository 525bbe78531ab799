"""axes: a tensor of any number of axes as one of three: the axis that is gathered or cut, all others, the last."""

from __future__ import annotations

from typing import Any


def merged(tensor: Any, place: int) -> Any:
    """Return (rows of axis `place`, all other axes but the last, last axis), the second joined."""
    moved = tensor.movedim(place, 0)
    return moved.reshape(moved.shape[0], moved.shape[1:-1].numel(), moved.shape[-1])


def unmerged(merged: Any, shape: Any, place: int) -> Any:
    """Undo `merged` for a tensor that had this shape; axis `place` and the last may have other lengths now."""
    others = [size for axis, size in enumerate(shape[:-1]) if axis != place]
    return merged.reshape(merged.shape[0], *others, merged.shape[-1]).movedim(0, place)
