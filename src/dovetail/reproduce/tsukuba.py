"""tsukuba: seed 004, a lecture on optimising communication: ping-pong, Exchange and Allreduce, tlog, halo messages."""

from __future__ import annotations

from collections.abc import Iterator
from math import pi

import numpy as np

from dovetail.cost.price import op_bytes
from dovetail.ir import Kind, Schedule
from dovetail.ir.registry import operator_class
from dovetail.reproduce.rows import CONFLICT, MISSED, REPRODUCED, Row, cannot, exact, printed, size
from dovetail.trace.exchange.tlog import COUNT, RECORD

ONE, TWO = "Environment 1, Gigabit Ethernet", "Environment 2, InfiniBand HDR100 x 4"
THEORY, PING, EXCHANGE, ALL_REDUCE = "Point-to-point: theory", "PingPong", "Exchange, 4 nodes", "Allreduce, 4 nodes"
WIDTH = 6 + 2  # values of a row of the counted 3-D stencil, with its edges
TLOG, HALO = "tlog", "Communication blocking: Jacobi"
MIB, KIB = 1 << 20, 1 << 10
GBE_PEAK = 113.1 * MIB  # bytes/s, as printed
GBE_LATENCY_S, GBE_BYTE_S = 200e-6, 563e-6  # of long messages, and the printed time of one byte
LANES, LANE_PEAK = 4, 100e9 / 8  # bytes/s of a lane
IB_LATENCY_S = 8e-6  # of long messages over four lanes
STAMPS = (  # t1, t2, t0, diff of the example's output
    (0.011781, 0.011886, 0.011769, 6.7e-05),
    (0.012911, 0.013015, 0.012877, 8.8e-05),
    (0.014441, 0.014548, 0.014392, 0.000115),
    (0.01623, 0.016335, 0.016285, -2e-06),
    (0.017314, 0.017418, 0.017367, -2e-06),
    (0.018401, 0.018504, 0.018454, 2.5e-06),
)


def rows() -> Iterator[Row]:
    """Yield a row for each figure. Curves are computed from the printed latency and bandwidth; nothing is measured."""
    yield from _peaks()
    yield from _ethernet()
    yield from _infiniband()
    yield from _collectives()
    yield from _tlog()
    yield from _halo()


def share_point(latency_s: float, peak: float, share: float) -> float:
    """Return the bytes at which n / (L + n / B) is `share` of B; for one half, B·L.

    >>> round(share_point(200e-6, 100e6, 0.5)), round(share_point(200e-6, 100e6, 0.9))
    (20000, 180000)
    """
    return share / (1 - share) * latency_s * peak


def _peaks() -> Iterator[Row]:
    """Yield the theoretical peaks."""
    frame, headers = 1500 + 38, 40  # bytes on the wire of a full frame; of IP and TCP within it
    tcp = 1000 * (1500 - headers) / frame
    yield printed(ONE, "peak of TCP", "949", round(tcp, 2), "1460 of 1538 bytes of a frame are data", unit="Mbit/s")
    yield printed(ONE, "the same", "113.1", round(949e6 / 8 / MIB, 3), "949 Mbit/s in MiB/s", unit="MiB/s")
    yield exact(TWO, "peak of four lanes", 400, LANES * 100, "HDR100, 4 lanes", unit="Gbit/s")
    cores, flops = 2 * 12, 2 * 16  # two AVX-512 units, each 8 doubles, multiply and add
    found = cores * 2.6e9 * flops / 1e12
    yield printed(TWO, "a node's Xeons", "2", round(found, 3), "24 cores, 2.6 GHz, 32 FLOP a cycle", unit="TFLOP/s")
    yield exact(TWO, "a node's GPUs", 28, 4 * 7, "four V100 of 7 TFLOP/s, double precision", unit="TFLOP/s")


