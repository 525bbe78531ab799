"""A machine that runs MSCCL++ plans as the executor's threads do, in random order: an oracle that shares no code.

Five threads a threadblock, twelve elements a chunk; every read and every write is a step of its own. Element i of an
op on packets, from where the op starts, is thread i's, modulo their number; of other ops the thread differs from op to
op. Port channels execute their requests later, in order. Gpus start their kernels at random, with garbage in their
buffers before, and write garbage over them as soon as they end.

What a thread writes, but for packets and stores through a switch, its threadblock sees from the next sync on, and
everybody at random, at the latest when it signals, releases, comes to a barrier or its kernel ends: not when it writes
packets or sends relaxed signals. Writes of one element come in the order they were done in; reads are never early.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

THREADS, ELEMENTS = 5, 12
SPEEDS = (1.0, 0.5, 0.02)
Cell = tuple[list[int], int]
Steps = Iterator[bool]  # True: a step was done, False: it waits
Late = tuple[list[int], int, int, int]  # memory, element, value, the thread that sees it; -1: all of its threadblock


class Machine:
    def __init__(self, document: dict[str, Any], rng: random.Random) -> None:
        self.document, self.rng, self.gpus = document, rng, document["gpus"]
        self.n, self.kind = len(self.gpus), document["collective"]
        self.inputs = [[rng.randrange(1 << 30) for _ in range(self.size(g, "input"))] for g in self.gpus]
        self.memory = [self.buffers(rank) for rank in range(self.n)]
        self.signals: Counter[Any] = Counter()
        self.taken: Counter[Any] = Counter()
        self.values = {(r, k): s["init_value"] for r, g in enumerate(self.gpus) for k, s in enumerate(g["semaphores"])}
        self.arrived: Counter[Any] = Counter()
        self.shifts: dict[int, int] = {}  # of each op, which thread handles the first element
        self.left = Counter({rank: THREADS * len(g["threadblocks"]) for rank, g in enumerate(self.gpus)})
        self.outputs: dict[int, list[int]] = {}
        self.started: list[Steps] = []  # threads of a kernel that starts now
        self.requests: dict[Any, list[Callable[[], Steps]]] = defaultdict(list)  # what each port channel has yet to do
        self.done: Counter[Any] = Counter()  # and how much it has done
        self.late: dict[Any, list[Late]] = defaultdict(list)  # what each threadblock has written and not all see
        self.haste = rng.choice(SPEEDS)

    def size(self, gpu: dict[str, Any], buffer: str) -> int:
        return gpu[f"{buffer}_chunks"] * ELEMENTS

    def buffers(self, rank: int) -> dict[str, list[int | None]]:
        gpu, shared = self.gpus[rank], max(self.size(self.gpus[rank], b) for b in ("input", "output"))
        inputs = [-1] * (shared if self.document["inplace"] else self.size(gpu, "input"))
        outputs = inputs if self.document["inplace"] else [-1] * self.size(gpu, "output")
        scratch = self.size(gpu, "scratch")
        return {"i": inputs, "o": outputs, "s": [-1] * scratch, "p": [None] * scratch}  # type: ignore[dict-item]

    def base(self, rank: int, letter: str) -> int:
        """In place, where the input or output of a gpu starts in the one buffer."""
        moved = (self.kind, letter) in (("allgather", "i"), ("reducescatter", "o")) and self.document["inplace"]
        return rank * self.size(self.gpus[rank], "input" if letter == "i" else "output") * moved

    def run(self) -> str:
        """right, wrong, or hang."""
        live = [(self.launch(rank), 1.0) for rank in range(self.n)]
        live += [
            (self.port(rank, number), self.rng.choice(SPEEDS))
            for rank in range(self.n)
            for number in range(self.ports(rank))
        ]
        while any(steps.gi_code is not Machine.port.__code__ for steps, _ in live):  # type: ignore[attr-defined]
            chosen = [self.rng.random() < speed for _, speed in live]
            moved = [next(steps, None) if goes else True for (steps, _), goes in zip(live, chosen, strict=True)]
            if False in moved and not any(did for did, goes in zip(moved, chosen, strict=True) if goes):
                rest = [next(steps, None) for (steps, _), goes in zip(live, chosen, strict=True) if not goes]
                if not any(rest) and None not in (*rest, *moved):
                    return "hang"
                live = [each for each in live if each[0].gi_frame is not None]  # type: ignore[attr-defined]
            else:
                live = [each for each, did in zip(live, moved, strict=True) if did is not None]
            live += [(steps, self.rng.choice(SPEEDS)) for steps in self.started]
            self.started = []
            for place, late in self.late.items():
                if late and self.rng.random() < self.haste:
                    memory, element, *_ = self.rng.choice(late)
                    self.settle(place, lambda each, cell=(memory, element): same(each, cell))
        return "right" if all(self.outputs[rank] == self.wanted(rank) for rank in range(self.n)) else "wrong"

    def launch(self, rank: int) -> Steps:
        for _ in range(self.rng.choice((0, 0, 20, 200))):
            yield True
        memory, start = self.memory[rank], self.base(rank, "i")
        memory["i"][start : start + len(self.inputs[rank])] = self.inputs[rank]
        for block in self.gpus[rank]["threadblocks"]:
            self.started += [self.thread(rank, block, tid) for tid in range(THREADS)]
        yield True
        while self.left[rank]:
            yield False
        for block in self.gpus[rank]["threadblocks"]:
            self.settle((rank, block["id"]), lambda _: True)
        start = self.base(rank, "o")
        self.outputs[rank] = list(memory["o"][start : start + len(self.wanted(rank))])  # type: ignore[arg-type]
        for letter in "io":
            memory[letter][:] = [-7] * len(memory[letter])
        yield True

    def wanted(self, rank: int) -> list[int]:
        total = [sum(column) for column in zip(*self.inputs, strict=True)]
        part = len(total) // self.n
        if self.kind == "allreduce":
            return total
        if self.kind == "allgather":
            return [value for values in self.inputs for value in values]
        if self.kind == "sendrecv":
            return self.inputs[(rank + 1) % self.n]
        if self.kind == "reducescatter":
            return total[rank * part : (rank + 1) * part]
        return [value for values in self.inputs for value in values[rank * part : (rank + 1) * part]]

    def thread(self, rank: int, block: dict[str, Any], tid: int) -> Steps:
        for op in block["ops"]:
            if op["name"] == "pipeline":
                for turn in range(2):
                    for inner in op["ops"]:
                        yield from self.step(rank, block, tid, inner, (op["iter_context"]["num_chunks"], turn))
            else:
                yield from self.step(rank, block, tid, op, None)
        self.left[rank] -= 1

    def step(self, rank: int, block: dict[str, Any], tid: int, op: dict[str, Any], turn: Any) -> Steps:
        name, place = op["name"], (rank, block["id"])
        if name in ("signal", "barrier", "sem_release") or op.get("channel_type") == "port":
            self.release(place, tid)
        if name == "nop":
            yield from self.sync(*place)
        elif name == "barrier":
            yield from self.meet(("barrier", rank, op["barrier_id"]), THREADS * op["num_threadblocks"])
        elif name in ("signal", "rlxsignal", "wait", "rlxwait"):
            for number, channel in enumerate(op["channel_ids"]):
                if number % THREADS == tid:
                    waits, port = name.removeprefix("rlx") == "wait", self.number(block, "port", channel)
                    talk = partial(self.talk, rank, self.channel(rank, block, op, channel), waits)
                    if op["channel_type"] == "port" and not waits:
                        self.requests[rank, port].append(talk)
                        yield True
                    else:
                        yield from talk()
        elif name == "flush":  # it looks for its channels among places to write, and there are none
            yield True
        elif name in ("sem_acquire", "sem_release"):
            for number, semaphore in enumerate(op["semaphore_ids"]):
                if number % THREADS == tid:
                    while name == "sem_acquire" and self.values[rank, semaphore] <= 0:
                        yield False
                    self.values[rank, semaphore] += 1 if name == "sem_release" else -1
                    yield True
        elif op.get("channel_type") == "port":
            yield from self.sync_steps(rank, block, op, turn, tid)
        else:
            shift = 0 if name.endswith("pkt") else self.shifts.setdefault(id(op), self.rng.randrange(THREADS))
            yield from self.data(rank, block, op, turn, tid, (tid - shift) % THREADS)

    def sync_steps(self, rank: int, block: dict[str, Any], op: dict[str, Any], turn: Any, tid: int) -> Steps:
        """One thread of an op that a port channel does: rppkt first sees that the packets are there."""
        name = op["name"]
        if name == "rppkt":
            for memory, element in self.cells(rank, block, op, op["src_buff"][0], turn, True)[rank][tid::THREADS]:
                while memory[element] is None:
                    yield False
                yield True
            yield from self.sync(rank, block["id"])
            self.release((rank, block["id"]), tid)
        for number, place in enumerate(op["dst_buff"]):
            if number % THREADS == tid:
                source = op["src_buff"][0 if name == "rppkt" else number]
                port = (rank, self.number(block, "port", op["channel_ids"][number]))
                sides = (source, place)
                self.requests[port].append(partial(self.copy, rank, block, op, turn, sides))
                position = self.done[port] + len(self.requests[port])
                if name in ("pws", "pwsf"):
                    channel = self.channel(rank, block, op, op["channel_ids"][number])
                    self.requests[port].append(partial(self.talk, rank, channel, False))
                    position += 1
                yield True
                while name == "pwsf" and self.done[port] < position:
                    yield False

    def copy(self, rank: int, block: dict[str, Any], op: dict[str, Any], turn: Any, sides: Any) -> Steps:
        """What a port channel copies, flags and all; what was no packet becomes none."""
        packed = op["name"].endswith("pkt")
        reads, writes = (self.cells(rank, block, op, side, turn, packed) for side in sides)
        raw = packed and sides[0]["type"] != "s"
        (targets,) = writes.values()
        for (source, at), (target, to) in zip(reads[rank], targets, strict=True):
            value = None if raw else source[at]
            yield True
            target[to] = value
            yield True

    def ports(self, rank: int) -> int:
        return len(self.peers(rank, "port"))

    def port(self, rank: int, number: int) -> Steps:
        """A port channel, which never ends."""
        while True:
            if self.requests[rank, number]:
                yield from self.requests[rank, number][0]()
                del self.requests[rank, number][0]
                self.done[rank, number] += 1
                yield True
            else:
                yield False

    def read(self, place: Any, tid: int, cell: Cell) -> int:
        seen = [each[2] for each in self.late[place] if same(each, cell) and each[3] in (tid, -1)]
        return seen[-1] if seen else cell[0][cell[1]]

    def write(self, place: Any, tid: int, cell: Cell, value: int, at_once: bool) -> None:
        for other in self.late:
            if at_once or other != place:
                self.settle(other, lambda each: same(each, cell))
        if at_once:
            cell[0][cell[1]] = value
        else:
            self.late[place].append((*cell, value, tid))

    def release(self, place: Any, tid: int) -> None:
        """Let all see what a thread has written, and what it saw of its threadblock."""
        self.settle(place, lambda each: each[3] in (tid, -1))

    def settle(self, place: Any, chosen: Callable[[Late], bool]) -> None:
        for memory, element, value, _ in filter(chosen, self.late[place]):
            memory[element] = value
        self.late[place] = [each for each in self.late[place] if not chosen(each)]

    def sync(self, rank: int, block: int) -> Steps:
        """A nop: with the last that comes, all threads see what any has written."""
        if self.arrived["nop", rank, block] % THREADS == THREADS - 1:
            self.late[rank, block] = [(*each[:3], -1) for each in self.late[rank, block]]
        yield from self.meet(("nop", rank, block), THREADS)

    def meet(self, what: Any, size: int) -> Steps:
        mine = self.arrived[what]
        self.arrived[what] += 1
        yield True
        while self.arrived[what] < (mine // size + 1) * size:
            yield False

    def peers(self, rank: int, kind: str) -> list[int]:
        return [peer for c in self.gpus[rank]["channels"] if c["channel_type"] == kind for peer in c["connected_to"]]

    def number(self, block: dict[str, Any], kind: str, local: int) -> int:
        ids = [number for c in block["channels"] if c["channel_type"] == kind for number in c["channel_ids"]]
        return ids[local] if local < len(ids) else -1

    def channel(self, rank: int, block: dict[str, Any], op: dict[str, Any], local: int) -> tuple[Any, ...]:
        """The kind, the peer, and which of the channels to it."""
        kind = op["channel_type"]
        number, peers = self.number(block, kind, local), self.peers(rank, kind)
        return kind, peers[number], peers[:number].count(peers[number])

    def talk(self, rank: int, channel: tuple[Any, ...], waits: bool) -> Steps:
        kind, peer, number = channel
        if waits:
            key = (kind, peer, rank, number)
            self.taken[key] += 1
            wanted = self.taken[key]
            while self.signals[key] < wanted:
                yield False
        else:
            self.signals[kind, rank, peer, number] += 1
        yield True

    def cells(self, rank: int, block: dict[str, Any], op: dict[str, Any], place: Any, turn: Any, packets: bool) -> Any:
        """For each gpu of a place the cells that this threadblock handles at this turn."""
        start, count = place["index"] * ELEMENTS, place["size"] * ELEMENTS
        if "tbg_info" in op:
            count //= op["tbg_info"]["tbg_size"]
            start += count * op["tbg_info"]["tb_id"]
        if turn:
            unit = turn[0] * ELEMENTS // 2
            start, count = start + turn[1] * unit, min(unit, count - turn[1] * unit)
        ranks, letter = [rank], place.get("type")
        if "buffer_id" in place:
            refs = [r for r in block["remote_buffer_refs"] if r["access_channel_type"] == op["channel_type"]]
            number = refs[0]["remote_buffer_ids"][place["buffer_id"]]
            remote = self.gpus[rank]["remote_buffers"][number]
            ranks, letter = [remote["rank"]], remote["type"]
        if "switch_channel_id" in place:
            number = next(c for c in block["channels"] if c["channel_type"] == "switch")["channel_ids"][0]
            group = [c for c in self.gpus[rank]["channels"] if c["channel_type"] == "switch"][number]
            ranks, letter = group["rank_groups"][0]["ranks"], group["buffer_type"]
        found = {}
        for each in ranks:
            first = start + (self.base(each, letter) if letter != "s" else 0)
            memory = self.memory[each]["p" if packets and letter == "s" else letter]
            found[each] = [(memory, element) for element in range(first, first + count)]
        return found

    def data(self, rank: int, block: dict[str, Any], op: dict[str, Any], turn: Any, tid: int, first: int) -> Steps:
        """Elements `first`, `first` + THREADS and so on of an op, by thread `tid`."""
        own = (rank, block["id"])
        name, packed = op["name"], op["name"].endswith("pkt")
        reads, writes = [], []
        for number, place in enumerate(op["src_buff"]):
            packets = packed and (number > 0 if name.startswith("re") else name in ("upkt", "rppkt", "gstorepkt"))
            reads += [self.cells(rank, block, op, place, turn, packets)]
        for number, place in enumerate(op["dst_buff"]):
            packets = packed and (number > 0 if name.startswith("re") else name != "upkt")
            writes += [self.cells(rank, block, op, place, turn, packets)]
        together = name[:2] in ("re", "rr", "gl")  # one sum of all that is read
        pairs = [(reads, writes)] if together else list(zip([[r] for r in reads], [[w] for w in writes], strict=False))
        if name == "rppkt":
            pairs = [(reads, writes)]
        if packed and together:  # the executor reads packets first, then what it adds to them
            pairs = [([*reads[1:], reads[0]], writes)]
        for sources, targets in pairs:
            length = len(next(iter(sources[0].values())))
            for element in range(first, length, THREADS):
                total = 0
                for cell in [cells[element] for side in sources for cells in side.values()]:
                    while cell[0][cell[1]] is None:
                        yield False
                    total += self.read(own, tid, cell)
                    yield True
                for cell in [cells[element] for side in targets for cells in side.values()]:
                    strong = any(cell[0] is memory["p"] for memory in self.memory) or op.get("channel_type") == "switch"
                    self.write(own, tid, cell, total, strong)
                    yield True


def same(each: Late, cell: Cell) -> bool:
    return each[0] is cell[0] and each[1] == cell[1]


def verdicts(document: dict[str, Any], runs: int, seed: int = 0) -> Counter[str]:
    """How many of so many random runs were right, wrong, and hung."""
    return Counter(Machine(document, random.Random(seed + run)).run() for run in range(runs))
