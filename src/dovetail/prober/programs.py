"""programs: the small Programs that a probe runs, and how to read timings from their spans."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import (
    Builder,
    KernelForm,
    Kind,
    Operand,
    Operator,
    Program,
    Region,
    Sample,
    Slot,
    Work,
    Workload,
    op_works,
)
from dovetail.ir.collectives import COLLECTIVES
from dovetail.run.job import Variant
from dovetail.run.options import RunOptions
from dovetail.timeline import Timeline

Array = NDArray[Any]
Seconds = Callable[[Timeline], list[float]]
Spans = dict[int, tuple[float, float]]
PAUSE_S = 0.01  # seconds that the kernel `pause` sleeps
SLOTS = 32  # slots of a stream's receive buffer, and so the most messages in flight
HELD_BYTES = 64 << 20  # most bytes of that buffer; it has at least two slots


class Stream(NamedTuple):
    """Computations beside traffic, and the ops of each rank's computations (`products`) and receives or calls."""

    variant: Variant
    products: dict[int, list[int]]
    receives: dict[int, list[int]]


class Measurement(NamedTuple):
    """A Program to time: `seconds(timeline)` returns the timings of cost `key` at size `x` in one run of `variant`."""

    key: str
    x: float
    variant: Variant
    seconds: Seconds


def pause(reads: Sequence[Array], writes: Sequence[Array]) -> None:
    """Sleep for PAUSE_S and touch no data: a kernel that stands for a rank that is busy elsewhere."""
    time.sleep(PAUSE_S)


def one_pause(reads: Sequence[Operand], writes: Sequence[Operand]) -> Work:
    """Return the work of a pause: one unit, no FLOP."""
    return Work("pause", 1.0, 0.0)


PAUSE = KernelForm("pause", pause, one_pause)


def ping_pong(ranks: int, pair: tuple[int, int], num_bytes: int, trips: int, kind: str) -> Measurement:
    """Return a measurement of `trips` round trips of a message; a timing is half a round trip (IMB PingPong's t/2)."""
    b, (here, there) = Builder("ping_pong", ranks), pair
    b.buffer("ping", "input", 1), b.buffer("pong", "output", 1)
    net, out, back = b.lane("net", "net"), b.channel(here, there), b.channel(there, here)
    ping, pong = Region("ping", 0, 1), Region("pong", 0, 1)
    ends: list[int] = []
    for _ in range(trips):
        b.add(Kind.send, here, net, reads=[ping], chan_out=out, after=ends[-1:])
        ends.append(b.add(Kind.recv, here, net, writes=[pong], chan_in=back))
        got = b.add(Kind.recv, there, net, writes=[pong], chan_in=out)
        b.add(Kind.send, there, net, reads=[ping], chan_out=back, after=[got])
    variant = _variant(f"p2p {num_bytes}", b.build(), {"ping": num_bytes, "pong": num_bytes})
    return Measurement(f"p2p:{kind}", num_bytes, variant, lambda t: _steps(t, ends, 0.5))


def exchange(
    ranks: int, pair: tuple[int, int], num_bytes: int, trips: int, kind: str, slice_bytes: int = 0
) -> Measurement:
    """Return a measurement of a stream of messages in both directions at once, with up to SLOTS in flight.

    A timing is the mean seconds per message. Unlike IMB's Exchange, no message waits for the message before it, because
    schedules send that way.
    """
    variant, rows = _exchange(ranks, pair, num_bytes, trips, slice_bytes)
    return Measurement(f"exchange:{kind}", num_bytes, variant, lambda t: _rate(t, rows))


def turns(ranks: int, pair: tuple[int, int], num_bytes: int, count: int, kind: str) -> Measurement:
    """Return a measurement of whether the network interleaves messages that are sent at once.

    Its value is the share of the total time after which half of the messages have arrived: about 0.5 if they arrive one
    after the other, nearly 1 if the network interleaves all of them.
    """
    variant, rows = _exchange(ranks, pair, num_bytes, count - 1, 0)
    return Measurement(f"turns:{kind}", num_bytes, variant, lambda t: _middle(t, rows))


