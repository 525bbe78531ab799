"""mscclang: seed 002, section 7: speed-ups of MSCCLang's collectives over NCCL and hand-written ones, in simulation.

The costs of A100s are those of the presets `a100-8`, fitted to public timings of NCCL and MSCCL on one node, and
`ndv4-a100-8xN`, whose network has the printed 25 GB/s a card and NCCL's own latencies. Both sides may choose the
protocol and the number of instances that suit them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from dovetail.collective import build
from dovetail.collective.algorithms.all_to_all import two_step_all_to_all
from dovetail.collective.algorithms.sccl import DGX1_LINKS
from dovetail.cost import protocols
from dovetail.cost.prices import Prices
from dovetail.ir import SENDS, Program, is_one_of
from dovetail.ir.op_lists import sent_slots
from dovetail.machine import Machine, load
from dovetail.reproduce import gpu_nodes
from dovetail.reproduce.gpu_ways import GPUS, Way, seconds, ways
from dovetail.reproduce.rows import CONFLICT, MISSED, NOT, REPRODUCED, Curves, Row, Verdict, cannot, exact, factor, size
from dovetail.sim import simulate

RING, PAIRS, HIER = "7.1.1 Ring AllReduce, Figure 8a", "7.1.2 All Pairs AllReduce, Figure 8a", "7.1.3, Figure 8c"
TWO_STEP, NEXT, SCCL, FIFO = "7.3 Two-Step AllToAll, Figure 8e", "7.4 AllToNext, Figure 8g", "7.5, Figure 11", "6.1"
END = "7.6 End-to-End Results"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LL_MOST = 4 * MIB  # nobody chooses LL beyond
PROTOCOLS = ("LL", "LL128", "Simple")
NEXT_NODES, HIER_NODES = 3, 2  # of AllToNext, and of Figure 8c, which does not print it
STEP_NODES = 4  # of the two-step AllToAll, which does not print it
TUNER = ((MIB, "LL"), (29_800_000, "LL128"), (1 << 62, "Simple"))  # NCCL's own choice on one node, by bytes

Times = Callable[[int], float]  # seconds of a collective at a number of bytes


class Choice(NamedTuple):
    """A program for a number of instances and a protocol, and the numbers of instances to choose from."""

    program: Callable[[int, str], Program]
    instances: tuple[int, ...]


def rows() -> Iterator[Row | Curves]:
    """Yield a row for each figure of the evaluation, and the curves behind the speed-ups."""
    yield from one_node()
    yield from _hierarchical()
    yield from _two_step()
    yield from _to_next()
    yield from _sccl()
    yield from _rest()


def best_of(choices: Iterable[Choice], machine: Machine, num_bytes: int) -> float:
    """Return the seconds of the fastest choice, over protocols and instances."""
    known = protocols(machine)
    return min(
        seconds(Way(lambda _, each=each, n=n, p=p: each.program(n, p), p), num_bytes, machine, known[p])  # type: ignore[misc]
        for each in choices
        for p in PROTOCOLS
        if p != "LL" or num_bytes <= LL_MOST
        for n in each.instances
    )


def speed_ups(theirs: Times, ours: Times, sizes: Sequence[int]) -> tuple[float, ...]:
    """Return theirs / ours at each size."""
    return tuple(round(theirs(size) / ours(size), 4) for size in sizes)


def within(sizes: Sequence[int], line: Sequence[float], low: int, high: int) -> float:
    """Return the largest speed-up at sizes from `low` to `high`."""
    return round(max(y for size, y in zip(sizes, line, strict=True) if low <= size <= high), 3)


def crossover(sizes: Sequence[int], line: Sequence[float]) -> int | None:
    """Return the first size from which the speed-up is above 1 for good; None if it never is.

    >>> crossover((1, 2, 4, 8), (0.5, 1.2, 0.9, 1.5)), crossover((1, 2), (1.1, 0.9))
    (8, None)
    """
    last = max((i for i, y in enumerate(line) if y <= 1), default=-1)
    return sizes[last + 1] if last + 1 < len(sizes) else None


def _doubling(low: int, high: int, step: int = 2) -> tuple[int, ...]:
    found = [low]
    while found[-1] * step <= high:
        found.append(found[-1] * step)
    return tuple(found)


# One node: ring and all pairs


class OneNode(NamedTuple):
    """Seconds by bytes on 8 A100: of NCCL's ring with its best protocol, and its tuner's; of MSCCLang's two."""

    nccl: Times
    tuner: Times
    ring: Times
    pairs: Times


