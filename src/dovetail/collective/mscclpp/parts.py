"""parts: the vocabulary of MSCCL++ execution plans (DSL and executor 0.9): ops, places, channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dovetail.ir.collectives import COLLECTIVES

MOST_GPUS, MOST_CHUNKS, MOST_OPS_READ, MOST_ROWS, MOST_SLOTS = 1024, 1 << 18, 1 << 16, 1 << 20, 1 << 19
MOST_BYTES = 1 << 26  # of a file; a plan beyond any of these limits is refused
UNJUDGED = "this verifier cannot judge the plan, which may be right"
KIND_OF_WORD = {traits.nccl: kind for kind, traits in COLLECTIVES.items() if traits.nccl and not traits.rooted}
KIND_OF_WORD["sendrecv"] = "sendrecv"  # any other word has no post-condition
PROTOCOLS = ("Simple", "LL")
BUFFERS = {"i": "input", "o": "output", "s": "scratch"}


class Form(NamedTuple):
    """What an op reads and writes, one letter per place: l here, r on another gpu, g on all gpus of a switch
    channel; p, q and h are the same in packets (data and flag together, in scratch); + is one or more of the last.
    """

    reads: str = ""
    writes: str = ""
    uses: str = ""  # what else the op refers to: "channels", "semaphores", "barrier" or "loop"


OPS = {
    "nop": Form(),
    "barrier": Form(uses="barrier"),
    "signal": Form(uses="channels"),
    "wait": Form(uses="channels"),
    "rlxsignal": Form(uses="channels"),
    "rlxwait": Form(uses="channels"),
    "flush": Form(uses="channels"),
    "sem_acquire": Form(uses="semaphores"),
    "sem_release": Form(uses="semaphores"),
    "pipeline": Form(uses="loop"),
    "copy": Form("l", "l"),
    "cpkt": Form("l", "p"),
    "upkt": Form("p", "l"),
    "put": Form("l+", "r+"),
    "pws": Form("l+", "r+"),
    "pwsf": Form("l+", "r+"),
    "get": Form("r+", "l+"),
    "ppkt": Form("l+", "q+"),
    "rppkt": Form("p", "q+"),
    "re": Form("ll+", "l"),
    "res": Form("ll+", "lr+"),
    "rre": Form("lr+", "l"),
    "rres": Form("lr+", "lr+"),
    "repkt": Form("lp+", "l"),
    "recpkt": Form("lp+", "lp"),
    "respkt": Form("lp+", "lq+"),
    "recspkt": Form("lp+", "lpq+"),
    "glres": Form("g", "g"),
    "gstore": Form("l", "g"),
    "gstorepkt": Form("p", "h"),
}
REDUCES = ("re", "res", "rre", "rres", "repkt", "recpkt", "respkt", "recspkt", "glres")
SIGNALS = ("signal", "rlxsignal")
WAITS = ("wait", "rlxwait")
PORT_ONLY = ("pws", "pwsf")
PAIRED = ("put", "pws", "pwsf", "get", "ppkt")  # place i is moved to place i


def letters(pattern: str, count: int) -> str | None:
    """Return the letters of `count` places; None if the pattern takes another number of them.

    >>> letters("lr+", 3), letters("lp", 3)
    ('lrr', None)
    """
    if not pattern.endswith("+"):
        return pattern if len(pattern) == count else None
    fixed = pattern[:-1]
    return fixed + fixed[-1] * (count - len(fixed)) if count >= len(fixed) else None


class Place(NamedTuple):
    """Chunks `start` to `start + size` of buffer i, o or s on `ranks`: one rank, or all of a switch channel."""

    ranks: tuple[int, ...]
    buffer: str
    start: int
    size: int
    packets: bool = False


class Link(NamedTuple):
    """One end of a channel: the `number`-th of its kind between this gpu and `peer`; `local`: its id in ops."""

    kind: str  # memory or port
    peer: int
    number: int
    local: int = -1


class Loop(NamedTuple):
    """A pipeline: repeat `steps`, each time on the next `unit` bytes of their places."""

    unit: int
    chunks: int
    steps: tuple[Step, ...]


class Step(NamedTuple):
    """One op of a threadblock. In a threadblock group it does part `part[0]` of `part[1]` equal parts."""

    name: str
    where: str
    reads: tuple[Place, ...] = ()
    writes: tuple[Place, ...] = ()
    by: str = "none"  # the kind of channel that moves its data: memory, port, switch, none
    links: tuple[Link, ...] = ()
    semaphores: tuple[int, ...] = ()
    barrier: tuple[int, int] = (0, 0)  # (id, number of threadblocks that meet)
    part: tuple[int, int] = (0, 1)
    loop: Loop | None = None
    reduce: str = "sum"


def is_raw(step: Step) -> bool:
    """Return whether a step copies packets unchanged, with their flags: a port channel does not make packets."""
    return step.name == "ppkt" and step.by == "port"


class Gpu(NamedTuple):
    """One gpu: chunks of its buffers i, o and s, initial values of semaphores, the steps of each threadblock."""

    chunks: dict[str, int]
    semaphores: tuple[int, ...]
    blocks: tuple[tuple[Step, ...], ...]
    channels: tuple[dict[str, int], ...]  # by threadblock: number of channels by kind


def steps_of(gpus: Iterable[Gpu]) -> Iterator[Step]:
    """Yield all steps, including those of loops."""
    for gpu in gpus:
        for block in gpu.blocks:
            for step in block:
                yield step
                if step.loop:
                    yield from step.loop.steps


class Document(NamedTuple):
    """A whole plan with all references resolved."""

    place: str
    name: str
    collective: str
    protocol: str
    in_place: bool
    gpus: tuple[Gpu, ...]
    reuse_resources: bool = False
    double_scratch: bool = False
    num_threads: int = 1024
    alignment: int = 16
    min_bytes: int = 0
    max_bytes: int = (1 << 64) - 1


class Remark(NamedTuple):
    """A remark on a place in a plan."""

    where: str
    what: str