def _exchange(
    ranks: int, pair: tuple[int, int], num_bytes: int, trips: int, slice_bytes: int
) -> tuple[Variant, list[int]]:
    """Return the program of `trips` + 1 messages each way, and the rows of the first rank's receives."""
    b = Builder("exchange", ranks)
    slots = min(SLOTS, trips + 1)  # fewer for long messages, of which few are sent
    b.buffer("mine", "input", 1), b.buffer("theirs", "output", slots)
    send, recv = b.lane("send", "net"), b.lane("recv", "net")
    rows: list[int] = []
    for me, peer in (pair, pair[::-1]):
        out, back = b.channel(me, peer, depth=slots), b.channel(peer, me, depth=slots)
        came = []
        for trip in range(trips + 1):
            b.add(Kind.send, me, send, reads=[Region("mine", 0, 1)], chan_out=out)
            came.append(b.add(Kind.recv, me, recv, writes=[Region("theirs", trip % slots, 1)], chan_in=back))
        rows = rows or came
    variant = _variant(f"exchange {num_bytes}", b.build(), {"mine": num_bytes, "theirs": num_bytes})
    return replace(variant, options=RunOptions(slice_bytes=slice_bytes)), rows


def library(kind: str, ranks: int, num_bytes: int, trips: int, dtype: str = "float32") -> Measurement:
    """Return a measurement of repeated calls of a library collective; `num_bytes`: of a rank's larger buffer."""
    b = Builder(kind, ranks)
    rows = _add_calls(b, ranks, kind, trips)
    each = num_bytes // max(_call_slots(kind, ranks))
    variant = _variant(f"{kind} {num_bytes}", b.build(), {"x": each, "y": each}, dtype)
    return Measurement(f"{kind}:{ranks}", num_bytes, variant, lambda t: _steps(t, rows[0]))


def _add_calls(b: Builder, ranks: int, kind: str, count: int) -> dict[int, list[int]]:
    """Append calls of a collective of all ranks, from x to y; return their rows by rank."""
    taken, given = _call_slots(kind, ranks)
    b.buffer("x", "input", taken), b.buffer("y", "output", given)
    net, call = b.lane("net", "net"), b.collective(kind, range(ranks))
    rows: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    for _ in range(count):
        for rank, mine in rows.items():
            x, y = [Region("x", 0, taken)], [Region("y", 0, given)]
            mine.append(b.add(Kind.collective, rank, net, reads=x, writes=y, call=call, after=mine[-1:]))
    return rows


def _call_slots(kind: str, ranks: int) -> tuple[int, int]:
    """Return the numbers of slots of a rank's input and output in a collective."""
    return COLLECTIVES[kind].parts(ranks)


def late_receive(ranks: int, pair: tuple[int, int], num_bytes: int, trips: int) -> Measurement:
    """Return a measurement of sends whose receive is posted PAUSE_S later.

    A send that takes much less than PAUSE_S did not wait for its receive (eager protocol).
    """
    b, (here, there) = Builder("late_receive", ranks), pair
    b.buffer("ping", "input", 1), b.buffer("pong", "output", 1)
    net, compute, pause = b.lane("net", "net"), b.lane("compute", "compute"), b.kernel("pause", ())
    out, back = b.channel(here, there), b.channel(there, here)
    ping, pong, sends = Region("ping", 0, 1), Region("pong", 0, 1), list[int]()
    ack, got = list[int](), list[int]()
    for _ in range(trips):
        sends.append(b.add(Kind.send, here, net, reads=[ping], chan_out=out, after=ack[-1:]))
        ack.append(b.add(Kind.wait, here, net, chan_in=back))
        late = b.add(Kind.compute, there, compute, call=pause, after=got)
        taken = b.add(Kind.recv, there, net, writes=[pong], chan_in=out, after=[late])
        got = [b.add(Kind.signal, there, net, chan_out=back, after=[taken])]
    variant = _variant(f"late {num_bytes}", b.build(), {"ping": num_bytes, "pong": num_bytes})
    return Measurement("eager", num_bytes, variant, lambda t: _durations(t, sends))


