"""price: the costs of all ops of a Program on a machine, computed by array operations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError
from dovetail.cost.model import REDUCES, CostModel
from dovetail.cost.prices import Prices
from dovetail.cost.routes import MESSAGES, Routes, carriers
from dovetail.ir import RECVS, SENDS, Call, Kind, Program, Work, Workload, compute_calls, is_one_of, region_bytes
from dovetail.machine import LIBRARY, Machine

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def price(
    program: Program,
    machine: Machine,
    workload: Workload,
    contention: float | None = None,
    *,
    extrapolate: bool = False,
    times: Ints | None = None,
    routes: Routes | None = None,
) -> Prices:
    """Return the costs of each op of `program` on `machine`.

    Parameters
    ----------
    program : Program
        The program.
    machine : Machine
        Its cost curves.
    workload : Workload
        Bytes of each slot, and the work of each kernel.
    contention : float, optional
        Every transfer and collective takes `contention` times as long (seed 000, step 2: 1.15). Default: computation
        and traffic slow each other by the measured `cil:*` curves.
    extrapolate : bool
        Predict sizes beyond the measured range.
    times : ndarray of int, shape (num_ops,), optional
        Number of identical ops that each op stands for. Prices are those of one; the mean message counts all.
    routes : Routes, optional
        The links of each channel. Default: those of `machine`, which must have all ranks of the program.

    Returns
    -------
    Prices
        Columns in seconds.

    Raises
    ------
    CostError
        If the machine lacks a cost, a size lies outside the measured range, or the workload does not fit the program.

    Notes
    -----
    A message of b bytes takes f(b) seconds one way, where f is the curve `p2p:<kind>` of its route. f of the smallest
    message is the latency; the rest occupies the wire. If a link of the route carries messages both ways, the wire is
    occupied for `exchange:<kind>` (a message in a stream both ways), and the latency is what the smallest message takes
    beyond that (see `routes`). A get takes its latency twice. Copies, sums and collectives smaller than the measured
    ones cost as much as the smallest measured.
    """
    _check(program, machine, contention, routed=routes is not None)
    model = CostModel.of(machine)
    sizes = _Sizes.of(program, workload)
    work_s = _work(program, model, workload, sizes, extrapolate)
    routes = routes or Routes.of(program, machine)
    wire_s, latency_s, rendezvous = _messages(program, model, sizes, routes, extrapolate)
    if contention is None:
        slow_by_net, slow_by_compute = _slow_downs(program, model, sizes, times)
    else:
        slow_by_net = slow_by_compute = np.ones(program.num_ops)
        wire_s, latency_s = wire_s * contention, latency_s * contention
        work_s[program.kind == Kind.collective] *= contention
    return Prices(
        work_s,
        wire_s,
        latency_s,
        rendezvous,
        slow_by_net,
        slow_by_compute,
        routes.start,
        routes.links,
        routes.num_links,
        np.where(program.kind == Kind.compute, 0, sizes.handled),
        routes.uplinks,
    )


def _check(program: Program, machine: Machine, contention: float | None, routed: bool) -> None:
    if program.num_ranks > machine.ranks and not routed:
        raise CostError(
            f"program '{program.name}' needs {program.num_ranks} ranks",
            found=f"machine '{machine.name}' has {machine.ranks}",
            hint="plan for fewer ranks, or choose another machine",
        )
    if contention is not None and not (0.0 < contention < math.inf):
        raise CostError("contention is a factor on communication, above 0", found=repr(contention), hint="e.g. 1.15")


@dataclass(frozen=True)
class _Sizes:
    """`read`, `write`: bytes of each region. `handled`: for each op, bytes of its message or of the data it handles."""

    read: Ints
    write: Ints
    handled: Ints

    @staticmethod
    def of(program: Program, workload: Workload) -> _Sizes:
        _check_sizes(program, workload)
        each = [region_bytes(program, workload, side) for side in ("read", "write")]
        read, write = _by_op(each[0], program.read_start), _by_op(each[1], program.write_start)
        reads = is_one_of(program.kind, (Kind.send, Kind.put, Kind.copy, Kind.reduce, Kind.recv_reduce_send))
        handled = np.where(reads, read, write)
        handled = np.where(program.kind == Kind.collective, np.maximum(read, write), handled)
        return _Sizes(each[0], each[1], handled)


def op_bytes(program: Program, workload: Workload) -> Ints:
    """Return bytes of each op's message, or of its data. CostError if the workload does not fit the program."""
    return _Sizes.of(program, workload).handled


