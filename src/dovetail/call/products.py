"""products: call matrix products, and other operators on arrays, inside a user's MPI program.

Every rank of `comm` makes the same call on its own arrays: `all_gather_matmul(a, b, comm)`,
the other products of `dovetail.matmul`, and operators of other packages that inherit `ir.abilities.OnArrays`. The
operator of the same name defines the arrays' shapes and the other keywords.

Each call all-gathers one 8-byte hash per rank. The hashes are the key of a cache of bound operators. For a new key,
ranks compare their arguments and look up the schedule that `dovetail tune` saved for these ranks. Default: the serial
schedule, which computes first and then calls the MPI library's collective (or the reverse).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dovetail.call.bound import Bound, bind_on
from dovetail.core import OperatorError, did_you_mean
from dovetail.ir import Schedule
from dovetail.ir.abilities import OnArrays, RankArguments
from dovetail.ir.arrays import borrowed
from dovetail.ir.registry import operator_class
from dovetail.run.arrays import Array
from dovetail.run.faults import Door
from dovetail.run.ranks.comm import Communicator, adopted
from dovetail.run.ranks.embedded import overlap
from dovetail.run.ranks.together import words_of
from dovetail.run.ranks.world import World

MOST = 64  # bound products per communicator; the least recently used are dropped first
MOST_BYTES = 1 << 28  # bytes per rank of the arrays of a communicator's bound products
_NEW = -1  # "not cached": no hash of arguments, for Python's hash() never returns -1

Held = tuple[dict[str, Array], ...]  # the arrays that an engine is bound to
Key = tuple[Any, ...]  # what `_key` makes of a rank's arguments


class Kept:
    """A communicator's cache of bound products, equal on all ranks. Key: the hashes of all ranks' arguments.

    `guesses`: the product used last for each `_key` of this rank's arguments. `ambiguous`: keys in which some rank's
    hash equals its hash in another key, so that this rank alone cannot tell which product the call means.
    """

    def __init__(self) -> None:
        self.held: dict[bytes, Bound] = {}
        self.guesses: dict[Key, Bound] = {}
        self.ambiguous: set[bytes] = set()

    def take(self, key: bytes, own: Key) -> Bound | None:
        """Return the product for a key (None: not cached) and mark it as used last; `own`: `_key` of this rank."""
        found = self.held.pop(key, None)
        if found is not None:
            self.held[key] = self.guesses[own] = found
        return found

    def add(self, key: bytes, own: Key, bound: Bound) -> None:
        """Cache a product; drop the least recently used ones beyond MOST products or MOST_BYTES."""
        total = bound.num_bytes + sum(each.num_bytes for each in self.held.values())
        while self.held and (len(self.held) >= MOST or total > MOST_BYTES):
            total -= self._drop(next(iter(self.held)))
        numbers = np.frombuffer(key, np.int64)
        alike = {other for other in self.held if (np.frombuffer(other, np.int64) == numbers).any()}
        self.ambiguous |= {key, *alike} if alike else set()
        self.held[key] = self.guesses[own] = bound

    def _drop(self, key: bytes) -> int:
        gone = self.held.pop(key)
        self.ambiguous.discard(key)
        self.guesses = {own: each for own, each in self.guesses.items() if each is not gone}
        return gone.num_bytes


_bound: dict[int, Kept] = {}  # by communicator


class Asked(NamedTuple):
    """The arguments of a call on this rank.

    `given`: input arrays. `outs`: arrays for results. `out`: the argument `out`, None or a tuple. `said`: the other
    keywords. `fault`: what is wrong with the arguments, else empty.
    """

    given: tuple[Any, ...]
    outs: tuple[Any, ...]
    out: Any
    said: Mapping[str, Any]
    fault: str


def product_call(name: str) -> Callable[..., Any]:
    """Return the function of arrays that runs the operator called `name`."""
    kind = operator_class(name)
    assert issubclass(kind, OnArrays)
    signature, count = _signature(kind), len(kind.call_arrays())

    def call(*arguments: Any, out: Any = None, **said: Any) -> Any:
        if len(arguments) != count + 1:
            arguments = _placed(signature, arguments, said)
        with Door(arguments[count]) as door:
            ranks = door.made = adopted(arguments[count])
            found, held = look_up(name, ranks, asked_of(name, arguments[:count], out, said))
            results = found.embedded.run_bound(held)
        if out is not None and found.signature.fills_out:
            return out
        result = found.signature.result(found.rank, results, out)
        return result if out is None else out

    call.__name__ = call.__qualname__ = name
    call.__doc__ = _help(kind)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _placed(signature: inspect.Signature, arguments: tuple[Any, ...], said: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arrays and `comm`; those given by name are removed from `said`. TypeError for too few or too many."""
    by_name = {
        name: said.pop(name)
        for name, each in signature.parameters.items()
        if each.default is each.empty and name in said
    }
    signature.bind(*arguments, **by_name)
    return (*arguments, *by_name.values())