def reduce(ranks: int, num_bytes: int, trips: int) -> Measurement:
    """Return a measurement of adding one buffer to another, on all ranks at once."""
    return _local(Kind.reduce, ranks, num_bytes, trips)


def copy(ranks: int, num_bytes: int, trips: int) -> Measurement:
    """Return a measurement of copying a buffer, on all ranks at once."""
    return _local(Kind.copy, ranks, num_bytes, trips)


def _local(kind: Kind, ranks: int, num_bytes: int, trips: int) -> Measurement:
    b = Builder(kind.name, ranks)
    b.buffer("x", "input", 1), b.buffer("y", "scratch", 1)
    lane = b.lane("compute", "compute")
    x, y = Region("x", 0, 1), Region("y", 0, 1)
    rows: list[int] = []
    for rank in range(ranks):
        b.add(Kind.copy, rank, lane, reads=[x], writes=[y])
        mine = [b.add(kind, rank, lane, reads=[x], writes=[y]) for _ in range(trips)]
        rows = rows or mine
    variant = _variant(f"{kind.name} {num_bytes}", b.build(), {"x": num_bytes, "y": num_bytes}, "float32")
    return Measurement(kind.name, num_bytes, variant, lambda t: _durations(t, rows))


def computations(operator: Operator, sample: Sample, ranks: int, amount: int, trips: int) -> Measurement:
    """Return a measurement of `trips` runs of one amount of an operator's computation, on all ranks at once.

    If the ranks' pieces differ, the cost is filed under the key of the piece with the most FLOP per unit.
    """
    b = Builder("computations", ranks)
    rows = sample.add(b, ranks, [amount] * trips)
    program = b.build()
    workload = workload_of(operator, sample, ranks, amount)(program)
    variant = Variant(f"{sample.label} {amount}", program, workload, RunOptions())
    most = max(op_works(program, workload).values(), key=lambda work: work.flops / max(work.units, 1))
    return Measurement(f"kernel:{most.key}", amount, variant, lambda t: slowest(t, rows))


def workload_of(operator: Operator, sample: Sample, ranks: int, amount: int) -> Callable[[Program], Workload]:
    """Return the function from a sample's program to its workload."""
    schedule = operator.serial(ranks) if sample.schedule is None else sample.schedule(amount)
    return partial(operator.workload, schedule=schedule)