def _ethernet() -> Iterator[Row]:
    """Yield the readings of the ping-pong by Ethernet."""
    n_half = share_point(GBE_LATENCY_S, GBE_PEAK, 0.5)
    why = f"B·L of the printed curve (200 µs, 113.1 MiB/s) is {n_half / KIB:.1f} KiB, within one doubling"
    yield size(PING, "environment 1: half of the peak from", 16 * KIB, round(n_half), why)
    most = share_point(GBE_LATENCY_S, GBE_PEAK, 0.9)
    why = f"long messages are said to follow the curve of 200 µs, which is at 90 % from {most / KIB:.0f} KiB,"
    why += " and at 96 % at 512 KiB"
    yield size(PING, "environment 1: 90 % of the peak from", 512 * KIB, round(most), why, otherwise=CONFLICT)
    at_half_s = 16 * KIB / (GBE_PEAK / 2)
    why = f"16 KiB at half of the peak take at most {at_half_s * 1e6:.0f} µs, which is less than this one byte takes;"
    why += " 56.3 µs would fit"
    yield Row(PING, "environment 1: time of one byte", 563, None, CONFLICT, why, unit="us")
    why = "read off the plot of long messages; only their cluster gives it"
    yield cannot(PING, "environment 1: latency of long messages", 200, why, unit="us")


def _infiniband() -> Iterator[Row]:
    """Yield the readings of the ping-pong by InfiniBand."""
    peak = LANES * LANE_PEAK
    n_half = share_point(IB_LATENCY_S, peak, 0.5)
    why = f"B·L of the printed curve (8 µs, 400 Gbit/s) is {n_half / KIB:.0f} KiB, within one doubling"
    yield size(PING, "environment 2: half of the peak from", 256 * KIB, round(n_half), why)
    n_half = share_point(IB_LATENCY_S, LANE_PEAK, 0.5)
    why = f"the same with one lane of 100 Gbit/s, its latency assumed alike: {n_half / KIB:.0f} KiB"
    yield size(PING, "environment 2, one lane: half of the peak from", 64 * KIB, round(n_half), why)
    why = "a threshold of their UCX (UCX_RNDV_THRESH); `dovetail probe links` finds it on a machine at hand, by the"
    why += " late-receiver test"
    yield cannot(PING, "environment 2: eager and rendezvous cross at", 16 * KIB, why, unit="bytes")
    why = "read off the plot of long messages; only their cluster gives it"
    yield cannot(PING, "environment 2: latency of long messages", 8, why, unit="us")
    gain = [_bandwidth(MIB, each * LANE_PEAK) for each in (LANES, 1)]
    ratio = gain[0] / gain[1]
    verdict = REPRODUCED if ratio > 2 else MISSED
    why = "L + n / B at 1 MiB with four lanes over one"
    yield Row(PING, "environment 2: four lanes over one", "over 2", round(ratio, 2), verdict, why, unit="x")


def _bandwidth(num_bytes: float, peak: float) -> float:
    return num_bytes / (IB_LATENCY_S + num_bytes / peak)


def _collectives() -> Iterator[Row]:
    """Yield the readings of Exchange and Allreduce. Each rank sends 2n bytes: half of the peak at 2n = B·L."""
    yield printed(EXCHANGE, "environment 1: peak", "226.2", 2 * 113.1, "both directions", unit="MiB/s")
    for name, theirs, point in (
        ("environment 1", 16 * KIB, share_point(GBE_LATENCY_S, GBE_PEAK, 0.5) / 2),
        ("environment 2", 256 * KIB, share_point(IB_LATENCY_S, LANES * LANE_PEAK, 0.5) / 2),
    ):
        why = f"4n / (L + 2n / B), L and B of the ping-pong: {point / KIB:.0f} KiB"
        yield size(EXCHANGE, f"{name}: half of the peak from", theirs, round(point), why)
    why = "a dip needs what is not printed: the switch's buffer, TCP's time-outs, or the library's protocols."
    why += " A curve L + n / B has none"
    yield cannot(EXCHANGE, "environment 1: dip below half of the peak", "32 and 64 KB", why)
    yield cannot(EXCHANGE, "environment 1: half of the peak again from", 128 * KIB, why, unit="bytes")
    why = "packets that their switch lost, and TCP's time-outs; our links lose none"
    yield cannot(EXCHANGE, "environment 1: unstable above", 512 * KIB, why, unit="bytes")
    why = "only their cluster gives it; neither times nor the algorithms of its library are printed"
    yield cannot(ALL_REDUCE, "environment 1: dip", 32 * KIB, why, unit="bytes")
    yield cannot(ALL_REDUCE, "environment 1: fast at", "8 KB, and from 64 KB", why)


