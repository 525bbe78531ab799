"""Run by the ranks of an MPI: one rank raises at its n-th call of a function of ours, before the transfer; all must."""

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dovetail as dc
import dovetail as dt
from dovetail import all_gather_matmul, all_to_all_matmul, bind, matmul_all_reduce
from dovetail.call import use
from dovetail.call.bound import Bound
from dovetail.call.pipeline import pipeline
from dovetail.call.products import Kept, asked_of
from dovetail.call.validate import settle
from dovetail.core import OperatorError
from dovetail.loops import problems
from dovetail.matmul import MatmulAllReduce
from dovetail.run import faults, requests
from dovetail.run.ranks import comm as ranks_module
from dovetail.run.ranks import library as mpi_library
from dovetail.run.ranks import together, world
from dovetail.run.ranks.embedded import Embedded, check_size
from dovetail.store.selection import Row, Selection

WORLD = MPI.COMM_WORLD
RANK, RANKS = WORLD.rank, WORLD.size
PACKAGE = str(Path(dt.__file__).parent)
HUNG_S = float(os.environ.get("HUNG_S", 100))  # a trial that takes longer hangs: the job ends with every rank's stack
DENSE, STRIDE = 30, 1.35  # every call of the first so many, then of ever fewer
# What carries the faults themselves, and what moves nothing and cannot fail on one rank.
CARRIERS = {world.__file__, together.__file__, mpi_library.__file__, faults.__file__, requests.__file__}
SAFE = {check_size, Kept.__init__, Kept.take, Kept.add, Kept._drop}
SAFE |= {
    Bound.__call__,
    ranks_module._SharedMemory.hide,
    ranks_module.known_by,
    ranks_module.adopted,
    ranks_module._fortran,
    ranks_module._calls,
    ranks_module.shim.__wrapped__,
}
# From here on a rank can notify the others; before, there is no call in which they would wait for it.
BEGINNINGS = {together.of_all, asked_of, Embedded.call, settle, world.World.together.__wrapped__}
BEGINNINGS = {function.__code__ for function in BEGINNINGS}
TRANSFERS = {Embedded._run.__code__, Embedded.run_bound.__code__, Embedded.agree.__code__}
TRANSFERS |= {ranks_module.Communicator.agree.__code__, ranks_module.Communicator.gather.__code__}


class Planted(Exception):
    """What a user's own code may raise."""


class Unusual(np.ndarray):
    """An array that the fast path leaves to `settle`."""


class Interrupted(KeyboardInterrupt):
    """What Ctrl-C may raise anywhere."""


class RaisesAt:
    """While it is in force, the n-th call of a function of ours raises; none in a transfer, nor after the last one."""

    def __init__(self, n: int, transfers: int, kinds: tuple[type[BaseException], ...]) -> None:
        self.left, self.fired, self.begun, self.kind = n, "", False, kinds[n % len(kinds)]
        self.transfers, self.transfer = transfers, None
        self.codes = {function.__code__ for function in SAFE}

    def __call__(self, frame, event, _) -> None:
        code = frame.f_code
        self.begun = self.begun or code in BEGINNINGS
        if self.transfer is not None:
            self.transfer = None if event == "return" and frame is self.transfer else self.transfer
        elif (
            event != "call"
            or not self.begun
            or not code.co_filename.startswith(PACKAGE)
            or code.co_filename in CARRIERS
        ):
            return
        elif code in TRANSFERS:
            self.transfer, self.transfers = frame, self.transfers - 1
            if not self.transfers:
                sys.setprofile(None)
        elif code not in self.codes | BEGINNINGS and code.co_name not in ("<genexpr>", "__del__"):
            self.left -= 1
            if not self.left:
                sys.setprofile(None)
                self.fired = f"{Path(code.co_filename).name}:{code.co_name}"
                raise self.kind(self.fired)


