"""ring: each chunk travels around a ring of ranks: a first round adds it up, a second round copies the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.collective.algorithm import Algorithm
from dovetail.collective.ref import Ref

Part = tuple[int, int]  # index and count of a chunk


def ring_all_reduce(num_ranks: int, *, channels: int = 1, in_place: bool = True, **settings: Any) -> Algorithm:
    """Reduce-scatter, then all-gather around the ring: 2·(R − 1) steps, bandwidth-optimal (seed 002, section 7.1.1).

    Chunk i uses channel i mod `channels`.
    """
    chunks = num_ranks * _parts(num_ranks, channels)
    p = Algorithm("ring_all_reduce", "all_reduce", num_ranks, chunks=chunks, in_place=in_place, **settings)
    ring, parts = range(num_ranks), [(i, 1) for i in range(chunks)]
    sums = add_around(p, ring, parts, channels=channels)
    sums = [total.copy(total.rank, "output", i) for i, total in enumerate(sums)]
    copy_around(p, ring, sums, channels=channels)
    return p


def ring_all_gather(
    num_ranks: int, *, channels: int = 1, in_place: bool = False, kind: str = "all_gather", **settings: Any
) -> Algorithm:
    """Each rank's part travels once around the ring: R − 1 steps."""
    parts = _parts(num_ranks, channels)
    p = Algorithm(f"ring_{kind}", kind, num_ranks, chunks=parts, in_place=in_place, **settings)
    own = [(rank, part) for rank in range(num_ranks) for part in range(parts)]
    held = [p.chunk(rank, "input", part).copy(rank, "output", rank * parts + part) for rank, part in own]
    copy_around(p, range(num_ranks), held, channels=channels)
    return p


def ring_reduce_scatter(
    num_ranks: int, *, channels: int = 1, in_place: bool = False, kind: str = "reduce_scatter", **settings: Any
) -> Algorithm:
    """Each rank's part is added up on its way around the ring to the rank: R − 1 steps. Partial sums are in scratch."""
    parts = _parts(num_ranks, channels)
    p = Algorithm(f"ring_{kind}", kind, num_ranks, chunks=parts, in_place=in_place, **settings)
    sums = add_around(
        p, range(num_ranks), [(i, 1) for i in range(num_ranks * parts)], into="partial", channels=channels
    )
    for i, total in enumerate(sums):
        total.copy(total.rank, "output", i % parts)
    return p


def add_around(
    p: Algorithm,
    ring: Sequence[int],
    parts: Sequence[Part],
    *,
    source: str = "input",
    into: str = "output",
    channels: int | None = None,
) -> list[Ref]:
    """Add up chunks of `source` around a ring of ranks; return Refs to the sums.

    The chunks are divided into equal shares, in order; the sums of the k-th share end at the k-th rank of the ring.
    Partial sums are written to the same index of `into` if it is the output, else appended to the scratch `into`.
    """
    n, share = len(ring), len(parts) // len(ring)
    held = [p.chunk(ring[(i // share + 1) % n], source, *part) for i, part in enumerate(parts)]
    for step in range(2, n + 1):
        for i in reversed(range(len(parts))):  # reversed, so that each rank sends before it receives
            here = p.chunk(ring[(i // share + step) % n], source, *parts[i])
            place = parts[i][0] if into == "output" else None
            held[i] = here.reduce(held[i], into, place, ch=None if channels is None else i % channels)
    return held


def copy_around(p: Algorithm, ring: Sequence[int], held: list[Ref], *, channels: int | None = None) -> None:
    """Copy chunks around a ring, to the same place on every rank; the k-th rank has the k-th share of them."""
    n, share = len(ring), len(held) // len(ring)
    for step in range(1, n):
        for i in reversed(range(len(held))):
            held[i] = held[i].copy(ring[(i // share + step) % n], ch=None if channels is None else i % channels)


def _parts(num_ranks: int, channels: int) -> int:
    """Return how many chunks each rank's part needs so that every channel has a chunk."""
    return -(-channels // num_ranks)
