"""begin: non-blocking collectives and products, which overlap with the caller's own computation.

`request = begin_all_reduce(array, comm)` begins what `all_reduce(array, comm)` does, and `request.wait()` returns its
result. Every rank of `comm` begins the same calls in the same order. Dovetail's thread runs the calls in that order. A
blocking call on the same communicator first waits for all calls that were begun before it. The first call on a
communicator duplicates the communicator, and so waits for all ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from dovetail.call import collectives
from dovetail.call.products import product_call
from dovetail.ir.collectives import collectives_that
from dovetail.run.ranks.comm import adopted
from dovetail.run.requests import Request

P = ParamSpec("P")
R = TypeVar("R")


def nonblocking(call: Callable[P, R]) -> Callable[P, Request[R]]:
    """Return the non-blocking form of `call`: it takes the same arguments and returns a `Request` at once."""
    signature = inspect.signature(call)

    @wraps(call)
    def begin(*args: P.args, **said: P.kwargs) -> Request[R]:
        comm = signature.bind(*args, **said).arguments["comm"]
        return adopted(comm, begins=True).world.requests.begin(partial(call, *args, **said))

    _name(begin, call)
    return begin


def begin_product(name: str) -> Callable[..., Request[Any]]:
    """Return the non-blocking form of the product called `name`."""
    return nonblocking(product_call(name))


def _name(begin: Any, call: Callable[..., Any]) -> None:
    name = call.__name__
    begin.__module__, begin.__name__, begin.__qualname__ = __name__, f"begin_{name}", f"begin_{name}"
    begin.__signature__ = inspect.signature(call).replace(return_annotation="Request")
    begin.__doc__ = f"""Begin `{name}`, and return its `Request`: `wait()` returns the result, or raises on every rank.

Until `wait()` returns, do not write the arrays of the call, nor read its results. Documentation of `{name}`:

{inspect.getdoc(call)}
"""


# begin_all_reduce, begin_all_gather, …: one for each function of `call.collectives`.
globals().update({f"begin_{kind}": nonblocking(getattr(collectives, kind)) for kind in collectives_that("moves")})