def trial(door: Callable[[], object], failing: int, n: int, transfers: int, later: Callable[[], object] | None) -> bool:
    """Whether the fault was raised, on all ranks then; by a call `later` on those that had left the door's."""
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    kinds = (Planted,) if later is None else (Planted, Interrupted)
    planted, raised = RaisesAt(n, transfers, kinds), ""
    if failing == RANK:
        sys.setprofile(planted)
    try:
        door()
    except (Exception, Interrupted) as error:
        raised = f"{type(error).__name__}: {error}"
    finally:
        sys.setprofile(None)
    if later is not None:
        WORLD.Barrier()
        try:
            raised or later()
        except ValueError as error:
            raised = f"{type(error).__name__}: {error}"
    everyone = WORLD.allgather((raised, planted.fired))
    faulthandler.cancel_dump_traceback_later()
    fired = everyone[failing][1]
    assert all(said for said, _ in everyone) or not any(said for said, _ in everyone), (n, everyone)
    if raised:
        assert fired, everyone
        assert fired in raised or "refuses its" in raised, everyone
    return bool(fired)


def every_point(
    name: str, door: Callable[[], object], transfers: int = 1, later: Callable[[], object] | None = None
) -> None:
    """Fail at every point that a run of the door passes before its last transfer, on either end of the ranks."""
    for failing in sorted({0, RANKS - 1}):
        n, trials = 1, 0
        while trial(door, failing, n, transfers, later):
            n, trials = (n + 1 if n < DENSE else int(n * STRIDE)), trials + 1
        assert trials >= 3, f"{name}: only {trials} points"
        if RANK == 0:
            print(f"{name}: rank {failing} failed at {trials} points of its first {n - 1} calls", flush=True)


def in_new(door: Callable[[MPI.Comm], object]) -> Callable[[], None]:
    """The door on a communicator that Dovetail does not know yet."""

    def call() -> None:
        own = WORLD.Dup()
        try:
            door(own)
        finally:
            own.Free()

    return call


def products() -> None:
    a, b = np.ones((4, 4 * RANKS), "f4"), np.ones((4 * RANKS, 3), "f4")
    tokens, counts = np.ones((RANKS, 3), "f4"), [1] * RANKS
    every_point("product, new", in_new(lambda own: all_gather_matmul(a, b, own)))
    every_point("product, known", lambda: matmul_all_reduce(a, b, WORLD))
    out = np.zeros((RANKS, 2), "f4")
    weight = np.ones((3, 2), "f4")
    every_point("product, counts and out", lambda: all_to_all_matmul(tokens, weight, WORLD, counts=counts, out=out))
    assert np.array_equal(all_to_all_matmul(tokens, weight, WORLD, counts=counts, out=out), np.full_like(out, 3))


def products_alike() -> None:
    """Two products with equal arguments on one rank: the right one runs, and a fault reaches all ranks."""
    rows = [2 + (RANK == 1), 2 + 2 * (RANK == 1)]
    pairs = [(np.ones((n, 3), "f4"), np.ones((3, 2), "f4")) for n in rows]
    for _ in range(3):
        for a, b in pairs:
            total = sum(WORLD.allgather(a.shape[0]))
            assert all_gather_matmul(a, b, WORLD).shape == (total, 2)
    every_point("product, alike", lambda: all_gather_matmul(*pairs[0], WORLD))


def plans() -> None:
    made = dt.plan(MatmulAllReduce(8, 4, 6), "shared-memory-2", ranks=RANKS, extrapolate=True)
    part = np.array_split(np.arange(4), RANKS)[RANK].size
    given = [np.ones((8, part), "f4"), np.ones((part, 6), "f4")]
    every_point("plan", lambda: made.run(*given, comm=WORLD))
    every_point("plan, new", in_new(lambda own: made.run(*given, comm=own)))


def nests() -> None:
    every_point("nest.on", lambda: bind(problems.jacobi2d, WORLD, (8, 6), steps=2))
    run = bind(problems.jacobi2d, WORLD, (8, 6), steps=2)
    own = np.ones((8, 6), "f4")[run.block].copy()
    every_point("nest", lambda: run(own))
    tested = bind(problems.jacobi2d, WORLD, (8, 6), steps=2, test=2)
    every_point("until", lambda: tested.until(own, change=1e-3, calls=3))
    every_point("pipeline.on", lambda: bind(problems.gauss_seidel2d, WORLD, (9, 7), steps=2))


