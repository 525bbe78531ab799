"""Process files for tests of `trace`, as native/trace writes them, from lists of events."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.trace.process_file import _HEAD, MAGIC, PAGE, EventKind

EVENT = np.dtype([("word", "u8"), ("about", "u8")])
NAMES = {1: "MPI_Send", 2: "MPI_Recv", 3: "work", 4: "MPI_Isend", 5: "MPI_Irecv", 6: "MPI_Waitall", 7: "MPI_Send_init"}
NAMES |= {8: "MPI_Start", 9: "MPI_Mprobe", 10: "MPI_Mrecv", 11: "MPI_Allreduce", 12: "MPI_Bcast", 13: "MPI_Reduce"}
NAMES |= {14: "MPI_Sendrecv", 15: "MPI_Test"}


def event(kind: str, word: int, field: int = 0, arg: int = 0) -> tuple[int, int]:
    """One event as its two words."""
    return word % (1 << 64), (arg << 16 | (field & 4095) << 4 | int(EventKind[kind])) % (1 << 64)


def pair(high: int, low: int) -> int:
    return (high % (1 << 32)) << 32 | low % (1 << 32)


def write_process(
    folder: Path,
    rank: int,
    threads: Mapping[int, Any],
    *,
    num_ranks: int = 2,
    capacity: int = 1 << 16,
    raw_ns: tuple[int, int] = (0, 1 << 40),
    notes: Sequence[Mapping[str, Any]] = (),
    host: str = "host",
) -> Path:
    """The file of one rank whose event clock counts from 0 to 2^40; the events of each thread fill segments."""
    folder.mkdir(parents=True, exist_ok=True)
    path, segments = folder / f"host-{rank}.dvt", []
    for thread, given in threads.items():
        events = np.array(given, EVENT) if not isinstance(given, np.ndarray) else given
        for part, at in enumerate(range(0, len(events), capacity - 1)):
            mark = np.array([event("thread", pair(thread, part))], EVENT)
            segments.append((thread, np.concatenate([mark, events[at : at + capacity - 1]])))
    numbers = (0x01020304, PAGE, PAGE + 16 * capacity, len(segments), 0, 1, 2, 4000 + rank, rank, num_ranks, 0)
    anchors = (0, raw_ns[0], 10**18, 1 << 40, raw_ns[1], 10**18 + (1 << 40))
    head = struct.pack("<" + _HEAD, MAGIC, *numbers, *anchors, host.encode(), b"program")
    with path.open("wb") as file:
        file.write(head.ljust(PAGE, b"\0"))
        for thread, events in segments:
            file.write(struct.pack("<QQ", len(events), thread).ljust(PAGE, b"\0"))
            file.write(events.tobytes().ljust(16 * capacity, b"\0"))
    lines = [{"name": number, "text": text} for number, text in NAMES.items()]
    lines += [{"comm": 0, "size": num_ranks, "number": 0}, *notes]
    path.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def swapped(data: bytes) -> bytes:
    """The file as a machine of the other byte order writes it."""
    words = np.frombuffer(data, "u8").byteswap().tobytes()
    head = np.frombuffer(data[8:48], "u4").byteswap().tobytes()
    return data[:8] + head + words[48:104] + data[104:4096] + words[4096:]
