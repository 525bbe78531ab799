"""comm: collectives on arrays inside a user's MPI program, by whichever algorithm was measured to be the fastest."""

from dovetail.comm.calls import (
    all_gather,
    all_gather_v,
    all_reduce,
    all_to_all,
    all_to_all_v,
    all_to_next,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    reduce_scatter_v,
    scatter,
)
from dovetail.comm.rules import choice_for, use

__all__ = [
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_next",
    "broadcast",
    "choice_for",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "use",
]
