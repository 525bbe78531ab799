"""program_cache: save large Programs, and proofs of Programs.

A proof is valid only while the digest of the program's columns and of the compiled verifier is unchanged.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dovetail.core import check_schema, read_arrays
from dovetail.ir import Operator, Program, Schedule
from dovetail.ir.posts import COLUMNS as POST_COLUMNS
from dovetail.ir.posts import Posts
from dovetail.ir.program import check_columns
from dovetail.ir.proof.native import compiled_library
from dovetail.ir.types import COLUMNS
from dovetail.store.fingerprint import fingerprint_of
from dovetail.store.store import PROGRAMS, PROOFS, Item, Kind, Recalled, item, recall, save

MANY = 1000  # programs of fewer ops are not saved: building them takes a few hundredths of a second at most
PROOF = "dovetail.proof/1"
POSTS = "posts."  # prefix of the names of columns of post-conditions


def program_of(operator: Operator, schedule: Schedule, ranks: int) -> Program:
    """Return `operator.program(schedule, ranks)`, from the cache if saved; for its proof see `known_of`."""
    found = recall_program(operator, schedule, ranks).warned()
    if found is None:
        found = operator.program(schedule, ranks)
        save_program(operator, schedule, ranks, found)
    return found


def recall_program(operator: Operator, schedule: Schedule, ranks: int) -> Recalled[Program]:
    """Return the saved Program of an operator's schedule; see `store.recall`."""
    place = _item(PROGRAMS, operator, schedule, ranks)
    return Recalled(None) if place is None else recall(place, _read)


def save_program(operator: Operator, schedule: Schedule, ranks: int, program: Program) -> None:
    """Save a Program, if it has many ops, for `program_of`; warn if it cannot be written."""
    if program.num_ops < MANY or (place := _item(PROGRAMS, operator, schedule, ranks)) is None:
        return
    document = program.tables_json([]) | {"columns": program.columns}
    if program.posts:
        posts = Posts.of(program.posts)
        document["columns"] = program.columns | {f"{POSTS}{name}": column for name, column in posts.columns.items()}
        document["names_of_posts"] = {"buffers": list(posts.buffers), "kernels": list(posts.kernels)}
    save(place, _about(operator, schedule, program), document)


class Known(NamedTuple):
    """What is known of a Program: whether it was proved to do what its operator asks, and whether the ops of a net lane
    must end one after another (see `run.engine.needs_order`; None: unknown)."""

    is_proved: bool = False
    in_order: bool | None = None


def known_of(operator: Operator, schedule: Schedule, program: Program) -> Known:
    """Return the saved proof. Valid only while the Program's columns and the compiled verifier are unchanged."""
    return recall_proof(operator, schedule, program).warned() or Known()


def recall_proof(operator: Operator, schedule: Schedule, program: Program) -> Recalled[Known]:
    """Return what is known of this Program; see `store.recall`."""
    place = _item(PROOFS, operator, schedule, program.num_ranks) if program.num_ops >= MANY else None
    return Recalled(None) if place is None else recall(place, lambda document: _read_proof(document, program))


def save_proof(operator: Operator, schedule: Schedule, program: Program, *, in_order: bool) -> None:
    """Save the proof of a Program with many ops, and whether its net lanes need order; warn if not writable."""
    if program.num_ops < MANY or (place := _item(PROOFS, operator, schedule, program.num_ranks)) is None:
        return
    document = {"schema": PROOF, "digest": _digest(program), "in_order": in_order}
    save(place, _about(operator, schedule, program), document)


def _item(kind: Kind, operator: Operator, schedule: Schedule, ranks: int) -> Item | None:
    """Return the item of a Program's inputs (operator, schedule, ranks); None if the operator has no fingerprint."""
    about = fingerprint_of(operator)
    return None if about is None else item(kind, about, schedule.to_json(), ranks)


def _about(operator: Operator, schedule: Schedule, program: Program) -> str:
    return f"{operator.title} on {program.num_ranks} ranks, {schedule}: {program.num_ops} ops"


def _read(document: dict[str, Any]) -> Program:
    columns = document["columns"]
    program = Program.from_json(document | {"columns": {name: columns[name] for name in COLUMNS}})
    if names := document.get("names_of_posts"):
        own = read_arrays({name: columns[f"{POSTS}{name}"] for name in POST_COLUMNS}, POST_COLUMNS)
        program = replace(program, posts=Posts(tuple(names["buffers"]), tuple(names["kernels"]), own))
        check_columns(program)
    return program


def _read_proof(document: dict[str, Any], program: Program) -> Known:
    check_schema(document, PROOF)
    is_same, in_order = document["digest"] == _digest(program), document["in_order"]
    if not isinstance(in_order, bool):
        raise TypeError(f"in_order is {in_order!r}")
    return Known(True, in_order) if is_same else Known()


def _digest(program: Program) -> str:
    """Return a hash of every column, table and post-condition, and of the compiled verifier."""
    posts = Posts.of(program.posts)
    tables = program.tables_json([]) | {"names_of_posts": [posts.buffers, posts.kernels]}
    found = sha256(_verifier(compiled_library()))
    found.update(json.dumps(tables).encode())
    for name, column in sorted([*program.columns.items(), *posts.columns.items()]):
        found.update(f"{name} {column.dtype} {len(column)}".encode())
        found.update(np.ascontiguousarray(column).data)
    return found.hexdigest()


@cache
def _verifier(library: Path) -> bytes:
    return sha256(library.read_bytes()).digest()
