"""gpu_ways: programs of NCCL's and MSCCL's collectives on 8 GPUs, compiled by our door, and their seconds in `sim`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dovetail.collective import Algorithm, build, custom
from dovetail.collective.algorithm import Protocol as ProtocolName
from dovetail.cost import Protocol, price_protocol
from dovetail.ir import Program
from dovetail.ir.op_lists import sent_slots
from dovetail.machine import Machine
from dovetail.passes import slice_messages, split_slots
from dovetail.sim import simulate

GPUS, SWITCH = 8, 8
MOST_PIECES = 8  # of a message in a simulation; more change the times of all rows by less than 3 %
NCCL_CHANNELS = {"a100-8": 24, "h100-8": 32}
NVLS_CHANNELS = 16
THREADS = {"LL": (512, 8 * GPUS), "LL128": (640, 8), "Simple": (512, 64)}  # and bytes a thread is worth (enqueue.cc)


class Way(NamedTuple):
    """How a collective is carried out: the program for a number of bytes, and the protocol of its messages."""

    program: Callable[[int], Program]
    protocol: str
    switch: int | None = None


def ways(machine: str) -> dict[str, Way]:
    """By the names that the published tables use."""
    most = NCCL_CHANNELS[machine]

    def nccl(protocol: str, name: str = "ring_all_reduce") -> Way:
        return Way(lambda size: shipped(name, 1, channels_worth(size, protocol, most), protocol), protocol)

    found = {f"ring {protocol}": nccl(protocol) for protocol in ("LL", "LL128", "Simple")}
    found["ring all_gather LL"] = nccl("LL", "ring_all_gather")
    for protocol in ("LL", "LL128"):
        found[f"ring 4x8 {protocol}"] = Way(of_any_size(shipped, "ring_all_reduce", 4, 8, protocol), protocol)
    for instances in (2, 4):
        found[f"pairs x{instances} LL"] = Way(of_any_size(all_pairs, instances), "LL")
    found["one pass x4 LL"] = Way(lambda _: one_pass(4), "LL")
    found["direct all_gather x4 LL"] = Way(lambda _: shipped("direct_all_gather", 1, 4, "LL"), "LL")
    found["NVLS"] = Way(lambda _: in_switch(NVLS_CHANNELS), "NVLS", SWITCH)
    return found


def of_any_size(make: Callable[..., Program], *args: Any) -> Callable[[int], Program]:
    """A function of a number of bytes that makes the same program for all."""
    return lambda _: make(*args)


def channels_worth(size: int, protocol: str, most: int) -> int:
    """How many channels NCCL gives a ring (enqueue.cc: fewer until each thread has enough to do).

    >>> channels_worth(128 << 10, "LL", 24)
    4
    """
    threads, worth = THREADS[protocol]
    return max(min(most, size // (threads * worth)), 1)


@cache
def shipped(name: str, channels: int, instances: int, protocol: str) -> Program:
    return build(name, GPUS, channels=channels, instances=instances, protocol=cast("ProtocolName", protocol))


@cache
def all_pairs(instances: int) -> Program:
    """MSCCL's all pairs: chunks to their ranks' scratch, added there by 8 lanes, sent to all."""
    p = Algorithm("all_pairs_by_scratch", "all_reduce", GPUS, chunks=GPUS * GPUS, in_place=True, protocol="LL")
    for rank, peer in pairs():
        place = (rank - (rank > peer)) * GPUS
        p.chunk(rank, "input", peer * GPUS, GPUS).copy(peer, "scratch", place, send_lane=peer, recv_lane=rank)
    for rank in range(GPUS):
        for part in range(GPUS):
            add_scratch(p, rank, rank * GPUS + part, [place * GPUS + part for place in range(GPUS - 1)], part)
    for rank, peer in pairs():
        p.chunk(rank, "input", rank * GPUS, GPUS).copy(peer, send_lane=peer, recv_lane=rank)
    return p.compile(instances=instances, lanes="manual", replicate="batched")


@cache
def one_pass(instances: int) -> Program:
    """All of everything to everybody, added by 8 lanes (ap-1pass.xml)."""
    p = Algorithm("one_pass", "all_reduce", GPUS, chunks=GPUS, in_place=True, protocol="LL")
    for rank, peer in pairs():
        place = (rank - (rank > peer)) * GPUS
        p.chunk(rank, "input", 0, GPUS).copy(peer, "scratch", place, send_lane=peer, recv_lane=rank)
    for rank in range(GPUS):
        for part in range(GPUS):
            add_scratch(p, rank, part, [place * GPUS + part for place in range(GPUS - 1)], part)
    return p.compile(instances=instances, lanes="manual", replicate="batched")


def add_scratch(p: Algorithm, rank: int, slot: int, places: Sequence[int], lane: int) -> None:
    total = p.chunk(rank, "input", slot)
    for place in places:
        total = total.reduce(p.chunk(rank, "scratch", place), send_lane=lane, recv_lane=lane)


@cache
def in_switch(instances: int) -> Program:
    """NVLS: the switch, here rank 8, adds chunks and hands the sums to all; GPUs send and receive apart."""
    slots = (*(GPUS,) * GPUS, 0)
    p = Algorithm("in_switch", custom(GPUS + 1, slots, slots, lambda _, slot: [(rank, slot) for rank in range(GPUS)]))
    for slot in range(GPUS):
        total = p.chunk(0, "input", slot).copy(SWITCH, "sum", slot, send_lane=0, recv_lane=0)
        for rank in range(1, GPUS):
            total = total.reduce(p.chunk(rank, "input", slot), send_lane=0, recv_lane=rank)
        for rank in range(GPUS):
            total.copy(rank, "output", slot, send_lane=GPUS + rank, recv_lane=1)
    return p.compile(instances=instances, lanes="manual")


def pairs() -> Iterator[tuple[int, int]]:
    return ((rank, (rank + step) % GPUS) for step in range(1, GPUS) for rank in range(GPUS))


class Cut(NamedTuple):
    """A program with its messages in pieces, gone through once for every tile: of each op, its piece and its tile."""

    program: Program
    piece: NDArray[np.int64]
    tile: NDArray[np.int64]


_CUTS: dict[tuple[int, int, int], Cut] = {}  # by the identity of programs that `cache` keeps alive


def cut(program: Program, pieces: int, tiles: int) -> Cut:
    """Cut every message into pieces and repeat the whole program, in the order of the interpreter's steps."""
    key = id(program), pieces, tiles
    if key not in _CUTS:
        bare = replace(program, posts=())
        fine = slice_messages(split_slots(bare, pieces), max(sent_slots(program))) if pieces > 1 else bare
        run = again(fine, tiles)
        _CUTS[key] = Cut(run, place_in_channel(run) % pieces, np.arange(run.num_ops) // fine.num_ops)
    return _CUTS[key]


def again(program: Program, times: int) -> Program:
    """All queues once more, `times` in all."""
    columns = {}
    for name, column in program.columns.items():
        if name.endswith("_start"):
            columns[name] = np.concatenate([[0], np.cumsum(np.tile(np.diff(column), times))])
        elif name == "dep":
            columns[name] = np.concatenate([column + turn * program.num_ops for turn in range(times)])
        else:
            columns[name] = np.tile(column, times)
    return program.with_columns(columns)


def place_in_channel(program: Program) -> NDArray[np.int64]:
    """Of each op, how many messages its channel has carried before (the one it receives from, else sends to)."""
    channel = np.where(program.chan_in >= 0, program.chan_in, program.chan_out).astype(np.int64)
    ends = np.where(program.chan_in >= 0, 0, 1) + 2 * channel
    order = np.argsort(ends, kind="stable")
    first = np.searchsorted(ends[order], ends[order])
    place = np.empty(program.num_ops, np.int64)
    place[order] = np.arange(program.num_ops) - first
    return np.where(channel >= 0, place, 0)


def seconds(way: Way, size: int, machine: Machine, protocol: Protocol) -> float:
    """Return seconds of the way for `size` bytes of a rank's larger buffer, the start of its kernel included."""
    program = way.program(size)
    slots = max(buffer.slots[0] for buffer in program.buffers if buffer.role != "scratch")
    message = size / slots * max(sent_slots(program))
    tiles = math.ceil(message / protocol.tile_bytes)
    run = cut(program, protocol.pieces(min(message, protocol.tile_bytes), MOST_PIECES), tiles)
    in_tile = np.clip(message - run.tile * protocol.tile_bytes, 0, protocol.tile_bytes)
    grain = max(protocol.grain(message), min(message, protocol.tile_bytes) / MOST_PIECES)
    moves = (run.program.chan_in >= 0) | (run.program.chan_out >= 0)
    local = op_slots(run.program) * (size / slots) * in_tile / message / (run.piece.max() + 1)
    num_bytes = np.where(moves, np.clip(in_tile - run.piece * grain, 0, grain), local)
    prices = price_protocol(run.program, machine, protocol, num_bytes, begins=run.piece == 0, switch=way.switch)
    return float(machine.facts["launch_s"]) + simulate(run.program, prices).makespan_s


def op_slots(program: Program) -> NDArray[np.float64]:
    """Slots that each op writes."""
    counts = np.concatenate([[0], np.cumsum(program.columns["write_count"] * program.columns["write_blocks"])])
    slots: NDArray[np.float64] = np.diff(counts[program.columns["write_start"]]).astype(np.float64)
    return slots