def _check_sizes(program: Program, workload: Workload) -> None:
    for buffer in program.buffers:
        slots = workload.slots.get(buffer.name)
        if slots is None or len(slots) < program.num_ranks:
            found = f"buffers {', '.join(workload.slots)}" if slots is None else f"{len(slots)} ranks"
            raise CostError(
                f"the workload gives no size for buffer '{buffer.name}' on each of {program.num_ranks} ranks",
                found=found,
            )


def _by_op(values: Ints, start: Ints) -> Ints:
    total = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    by_op: Ints = total[start[1:]] - total[start[:-1]]
    return by_op


def _work(program: Program, model: CostModel, workload: Workload, sizes: _Sizes, extrapolate: bool) -> Floats:
    work_s = np.zeros(program.num_ops)
    kind = program.kind
    for key, kinds in (("copy", (Kind.copy,)), ("reduce", tuple(REDUCES))):
        rows = np.flatnonzero(is_one_of(kind, kinds))
        if len(rows):
            work_s[rows] = _at_most(model, key, sizes.handled[rows], extrapolate)
    _add_compute(work_s, program, model, workload, sizes, extrapolate)
    rows = np.flatnonzero(kind == Kind.collective)
    for call in np.unique(program.call[rows]):
        name, group = program.collectives[call]
        mine = rows[program.call[rows] == call]
        key = f"{name}:{len(group)}" if len(group) > 1 else "copy"
        work_s[mine] = _at_most(model, key, sizes.handled[mine], extrapolate)
    return work_s


def _at_most(model: CostModel, key: str, num_bytes: Ints, extrapolate: bool) -> Floats:
    """Return the seconds at `num_bytes`, at least those of the smallest measured size, since costs never fall."""
    seconds: Floats = model.seconds(key, np.maximum(num_bytes, model.curve(key).low), extrapolate)
    return seconds


def _add_compute(
    work_s: Floats, program: Program, model: CostModel, workload: Workload, sizes: _Sizes, extrapolate: bool
) -> None:
    rows, which, kinds = compute_calls(program, workload, sizes=(sizes.read, sizes.write))
    works = [_work_of(program.kernels[kind.kernel].name, workload, kind) for kind in kinds]
    by_key: dict[str, list[int]] = {}
    for number, work in enumerate(works):
        if work.units or work.flops:
            by_key.setdefault(work.key, []).append(number)
    seconds = np.zeros(len(works))
    for key, mine in by_key.items():
        units, flops, own, shared = (np.array([works[number][i] for number in mine], float) for i in range(1, 5))
        seconds[mine] = model.kernel_seconds(key, units, flops, own + shared, extrapolate=extrapolate)
    work_s[rows] = seconds[which]


def _work_of(kernel: str, workload: Workload, kind: Call) -> Work:
    form = workload.form(kernel)
    if form is None:
        raise CostError(f"the workload does not say what kernel '{kernel}' costs")
    return form.work(kind.reads, kind.writes)


