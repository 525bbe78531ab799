"""Run by every rank, without MPI: random calls on communicators that come and go, each held against NumPy.

Arguments: seed, number of steps; then the rank that is to fail, how (`kill`, `exit`, `raise`), and after which step.
Ranks that learn of it print their error, and end with exit code 0.
"""

import os
import random
import signal
import sys
import warnings
from typing import NamedTuple

import numpy as np

import dovetail as dt
from dovetail.call import use
from dovetail.collective import algorithms_for
from dovetail.core import RunError
from dovetail.run import numpy_dtype

try:
    from any_ranks import WORLD
    from comm_ranks import EVEN, ROOTED, UNEVEN, forced, reduced, same
except RunError as error:  # one write, as other ranks write there, too
    os.write(1, f"a rank that meets others learns: {' '.join(str(error).split())}\n".encode())
    sys.exit(0)

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "uint64", "complex64")
LENGTHS = ((0.04, 0, 0), (0.7, 1, 100), (0.97, 100, 5000), (0.997, 5000, 100_000), (1.0, 100_000, 300_000))
POOL = 1 << 21  # elements that all data are cut from
MOST_COMMS, MOST_BEGUN = 5, 4
CHANGES, BEGINS, PRODUCTS, TABLES = 0.004, 0.06, 0.02, 0.01  # shares of the steps
AGAIN = (0, 0, 1, 5, 100)  # how often a call is repeated, the longer ones by the first three; engines serve the second
OTHERS = {"sum", "prod", "min", "max"}
HOST_ONLY = "sccl_122_all_gather"  # of 8 ranks


class Place(NamedTuple):
    """A communicator, and its members' ranks in the world; None where this rank is not in it."""

    comm: dt.run.shared.world.Comm | None
    members: list[int]


class Asked(NamedTuple):
    """A call: name, arguments, keywords, what must come (or None), and whether the arguments stay as they are."""

    name: str
    arguments: list
    keywords: dict
    expected: object
    stays: bool = False


