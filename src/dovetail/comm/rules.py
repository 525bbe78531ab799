"""rules: which selection table a user's communicator goes by."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from typing import Any

from dovetail.collective import algorithms_for
from dovetail.comm.prepare import prepare
from dovetail.core import DovetailError, WishError
from dovetail.plan.selection import LIBRARY, Choice, Row, Selection, selection_for
from dovetail.run.comm import KINDS, REDUCED, Communicator, Rules, communicator_of, shim


def use(comm: Any, selection: Selection | None) -> None:
    """From now on calls on `comm` go by `selection`, or by the library's own calls where it is None.

    All ranks of `comm` call it together; rank 0's selection counts.
    """
    _go_by(communicator(comm), selection)


def choice_for(comm: Any, collective: str, num_bytes: int, dtype: str | None = None) -> Choice | None:
    """By which choice `comm` serves a collective of that size, None for the library's call.

    `num_bytes` as nccl-tests count: of the larger of one rank's input and output. `dtype`: for what is reduced.
    """
    if collective not in KINDS:
        raise WishError(f"no collective '{collective}'", hint=f"one of {', '.join(KINDS)}")
    if dtype is not None and dtype not in REDUCED:
        raise WishError(f"no dtype '{dtype}'", hint=f"one of {', '.join(REDUCED)}")
    choice: Choice | None = communicator(comm).choice(collective, num_bytes, dtype)
    return choice


def communicator(comm: Any) -> Communicator:
    """Ours for the user's; it goes by the machine's selection for these ranks, unless `use` named another."""
    return communicator_of(comm, prepare, _begin, remember=not checks_calls())


def checks_calls() -> bool:
    """Whether ranks compare the arguments of every call ($DOVETAIL_CHECK_CALLS)."""
    return bool(os.environ.get("DOVETAIL_CHECK_CALLS"))


def rules_of(selection: Selection | None, ranks: int, nodes: int) -> Rules:
    """What a selection says for these ranks. The v-variants go by their own rows, else by those of the even collective.

    >>> from dovetail.plan.selection import Row
    >>> rules = rules_of(Selection({}, (Row("all_gather", 4, 1, 64, 4096, "ring_all_gather"),)), 4, 1)
    >>> [(least, choice and choice.algorithm) for least, choice in rules["all_gather_v"]]
    [(64, 'ring_all_gather'), (4096, None)]
    """
    rows = [row for row in (selection.rows if selection else ()) if (row.ranks, row.nodes) == (ranks, nodes)]
    rules: dict[str, list[tuple[int, Choice | None]]] = {}
    for kind in KINDS:
        own = [row for row in rows if row.collective == kind]
        own = own or [_of_variant(row, kind) for row in rows if f"{row.collective}_v" == kind]
        steps: dict[int, Choice | None] = {row.max_bytes: None for row in own}
        steps |= {row.min_bytes: None if row.choice.is_library else row.choice for row in own}
        rules[kind] = sorted(steps.items(), key=lambda step: step[0])
    return rules


def _of_variant(row: Row, kind: str) -> Row:
    """An even collective's row, for its v-variant: the library's call where the algorithm takes even parts only."""
    return row if f"{row.algorithm}_v" in algorithms_for(kind) else replace(row, algorithm=LIBRARY)


def dtypes_of(selection: Selection | None, ranks: int, nodes: int) -> dict[str, str]:
    """The dtype that a collective's rows were measured for, where that matters: those that reduce.

    >>> from dovetail.plan.selection import Row
    >>> dtypes_of(Selection({}, (Row("all_reduce", 4, 1, 64, 4096, "ring_all_reduce", dtype="float32"),)), 4, 1)
    {'all_reduce': 'float32'}
    """
    rows = [row for row in (selection.rows if selection else ()) if (row.ranks, row.nodes) == (ranks, nodes)]
    own = {row.collective: row.dtype for row in rows if row.dtype}
    return own | {f"{kind}_v": dtype for kind, dtype in own.items() if f"{kind}_v" in KINDS}


def _begin(made: Communicator) -> None:
    _go_by(made, None if made.rank else _measured(made))


def _measured(made: Communicator) -> Selection | None:
    """What was measured for these ranks; a broken table is left aside, with a warning."""
    try:
        return selection_for(shim().library, made.hosts)
    except DovetailError as error:
        warnings.warn(f"no selection table is used: {error}", RuntimeWarning, stacklevel=2)
        return None


def _go_by(made: Communicator, selection: Selection | None) -> None:
    """Rank 0's selection, on every rank."""
    document = json.loads(made.share(json.dumps(selection.to_json() if selection else None).encode()))
    shared = Selection.from_json(document) if document else None
    made.set_rules(rules_of(shared, made.size, made.nodes), dtypes_of(shared, made.size, made.nodes))