def _tlog() -> Iterator[Row]:
    """Yield the figures of the tracer, and the output of its example."""
    yield exact(TLOG, "bytes of an event", 16, RECORD.itemsize, "our reader's and writer's record", unit="bytes")
    yield exact(TLOG, "kinds of single events, and of intervals", 9, COUNT, "as our reader numbers them")
    value = _cpi(100, 4)
    why = "the midpoint rule with 100 intervals on 4 processes, added in the order of ranks"
    yield exact(TLOG, "cpi: pi is approximately", "3.1416009869231249", f"{value:.16f}", why)
    yield exact(TLOG, "cpi: error", "0.0000083333333318", f"{abs(value - pi):.16f}"[:18], why)
    for number, (t1, t2, t0, theirs) in enumerate(STAMPS, 1):
        why = "the midpoint of the two local stamps less the remote one; tlog keeps the round of the shortest trip,"
        why += " and the text does not say of which round the stamps are"
        ours = round((t1 + t2) / 2 - t0, 8)
        yield cannot(TLOG, f"clock difference, line {number}", theirs, why, ours=ours, unit="s")


def _cpi(intervals: int, processes: int) -> float:
    """Return pi as cpi.c computes it: each process adds every `processes`-th interval; then the parts are added."""
    total = 0.0
    for rank in range(processes):
        part = 0.0
        for i in range(rank + 1, intervals + 1, processes):
            x = (i - 0.5) / intervals
            part += 4.0 / (1.0 + x * x)
        total += part / intervals
    return total


def _halo() -> Iterator[Row]:
    """Yield the bytes of halo messages, counted in our own Programs."""
    n = 66
    narrow, wide = (max(_messages("jacobi2d", f"{n}x{n}", (4,), depth)) for depth in (0, 2))
    ours, why = "n" if narrow == n else narrow, f"jacobi2d, n = {n}"
    yield exact(HALO, "1-D blocks: values of a message", "n", ours, why, basis="counted")
    why = "ghosts for two steps"
    yield exact(HALO, "1-D blocks, two steps at once", "2n", "2n" if wide == 2 * n else wide, why, basis="counted")
    once, low, high = (
        pick(_messages("heat3d", "18x18x6", (2, 2), depth)) / WIDTH for pick, depth in ((max, 0), (min, 2), (max, 2))
    )
    why = "heat3d in 2 x 2 blocks of its first two axes, n = 18"
    found = "n / √p" if once == 18 / 2 else f"{once:g}"
    yield exact(HALO, "2-D blocks: values of a message", "n / √p", found, why, basis="counted")
    why = (
        f"of the first axis; the second step needs corners, too, which the text leaves out: {high - low:g} points more"
    )
    why += " in each message of the second axis"
    verdict = REPRODUCED if low == 2 * once else MISSED
    found = "2n / √p + corners" if high > low == 2 * once else f"{low:g} + corners"
    yield Row(HALO, "2-D blocks, two steps at once", "2n / √p", found, verdict, why, basis="counted")


def _messages(name: str, grid: str, cut: tuple[int, ...], depth: int) -> list[int]:
    """Return the number of values of each message between the ranks of a stencil."""
    operator = operator_class(name)(grid=grid, steps=4)  # type: ignore[call-arg]
    schedule = Schedule.of("deep" if depth else "overlap", cut=cut, depth=depth)
    program = operator.program(schedule, int(np.prod(cut)))
    num_bytes = op_bytes(program, operator.workload(program, schedule))
    return [int(each) // 4 for each in num_bytes[program.kind == Kind.send]]
