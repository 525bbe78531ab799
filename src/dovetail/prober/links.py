"""links: measure what messages cost on a machine, by ping-pongs, streams, collectives and late receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dovetail.core import Say
from dovetail.cost import CostModel, EagerLimit, eager_limit, fit
from dovetail.machine import SWITCH, Link, Machine
from dovetail.prober import programs
from dovetail.prober.programs import PAUSE_S, Measurement
from dovetail.prober.take import Budget, should_probe_again, take
from dovetail.run.executor import Executor
from dovetail.run.job import Job

Guess = Callable[[float], float]  # bytes -> approximate seconds
Pairs = dict[str, tuple[int, int]]  # link kind -> two ranks that it joins
PILOT_BYTES = (64, 16 << 10, 256 << 10)
MESSAGE_BYTES = (1, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
LONG_BYTES, LONG = (16 << 20, 64 << 20), 8  # long messages, measured if LONG of them fit the budget of one size
COLLECTIVE_BYTES = MESSAGE_BYTES[2:]
EAGER_BYTES = (1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10)
LARGE_EAGER_BYTES = (1 << 20, 4 << 20, 16 << 20)  # tried if messages of all EAGER_BYTES are sent before their receive
EAGER = "eager:"  # prefix of the key of these measurements, before the link's kind
STREAM = 8  # least messages of a stream
SPOT_BYTES = 256 << 10
FLOOD_BYTES, FLOOD, FLOODS = 256 << 10, 12, 3  # bytes and number of messages sent at once each way, and repeats
MIXED = 0.75  # messages are interleaved if half of them have arrived only after this share of the time


def probe_links(
    executor: Executor,
    ranks: int,
    name: str,
    budget: Budget | None = None,
    say: Say | None = None,
    wired: Machine | None = None,
) -> Machine:
    """Measure the costs of messages: `p2p`, `exchange`, `all_reduce`, `reduce`, `copy`, and the eager limits.

    Source: seed 004 (measure point to point and collective performance first); conventions of IMB's PingPong.

    Parameters
    ----------
    executor : Executor
        Runs the ranks.
    ranks : int
        Number of ranks.
    name : str
        Name of the machine.
    budget : Budget, optional
        Time that each cost may take.
    say : callable, optional
        Called with a text and the share done, 0 to 1.
    wired : Machine, optional
        Take nodes and links from this machine. Default: each rank is a node if it has a port of its own
        (`executor.port`), else ranks with one host name share one; links between nodes have kind `net`, within a node
        `shm`.

    Returns
    -------
    Machine
        With cost curves in seconds against bytes, and facts of the hosts.

    Raises
    ------
    RunError
        If a rank fails.
    """
    say = say or (lambda what, done: None)
    say("finding the ranks", 0.0)
    machine = _bare(name, *find_ranks(executor, ranks), wired, executor.port)
    pairs = pairs_of(machine)
    guesses, early, facts = _pilot(executor, ranks, pairs)
    machine = machine.with_costs({}, **facts)
    say("messages and collectives", 0.1)
    samples = take(executor, _message_costs(machine, pairs, guesses, budget or Budget()))
    machine = machine.with_costs({key: fit(s).to_json() for key, s in samples.items()})
    limits = _eager_limits(executor, machine, pairs, early)
    return machine.with_costs({}, eager_limit_bytes=limits) if limits else machine


def spot_check(executor: Executor, machine: Machine, tolerance: float = 0.25) -> bool:
    """Return whether the machine is still as probed: hosts, MPI, cores, and the speed of its slowest links.

    `tolerance`: allowed relative difference of a stream's seconds. Returns False also if the costs were probed beside
    other load and the machine is calm now. Raises RunError if a rank fails.
    """
    slowest = list(pairs_of(machine).items())[:1]
    size, slices = SPOT_BYTES, machine.slice_bytes
    asked = [programs.exchange(machine.ranks, pair, size, STREAM, kind, slices) for kind, pair in slowest]
    found = take(executor, [_tiny(machine.ranks), *asked], 1)
    facts = found["reduce"].provenance["facts"]
    if any(facts.get(key) != machine.facts.get(key) for key in ("host", "cpu", "mpi", "cores")):
        return False
    if should_probe_again(machine.costs, found):
        return False
    model = CostModel.of(machine)
    expected = [float(model.seconds(ask.key, SPOT_BYTES, extrapolate=True)) for ask in asked]
    taken = [float(found[ask.key].medians[0]) for ask in asked]
    return all(abs(s - usual_s) <= tolerance * usual_s for s, usual_s in zip(taken, expected, strict=True))


def pairs_of(machine: Machine) -> Pairs:
    """Return a pair of ranks for each link kind, slowest kind (between nodes) first."""
    found: Pairs = {}
    for a in range(machine.ranks):
        for b in range(a + 1, machine.ranks):
            found.setdefault(machine.route(a, b)[0], (a, b))
    return dict(sorted(found.items(), key=lambda item: item[0] != "net"))


def _message_costs(machine: Machine, pairs: Pairs, guesses: dict[str, Guess], budget: Budget) -> list[Measurement]:
    local, ranks, slices = (programs.reduce, programs.copy), machine.ranks, machine.slice_bytes
    measured = [make(ranks, size, budget.trips(size / 5e9)) for make in local for size in COLLECTIVE_BYTES]
    for kind, pair in pairs.items():
        guess = guesses[kind]
        long = [size for size in LONG_BYTES if budget.allows(LONG * guess(size))]
        for size in [*(size for size in MESSAGE_BYTES if budget.allows(guess(size))), *long]:
            trips = budget.trips(guess(size))
            measured.append(programs.ping_pong(ranks, pair, size, trips, kind))
            measured.append(programs.exchange(ranks, pair, size, max(trips, STREAM), kind, slices))
    slowest = next(iter(guesses.values()), None)
    if slowest is not None:
        sizes = (size for size in COLLECTIVE_BYTES if budget.allows(slowest(size)))
        measured += [programs.library("all_reduce", ranks, size, budget.trips(2 * slowest(size))) for size in sizes]
    return measured


def find_ranks(executor: Executor, ranks: int) -> tuple[list[str], dict[str, Any]]:
    """Return the host of every rank, and facts of the hosts, from a first tiny job."""
    facts = executor.execute(Job((_tiny(ranks).variant,), rounds=1, warmup=0)).facts
    hosts = facts["host"] if isinstance(facts["host"], list) else [facts["host"]] * ranks
    return hosts, facts


def _tiny(ranks: int) -> Measurement:
    return programs.reduce(ranks, 1 << 10, 1)


def _bare(
    name: str, hosts: list[str], facts: dict[str, Any], wired: Machine | None = None, port: str | None = None
) -> Machine:
    """Return the machine without costs. Nodes and links: those of `wired`; default: a node per host name, or one per
    rank if each has a `port` of that kind.

    Two nodes are joined by a link each way, more nodes by a switch, which stores messages.
    """
    names, kind = list(dict.fromkeys(hosts)), port or "net"
    nodes = tuple(range(len(hosts))) if port else tuple(names.index(host) for host in hosts)
    several = len(set(nodes)) > 2
    ends = [(0, 1), (1, 0)] if len(set(nodes)) == 2 else []
    if several:
        ends = [way for a in range(len(set(nodes))) for way in ((a, SWITCH), (SWITCH, a))]
    links = tuple(Link(*way, kind) for way in ends)
    probed = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {**facts, "hosts": names, "probed": probed} | ({"stores_messages": [kind]} if several else {})
    if wired:
        facts.pop("stores_messages", None)
        nodes = wired.nodes[: len(hosts)]
        links = tuple(link for link in wired.links if {link.src, link.dst} <= {*nodes, SWITCH})
    return Machine(name, len(hosts), nodes, links, {}, facts)


def _pilot(
    executor: Executor, ranks: int, pairs: Pairs
) -> tuple[dict[str, Guess], dict[str, EagerLimit], dict[str, Any]]:
    """Return approximate seconds of a message and the eager limit, both by link kind; and facts.

    Sets the fact `slice_bytes` if the network interleaves messages rather than delivering one after the other.
    """
    if not pairs:
        return {}, {}, {}
    ask = [programs.ping_pong(ranks, pair, n, 3, kind) for kind, pair in pairs.items() for n in PILOT_BYTES]
    far = {kind: pair for kind, pair in pairs.items() if kind == "net"}  # within a node messages do not queue
    ask += FLOODS * [programs.turns(ranks, pair, FLOOD_BYTES, FLOOD, kind) for kind, pair in far.items()]
    late = _late_receives(ranks, pairs, EAGER_BYTES) if executor.buffers_early_sends else []
    samples = take(executor, [*ask, *late], 1)
    early = {kind: eager_limit(samples[EAGER + kind], PAUSE_S) for kind in (pairs if late else ())}
    mixed = [kind for kind in far if kind in early and samples[f"turns:{kind}"].medians[0] > MIXED]
    slices = min((early[kind].limit_bytes for kind in mixed), default=0)

    def guess(kind: str) -> Guess:
        known = samples[f"p2p:{kind}"]
        least, per_byte = float(known.medians[0]), float(known.medians[-1] / known.sizes[-1])
        return lambda size: least + size * per_byte

    return {kind: guess(kind) for kind in pairs}, early, {"slice_bytes": slices} if slices else {}


def _late_receives(ranks: int, pairs: Pairs, sizes: Sequence[int]) -> list[Measurement]:
    """Measure sends whose receive is posted late, by link kind, for the fact `eager_limit_bytes`."""
    made = ((kind, programs.late_receive(ranks, pair, size, 3)) for kind, pair in pairs.items() for size in sizes)
    return [each._replace(key=EAGER + kind) for kind, each in made]


def _eager_limits(
    executor: Executor, machine: Machine, pairs: Pairs, found: Mapping[str, EagerLimit]
) -> dict[str, int]:
    """Return the fact `eager_limit_bytes`, by link kind.

    Tries larger messages if no send waited for its receive. If not even the largest waits, the kind has no limit.
    """
    limits = {kind: each.limit_bytes for kind, each in found.items()}
    asked = []
    for kind, each in found.items():
        if each.waits_bytes is None:
            sizes = [size for size in LARGE_EAGER_BYTES if _is_brief(machine, kind, size)]
            asked += _late_receives(machine.ranks, {kind: pairs[kind]}, sizes)
    for key, samples in take(executor, asked).items() if asked else ():
        kind, more = key.removeprefix(EAGER), eager_limit(samples, PAUSE_S).limit_bytes
        limits[kind] = max(limits[kind], more)
        if more == LARGE_EAGER_BYTES[-1]:
            del limits[kind]
    return limits


def _is_brief(machine: Machine, kind: str, size: int) -> bool:
    """Return whether a message takes less than a quarter of the time by which its receive is posted late."""
    return bool(CostModel.of(machine).seconds(f"p2p:{kind}", size, extrapolate=True) < PAUSE_S / 4)
