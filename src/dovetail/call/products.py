"""products: operators on arrays, matrix products above all, in a user's MPI program, by the schedule tuned for them.

Every rank of `comm` (of mpi4py, or `dovetail.world()`) makes the same call on arrays of its own: `all_gather_matmul(a,
b, comm)`, its kin in `dovetail.matmul`, and operators of other packages that have `ir.abilities.OnArrays`; shapes, and
what else may be said, are those of the operator of that name. Every call begins with 8 bytes of each rank for each
other, by which all know whether these arguments, of all ranks, are new. If so, ranks compare them, and look up what
`dovetail tune` found for them on these ranks; where nothing was tuned, it computes and communicates in turn, by the
library.
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
from dovetail.run.mpi.comm import Communicator, adopted
from dovetail.run.mpi.embedded import overlap
from dovetail.run.mpi.together import words_of
from dovetail.run.mpi.world import World

MOST = 64  # products that a communicator keeps bound, by the arguments of all ranks; the least lately used go
MOST_BYTES = 1 << 28  # of the arrays of those that it keeps, on all its ranks, for each of them
_NEW = -1  # is no argument's hash: Python never gives it

Held = tuple[dict[str, Array], ...]  # the arrays that an engine is bound to
Key = tuple[Any, ...]  # what `_key` makes of a rank's arguments


class Kept:
    """The products that a communicator keeps bound, by the hashes of all ranks' arguments; all ranks keep the same.

    `guesses`: the latest by this rank's own arguments, as `_key` has them. `ambiguous`: those that share a rank's hash
    with another, which that rank cannot distinguish.
    """

    def __init__(self) -> None:
        self.held: dict[bytes, Bound] = {}
        self.guesses: dict[Key, Bound] = {}
        self.ambiguous: set[bytes] = set()

    def take(self, key: bytes, own: Key) -> Bound | None:
        """What is kept for these hashes of all ranks, from now on the one used last; `own`: this rank's arguments."""
        found = self.held.pop(key, None)
        if found is not None:
            self.held[key] = self.guesses[own] = found
        return found

    def add(self, key: bytes, own: Key, bound: Bound) -> None:
        """Keep another product. Those used least lately go, where much is kept."""
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
    """What this rank asks: its arrays, those it wants results in, `out` as it was given, what else it said, and what
    of that cannot be."""

    given: tuple[Any, ...]
    outs: tuple[Any, ...]
    out: Any
    said: Mapping[str, Any]
    fault: str


def product_call(name: str) -> Callable[..., Any]:
    """The call on arrays that carries out the operator of that name."""
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
    """The arrays and `comm`, those included that are taken out of `said`. TypeError for one too few or too many."""
    by_name = {
        name: said.pop(name)
        for name, each in signature.parameters.items()
        if each.default is each.empty and name in said
    }
    signature.bind(*arguments, **by_name)
    return (*arguments, *by_name.values())


def schedule_for(product: str, *arguments: Any, out: Any = None, **options: Any) -> Schedule:
    """Return the schedule by which `comm` serves a product of these arguments; every rank of `comm` calls.

    Nothing is computed. The product stays bound, so that the next call finds it ready.

    Parameters
    ----------
    product : str
        The product's name: "all_gather_matmul".
    *arguments, out
        Those of the product's own call, `dovetail.all_gather_matmul(a, b, comm, out=out)`; `comm` is the last.
    **options
        The other keywords of that call, which differ by product: `gathered` or `counts` (see its signature).

    Returns
    -------
    Schedule
        Its `notes` say in words what it does.

    Raises
    ------
    OperatorError
        On every rank, where some rank's arguments do not fit, and where `product` names no product.
    """
    kind = operator_class(product)
    if not issubclass(kind, OnArrays):
        hint = "an operator of dovetail.matmul; for collectives choice_for, and a nest on ranks has .schedule"
        raise OperatorError(f"{product} is no product", hint=hint)
    *arrays, comm = arguments
    with Door(comm) as door:
        ranks = door.made = adopted(comm)
        found, _ = look_up(product, ranks, asked_of(product, arrays, out, options))
    return replace(found.schedule, notes=(found.operator.describe(found.schedule, ranks.size),))


def look_up(name: str, ranks: Communicator, asked: Asked) -> tuple[Bound, Held]:
    """What these arguments of all ranks need to run on these ranks, bound to them; made where they are new.

    A rank examines its arguments before the one message of every call, by what ran when they were last the same.
    """
    kept = _bound.setdefault(ranks.bound.key, Kept())
    own, held = Key(), None
    try:
        own = _key(name, asked)
        guess = kept.guesses.get(own)
        held = _held_as_before(guess, asked) if guess else None
    except Exception as error:  # of any kind: the other ranks must be notified, for they would wait
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
    """`_held` of arguments that are equal, by `_key`, to some that it has examined."""
    if not bound.signature.fills_out:
        return _held(bound, asked)
    return bound.embedded.bound_to(*bound.signature.laid_out(bound.rank, asked.given, asked.outs))


def _held(bound: Bound, asked: Asked) -> Held:
    inputs, wanted = bound.signature.arguments(bound.rank, asked.given, asked.out)
    return bound.embedded.bound_to(inputs, wanted)


def _held_by_all(ranks: Communicator, bound: Bound, asked: Asked) -> Held:
    """Return what `_held` returns, if a rank's own arguments do not determine its product; raises if any rank fails."""
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
    """The arguments of a call on this rank. What reading them raises becomes their fault."""
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
    """Return the value of a call's keyword, as the operator has it; OperatorError for an unknown keyword."""
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
    """Ranks exchange their arguments, make one operator of them, and bind the schedule that rank 0 knows for
    it."""
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
    """OperatorError, on every rank, for the first rank with a fault."""
    for rank, fault in enumerate(faults):
        if fault:
            raise OperatorError(f"rank {rank}: {fault}")


def _fault(kind: type[OnArrays], asked: Asked) -> str:
    """What is wrong with a rank's own arrays, in words; empty where nothing is."""
    if fault := kind.fault_of(asked.given):
        return fault
    return next(filter(None, (_out_fault(asked, place) for place in range(len(asked.outs)))), "")


def _out_fault(asked: Asked, place: int) -> str:
    """What is wrong with an array for a result, but for its shape, which ranks must know of each other first."""
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
        return ""  # at nearly every call: names are for those that share
    names = [f"argument {i + 1}" for i in range(len(asked.given))] + [f"out {i + 1}" for i in range(place)]
    named = {name: each for name, each in zip(names, others, strict=True) if isinstance(each, np.ndarray)}
    return overlap(named, {"out": out})


def _fault_for(bound: Bound, asked: Asked) -> str:
    """What is wrong with a rank's arrays now that the operator is known: how many they are, and the shapes of
    results."""
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
    """That of the call: its arrays, `comm`, and what may be said by name."""
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

Called by every rank of `comm` (of mpi4py, or `dovetail.world()`), in the same order, with arrays of its own. Returns
this rank's result, or a tuple where there are several; `out` takes it (or a tuple of them), C-contiguous, of the same
dtype, apart from the arguments.
OperatorError on every rank, naming one whose arguments do not fit, before anything else moves; RunError where a rank
stalls for ten minutes. A rank that does not call at all is waited for, as in any collective of MPI.
"""
