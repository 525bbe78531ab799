"""nodes: ranks on nodes. Ranks are numbered node by node; every node has the same number of ranks."""

from __future__ import annotations

from dovetail.core import OperatorError


def ranks_per_node(num_ranks: int, nodes: int) -> int:
    """Return the number of ranks per node. Raise OperatorError if `nodes` does not divide `num_ranks`.

    >>> ranks_per_node(12, 3)
    4
    """
    if nodes < 1 or num_ranks % nodes:
        raise OperatorError(f"{num_ranks} ranks on {nodes} nodes", hint="the nodes must divide the ranks evenly")
    return num_ranks // nodes
