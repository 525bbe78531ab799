"""Run by every rank of an MPI: pipelines on grids of ranks, held against plain loops, and ones that are refused."""

import sys

import numpy as np
from mpi4py import MPI

from dovetail.call.pipeline import pipeline
from dovetail.core import OperatorError

WORLD = MPI.COMM_WORLD
SHAPE = (5, 4, 61)


def plain(weights, sweeps):
    """What each sweep leaves: every element from those before it in all three axes, and from itself."""
    n, m, length = weights.shape
    found = np.zeros((n + 1, m + 1, length + 1), np.int64)
    for _ in range(sweeps):
        for a, b, k in np.ndindex(n, m, length):
            found[a + 1, b + 1, k + 1] += rule(found, a + 1, b + 1, k + 1) + weights[a, b, k]
            found[a + 1, b + 1, k + 1] %= 10007
    return found


def rule(grid, a, b, k):
    return grid[a - 1, b, k] + 2 * grid[a, b - 1, k] + 3 * grid[a, b, k - 1] + 5 * grid[a - 1, b - 1, k]


class Part:
    """This rank's part of the first two axes, with the rows before it, and its neighbours' faces."""

    def __init__(self, dims):
        self.comm = WORLD.Create_cart(dims)
        self.coords = self.comm.coords
        self.box = [
            (n * i // parts, n * (i + 1) // parts) for n, i, parts in zip(SHAPE, self.coords, dims, strict=False)
        ]
        self.dims = dims
        (a, b), (c, d) = self.box
        self.weights = np.random.default_rng(3).integers(0, 99, SHAPE)
        self.own = slice(a + 1, b + 1), slice(c + 1, d + 1), slice(1, None)
        self.mine = np.zeros((b - a + 1, d - c + 1, SHAPE[2] + 1), np.int64)

    def tile(self, low, high):
        first, second = self.box[0][0], self.box[1][0]
        inner = (range(low, high), *(range(size - 1) for size in self.mine.shape[:2]))
        for k in inner[0]:
            for a in inner[1]:
                for b in inner[2]:
                    value = self.mine[a + 1, b + 1, k + 1] + rule(self.mine, a + 1, b + 1, k + 1)
                    self.mine[a + 1, b + 1, k + 1] = (value + self.weights[first + a, second + b, k]) % 10007

    def faces(self, turn=1):
        """Views for each direction: what comes in, and what goes out."""
        by = self.mine.transpose(2, 0, 1)[1:]
        views = {(1, 0): (by[:, 0, 1:], by[:, -1, 1:]), (0, 1): (by[:, 1:, 0], by[:, 1:, -1])}
        views[1, 1] = by[:, :1, :1], by[:, -1:, -1:]
        receives, sends = [], []
        for step, (into, out) in views.items():
            for sign, view, found in ((-turn, into, receives), (turn, out, sends)):
                place = [at + sign * way for at, way in zip(self.coords, step, strict=True)]
                if all(0 <= at < parts for at, parts in zip(place, self.dims, strict=True)):
                    found.append((self.comm.Get_cart_rank(place), view))
        return {"receives": receives, "sends": sends}


def test_every_grain():
    """Chosen, fixed, overlapped or not: the same bits."""
    for dims in {tuple(MPI.Compute_dims(WORLD.size, 2)), (1, WORLD.size), (WORLD.size, 1)}:
        if any(parts > n for parts, n in zip(dims, SHAPE, strict=False)):
            continue
        part, sweeps = Part(dims), 0
        run = pipeline(part.comm, SHAPE[2], part.tile, **part.faces())
        for grain in (None, None, None, 1, 7, 61, 10**9, 0):
            for overlapped in (0, 1, 2) if grain else (0,):
                if grain is not None:
                    run.fix(grain, overlapped=overlapped)
                run()
                sweeps += 1
                same(part, sweeps)
        assert "positions in" in run.explain()
        assert run.choice.tiles == -(-SHAPE[2] // run.choice.grain)
        run.close()


def test_passes_that_try():
    """Tried until it is settled, the same bits all the while; no more is tried after that, nor with a fixed grain."""
    part, sweeps = Part(tuple(MPI.Compute_dims(WORLD.size, 2))), 0
    run = pipeline(part.comm, SHAPE[2], part.tile, **part.faces())
    while not run.choice.settled:
        run()
        sweeps += 1
    same(part, sweeps)
    settled = run.choice
    if WORLD.size > 1:
        assert settled.tried > 2
        assert settled.measured_s > 0
        assert "the least in" in run.explain()
    run()
    assert run.choice == settled
    run.fix(3)
    assert run.choice.settled
    run.fix(0)
    assert run.choice.settled == (WORLD.size == 1)
    run.close()


def same(part, sweeps):
    expected = plain(part.weights, sweeps)[part.own]
    assert np.array_equal(part.mine[1:, 1:, 1:], expected), f"rank {part.comm.rank}, sweep {sweeps}"


def test_short_ones():
    """Pipelines of one to seven positions, where there is little to learn from."""
    for length in range(1, 8):
        before, held = np.zeros((length, 1)), np.zeros((length, 1))
        rank, size = WORLD.rank, WORLD.size

        def tile(low, high, before=before, held=held):
            held[low:high] = before[low:high] + np.arange(low, high)[:, None]

        run = pipeline(
            WORLD,
            length,
            tile,
            receives=[(rank - 1, before)] if rank else (),
            sends=[(rank + 1, held)] if rank + 1 < size else (),
        )
        for _ in range(3):
            run()
        assert np.array_equal(held[:, 0], (rank + 1) * np.arange(length))
        run.close()


def test_wrong_ones():
    """Refused on every rank, with the rank that is at fault; nothing hangs."""
    rank, size, held = WORLD.rank, WORLD.size, np.zeros((9, 2))
    after, last = (rank + 1) % size, rank == size - 1
    chain = {"receives": [(rank - 1, held)] if rank else (), "sends": [] if last else [(after, held)]}
    narrow = chain | ({"receives": [(rank - 1, held[:, :1])]} if last else {})
    wrong = {
        "circle": (9, {"receives": [((rank - 1) % size, held)], "sends": [(after, held)]}, "in a circle"),
        "unpaired": (
            9,
            {"sends": [(after, held)]} if rank == 0 else {},
            "sends rank 1 16 bytes a position, which takes 0",
        ),
        "sizes": (9, narrow, f"sends rank {size - 1} 16 bytes a position, which takes 8"),
        "lengths": (8 + (rank == 1), chain, "8 to 9 on all ranks"),
        "nobody": (9, {"sends": [(size, held)]} if last else {}, "no such other rank"),
        "itself": (9, {"sends": [(rank, held)]} if last else {}, "no such other rank"),
        "short": (9, {"sends": [(0, held[:5])]} if last else {}, "to rank 0 has fewer than 9 positions"),
        "none": (0, {}, "a pipeline of 0 positions"),
    }
    if size > 1:
        wrong["grains"] = (9, chain | {"grain": 2 + (rank == 1)}, "2 to 3 on all ranks")
        wrong["a grain"] = (9, chain | ({"grain": 3} if rank == 0 else {}), "0 to 3 on all ranks")
    for name, (length, faces, said) in wrong.items():
        try:
            pipeline(WORLD, length, lambda low, high: None, **faces)
            found = "accepted"
        except OperatorError as error:
            found = str(error)
        assert said in found, f"{name}: {found}"


def test_wrong_grains():
    """A grain that differs is refused on every rank, and the one before stays."""
    rank = WORLD.rank
    run = pipeline(WORLD, 9, lambda low, high: None, grain=2)
    for grain, overlapped, said in (
        (4 + rank, 0, "of 4 to"),
        (3, rank % 2, "with 0 to 1"),
        (3 - 4 * (rank == 1), 0, "grain"),
    ):
        try:
            run.fix(grain, overlapped=overlapped)
            found = "fixed"
        except OperatorError as error:
            found = str(error)
        assert (said in found) == (WORLD.size > 1), found
        assert run.choice.grain == 2 or WORLD.size == 1
    run.close()


def test_a_tile_that_fails():
    """Its error is raised where it happened, and the others are not kept waiting."""
    rank, held = WORLD.rank, np.zeros((9, 1))

    def tile(low, high):
        if rank == 0 and low <= 4 < high:
            raise ArithmeticError("planted")

    faces = {"sends": [(1, held)]} if rank == 0 else {"receives": [(0, held)]} if rank == 1 else {}
    run = pipeline(WORLD, 9, tile, **faces, grain=2)
    try:
        run()
        assert rank, "rank 0 went on"
    except ArithmeticError:
        assert rank == 0
    run.close()


def planted_unsent():
    """A face that forgets one direction: the results must differ."""
    part = Part((1, WORLD.size))
    faces = part.faces()
    stale = [(rank, np.zeros_like(view)) for rank, view in faces["sends"]]
    pipeline(part.comm, SHAPE[2], part.tile, receives=faces["receives"], sends=stale)()
    same(part, 1)


if __name__ == "__main__":
    tests = [value for name, value in sorted(globals().items()) if name.startswith("test_")]
    for test in [globals()[name] for name in sys.argv[1:]] or tests:
        test()
    WORLD.Barrier()
    print("all the same" if WORLD.rank == 0 else "", flush=True)
