"""counterexample: a timeline of a fault: the ops of a failed check, after those that must run first."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir import Kind, Program
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy, Run
from dovetail.ir.text.write import op_text
from dovetail.timeline import Span, Timeline, from_spans

_TICK_S = 1e-6


def counterexample(program: Program, ops: Sequence[int], *, stuck: bool = False) -> Timeline:
    """Return a Timeline in which every op takes one tick and runs as soon as it can, up to the rows `ops`.

    The two ops of a race are at the same time, since nothing orders them. With `stuck`, or if the program stalls, ops
    that never run are drawn as waits until the end. The program must pass the bounds check.

    >>> from dovetail.ir import parse
    >>> race = parse('''
    ... program race ranks 1
    ... buffer x input 1
    ... buffer y output 1
    ... lane a net
    ... lane b net
    ... rank 0 lane a
    ...   nop
    ...   copy x[0:1] -> y[0:1]
    ... rank 0 lane b
    ...   copy x[0:1] -> y[0:1]
    ... ''')
    >>> shown = counterexample(race, (1, 2)).columns
    >>> shown["op"].tolist(), (shown["start_s"] * 1e6).tolist()
    ([0, 1, 2], [0.0, 1.0, 1.0])
    """
    lists = OpLists(program)
    run = Greedy(lists, [channel.depth for channel in program.channels])()
    before = _before(lists, run, ops)
    waits = [row for row in ops if row not in before] or (list(ops) if stuck else [])
    end: dict[int, int] = {}
    for row in run.order:
        if row in before and row not in waits:
            end[row] = 1 + max((end.get(cause, 0) for cause in _causes(lists, run, row)), default=0)
    last = max((end[row] for row in ops if row in end), default=0)
    end |= {row: last for row in ops if row in end and not stuck and len(ops) == 2}
    most = max(end.values(), default=0) + 2
    spans = [_span(lists, row, ticks - 1, ticks) for row, ticks in sorted(end.items())]
    for row in waits:
        ready = max((end.get(cause, 0) for cause in _causes(lists, run, row)), default=0)
        name = f"blocked: {op_text(program, row)}"
        spans.append(_span(lists, row, ready, most)._replace(op=-1, name=name))
    lanes = [lane.name for lane in program.lanes]
    return from_spans("predicted", program.num_ranks, spans, lanes, {"schedule": "counterexample, one tick per op"})


def _before(lists: OpLists, run: Run, ops: Sequence[int]) -> set[int]:
    """All ops that must run before `ops`, and `ops` themselves."""
    ran, seen, todo = set(run.order), set(ops), list(ops)
    while todo:
        new = set(_causes(lists, run, todo.pop())) - seen
        seen |= new
        todo += new
    return seen & ran


def _causes(lists: OpLists, run: Run, row: int) -> list[int]:
    """The direct predecessors of an op: the op before it in its lane, its dependencies, and its message's sender."""
    place = lists.position[row]
    causes = [*lists.ops[row].after, *lists.queues[lists.queue_of[row]][max(place - 1, 0) : place]]
    return causes + ([run.matched[row]] if row in run.matched else [])


def _span(lists: OpLists, row: int, start: int, end: int) -> Span:
    op = lists.ops[row]
    lane = lists.program.lanes[op.lane].name
    return Span(op.rank, lane, Kind(op.kind).name, start * _TICK_S, end * _TICK_S, row)