def _messages(
    program: Program, model: CostModel, sizes: _Sizes, routes: Routes, extrapolate: bool
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return wire seconds, latency, and whether an op waits for its receive, for sends, puts, gets and signals."""
    wire_s, latency_s = np.zeros(program.num_ops), np.zeros(program.num_ops)
    rendezvous = np.zeros(program.num_ops, dtype=np.bool_)
    carrier = carriers(program)
    rows = np.flatnonzero((carrier >= 0) & is_one_of(program.kind, (*MESSAGES, Kind.signal)))
    group_of, groups = _channel_groups(routes, model)
    if not len(rows):
        return wire_s, latency_s, rendezvous
    group = group_of[carrier[rows]]
    for number, (key, kind) in enumerate(groups):
        mine = rows if len(groups) == 1 else rows[group == number]
        if not len(mine):
            continue
        one_way = f"p2p:{kind}" if f"p2p:{kind}" in model else key
        first = model.curve(one_way)
        latency_s[mine] = first.seconds(first.low)
        is_signal = program.kind[mine] == Kind.signal
        num_bytes = np.where(is_signal, model.curve(key).low, sizes.handled[mine])
        if key == one_way:
            wire = model.seconds(key, num_bytes, extrapolate) - latency_s[mine]
        else:  # stream costs contain no latency: latency = isolated message - message in a stream
            wire, stream = model.seconds(key, num_bytes, extrapolate), model.curve(key)
            latency_s[mine] = np.where(
                is_signal, latency_s[mine], np.maximum(latency_s[mine] - stream.seconds(stream.low), 0.0)
            )
        wire_s[mine] = np.where(is_signal, 0.0, wire)
        rendezvous[mine] = (num_bytes > model.eager_limit(kind)) & is_one_of(program.kind[mine], SENDS)
    latency_s[program.kind == Kind.get] *= 2
    return wire_s, latency_s, rendezvous


def _channel_groups(routes: Routes, model: CostModel) -> tuple[Ints, list[tuple[str, str]]]:
    """Return, for each channel, the row of its (cost key, link kind), and those rows."""
    groups: dict[tuple[str, str], int] = {}
    group_of = np.zeros(len(routes.kinds), dtype=np.int64)
    for row, kind in enumerate(routes.kinds):
        one, both = f"p2p:{kind}", f"exchange:{kind}"
        key = both if both in model and (routes.two_way[row] or one not in model) else one
        group_of[row] = groups.setdefault((key, kind), len(groups))
    return group_of, list(groups)


def _slow_downs(program: Program, model: CostModel, sizes: _Sizes, times: Ints | None) -> tuple[Floats, Floats]:
    """Return the slow-down factors of each op beside traffic, and beside computation.

    Ops on compute lanes are slowed by `cil:compute` at their rank's mean message and mean call, weighted by bytes;
    messages and calls by `cil:net` at their own size.
    """
    slow_by_net, slow_by_compute = np.ones(program.num_ops), np.ones(program.num_ops)
    engines = np.array([lane.engine == "compute" for lane in program.lanes], dtype=np.bool_)
    on_compute = engines[program.lane]
    calls, handled = program.kind == Kind.collective, sizes.handled
    traffic = is_one_of(program.kind, MESSAGES) | calls
    if traffic.any() and ("cil:compute" in model or f"cil:compute:{LIBRARY}" in model):
        by_rank = _beside_traffic(program, model, handled, traffic, times)
        slow_by_net = np.where(on_compute & ~traffic, by_rank[program.rank], 1.0)
    if "cil:net" in model:
        beside = traffic | (is_one_of(program.kind, (Kind.copy, Kind.reduce, *RECVS)) & ~on_compute)
        slow_by_compute = np.where(beside, model.factor("cil:net", handled), 1.0)
    if (of_calls := f"cil:net:{LIBRARY}") in model:
        slow_by_compute = np.where(calls, model.factor(of_calls, handled), slow_by_compute)
    return slow_by_net, slow_by_compute


def _beside_traffic(
    program: Program, model: CostModel, num_bytes: Ints, traffic: NDArray[np.bool_], times: Ints | None
) -> Floats:
    """Return the factor by which the traffic of each rank slows its compute.

    If the machine has a curve for calls of the library, messages and calls count by their own curves, weighted by their
    bytes.
    """
    calls, of_calls = program.kind == Kind.collective, f"cil:compute:{LIBRARY}"
    kinds = [("cil:compute", traffic & ~calls), (of_calls, calls)] if of_calls in model else [("cil:compute", traffic)]
    found = [(key, *_typical_message(program, num_bytes, rows, times)) for key, rows in kinds]
    total: Floats = np.sum([moved for _, _, moved in found], axis=0)
    slowed = np.zeros(program.num_ranks)
    for key, typical, moved in found:
        slowed += np.divide(moved, total, out=np.zeros_like(total), where=total > 0) * model.factor(key, typical)
    return np.where(total > 0, slowed, 1.0)


def _typical_message(
    program: Program, num_bytes: Ints, traffic: NDArray[np.bool_], times: Ints | None
) -> tuple[Floats, Floats]:
    """Return the mean bytes (weighted by bytes) of the messages at each rank, and their sum; 0 if none."""
    rows = np.flatnonzero(traffic)
    carrier = carriers(program)
    sent = rows[carrier[rows] >= 0]
    ends = np.array([[c.src, c.dst] for c in program.channels], dtype=np.int64).reshape(-1, 2)
    other = ends[carrier[sent], (program.kind[sent] != Kind.get).astype(np.intp)]
    rank = np.concatenate([program.rank[rows], other])
    ops = np.concatenate([rows, sent])
    size = num_bytes[ops].astype(np.float64)
    weight = size if times is None else size * times[ops]
    total = np.bincount(rank, weight, program.num_ranks).astype(np.float64)
    square = np.bincount(rank, weight * size, program.num_ranks)
    return np.divide(square, total, out=np.zeros_like(total), where=total > 0), total