def schedule_for(product: str, *arguments: Any, out: Any = None, **options: Any) -> Schedule:
    """Return the schedule that a product's call with these arguments uses; every rank of `comm` calls.

    Computes no product. The product stays bound, so the next call with these arguments starts at once.

    Parameters
    ----------
    product : str
        The product's name: "all_gather_matmul".
    *arguments, out
        Arguments as in `dovetail.all_gather_matmul(a, b, comm, out=out)`; `comm` is the last.
    **options
        The other keywords of that call, which differ by product, such as `gathered` or `counts` (see its signature).

    Returns
    -------
    Schedule
        Its `notes` describe in words what the schedule does.

    Raises
    ------
    OperatorError
        On every rank, if some rank's arguments do not fit, or if `product` names no product.
    """
    kind = operator_class(product)
    if not issubclass(kind, OnArrays):
        hint = "an operator of dovetail.matmul; for collectives: choice_for; for a bound nest: its .schedule"
        raise OperatorError(f"{product} is no product", hint=hint)
    *arrays, comm = arguments
    with Door(comm) as door:
        ranks = door.made = adopted(comm)
        found, _ = look_up(product, ranks, asked_of(product, arrays, out, options))
    return replace(found.schedule, notes=(found.operator.describe(found.schedule, ranks.size),))


def look_up(name: str, ranks: Communicator, asked: Asked) -> tuple[Bound, Held]:
    """Return the product bound for all ranks' arguments, and this rank's arrays laid out for it.

    Each rank checks its arguments before the call's all-gather, against the product that its last equal arguments
    used. If the ranks' key is new, they bind a product first.
    """
    kept = _bound.setdefault(ranks.bound.key, Kept())
    own, held = Key(), None
    try:
        own = _key(name, asked)
        guess = kept.guesses.get(own)
        held = _held_as_before(guess, asked) if guess else None
    except Exception as error:  # of any kind: the other ranks wait for this rank's message
        own, asked = Key(), asked._replace(fault=asked.fault or words_of(error))
    key = ranks.gather_number(hash(own) if own else _NEW)
    found = kept.take(key, own)
    if found is None:
        with ranks.world.together():
            found = _bind(operator_class(name), ranks.world, asked)
            held = _held(found, asked)
        kept.add(key, own, found)
    elif key in kept.ambiguous:
        held = _held_by_all(ranks, found, asked)
    assert held is not None
    return found, held


def _held_as_before(bound: Bound, asked: Asked) -> Held:
    """Return what `_held` returns, without checks if arguments with the same `_key` were checked before."""
    if not bound.signature.fills_out:
        return _held(bound, asked)
    return bound.embedded.bound_to(*bound.signature.laid_out(bound.rank, asked.given, asked.outs))


