"""protocol: costs of messages between GPUs by LL, LL128 and Simple, the protocols of NCCL and MSCCL."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError
from dovetail.cost.model import CostModel
from dovetail.cost.prices import Prices
from dovetail.ir import RECVS, Kind, Program
from dovetail.machine import Machine


class Protocol(NamedTuple):
    """How a protocol sends messages. A lane is what the sources call a thread block (seed 002).

    Parameters
    ----------
    latency_s : float
        Time before a message's data arrive, during which its receiver is busy.
    lane_bytes_per_s : float
        Rate at which a lane receives a message, adds it and forwards it.
    efficiency : float
        Share of data on the wire: LL sends 8 data bytes in 16 (0.5), LL128 120 in 128 (0.9375), Simple only data.
    sweep_bytes : int
        Bytes that all threads of a lane move in one access. A lane forwards them while the next arrive, so long
        messages pipeline at this grain. 0: no such grain.
    slices : int
        Least number of slices of a message.
    tile_bytes : int
        Bytes in one slot of the FIFO. For longer messages all lanes repeat their ops.
    net_latency_s : float
        The latency of a message between nodes, instead of `latency_s`.
    """

    latency_s: float
    lane_bytes_per_s: float
    efficiency: float = 1.0
    sweep_bytes: int = 0
    slices: int = 1
    tile_bytes: int = 1 << 40
    net_latency_s: float = 0.0

    def grain(self, num_bytes: float) -> float:
        """Return the bytes of a message's first piece.

        >>> ll, simple = Protocol(1e-6, 3e9, sweep_bytes=4096), Protocol(1e-6, 7e9, slices=2)
        >>> ll.grain(1000), ll.grain(20_000), simple.grain(20_000)
        (1000, 4096, 10000.0)
        """
        return min(num_bytes, self.sweep_bytes) if self.sweep_bytes else num_bytes / self.slices

    def pieces(self, num_bytes: float, most: int) -> int:
        """Return the number of pieces into which a simulation cuts a message: a power of two; the last may be empty.

        >>> Protocol(1e-6, 3e9, sweep_bytes=4096).pieces(20_000, 16), Protocol(1e-6, 7e9, slices=2).pieces(20_000, 16)
        (8, 2)
        """
        return 1 << (min(math.ceil(num_bytes / self.grain(num_bytes)), most) - 1).bit_length()


def protocols(machine: Machine) -> dict[str, Protocol]:
    """Return the protocols of a machine of GPUs, by name, from its fact `protocols`.

    >>> from dovetail.machine import load
    >>> sorted(protocols(load("a100-8")))
    ['LL', 'LL128', 'Simple']
    """
    try:
        return {name: Protocol(**fields) for name, fields in machine.facts["protocols"].items()}
    except KeyError:
        hint = "choose a preset of GPUs, such as a100-8"
        raise CostError(f"machine '{machine.name}' has no fact 'protocols'", hint=hint) from None
    except (AttributeError, TypeError) as error:
        raise CostError(f"machine '{machine.name}': malformed fact 'protocols'", found=str(error)) from error


def price_protocol(
    program: Program,
    machine: Machine,
    protocol: Protocol,
    num_bytes: NDArray[Any],
    *,
    begins: NDArray[np.bool_] | bool = True,
    switch: int | None = None,
) -> Prices:
    """Return the costs of each op if the ranks of a node are GPUs on one non-blocking switch.

    A message occupies its sender's port for bytes / (efficiency · `link_bytes_per_s`, a fact of the machine); between
    nodes it occupies its sender's network card instead, at `nic_bytes_per_s` (another fact). The op that receives it
    keeps its lane busy for bytes / `lane_bytes_per_s`, and a latency more if `begins`: if the op receives the first
    piece of a message. Local additions and copies cost what the machine's curves say. `num_bytes`: bytes of each op,
    see `op_bytes`. Rank `switch` stands for a switch that reduces and multicasts messages itself (NVLS): its lanes take
    no time, and its messages occupy the receiver's port. The time to launch a kernel (fact `launch_s`) is not included.

    Raises CostError if the machine lacks one of those facts.
    """
    ranks, across = program.num_ranks, _between_nodes(program, machine)
    out, arrives = _of_channel(program, across, "chan_out"), _of_channel(program, across, "chan_in")
    rate = np.where(out, _fact(machine, "nic_bytes_per_s") if across.any() else 1.0, _fact(machine, "link_bytes_per_s"))
    latency_s = np.where(arrives, protocol.net_latency_s, protocol.latency_s)
    wire_s = num_bytes / (protocol.efficiency * rate)
    receive_s = num_bytes / protocol.lane_bytes_per_s + np.where(begins, latency_s, 0.0)
    work_s = np.where(np.isin(program.kind, list(RECVS)), receive_s, 0.0)
    for key, kind in (("copy", Kind.copy), ("reduce", Kind.reduce)):
        rows = program.kind == kind
        work_s[rows] = CostModel.of(machine).seconds(key, num_bytes[rows], extrapolate=True)
    if switch is not None:
        work_s[program.columns["rank"] == switch] = 0.0
    ports = [
        2 * ranks + c.src if far else ranks + c.dst if c.src == switch else c.src
        for c, far in zip(program.channels, across, strict=True)
    ]
    routes = {"route_start": np.arange(len(ports) + 1), "route": ports, "num_links": 3 * ranks}
    wire_s = np.where(program.chan_out >= 0, wire_s, 0.0)
    return Prices.plain(program, work_s, wire_s, num_bytes=np.rint(num_bytes), **routes)


def _fact(machine: Machine, name: str) -> float:
    if name not in machine.facts:
        raise CostError(
            f"machine '{machine.name}' has no fact '{name}'", hint="choose a preset of GPUs, such as a100-8"
        )
    return float(machine.facts[name])


def _between_nodes(program: Program, machine: Machine) -> NDArray[np.bool_]:
    """Return, for each channel, whether it leads from one node to another; the rank of a switch is on no node."""
    nodes = dict(enumerate(machine.nodes))
    ends = [(nodes.get(c.src), nodes.get(c.dst)) for c in program.channels]
    return np.array([a != b and a is not None and b is not None for a, b in ends], dtype=np.bool_)


def _of_channel(program: Program, across: NDArray[np.bool_], column: str) -> NDArray[np.bool_]:
    """Return, for each op, whether the channel in `column` leads from one node to another; False if it has none."""
    found: NDArray[np.bool_] = np.append(across, False)[program.columns[column]]
    return found
