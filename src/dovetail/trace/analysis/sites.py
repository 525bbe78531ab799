"""sites: source lines of calls, from addresses and debug information, or from recorded lines and chains of calls."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import find_tool
from dovetail.trace.trace import Trace

SHOWN = 6  # callers of a call; of longer chains the innermost
_STARTS = re.compile(r"(libc|ld-linux|libpthread)\b.*\.so")  # what calls a program's main, or a thread's function


def call_sites(trace: Trace, rows: Any) -> list[str]:
    """Return the call site of each of the rows: `file.c:42` or `file.py:42`, else `program+0x1234`, else "".

    If the calls that led there were recorded: `file.c:42 from main.c:7`, the innermost first.
    """
    col = trace.columns
    key = np.stack([col["rank"][rows].astype("i8"), col["arg"][rows]], axis=1)
    distinct, inverse = np.unique(key, axis=0, return_inverse=True)
    ranks = {int(about["rank"]): about for about in trace.meta.get("ranks", ())}
    chains = [list(_chain(ranks.get(rank, {}), site)) for rank, site in distinct.tolist()]
    known = _lines({place for chain in chains for place in chain if not isinstance(place, str)})
    texts = [_text([place if isinstance(place, str) else known[place] for place in chain]) for chain in chains]
    return [texts[i] for i in inverse.ravel().tolist()]


_Place = str | tuple[str, int]  # a line, or a binary file and an offset in it


def _chain(about: Mapping[str, Any], site: int) -> Iterator[_Place]:
    """Yield the place of a call, and those of the calls that led there, up to the function that the system calls."""
    yield from takewhile(lambda place: isinstance(place, str) or not _is_start(place), _places(about, site))


def _is_start(place: tuple[str, int]) -> bool:
    return _STARTS.match(Path(place[0]).name) is not None


def _places(about: Mapping[str, Any], site: int) -> Iterator[_Place]:
    lines, paths = about.get("lines", {}), about.get("paths", {})
    call, caller = paths.get(str(-site), (site, 0))
    while True:
        if place := lines.get(str(-call), "") or _place(about.get("maps", ()), call):
            yield Path(place).name if isinstance(place, str) else place
        if str(caller) not in paths:
            return
        call, caller = paths[str(caller)]


def _text(chain: Sequence[str]) -> str:
    shown = [*chain[: SHOWN + 1], *(["…"] if len(chain) > SHOWN + 1 else [])]
    return " from ".join(shown)


def _place(maps: Sequence[Mapping[str, Any]], address: int) -> tuple[str, int] | None:
    """Return the binary file of a return address, and the offset of the call in it; None if unknown.

    The call instruction lies just before its return address.
    """
    for entry in maps:
        if entry["start"] <= address < entry["end"]:
            return str(entry["map"]), address - 1 - entry["start"] + entry["offset"]
    return None


def _lines(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return source lines of places, by one run of addr2line per file; `file+offset` if the line is unknown.

    LLVM's comes first: that of binutils 2.40 names a program's main file in place of the first header of DWARF 5.
    """
    offsets: dict[str, list[int]] = {}
    for path, offset in sorted(places):
        offsets.setdefault(path, []).append(offset)
    tool = find_tool("llvm-addr2line", "addr2line")
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