def one_node() -> Iterator[Row | Curves]:
    """Yield ring and all pairs."""
    machine, sizes = load("a100-8"), _doubling(KIB, 64 * MIB)
    known = OneNode(
        partial(_named, machine, [f"ring {p}" for p in PROTOCOLS]),
        partial(_tuner, machine),
        partial(_named, machine, ["ring 4x8 LL", "ring 4x8 LL128", "ring Simple"]),
        partial(_named, machine, ["pairs x2 LL", "pairs x4 LL"]),
    )
    ring = speed_ups(known.nccl, known.ring, sizes)
    small = tuple(each for each in sizes if each <= MIB)
    pairs = speed_ups(known.nccl, known.pairs, small)
    either = tuple(map(max, ring, (*pairs, *[0.0] * (len(ring) - len(pairs)))))
    yield Curves("AllReduce on 8 A100, over NCCL", sizes, {"ring": ring, "ring or all pairs": either}, 1.9)
    yield from _ring(known, sizes, ring, within(sizes, either, KIB, 3 * MIB))
    yield from _pairs(small, pairs)
    yield from _counted()


def _ring(known: OneNode, sizes: Sequence[int], line: Sequence[float], best: float) -> Iterator[Row]:
    own = within(sizes, speed_ups(known.tuner, known.ring, sizes), 32 * KIB, 3 * MIB)
    why = f"over NCCL's ring with its best protocol; over the protocol of its own tuner {own}"
    most = within(sizes, line, 32 * KIB, 3 * MIB)
    yield factor(RING, "ring, 32 KB to 3 MB: up to", 1.9, most, why, unit="x", best=best)
    least = min(y for size, y in zip(sizes, line, strict=True) if 32 * KIB <= size <= 3 * MIB)
    why = "the least in that range. Each further channel of NCCL cost 1.2 to 4.3 us in public timings, and nothing here"
    yield Row(RING, "ring, in that range: at least", "over 1", least, _if(least > 1), why, unit="x", basis="predicted")
    why = "one channel, 24 instances: NCCL's own schedule"
    yield factor(RING, "ring from 32 MB", 1.0, line[sizes.index(32 * MIB)], why, unit="x")


def _pairs(sizes: Sequence[int], line: Sequence[float]) -> Iterator[Row]:
    why = "over NCCL's ring with its best protocol"
    yield factor(PAIRS, "all pairs, 1 KB to 1 MB: up to", 1.8, within(sizes, line, KIB, MIB), why, unit="x")
    slower = [size for size, y in zip(sizes, line, strict=True) if y <= 1]
    last = min(slower, default=2 * MIB) // 2
    why = "the last of doubling sizes at which all pairs is faster in simulation; the cause is that of the ring's row"
    yield size(PAIRS, "all pairs faster up to", MIB, last, why, basis="predicted")