def stream(
    workload_of: Callable[[Program], Workload],
    sample: Sample,
    ranks: int,
    amounts: Sequence[int],
    num_bytes: int,
    messages: int,
    call: str | None = None,
    slice_bytes: int = 0,
) -> Stream:
    """Return a program of computations beside traffic.

    Parameters
    ----------
    workload_of : callable
        From the program to its workload.
    sample : Sample
        What to compute.
    ranks : int
        Number of ranks.
    amounts : sequence of int
        Amounts of the sample, computed one after the other; empty: traffic in isolation.
    num_bytes : int
        Bytes of a message, or of a rank's larger buffer in a call.
    messages : int
        Messages to and from the neighbour (rank ^ 1), each added to a buffer on arrival, or calls; 0: computations in
        isolation.
    call : str, optional
        A library collective to call instead of sending messages.
    slice_bytes : int
        Cut messages into slices of this size; 0: do not.
    """
    b = Builder("stream", ranks)
    computed = sample.add(b, ranks, amounts)
    slots = int(np.clip(HELD_BYTES // max(num_bytes, 1), 2, SLOTS))
    receives = _add_messages(b, ranks, messages, slots) if call is None else _add_calls(b, ranks, call, messages)
    names, parts = (("mine", "sums"), 1) if call is None else (("x", "y"), max(_call_slots(call, ranks)))
    program, slot = b.build(), (Slot((max(num_bytes // parts // 4, 1),), "float32"),) * ranks
    work = workload_of(program)
    sizes = {buffer: each for buffer, each in work.sizes.items() if buffer not in names}
    workload = Workload(work.slots | dict.fromkeys(names, slot), work.forms, sizes)
    name = f"stream {call or 'messages'} {num_bytes} {len(amounts)} {messages}"
    options = RunOptions("thread" if slice_bytes else "poll", slice_bytes=slice_bytes)
    return Stream(Variant(name, program, workload, options), computed, receives)


def _add_messages(b: Builder, ranks: int, messages: int, slots: int) -> dict[int, list[int]]:
    """Append messages between neighbours, in both directions at once, into `slots` slots; return receives by rank."""
    slots = max(1, min(slots, messages))
    b.buffer("mine", "input", 1), b.buffer("sums", "scratch", slots)
    send, recv, mine, receives = b.lane("send", "net"), b.lane("recv", "net"), [Region("mine", 0, 1)], {}
    for rank in range(ranks - ranks % 2):
        out, back = b.channel(rank, rank ^ 1, depth=slots), b.channel(rank ^ 1, rank, depth=slots)
        receives[rank] = list[int]()
        for i in range(messages):
            b.add(Kind.send, rank, send, reads=mine, chan_out=out)
            into = [Region("sums", i % slots, 1)]
            receives[rank].append(b.add(Kind.recv_reduce, rank, recv, reads=mine, writes=into, chan_in=back))
    return receives


def ends_of(timeline: Timeline) -> Spans:
    """Return (start, end) of each op's span in seconds, by the op's row."""
    col = timeline.columns
    return {int(op): (float(s), float(e)) for op, s, e in zip(col["op"], col["start_s"], col["end_s"], strict=True)}


def _variant(name: str, program: Program, num_bytes: dict[str, int], dtype: str = "uint8") -> Variant:
    size = 4 if dtype == "float32" else 1
    slots = {key: (Slot((max(n // size, 1),), dtype),) * program.num_ranks for key, n in num_bytes.items()}
    return Variant(name, program, Workload(slots, (PAUSE,)), RunOptions())


def _steps(timeline: Timeline, rows: Sequence[int], factor: float = 1.0) -> list[float]:
    """Return the seconds from the end of each op to the end of the next, times `factor`."""
    spans = ends_of(timeline)
    return [float(step) for step in np.diff([spans[row][1] for row in rows]) * factor]


def _rate(timeline: Timeline, rows: Sequence[int]) -> list[float]:
    """Return the mean seconds per message of a stream. Single messages mislead: libraries complete them in bursts."""
    spans = [ends_of(timeline)[row] for row in rows]
    return [(max(end for _, end in spans) - min(start for start, _ in spans)) / len(rows)]


def _middle(timeline: Timeline, rows: Sequence[int]) -> list[float]:
    """Return the share of the total time after which half of these ops had ended."""
    spans = np.array([ends_of(timeline)[row] for row in rows])
    ends = spans[:, 1] - spans[:, 0].min()
    return [float(np.median(ends) / ends.max())]


def _durations(timeline: Timeline, rows: Sequence[int]) -> list[float]:
    spans = ends_of(timeline)
    return [spans[row][1] - spans[row][0] for row in rows]


def slowest(timeline: Timeline, rows: dict[int, list[int]]) -> list[float]:
    """Return for each k the seconds of the slowest rank's k-th op, since ranks wait for the slowest in a collective."""
    ran = set(timeline.columns["rank"].tolist())
    return [
        float(t) for t in np.max([_durations(timeline, mine) for rank, mine in rows.items() if rank in ran], axis=0)
    ]
