"""stuck: explain why a program cannot finish: which op waits for which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.core import ProgramError
from dovetail.ir import Program
from dovetail.sim.tables import State, Tables, Task, describe

MOST = 8  # most ops of a cycle in an error
Wait = tuple[str, "int | None"]  # text of what an op waits for, and the op that would end the wait, if there is one


def stuck(program: Program, tables: Tables, state: NDArray[np.uint8]) -> ProgramError:
    """Return the error for a simulation that stopped before every op ended."""
    open_ops = np.flatnonzero(state != State.ended)
    chain, words = _follow(program, tables, state, int(open_ops[0]))
    last, (reason, following) = chain[-1], words[-1]
    line = int(program.columns["line"][last])
    where = program.lines[line] if line >= 0 else None
    found = f"{len(state) - len(open_ops)} of {len(state)} ops ended"
    if following is None:
        return ProgramError(f"{describe(program, last)}: {reason}", where=where, found=found)
    cycle = chain[chain.index(following) :]
    texts = [f"{describe(program, op)} {words[chain.index(op)][0]}" for op in cycle[:MOST]]
    texts += [f"and so on through {len(cycle)} ops, back to op {following}"] if len(cycle) > MOST else []
    hint = _hint(tables, [op for op in cycle if state[op] == State.place])
    return ProgramError("deadlock: " + "; ".join(texts), where=where, found=found, hint=hint)


def _hint(tables: Tables, waiting: list[int]) -> str:
    """Return what ends a deadlock. `waiting`: its sends that wait for a receive."""
    if not waiting:
        return "send before receiving on one of these ranks"
    if tables.prices.rendezvous[waiting].any():
        return "receive earlier: messages of this size wait for their receive"
    return "make the channels deeper, or receive earlier"


def _follow(program: Program, tables: Tables, state: NDArray[np.uint8], op: int) -> tuple[list[int], list[Wait]]:
    """Follow the waits from `op` on, until one that no op would end, or one seen before."""
    chain, words = [op], [_wait(program, tables, state, op)]
    while (following := words[-1][1]) is not None and following not in chain:
        chain.append(following)
        words.append(_wait(program, tables, state, following))
    return chain, words


def _wait(program: Program, tables: Tables, state: NDArray[np.uint8], op: int) -> Wait:
    if state[op] == State.queued:
        return _wait_within_rank(tables, state, op)
    if state[op] == State.place:
        return _wait_for_receive(tables, state, op)
    if tables.task[op] == Task.collective:
        return _wait_for_members(program, tables, state, op)
    src = int(tables.chan_src[tables.chan_in[op]])
    verb, tasks = ("signal", [Task.signal]) if tables.task[op] == Task.wait else ("send", [Task.send, Task.recv_send])
    coming = np.isin(tables.task, tasks) & (tables.chan_out == tables.chan_in[op]) & (state <= State.place)
    return _from(coming, f"waits for rank {src} to {verb}", f"rank {src} never {verb}s it")


def _wait_within_rank(tables: Tables, state: NDArray[np.uint8], op: int) -> Wait:
    queue = (tables.rank == tables.rank[op]) & (tables.lane == tables.lane[op]) & (state != State.ended)
    head = int(np.flatnonzero(queue)[0])
    if head == op:
        deps = tables.dep[tables.dep_start[op] : tables.dep_start[op + 1]]
        head = int(deps[state[deps] != State.ended][0])
    return f"waits for op {head}", head


def _wait_for_receive(tables: Tables, state: NDArray[np.uint8], op: int) -> Wait:
    channel = int(tables.chan_out[op])
    src, dst, depth = int(tables.chan_src[channel]), int(tables.chan_dst[channel]), int(tables.depth[channel])
    receives = np.isin(tables.task, [Task.recv, Task.recv_send]) & (tables.chan_in == channel)
    text = f"waits for rank {dst} to receive on channel {src}->{dst} of depth {depth}"
    return _from(receives & (state == State.queued), text, f"rank {dst} never receives on channel {src}->{dst}")


def _wait_for_members(program: Program, tables: Tables, state: NDArray[np.uint8], op: int) -> Wait:
    call = int(tables.call[op])
    entry, calls = program.collectives[call], (tables.task == Task.collective) & (tables.call == call)
    made = np.bincount(tables.rank[calls & (state != State.queued)], minlength=tables.num_ranks)
    rank = min(entry.group, key=lambda member: int(made[member]))
    coming = calls & (tables.rank == rank) & (state == State.queued)
    call_text = f"call {made[tables.rank[op]]} of {entry.kind}"
    return _from(coming, f"waits for rank {rank} in {call_text}", f"rank {rank} never makes {call_text}")


def _from(coming: NDArray[np.bool_], waits: str, never: str) -> Wait:
    rows = np.flatnonzero(coming)
    return (waits, int(rows[0])) if len(rows) else (never, None)