def pipelines() -> None:
    face = np.zeros((6, 2))
    sides = {"receives": [(RANK - 1, face)]} if RANK else {}
    sides |= {"sends": [(RANK + 1, face)]} if RANK + 1 < RANKS else {}
    said = refused(
        lambda: pipeline(WORLD, 6.5 if RANK == 0 else 6, lambda low, high: None, **sides)
    )  # an OperatorError on all
    assert "TypeError" in said, said
    every_point("pipeline()", lambda: pipeline(WORLD, 6, lambda low, high: None, grain=2, **sides))


def collectives() -> None:
    os.environ["DOVETAIL_CHECK_CALLS"] = "1"
    x = np.ones(4 * RANKS, "f4")
    every, rows = [[2] * RANKS] * RANKS, [2] * RANKS  # the first is agreed on twice, the second exchanged as well
    given = {"all_reduce": (x,), "all_gather_v": (x[:4], [4] * RANKS), "all_to_all_v": (x[: 2 * RANKS], every)}
    cases = [*((kind, each, 1 + (kind == "all_to_all_v")) for kind, each in given.items())]
    for kind, arguments, transfers in [*cases, ("all_to_all_v", (x[: 2 * RANKS], rows), 3)]:
        into = np.zeros_like(x if kind != "all_to_all_v" else arguments[0])
        call = partial(getattr(dc, kind), *arguments, WORLD, out=into)
        call()
        every_point(f"{kind}, {transfers} transfers", call, transfers)
    del os.environ["DOVETAIL_CHECK_CALLS"]


def plain() -> None:
    """Collectives whose ranks compare nothing: whoever waits in one is freed, and the communicator goes on."""
    x = np.ones(4 * RANKS, "f4")
    doors = {
        "all_reduce": lambda: dc.all_reduce(x.view(Unusual), WORLD),
        "broadcast": lambda: dc.broadcast(x, WORLD, np.int64(0)),
        "gather": lambda: dc.gather(x, WORLD, RANKS - 1),
        "all_to_all_v": lambda: dc.all_to_all_v(x, [4] * RANKS, WORLD),
    }

    def later() -> None:
        held = np.full(3, RANK)
        dc.all_reduce(held, WORLD)
        assert held.tolist() == [RANKS * (RANKS - 1) // 2] * 3

    later()
    for name, door in doors.items():
        door()
        transfers = 1 if name != "all_to_all_v" else 2
        every_point(f"{name}, plain", door, transfers, later)


def wrong_arguments() -> None:
    """One rank's arguments are wrong; it may retry when all have raised, on every communicator of several."""
    own = [WORLD.Dup(), WORLD.Dup()]
    use(own[1], Selection({}, (Row("all_reduce", RANKS, 1, 0, 1 << 20, "ring_all_reduce"),)))
    x = np.ones(4 * RANKS, "f4")
    for turn in range(4):
        for comm in own:
            for given in ([1.0], x.astype("O"), x[::2]):
                mine = given if turn % RANKS == RANK else x
                said = refused(partial(dc.all_reduce, mine, comm))
                assert said.startswith(f"rank {turn % RANKS}: ") == (turn % RANKS != RANK), said
                assert "all_reduce" in said
                held = np.ones(8, "f4")
                assert dc.all_reduce(held, comm).tolist() == [RANKS] * 8
    for comm in own:
        comm.Free()


def refused(call: Callable[[], object], kind: object = OperatorError) -> str:
    """Return what the error said."""
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    try:
        call()
    except kind as error:
        return str(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return "nothing"


def planted_silent() -> None:
    """A door without its agreement: the others wait, and the job is ended."""
    global HUNG_S
    HUNG_S = 3
    world.World._exchange_faults = lambda self, own: None
    every_point("nest.on", lambda: bind(problems.jacobi2d, WORLD, (8, 6), steps=2))


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            globals()[name]()
    except BaseException:  # the other ranks wait for this one
        traceback.print_exc()
        WORLD.Abort(1)