def _counted() -> Iterator[Row]:
    """Yield steps and volume of both, counted in our Programs."""
    ring, pairs = (build(f"{name}_all_reduce", GPUS) for name in ("ring", "all_pairs"))
    yield exact(PAIRS, "steps of all pairs", 2, depth(pairs), "messages in a row, in our Program", basis="counted")
    yield exact(PAIRS, "steps of a ring, 2R - 2", 2 * GPUS - 2, depth(ring), "the same", basis="counted")
    sent = sorted({sum(sent_slots(each)) // GPUS for each in (ring, pairs)})
    why = f"each rank sends {' or '.join(map(str, sent))} chunks of 1 / {GPUS} of its buffer"
    ours = "equal" if len(sent) == 1 else "unequal"
    yield exact(PAIRS, "volume of both", "equal", ours, why, basis="counted")


def _if(holds: bool) -> Verdict:
    return REPRODUCED if holds else MISSED


def _named(machine: Machine, names: Sequence[str], num_bytes: int) -> float:
    """Return the seconds of the fastest of these ways."""
    known = ways(machine.name)
    some = [name for name in names if known[name].protocol != "LL" or num_bytes <= LL_MOST]
    return min(seconds(known[each], num_bytes, machine, protocols(machine)[known[each].protocol]) for each in some)


def _tuner(machine: Machine, num_bytes: int) -> float:
    """Return the seconds of NCCL's ring with the protocol that its own tuner chooses."""
    return _named(machine, [f"ring {next(name for most, name in TUNER if num_bytes <= most)}"], num_bytes)


def depth(program: Program) -> int:
    """Return the most messages in a row, each of which waits for the one before."""
    prices = Prices.plain(program, latency_s=is_one_of(program.kind, SENDS).astype(float))
    return round(simulate(program, prices).makespan_s)


def _hierarchical() -> Iterator[Row | Curves]:
    """Yield the hierarchical all_reduce on two nodes, over NCCL's rings and trees."""
    machine, sizes = load(f"ndv4-a100-8x{HIER_NODES}"), _doubling(4 * KIB, GIB, 4)
    rings = Choice(partial(gpu_nodes.nccl_rings, HIER_NODES), (4,))
    trees = Choice(gpu_nodes.nccl_trees, (4,))
    ours = Choice(partial(gpu_nodes.hierarchical, HIER_NODES), (8, 16))
    nccl_s = partial(best_of, (rings, trees), machine)
    own_s = {size: best_of((ours,), machine, size) for size in sizes}
    line = speed_ups(nccl_s, own_s.__getitem__, sizes)
    title = f"Hierarchical AllReduce on {HIER_NODES} nodes of 8 A100, over NCCL"
    yield Curves(title, sizes, {"hierarchical": line}, 1.4)
    assumed = f"on {HIER_NODES} nodes, which the text does not print; over the better of NCCL's 8 rings and 8 trees"
    most = within(sizes, line, KIB, MIB)
    yield factor(HIER, "hierarchical, to 1 MiB: up to", 1.4, most, f"{assumed}. The text says small sizes", unit="x")
    why = f"{assumed}. No larger size is simulated: the time per byte is constant by then"
    yield factor(HIER, "hierarchical, from 1 GB: up to", 1.11, line[-1], why, unit="x")
    yield _composed(machine, {size: (nccl_s(size), own_s[size]) for size in sizes})


def _composed(machine: Machine, rivals: Mapping[int, tuple[float, float]]) -> Row:
    """Return the row of three kernels of NCCL in a row. `rivals`: seconds of NCCL's and of MSCCLang's, by bytes."""
    times = {size: gpu_nodes.composed_s(machine, HIER_NODES, size, _protocols_for(size)) for size in rivals}
    over = [
        [times[size] / each for size, each in zip(rivals, side, strict=True)]
        for side in zip(*rivals.values(), strict=True)
    ]
    ours = " and ".join(
        f"{min(each):.2f} to {max(each):.2f} times {whose}"
        for each, whose in zip(over, ("NCCL's", "MSCCLang's"), strict=True)
    )
    why = "reduce_scatter and all_gather within nodes by NCCL's rings, all_reduce between them: a kernel each"
    verdict = _if(all(ratio > 1 for each in over for ratio in each))
    return Row(HIER, "composed of NCCL's collectives", "slower than both", ours, verdict, why, basis="predicted")


def _protocols_for(num_bytes: int) -> tuple[str, ...]:
    return tuple(each for each in PROTOCOLS if each != "LL" or num_bytes <= LL_MOST)


def _two_step() -> Iterator[Row | Curves]:
    """Yield the two-step all_to_all. Its times live by what a send between nodes costs, which is not printed."""
    machine, sizes = load(f"ndv4-a100-8x{STEP_NODES}"), _doubling(MIB // 4, GIB, 4)
    ours, plain = (
        Choice(partial(gpu_nodes.on_nodes, name, STEP_NODES), (1,))
        for name in ("two_step_all_to_all", "direct_all_to_all")
    )
    line = speed_ups(partial(best_of, [plain], machine), partial(best_of, [ours], machine), sizes)
    title = f"Two-step AllToAll on {STEP_NODES} nodes of 8 A100, over sends to every rank"
    yield Curves(title, sizes, {"two-step": line}, 1.2)
    why = (
        "the text says 10s to 100s of nodes, and prints neither their number nor what a send by InfiniBand costs beside"
    )
    why += f" its latency. Ours is of {STEP_NODES} nodes, where a send costs its latency and its bytes only: the"
    why += f" {GPUS * (STEP_NODES - 1)} lanes of direct sends fill a card, the {STEP_NODES - 1} of one instance do not"
    yield cannot(TWO_STEP, "over NCCL, from 512 MB", 1.2, why, ours=line[-1], unit="x", basis="predicted")
    most = max(line)
    yield cannot(TWO_STEP, "over NCCL, at any size: up to", "over 1", why, ours=most, unit="x", basis="predicted")
    why = "the hand-written program is not printed, and has the same messages as ours: it would take the same time here"
    yield cannot(TWO_STEP, "over the hand-written: up to", 1.3, why, unit="x")
    yield cannot(TWO_STEP, "the hand-written over NCCL, from 512 MB", "slower", why)
    count = _code_lines(two_step_all_to_all)
    why = "of our two-step function, without its docstring; theirs has 15, by hand about 70"
    yield Row(TWO_STEP, "lines of code of a program", "under 30", count, _if(count < 30), why, basis="counted")
    steps = depth(build("two_step_all_to_all", 2 * GPUS, nodes=2))
    yield exact(TWO_STEP, "steps", 2, steps, "messages in a row, in our Program on two nodes", basis="counted")


def _code_lines(function: Callable[..., object]) -> int:
    """Return the lines of a function without its docstring."""
    text, doc = inspect.getsource(function), inspect.getdoc(function) or ""
    return len([line for line in text.splitlines() if line.strip()]) - len([x for x in doc.splitlines() if x.strip()])


def _to_next() -> Iterator[Row | Curves]:
    """Yield AllToNext on three nodes, over the plain send."""
    machine, sizes = load(f"ndv4-a100-8x{NEXT_NODES}"), _doubling(4 * KIB, GIB, 4)
    plain = Choice(partial(gpu_nodes.on_nodes, "direct_all_to_next", NEXT_NODES), (1,))
    plain_s = {size: best_of([plain], machine, size) for size in sizes}
    lines = {}
    for n in (1, 4, 16):
        ours = Choice(partial(gpu_nodes.on_nodes, "all_to_next", NEXT_NODES), (n,))
        lines[f"r = {n}"] = speed_ups(plain_s.__getitem__, partial(best_of, [ours], machine), sizes)
    yield Curves(f"AllToNext on {NEXT_NODES} nodes of 8 A100, over a plain send", sizes, lines, 14.5)
    found = max(max(line) for line in lines.values())
    lane = float(machine.facts["protocols"]["Simple"]["lane_bytes_per_s"])
    bound = GPUS * float(machine.facts["nic_bytes_per_s"]) / lane
    why = f"NCCL of that time gives a remote peer one channel, whose thread block moves {lane / 1e9:.1f} GB/s in the"
    why += f" preset; 8 cards move {bound:.0f} times as much, and 8 times as much as one card that is used fully"
    yield factor(NEXT, "large buffers: up to", 14.5, found, why, unit="x")
    small, most = lines["r = 1"][0], max(line[0] for line in lines.values())
    why = "two more hops between nodes. With r = 1, as the text says that few instances are best there; more of them"
    why += " start in the same time in the preset, and the best then gains"
    yield Row(NEXT, "small buffers", "slower", small, _if(small < 1), why, unit="x", basis="predicted", best=most)
    first, last = ([line[at] for line in lines.values()] for at in (0, -1))
    why = "the preset starts a kernel in the same time whatever r is, so that more instances cost nothing"
    verdict = _if(first[0] >= max(first)) if first[0] > min(first[1:]) else NOT
    yield Row(NEXT, "best r at small sizes", "few", _best(first), verdict, why, basis="predicted")
    yield Row(
        NEXT, "best r at large sizes", "many", _best(last), _if(last[-1] >= last[0]), "at 1 GiB", basis="predicted"
    )


def _best(values: Sequence[float]) -> str:
    return f"r = {(1, 4, 16)[values.index(max(values))]}"


def _sccl() -> Iterator[Row]:
    """Yield SCCL's (1, 2, 2) all_gather: chunks, steps, and rounds by NVLinks."""
    program = build("sccl_122_all_gather", GPUS)
    yield exact(SCCL, "(1, 2, 2): chunks of a rank", 1, program.buffers[0].slots[0], "our Program", basis="counted")
    yield exact(SCCL, "(1, 2, 2): steps", 2, depth(program), "messages in a row", basis="counted")
    rounds = _rounds(program, DGX1_LINKS)
    why = "the most messages over one NVLink of the DGX-1"
    yield exact(SCCL, "(1, 2, 2): rounds", 2, rounds, why, basis="counted")
    why = "no figure is printed; the preset dgx1-v100-8 has the vendor's rates only"
    yield cannot(SCCL, "MSCCLang against SCCL", "faster when small, slower in the middle", why)


def _rounds(program: Program, links: Mapping[tuple[int, int], int]) -> int:
    """Return the most messages that one of the links between two ranks carries in one direction."""
    sends = is_one_of(program.kind, SENDS)
    carried: dict[tuple[int, int], int] = {}
    for row in sends.nonzero()[0].tolist():
        channel = program.channels[program.chan_out[row]]
        carried[channel.src, channel.dst] = carried.get((channel.src, channel.dst), 0) + 1
    return max(-(-count // links[min(ends), max(ends)]) for ends, count in carried.items())


def _rest() -> Iterator[Row]:
    """Yield what only their deployment, or their compiler, gives."""
    why = "a time of their service; neither the model nor its sizes are printed"
    yield cannot(END, "Copilot: GPU time", 20, why, unit="%")
    yield cannot(END, "mixture of experts on 256 A100", [1.10, 1.89], why, unit="x")
    why = (
        "the public compiler (microsoft/msccl-tools@030a750) does not check it: 9 exchanges in one thread block compile"
    )
    why += " for 8 slots, and deadlock. Our certificate reports the least depth at which a program completes"
    yield Row(FIFO, "schedules with more than s outstanding sends", "prevented", "not prevented", CONFLICT, why)
