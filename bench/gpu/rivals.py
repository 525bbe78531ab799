"""What Dovetail is held against on a CUDA device: PyTorch's own way to overlap, with the same transfers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from dovetail.matmul import AllGatherMatmul

CHUNKS = (1, 2, 4, 8)
NO_PYTORCH = "no PyTorch here that has a device"


def two_streams(operator: Any, ranks: int, chunks: int) -> list[float] | None:
    """Seconds of `operator` in `chunks` by PyTorch on two streams, repeated; None where no PyTorch has a device.

    Copies from and to pinned memory of the host on one stream, products of what has come on another, as a careful user
    would write it: an event for each chunk.
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    return _times(torch, _once(torch, operator, ranks, chunks))


def two_streams_call_s(operator: Any, ranks: int, chunks: int, repeats: int = 60) -> tuple[float, float] | None:
    """The same as seconds of the calling thread, from the call until its results are there; and of the device."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    once, spent = _once(torch, operator, ranks, chunks), []
    for _ in range(repeats):
        begin = time.perf_counter()
        once()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent[repeats // 3 :]), _median_s(torch, once, 20)


def _once(torch: Any, operator: Any, ranks: int, chunks: int) -> Callable[[], None]:
    make = _gathered if isinstance(operator, AllGatherMatmul) else _scattered
    return make(torch, operator, ranks, chunks)


def _median_s(torch: Any, once: Callable[[], None], repeats: int = 7) -> float:
    return statistics.median(_times(torch, once, repeats))


def _times(torch: Any, once: Callable[[], None], repeats: int = 7) -> list[float]:
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        once()
        end.record()
        torch.cuda.synchronize()
        times.append(1e-3 * begin.elapsed_time(end))
    return times[2:]


def _gathered(torch: Any, operator: Any, ranks: int, chunks: int) -> Callable[[], None]:
    """Each peer's rows come in chunks; each chunk is multiplied once it is there; our own rows go to every peer."""
    dtype, rows, columns = getattr(torch, operator.dtype), operator.m // ranks, operator.n // ranks
    mine, b = (
        torch.randn(rows, operator.k, device="cuda").to(dtype),
        torch.randn(operator.k, columns, device="cuda").to(dtype),
    )
    peers = [torch.randn(rows, operator.k).to(dtype).pin_memory() for _ in range(ranks - 1)]
    sinks = [torch.empty(rows, operator.k, dtype=dtype).pin_memory() for _ in range(ranks - 1)]
    whole, c = (
        torch.empty(operator.m, operator.k, dtype=dtype, device="cuda"),
        torch.empty(operator.m, columns, dtype=dtype, device="cuda"),
    )
    copies, sends = torch.cuda.Stream(), torch.cuda.Stream()

    def once() -> None:
        main = torch.cuda.current_stream()
        copies.wait_stream(main), sends.wait_stream(main)
        with torch.cuda.stream(sends):
            for sink in sinks:
                sink.copy_(mine, non_blocking=True)
        torch.mm(mine, b, out=c[:rows])
        for peer, held in enumerate(peers, 1):
            span = slice(peer * rows, (peer + 1) * rows)
            cut = (part.chunk(chunks) for part in (held, whole[span], c[span]))
            for there, here, out in zip(*cut, strict=True):
                with torch.cuda.stream(copies):
                    here.copy_(there, non_blocking=True)
                    came = torch.cuda.Event()
                    came.record()
                main.wait_event(came)
                torch.mm(here, b, out=out)
        main.wait_stream(copies), main.wait_stream(sends)

    return once


def _scattered(torch: Any, operator: Any, ranks: int, chunks: int) -> Callable[[], None]:
    """Each peer's part is multiplied and sent in chunks; the peers' parts for us come and are added up."""
    dtype, rows, depth = getattr(torch, operator.dtype), operator.m // ranks, operator.k // ranks
    a, b = (
        torch.randn(operator.m, depth, device="cuda").to(dtype),
        torch.randn(depth, operator.n, device="cuda").to(dtype),
    )
    partial = torch.empty(operator.m, operator.n, dtype=dtype, device="cuda")
    theirs = [torch.randn(rows, operator.n).to(dtype).pin_memory() for _ in range(ranks - 1)]
    sinks = [torch.empty(rows, operator.n, dtype=dtype).pin_memory() for _ in range(ranks - 1)]
    here = [torch.empty(rows, operator.n, dtype=dtype, device="cuda") for _ in range(ranks - 1)]
    copies, sends = torch.cuda.Stream(), torch.cuda.Stream()

    def once() -> None:
        main = torch.cuda.current_stream()
        copies.wait_stream(main), sends.wait_stream(main)
        with torch.cuda.stream(copies):
            for there, to in zip(theirs, here, strict=True):
                to.copy_(there, non_blocking=True)
        for peer, sink in enumerate(sinks, 1):
            span = slice(peer * rows, (peer + 1) * rows)
            cut = (part.chunk(chunks) for part in (a[span], partial[span], sink))
            for rows_of, out, to in zip(*cut, strict=True):
                torch.mm(rows_of, b, out=out)
                made = torch.cuda.Event()
                made.record()
                with torch.cuda.stream(sends):
                    sends.wait_event(made)
                    to.copy_(out, non_blocking=True)
        torch.mm(a[:rows], b, out=partial[:rows])
        main.wait_stream(copies)
        for part in here:
            partial[:rows] += part
        main.wait_stream(sends)

    return once


def plain_add(num_bytes: int, repeats: int = 7) -> float | None:
    """Seconds of PyTorch's own sum of two arrays of so many bytes, in place; None where there is no device for it."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    a, b = (torch.randn(num_bytes // 4, device="cuda") for _ in range(2))
    return _median_s(torch, lambda: a.add_(b), repeats)