def _held(bound: Bound, asked: Asked) -> Held:
    inputs, wanted = bound.signature.arguments(bound.rank, asked.given, asked.out)
    return bound.embedded.bound_to(inputs, wanted)


def _held_by_all(ranks: Communicator, bound: Bound, asked: Asked) -> Held:
    """Return what `_held` returns, for a key that is ambiguous. Raise on every rank if the check fails on any rank."""
    held, fault = None, None
    try:
        held = _held(bound, asked)
    except Exception as error:
        fault = error
    if any(ranks.gather_number(int(fault is not None))):
        with ranks.world.together():
            if fault is not None:
                raise fault
    assert held is not None
    return held


def asked_of(operator: str, arrays: Sequence[Any], out: Any, said: dict[str, Any]) -> Asked:
    """Return this rank's arguments of a call. An error while reading them is recorded as their `fault`."""
    kind = operator_class(operator)
    assert issubclass(kind, OnArrays)
    outs: tuple[Any, ...]
    given, outs, read, fault = tuple(arrays[:1]), (), {}, ""
    try:
        *first, last = arrays
        given = tuple(map(borrowed, (*first, *last) if isinstance(last, list | tuple) else arrays))
        outs = () if out is None else tuple(out) if isinstance(out, list | tuple) else (out,)
        outs = tuple([borrowed(each, "`out`") for each in outs])
        for name, value in said.items():
            read[name] = _read_option(kind, name, value)
    except (TypeError, ValueError) as error:
        fault = str(error) or words_of(error)
    except Exception as error:
        fault = words_of(error)
    return Asked(given, outs, None if out is None else outs, read, fault)


def _read_option(kind: Any, name: str, value: Any) -> Any:
    """Return a keyword's value, converted by the operator. Raise OperatorError for an unknown keyword."""
    if name in kind.call_options():
        return kind.call_options()[name].read(value)
    keywords = ("out", *kind.call_options())
    hint = did_you_mean(name, keywords) or "leave it out"
    raise OperatorError(f"{kind.name} has no argument '{name}'", found=f"keywords {', '.join(keywords)}", hint=hint)


def _key(name: str, asked: Asked) -> Key:
    """The key of the arguments; empty if they are invalid, so that this rank still joins the exchange."""
    if asked.fault:
        return Key()
    given = tuple(
        [(type(each), each.shape, each.dtype) if isinstance(each, np.ndarray) else None for each in asked.given]
    )
    outs = tuple([_out_fault(asked, place) or (each.shape, each.dtype) for place, each in enumerate(asked.outs)])
    return name, tuple(sorted(asked.said.items())) if asked.said else (), given, outs


def _bind(kind: Any, world: World, asked: Asked) -> Bound:
    """Exchange all ranks' arguments, make one operator of them, and bind the schedule saved in rank 0's cache."""
    _drop_freed()
    fault = asked.fault or _fault(kind, asked)
    everyone = world.share(world.gather((kind.name, fault, _arguments(asked))))
    for rank, (name, _, _) in enumerate(everyone):
        if name != everyone[0][0]:
            hint = "all ranks of a communicator make the same calls, in the same order"
            raise OperatorError(f"rank {rank} calls {name}", found=f"rank 0 calls {everyone[0][0]}", hint=hint)
    _refuse([fault for _, fault, _ in everyone])
    arguments = [each for _, _, each in everyone]
    for rank, each in enumerate(arguments):
        if each.dtype != arguments[0].dtype:
            what = f"{kind.name} of {arguments[0].dtype} on rank 0, of {each.dtype} on rank {rank}"
            raise OperatorError(what, hint="arrays of one dtype")
    found: Bound = bind_on(kind.of_ranks(arguments), world, spans=False)
    _refuse(world.share(world.gather(_fault_for(found, asked))))
    return found


def _refuse(faults: Sequence[str]) -> None:
    """Raise OperatorError, on every rank, for the lowest rank with a fault; return if there is none."""
    for rank, fault in enumerate(faults):
        if fault:
            raise OperatorError(f"rank {rank}: {fault}")


