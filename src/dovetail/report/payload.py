"""payload: data of the HTML page: timelines and span texts as compressed typed arrays in base64."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Program
from dovetail.report.op_details import OpDetails, details_of
from dovetail.report.span_classes import GROUPS, MPI_GROUPS, span_groups
from dovetail.report.tracks import tracks
from dovetail.timeline import Timeline

_ALIGN = 8


def encode(runs: Sequence[tuple[Timeline, Program | OpDetails | None]]) -> str:
    """Return timelines and details of their ops, packed (`_pack`), deflated and in base64."""
    arrays: dict[str, NDArray[Any]] = {}
    distinct = list({id(p): p for _, p in runs if p is not None}.values())
    rows = {id(p): row for row, p in enumerate(distinct)}
    outside = [p.outside for p in distinct if isinstance(p, OpDetails) and p.classes is not None]
    groups = (MPI_GROUPS[0]._replace(name=outside[0]), *MPI_GROUPS[1:]) if outside else GROUPS
    head = {
        "groups": [list(group) for group in groups],
        "timelines": [
            _timeline(arrays, f"t{i}", t, p, -1 if p is None else rows[id(p)]) for i, (t, p) in enumerate(runs)
        ],
        "programs": [_details(arrays, f"p{i}", details_of(p)) for i, p in enumerate(distinct)],
    }
    return b64encode(zlib.compress(_pack(head, arrays), 6)).decode("ascii")


def _timeline(
    arrays: dict[str, NDArray[Any]], key: str, timeline: Timeline, program: Program | OpDetails | None, row: int
) -> dict[str, Any]:
    """Add the spans of one timeline to `arrays`, in the order of its tracks; return its part of the header."""
    found, order = tracks(timeline)
    col = timeline.columns
    start = col["start_s"][order]
    arrays[f"{key}.start"] = start.astype("<f8")
    arrays[f"{key}.dur"] = np.maximum(col["end_s"][order] - start, 0).astype("<f4")
    arrays[f"{key}.name"] = col["name"][order].astype("<i4")
    arrays[f"{key}.op"] = col["op"][order].astype("<i4")
    arrays[f"{key}.bytes"] = col["num_bytes"][order].astype("<f8")
    if isinstance(program, OpDetails) and program.classes is not None:
        arrays[f"{key}.group"] = program.classes.astype(np.uint8)[order]
    else:
        arrays[f"{key}.group"] = span_groups(timeline, program if isinstance(program, Program) else None)[order]
    return {
        "label": timeline.label,
        "title": str(timeline.meta.get("schedule", "")),
        "clock_error_s": timeline.meta.get("clock_error_s"),
        "makespan_s": timeline.makespan_s,
        "program": row,
        "lanes": list(timeline.lanes),
        "names": list(timeline.names),
        "tracks": [list(track) for track in found],
    }


def _details(arrays: dict[str, NDArray[Any]], key: str, details: OpDetails) -> dict[str, Any]:
    """Add texts, source lines and messages of the ops to `arrays`; return their part of the header."""
    texts = "\n".join(text.replace("\n", " ") for text in details.texts)
    arrays[f"{key}.text"] = np.frombuffer(texts.encode("utf-8", "replace"), dtype=np.uint8)
    for name in ("line", "sender", "taker", "dep_start", "dep"):
        arrays[f"{key}.{name}"] = getattr(details, name).astype("<i4")
    return {"name": details.name, "lines": list(details.lines), "num_ops": len(details.line)}


def _pack(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the length of the header (u32), the header as JSON, then the arrays at the offsets given in the header."""
    places, chunks, offset = {}, [], 0
    for name, array in arrays.items():
        data = array.tobytes()
        places[name] = [array.dtype.str.lstrip("<|"), offset, len(array)]
        chunks += [data, bytes(-len(data) % _ALIGN)]
        offset += len(data) + -len(data) % _ALIGN
    text = json.dumps({**head, "arrays": places}, separators=(",", ":"), default=str).encode("utf-8")
    text += b" " * (-(len(text) + 4) % _ALIGN)
    return b"".join([len(text).to_bytes(4, "little"), text, *chunks])
