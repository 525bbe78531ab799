"""sites: source lines of calls, from addresses and debug information, or from recorded Python lines."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import find_tool
from dovetail.trace.trace import Trace


def call_sites(trace: Trace, rows: Any) -> list[str]:
    """Return the call site of each of the rows: `file.c:42` or `file.py:42`, else `program+0x1234`, else ""."""
    col = trace.columns
    key = np.stack([col["rank"][rows].astype("i8"), col["arg"][rows]], axis=1)
    distinct, inverse = np.unique(key, axis=0, return_inverse=True)
    maps = {int(about["rank"]): about.get("maps", ()) for about in trace.meta.get("ranks", ())}
    noted = {int(about["rank"]): about.get("lines", {}) for about in trace.meta.get("ranks", ())}
    lines = [noted.get(rank, {}).get(str(-address), "") for rank, address in distinct.tolist()]
    places = [_place(maps.get(rank, ()), address) for rank, address in distinct.tolist()]
    known = _lines({place for place in places if place})
    texts = [known.get(place, "") if place else Path(line).name for place, line in zip(places, lines, strict=True)]
    return [texts[i] for i in inverse.ravel().tolist()]


def _place(maps: Sequence[Mapping[str, Any]], address: int) -> tuple[str, int] | None:
    """Return the binary file of a return address, and the offset of the call in it; None if unknown.

    The call instruction lies just before its return address.
    """
    for entry in maps:
        if entry["start"] <= address < entry["end"]:
            return str(entry["map"]), address - 1 - entry["start"] + entry["offset"]
    return None


def _lines(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return source lines of places, by one run of addr2line per file; `file+offset` if the line is unknown."""
    offsets: dict[str, list[int]] = {}
    for path, offset in sorted(places):
        offsets.setdefault(path, []).append(offset)
    tool = find_tool("addr2line", "llvm-addr2line")
    found = {}
    for path, those in offsets.items():
        asked = [tool, "-e", path, *map(hex, those)] if tool and Path(path).exists() else None
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout if asked else ""
        lines = answer.splitlines()
        for i, offset in enumerate(those):
            line = lines[i].split(" (discriminator")[0] if i < len(lines) else "??"
            is_known = "?" not in line and not line.endswith(":0")
            found[path, offset] = Path(line).name if is_known else f"{Path(path).name}+{offset:#x}"
    return found
