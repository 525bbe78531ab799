"""How an item of each kind is saved and read by those who need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dovetail.accelerate.contest import Ratio
from dovetail.accelerate.learn import WON, Learned, recall_settings, save_settings, settings_item
from dovetail.accelerate.remembered import SCHEMA as LAUNCH
from dovetail.accelerate.remembered import answer_item, recall_answer, save_answer
from dovetail.call.nest_operators import operator_of
from dovetail.ir import Schedule
from dovetail.loops.problems import jacobi2d
from dovetail.machine import load
from dovetail.matmul import MatmulAllReduce
from dovetail.store.machines import costs_on, machine_item, recall_machine, save_machine
from dovetail.store.program_cache import known_of, recall_program, save_program, save_proof
from dovetail.store.selection import Choice, Point, Selection, recall_selection, rows_of, save_selection
from dovetail.store.tuned_schedules import recall_schedule, save_schedule

PRODUCT, HOW = MatmulAllReduce(4, 6, 2), MatmulAllReduce(4, 6, 2).serial(2)
STENCIL = operator_of(jacobi2d)("128x8", steps=24)
DEEP = Schedule.of("any", cut=(2,), depth=8, overlapped=None, tile=2)
PROGRAM = STENCIL.program(DEEP, 2)
MACHINE = load("shared-memory-2")
TABLE = Selection({"mpi": "X"}, rows_of("all_reduce", 2, 1, [(Choice(), Point(4096, 1e-5))]))
RANKS = "MPICH 5", ["a", "a"]
PLACE, COSTS = machine_item("mpiexec -n {ranks}", 2), costs_on(MACHINE, PRODUCT, 2)

WORDS = ["mpiexec", "-n", "2", "program"]
KNOBS = {"MPIR_CVAR_ALLTOALL_INTRA_ALGORITHM": "brucks"}
LEARNED = Learned(WON, KNOBS, "MPICH 5", ("a",), 2, Ratio((0.9,) * 5), ("X=1",))


class Door(NamedTuple):
    """How an item of a kind is saved and read by those who need it, and what they find once it was saved."""

    save: Callable[[], Any]
    read: Callable[[], Any]
    good: Any
    nothing: Any = None


DOORS = {
    "machines": Door(lambda: save_machine(PLACE, MACHINE), lambda: recall_machine(PLACE), MACHINE),
    "costs": Door(lambda: save_machine(COSTS, MACHINE, "it"), lambda: recall_machine(COSTS), MACHINE),
    "schedules": Door(
        lambda: save_schedule(PRODUCT, HOW, *RANKS), lambda: recall_schedule(PRODUCT, *RANKS).warned(), HOW
    ),
    "programs": Door(
        lambda: save_program(STENCIL, DEEP, 2, PROGRAM), lambda: recall_program(STENCIL, DEEP, 2).warned(), PROGRAM
    ),
    "proofs": Door(
        lambda: save_proof(STENCIL, DEEP, PROGRAM, in_order=True),
        lambda: known_of(STENCIL, DEEP, PROGRAM),
        (True, True),
        (False, None),
    ),
    "selections": Door(lambda: save_selection(TABLE, *RANKS), lambda: recall_selection(*RANKS).warned(), TABLE),
    "settings": Door(
        lambda: save_settings(settings_item(WORDS, reorder=False), LEARNED, WORDS),
        lambda: recall_settings(settings_item(WORDS, reorder=False)).warned(),
        LEARNED,
    ),
    "launches": Door(
        lambda: save_answer(answer_item("it", WORDS), "it", ["yes"], []),
        lambda: recall_answer(answer_item("it", WORDS)).warned(),
        {"schema": LAUNCH, "answer": ["yes"], "files": []},
    ),
}
