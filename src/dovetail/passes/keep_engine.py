"""keep_engine: keep only the ops of one engine, so that computation and communication can be timed in isolation."""

from __future__ import annotations

from dovetail.ir import Builder, Program


def keep_engine(program: Program, engine: str) -> Program:
    """Return the ops on lanes of `engine` (`compute` or `net`), without dependencies on ops of other lanes.

    Buffers stay; post-conditions are dropped, because they no longer hold.

    >>> from dovetail.ir import parse
    >>> whole = parse('''
    ... program both ranks 1
    ... buffer x input 1
    ... buffer y output 1
    ... buffer z output 1
    ... lane compute compute
    ... lane net net
    ... rank 0 lane compute
    ...   copy x[0:1] -> y[0:1]
    ... rank 0 lane net
    ...   copy y[0:1] -> z[0:1] after compute.0
    ... ''')
    >>> [keep_engine(whole, engine).num_ops for engine in ("compute", "net")], whole.num_ops
    ([1, 1], 2)
    """
    b = Builder(f"{program.name}, {engine} alone", program.num_ranks)
    for buffer in program.buffers:
        b.buffer(*buffer)
    kept = {row for row, lane in enumerate(program.lanes) if lane.engine == engine}
    new_row: dict[int, int] = {}
    for op in program.ops():
        if op.lane not in kept:
            continue
        new_row[op.index] = b.add(
            op.kind,
            op.rank,
            b.lane(*program.lanes[op.lane]),
            reads=op.reads,
            writes=op.writes,
            chan_in=-1 if op.chan_in < 0 else b.channel(*program.channels[op.chan_in]),
            chan_out=-1 if op.chan_out < 0 else b.channel(*program.channels[op.chan_out]),
            call=_call(b, program, op.kind.name, op.call),
            after=[new_row[d] for d in op.after if d in new_row],
            line=op.line,
        )
    return b.build()


def _call(b: Builder, program: Program, kind: str, call: int) -> int:
    if kind == "compute":
        return b.kernel(*program.kernels[call])
    return b.collective(*program.collectives[call]) if kind == "collective" else -1
