"""options: arguments of torch's collectives in their older and newer forms, and calls that gloo makes one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from dovetail.torch import private


def reducing(opts: Any, given_opts: Any) -> Any:
    """Return options of a reduction: those given, or new ones with the op that was given in their place."""
    if given_opts is None:
        return opts
    if isinstance(given_opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
        opts.reduceOp = given_opts
        return opts
    return given_opts


def rooted(opts: Any, given_opts: Any) -> Any:
    """Return options with a root: those given, or new ones with the root that was given in their place."""
    if given_opts is None:
        return opts
    if isinstance(given_opts, int):
        opts.rootRank = given_opts
        return opts
    return given_opts


def each_reduced(gloo: Any, tensors: Sequence[Any], opts: Any) -> Any:
    one = private.AllreduceOptions()
    one.reduceOp = opts.reduceOp
    works = [gloo.allreduce([tensor], one) for tensor in tensors]
    for work in works[:-1]:
        work.wait()
    return works[-1]


def scattered(gloo: Any, out: Any, tensors: Sequence[Any], opts: Any) -> Any:
    return gloo.reduce_scatter([out], [list(tensors)], opts)


def parts_of(gloo: Any, pairs: Sequence[tuple[Any, Any]], opts: Any) -> Any:
    works = [gloo.reduce_scatter_single(out, tensor, opts) for out, tensor in pairs]
    for work in works[:-1]:
        work.wait()
    return works[-1]
