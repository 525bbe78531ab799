"""call_classes: classes of MPI calls, as the MPI standard divides them; of I/O, and of pickling."""

from __future__ import annotations

import re

SYSTEM_IO = "libc "  # names of intervals in the C library's I/O begin so
PICKLE = "pickle "  # names of intervals in which mpi4py pickles begin so
CLASSES = (
    *("outside MPI", "send", "receive", "wait", "collective", "one-sided", "I/O", "init/finalize", "other MPI"),
    "pickling",
)
OUTSIDE, SEND, RECEIVE, WAIT, COLLECTIVE, ONE_SIDED, IO, SETUP, OTHER, PICKLING = range(len(CLASSES))
_PATTERNS = (
    (r"init|init_thread|finalize|session_init|session_finalize", SETUP),
    (r"file_.*", IO),
    (r"win_.*|r?put|r?get|r?accumulate|r?get_accumulate|fetch_and_op|compare_and_swap", ONE_SIDED),
    (r"wait.*|test.*|i?m?probe|improbe|request_.*|parrived", WAIT),
    (r"i?[bsr]?send(_init)?|i?sendrecv(_replace)?|psend_init|pready.*|start|startall|isend|ibsend|issend|irsend", SEND),
    (r"i?m?recv(_init)?|imrecv|precv_init", RECEIVE),
    (
        r"i?(neighbor_)?(barrier|bcast|gatherv?|scatterv?|allgatherv?|alltoall[vw]?|(all)?reduce|reduce_scatter(_block)?"
        r"|scan|exscan)(_init)?|comm_(dup|split|create|idup).*",
        COLLECTIVE,
    ),
)


def class_of(name: str) -> int:
    """Return the class of a call, as an index into `CLASSES`.

    >>> [CLASSES[class_of(name)] for name in ("MPI_Init", "MPI_Isend", "MPI_Waitall", "MPI_Ialltoallv", "work")]
    ['init/finalize', 'send', 'wait', 'collective', 'outside MPI']
    >>> CLASSES[class_of("libc write")]
    'I/O'
    """
    if name.startswith(SYSTEM_IO):
        return IO
    if name.startswith(PICKLE):
        return PICKLING
    if not name.startswith("MPI_"):
        return OUTSIDE
    short = name.removeprefix("MPI_").removesuffix("_c").lower()
    return next((number for pattern, number in _PATTERNS if re.fullmatch(pattern, short)), OTHER)