def _fault(kind: type[OnArrays], asked: Asked) -> str:
    """Return what is wrong with this rank's own arrays; empty if nothing is."""
    if fault := kind.fault_of(asked.given):
        return fault
    return next(filter(None, (_out_fault(asked, place) for place in range(len(asked.outs)))), "")


def _out_fault(asked: Asked, place: int) -> str:
    """Return what is wrong with an array of `out`; empty if nothing is. Its shape is checked later (`_fault_for`)."""
    out = asked.outs[place]
    if type(out) is not np.ndarray and (not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray)):
        return f"`out` takes NumPy arrays, not {type(out).__name__}"
    if not (out.flags.c_contiguous and out.flags.writeable):
        return "`out` must be C-contiguous and writeable"
    if isinstance(asked.given[0], np.ndarray) and out.dtype != asked.given[0].dtype:
        return f"its A is {asked.given[0].dtype} and its `out` {out.dtype}"
    others = (*asked.given, *asked.outs[:place])
    shared = [each for each in others if isinstance(each, np.ndarray) and np.may_share_memory(out, each)]
    if not shared:
        return ""  # the usual case, returned before the names are made
    names = [f"argument {i + 1}" for i in range(len(asked.given))] + [f"out {i + 1}" for i in range(place)]
    named = {name: each for name, each in zip(names, others, strict=True) if isinstance(each, np.ndarray)}
    return overlap(named, {"out": out})


def _fault_for(bound: Bound, asked: Asked) -> str:
    """Return what is wrong with this rank's arrays for the operator, `out` included; empty if nothing is."""
    try:
        bound.signature.arguments(bound.rank, asked.given, None)
    except OperatorError as error:
        return str(error)
    wanted = [spec.shapes[bound.rank] for spec in bound.signature.outputs]
    given = [out.shape for out in asked.outs]
    if given in ([], wanted):
        return ""
    return "its `out` has shape {}, and the result {}".format(*(", ".join(map(str, each)) for each in (given, wanted)))


def _arguments(asked: Asked) -> RankArguments:
    arrays = [each for each in asked.given if isinstance(each, np.ndarray)]
    dtype = str(asked.given[0].dtype) if arrays and arrays[0] is asked.given[0] else ""
    return RankArguments(tuple(each.shape for each in arrays), dtype, dict(asked.said))


def _drop_freed() -> None:
    for key, kept in list(_bound.items()):  # copies: threads of other communicators may add to them
        if any(each.embedded.world and each.embedded.world.freed for each in list(kept.held.values())):
            _bound.pop(key, None)


def _signature(kind: type[OnArrays]) -> inspect.Signature:
    """Return the call's signature: its arrays, `comm`, then keywords."""
    either, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    plain = [inspect.Parameter(name, either) for name in (*kind.call_arrays(), "comm")]
    defaults = {"out": None} | {name: option.default for name, option in kind.call_options().items()}
    named = [inspect.Parameter(name, by_name, default=default) for name, default in defaults.items()]
    return inspect.Signature([*plain, *named], return_annotation="Any")


def _help(kind: type[OnArrays]) -> str:
    said = dict(kind.call_arrays()) | {name: option.help for name, option in kind.call_options().items()}
    listed = "".join(f"\n`{name}`: {text}" for name, text in said.items())
    return f"""{(inspect.getdoc(kind) or "").split(chr(10) * 2)[0]}
{listed}

Every rank of `comm`, a communicator, calls it with its own arrays, in the same order of calls. Returns this
rank's result, or a tuple of several. `out`: an array for the result (or a tuple), C-contiguous, of the same dtype,
without memory in common with the arguments.
Raises OperatorError on every rank, before data moves, if some rank's arguments do not fit; RunError if a rank stalls
for ten minutes. The call waits for a rank that does not call at all, as every collective of MPI does.
"""
