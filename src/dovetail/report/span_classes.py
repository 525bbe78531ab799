"""span_classes: nine groups of spans, each with a colour; a span's group follows from its op's kind or its name."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import Kind, Program
from dovetail.timeline import Timeline


class Group(NamedTuple):
    """A group of op kinds as a legend shows it; colours on a light and on a dark ground."""

    name: str
    light: str
    dark: str


GROUPS = (
    Group("compute", "#4b7cb3", "#6a9fd8"),
    Group("copy, reduce", "#3f9a92", "#56b8ae"),
    Group("send, put", "#dd8a3c", "#e6a05c"),
    Group("receive", "#9a6fb0", "#b692cb"),
    Group("forward", "#c25b79", "#d97f99"),
    Group("collective", "#6b9a4b", "#8cba6c"),
    Group("signal, wait", "#c2a32f", "#d4ba58"),
    Group("idle", "#b4b3ad", "#54575c"),
    Group("other", "#85888c", "#94979b"),
)
COMPUTE, MEMORY, SEND, RECEIVE, FORWARD, COLLECTIVE, SYNC, IDLE, OTHER = range(len(GROUPS))

# Groups of MPI calls, in the order of `dovetail.trace.analysis.call_classes.CLASSES`.
MPI_GROUPS = (
    Group("outside MPI", "#4b7cb3", "#6a9fd8"),
    Group("send", "#dd8a3c", "#e6a05c"),
    Group("receive", "#9a6fb0", "#b692cb"),
    Group("wait", "#c2a32f", "#d4ba58"),
    Group("collective", "#6b9a4b", "#8cba6c"),
    Group("one-sided", "#3f9a92", "#56b8ae"),
    Group("I/O", "#c25b79", "#d97f99"),
    Group("init/finalize", "#b4b3ad", "#54575c"),
    Group("other MPI", "#85888c", "#94979b"),
    Group("pickling", "#a0763c", "#b88f58"),
)

_OF_KIND = {
    Kind.nop: SYNC,
    Kind.copy: MEMORY,
    Kind.reduce: MEMORY,
    Kind.send: SEND,
    Kind.recv: RECEIVE,
    Kind.recv_reduce: RECEIVE,
    Kind.recv_copy_send: FORWARD,
    Kind.recv_reduce_send: FORWARD,
    Kind.recv_reduce_copy_send: FORWARD,
    Kind.put: SEND,
    Kind.get: RECEIVE,
    Kind.signal: SYNC,
    Kind.wait: SYNC,
    Kind.compute: COMPUTE,
    Kind.collective: COLLECTIVE,
}
# Names of spans without an op (traces of other programs, waits, polls): the first match decides.
_OF_NAME = (
    (r"idle|stall|poll|blocked|exposed", IDLE),
    (r"wait|test|signal|probe|barrier|fence|sync", SYNC),
    (r"sendrecv|recv_\w*send|forward", FORWARD),
    (r"all_?gather|all_?reduce|all_?to_?all|reduce_?scatter|bcast|broadcast|gather|scatter|\breduce\b.*mpi|mpi_i?reduce"
     r"|mpi_i?scan|mpi_i?exscan|collective", COLLECTIVE),
    (r"recv|receive|mpi_get", RECEIVE),
    (r"send|put", SEND),
    (r"compute|matmul|gemm|kernel|stencil|tile", COMPUTE),
    (r"copy|reduce|memcpy|pack", MEMORY),
)  # fmt: skip


def group_of_name(name: str) -> int:
    """Return the group of a span of which only the name is known.

    >>> [GROUPS[group_of_name(n)].name for n in ("MPI_Isend", "recv_reduce", "MPI_Iallreduce", "matmul", "poll", "zzz")]
    ['send, put', 'receive', 'collective', 'compute', 'idle', 'other']
    """
    head = name.split("(")[0].split(" ")[0].lower()
    if head in Kind.__members__:
        return _OF_KIND[Kind[head]]
    return next((group for pattern, group in _OF_NAME if re.search(pattern, name.lower())), OTHER)


def span_groups(timeline: Timeline, program: Program | None) -> NDArray[np.uint8]:
    """Return the group of every span, in the order of the timeline's columns."""
    by_name = np.array([group_of_name(name) for name in timeline.names] or [OTHER], dtype=np.uint8)
    groups: NDArray[Any] = by_name[timeline.columns["name"]]
    op = timeline.columns["op"]
    groups[(groups == OTHER) & (op >= 0)] = COMPUTE  # an op is named after its kernel, its collective or its kind
    if program is None or not program.num_ops:
        return groups
    of_kind = np.array([_OF_KIND[kind] for kind in Kind], dtype=np.uint8)
    known = (op >= 0) & (op < program.num_ops)
    groups[known] = of_kind[program.columns["kind"][op[known]]]
    return groups