class Soak:
    """Draws steps: `drawn` equally on all ranks, `own` by each rank, `now` anew for a step and equally on its ranks."""

    def __init__(self, seed):
        self.drawn, self.own = random.Random(seed), random.Random(1000 * seed + WORLD.rank)
        self.pools = {}
        self.places = [Place(WORLD, list(range(WORLD.size)))]
        self.begun, self.steps, self.count = [], 0, 0

    def data(self, rows, width, dtype):
        """Each member's array: small whole numbers, so that sums are exact in every order."""
        if dtype not in self.pools:
            pool = np.random.default_rng(7).integers(1, 3, POOL)
            self.pools[dtype] = pool.astype(numpy_dtype(dtype) if dtype == "bfloat16" else dtype)
        found = []
        for count in rows:
            start = self.now.randrange(max(1, POOL - count * width))
            found.append(self.pools[dtype][start : start + count * width].reshape(-1, width))
        return found

    def length(self):
        share = self.now.random()
        _, least, most = next(each for each in LENGTHS if share <= each[0])
        return self.now.randint(least, most)

    def asked(self, place):
        """A call on a communicator that this rank is in, and whether it is a short one."""
        kind = self.now.choice(EVEN + ROOTED + UNEVEN)
        n, dtype, length = len(place.members), self.now.choice(DTYPES), self.length()
        op = self.now.choice(sorted(OTHERS)) if dtype != "complex64" else self.now.choice(("sum", "prod"))
        if "float" in dtype and self.now.random() < 0.1:
            op = "avg"
        root, width = self.now.randrange(n), self.now.choice((1, 3)) if length < 100_000 else 1
        counts = np.array([[self.now.choice((0, length, length // 2)) // 2 for _ in range(n)] for _ in range(n)])
        if kind in EVEN:
            made = self.even(place, kind, length, width, dtype, op)
        elif kind in ROOTED:
            made = self.rooted(place, kind, length, dtype, root, op)
        else:
            made = self.uneven(place, kind, counts, width, dtype, op)
        return made, length < 5000

    def even(self, place, kind, rows, width, dtype, op):
        n, cut = len(place.members), kind in ("reduce_scatter", "all_to_all")
        rows = rows // n if cut else rows
        parts = self.data([rows * n if cut else rows] * n, width, dtype)
        rank = place.comm.rank
        mine, block = parts[rank].copy(), slice(rank * rows, (rank + 1) * rows)
        said = {"op": op} if kind in ("all_reduce", "reduce_scatter") else {}
        expected = {
            "all_reduce": lambda: reduced(parts, op),
            "all_gather": lambda: np.concatenate(parts),
            "reduce_scatter": lambda: reduced(parts, op)[block],
            "all_to_all": lambda: np.concatenate([part[block] for part in parts]),
            "all_to_next": lambda: parts[rank - 1] if rank else None,
        }[kind]()
        if kind == "all_to_next":
            return Asked(kind, [mine], said, expected, True)
        how = self.own.randrange(3)  # where the result lies is each rank's own business
        if how == 0:
            return Asked(kind, [mine], said, expected, kind != "all_reduce")
        if how == 1:
            return Asked(kind, [mine], said | {"out": np.empty_like(expected)}, expected, True)
        if kind == "all_gather":
            out = np.empty_like(expected)
            out[block] = mine
            return Asked(kind, [out[block]], said | {"out": out}, expected)
        return Asked(kind, [mine], said | {"out": mine[block] if kind == "reduce_scatter" else mine}, expected)

    def rooted(self, place, kind, rows, dtype, root, op):
        n = len(place.members)
        parts = self.data([rows * n if kind == "scatter" else rows] * n, 1, dtype)
        rank = place.comm.rank
        mine, here = parts[rank].copy(), rank == root
        if kind == "broadcast":
            return Asked(kind, [mine], {"root": root}, parts[root])
        if kind == "scatter":
            expected = parts[root][rank * rows : (rank + 1) * rows]
            return Asked(kind, [mine if here else None], {"root": root, "out": np.empty_like(expected)}, expected)
        said = {"root": root, "op": op, "out": np.empty_like(mine)} if kind == "reduce" else {"root": root}
        expected = (reduced(parts, op) if kind == "reduce" else np.concatenate(parts)) if here else None
        return Asked(kind, [mine], said, expected, True)

    def uneven(self, place, kind, table, width, dtype, op):
        n, counts = len(place.members), table[0]
        totals = {"all_gather_v": counts, "reduce_scatter_v": [counts.sum()] * n, "all_to_all_v": table.sum(1)}[kind]
        parts = self.data(map(int, totals), width, dtype)
        rank = place.comm.rank
        mine, said = parts[rank].copy(), {"counts": counts}
        if kind == "all_to_all_v":
            cuts = [np.split(part, np.cumsum(row)[:-1])[rank] for part, row in zip(parts, table, strict=True)]
            return Asked(kind, [mine], {"counts": table}, np.concatenate(cuts), True)
        if kind == "all_gather_v":
            return Asked(kind, [mine], said, np.concatenate(parts), True)
        expected = np.split(reduced(parts, op), np.cumsum(counts)[:-1])[rank]
        return Asked(kind, [mine], said | {"op": op}, expected, True)

    def product(self, place):
        """A product that is bound again and again, of few shapes; it is short."""
        m, k, n = self.now.choice(((24, 8, 5), (7, 3, 2), (64, 16, 33)))
        size = len(place.members)
        a, b = (self.data([x] * size, y, "float64") for x, y in ((m, k), (k, n)))
        total = sum((x @ y for x, y in zip(a, b, strict=True)), np.zeros((m, n)))
        rank = place.comm.rank
        return Asked("matmul_all_reduce", [a[rank].copy(), b[rank].copy()], {}, total, True), True

    def step(self):
        self.steps += 1
        self.now, share = random.Random(self.drawn.getrandbits(64)), self.drawn.random()
        place = self.places[self.drawn.randrange(len(self.places))]
        if share < CHANGES:
            return self.change()
        if not place.comm:
            return None
        if share < CHANGES + TABLES:
            return self.tune(place)
        asked, is_short = self.product(place) if self.now.random() < PRODUCTS else self.asked(place)
        self.count += 1
        held = [None if each is None else each.copy() for each in asked.arguments]
        again = self.now.choice(AGAIN if is_short else AGAIN[:3])
        if self.now.random() < BEGINS:
            request = getattr(dt, f"begin_{asked.name}")(*asked.arguments, comm=place.comm, **asked.keywords)
            self.begun.append((request, asked, held))
            while len(self.begun) > MOST_BEGUN or (self.begun and self.own.random() < 0.3):
                self.end_one()
            return None
        check(asked, getattr(dt, asked.name)(*asked.arguments, comm=place.comm, **asked.keywords), held)
        for _ in range(again):
            self.count += 1
            for array, before in zip(asked.arguments, held, strict=True):
                if array is not None:
                    array[...] = before
            check(asked, getattr(dt, asked.name)(*asked.arguments, comm=place.comm, **asked.keywords), held)
        return None

    def end_one(self):
        request, asked, held = self.begun.pop(self.own.randrange(len(self.begun)))
        check(asked, request.wait(), held)

    def tune(self, place):
        """Give a communicator other algorithms, or the plain calls again."""
        names = [name for kind in EVEN + ROOTED + UNEVEN for name in algorithms_for(kind) if name != HOST_ONLY]
        names = self.now.sample(names, 6)
        settings = {"instances": self.now.choice((1, 2)), "slice_bytes": self.now.choice((0, 64, 4096))}
        plain = self.now.random() < 0.3
        if place.comm:
            use(place.comm, None if plain else forced(place.comm, *names, **settings))

    def change(self):
        """Free a communicator, or make one of another by Split or Dup."""
        while self.begun:
            self.end_one()
        if len(self.places) > 1 and (len(self.places) == MOST_COMMS or self.now.random() < 0.5):
            gone = self.places.pop(self.now.randrange(1, len(self.places)))
            if gone.comm:
                gone.comm.Free()
            return
        parent, splits = self.places[self.now.randrange(len(self.places))], self.now.random() < 0.6
        colors = [self.now.choice((0, 0, 1, None)) for _ in range(8)]
        keys = [self.now.randrange(4) for _ in range(8)]
        made, members = None, parent.members
        if parent.comm:
            rank = parent.comm.rank
            made = parent.comm.Split(colors[rank], keys[rank]) if splits else parent.comm.Dup()
        if splits:  # ranks of other colors stand in other communicators, and draw the same calls for them
            members = [[r for _, r in sorted((keys[p], r) for p, r in enumerate(parent.members) if colors[p] == color)]
                       for color in (0, 1)]  # fmt: skip
            members = next((each for each in members if WORLD.rank in each), [])
            assert made is None or made.size == len(members)
        self.places.append(Place(made, members or parent.members))


def check(asked, found, held):
    if asked.expected is None:
        assert found is None, asked.name
    else:
        same(found, np.ascontiguousarray(asked.expected))
    if asked.stays:
        for array, before in zip(asked.arguments, held, strict=True):
            same(array, before)


def fail(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit":
        sys.exit(3)
    raise ArithmeticError("planted")


def main(seed, calls, rank=-1, how="", at=0):
    warnings.simplefilter("ignore")
    soak = Soak(seed)
    try:
        while soak.steps < calls:
            soak.step()
            if rank == WORLD.rank and soak.steps == int(at):
                fail(how)
    except RunError as error:
        print(f"rank {WORLD.rank} learns: {' '.join(str(error).split())}", flush=True)
        sys.exit(0)
    while soak.begun:
        soak.end_one()
    print(f"{soak.count} calls right", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
