"""selection_rules: which algorithm serves which size of a collective on a communicator."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dovetail.call.build_engine import prepare
from dovetail.call.rank_0 import read_by_rank_0
from dovetail.collective import algorithms_for
from dovetail.core import OperatorError
from dovetail.ir.collectives import COLLECTIVES
from dovetail.run.faults import Door
from dovetail.run.ranks.comm import KINDS, REDUCED, Communicator, Rules, communicator_of
from dovetail.run.ranks.together import common
from dovetail.run.requests import THREAD_MULTIPLE
from dovetail.store import Recalled
from dovetail.store.selection import LEVELS, LIBRARY, Choice, Row, Selection, recall_selection


def use(comm: Any, selection: Selection | None) -> None:
    """Use `selection` for later calls on `comm`; None: use the MPI library's own collectives.

    All ranks of `comm` call it together; rank 0's argument counts. Raises OperatorError on every rank if rank 0's
    argument is neither a Selection nor None.
    """
    with Door(comm) as door:
        made = door.made = communicator(comm)
        found, fault = _rank_0s(made, lambda: Recalled(checked_selection(selection)))
        if fault:
            raise common(OperatorError(f"rank 0 gives no Selection: {fault}", hint="Selection.load(path), or None"))
        _set_rules(made, found)


def checked_selection(selection: Any) -> Selection | None:
    """Return a copy of a Selection, or None for None. Raise OperatorError for anything else.

    >>> checked_selection("table.json")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.OperatorError: no Selection, but str
    """
    if selection is None:
        return None
    if isinstance(selection, Selection):
        return Selection.from_json(selection.to_json())  # not of a subclass, which other ranks may lack
    raise OperatorError(f"no Selection, but {type(selection).__name__}")


def choice_for(comm: Any, collective: str, num_bytes: int, dtype: str | None = None) -> Choice | None:
    """Return the algorithm that `comm` uses for a collective of `num_bytes`; None: the MPI library's own collective.

    `num_bytes`: bytes of the larger of one rank's input and output, as nccl-tests counts. `dtype` matters only for
    collectives that reduce. Raises OperatorError for an unknown collective or dtype.
    """
    if not isinstance(collective, str):
        hint = "choice_for(comm, 'all_reduce', array.nbytes)"
        found = type(collective).__name__
        raise OperatorError("choice_for takes a communicator, then a collective's name", found=found, hint=hint)
    if collective not in KINDS:
        raise OperatorError(f"no collective '{collective}'", hint=f"one of {', '.join(KINDS)}")
    if dtype is not None and dtype not in REDUCED:
        raise OperatorError(f"no dtype '{dtype}'", hint=f"one of {', '.join(REDUCED)}")
    choice: Choice | None = communicator(comm).choice(collective, num_bytes, dtype)
    return choice


def communicator(comm: Any) -> Communicator:
    """Return Dovetail's communicator for `comm`; it follows the cached selection, unless `use` set another."""
    return communicator_of(comm, prepare, _begin, remember=not checks_calls())


def checks_calls() -> bool:
    """Return whether ranks compare the arguments of every call ($DOVETAIL_CHECK_CALLS is set)."""
    return bool(os.environ.get("DOVETAIL_CHECK_CALLS"))


def rules_of(selection: Selection | None, ranks: int, nodes: int) -> Rules:
    """Return for each collective the steps (least bytes, choice) of a selection for these ranks; None: MPI's own call.

    If a v-variant has no rows of its own, the rows of the even collective serve.

    >>> from dovetail.store.selection import Row
    >>> rules = rules_of(Selection({}, (Row("all_gather", 4, 1, 64, 4096, "ring_all_gather"),)), 4, 1)
    >>> [(least, choice and choice.algorithm) for least, choice in rules["all_gather_v"]]
    [(64, 'ring_all_gather'), (4096, None)]
    """
    rows = [row for row in (selection.rows if selection else ()) if (row.ranks, row.nodes) == (ranks, nodes)]
    rules: dict[str, list[tuple[int, Choice | None]]] = {}
    for kind in KINDS:
        own = [row for row in rows if row.collective == kind]
        own = own or [_of_variant(row, kind) for row in rows if row.collective == COLLECTIVES[kind].even]
        steps: dict[int, Choice | None] = {row.max_bytes: None for row in own}
        steps |= {row.min_bytes: None if row.choice.is_library else row.choice for row in own}
        rules[kind] = sorted(steps.items(), key=lambda step: step[0])
    return rules


def _of_variant(row: Row, kind: str) -> Row:
    """Return an even collective's row for its v-variant; MPI's own call if the algorithm needs even parts."""
    return row if f"{row.algorithm}_v" in algorithms_for(kind) else replace(row, algorithm=LIBRARY)


def dtypes_of(selection: Selection | None, ranks: int, nodes: int) -> dict[str, str]:
    """Return the dtype that each reducing collective was measured with, by collective.

    >>> from dovetail.store.selection import Row
    >>> dtypes_of(Selection({}, (Row("all_reduce", 4, 1, 64, 4096, "ring_all_reduce", dtype="float32"),)), 4, 1)
    {'all_reduce': 'float32'}
    """
    rows = [row for row in (selection.rows if selection else ()) if (row.ranks, row.nodes) == (ranks, nodes)]
    own = {row.collective: row.dtype for row in rows if row.dtype}
    return own | {kind: own[traits.even] for kind, traits in COLLECTIVES.items() if traits.even in own}


def _begin(made: Communicator) -> None:
    """Use the cached selection for these ranks. If it cannot be read, every rank warns and uses MPI's own calls."""
    found, fault = _rank_0s(made, lambda: recall_selection(made.calls.library, made.hosts))
    if fault:
        warnings.warn(f"no selection table is used: {fault}", RuntimeWarning, stacklevel=5)
    _set_rules(made, found)


def _rank_0s(made: Communicator, read: Callable[[], Recalled[Selection]]) -> Recalled[Selection]:
    """Return rank 0's `read()` on every rank. Waits until all ranks call, without a limit, as collectives of MPI do."""
    made.gather_number(0)
    return read_by_rank_0(made.world, read)


def _set_rules(made: Communicator, selection: Selection | None) -> None:
    mine = selection and selection.at(LEVELS[made.world.provided >= THREAD_MULTIPLE])
    made.set_rules(rules_of(mine, made.size, made.nodes), dtypes_of(mine, made.size, made.nodes))
