"""terms: how the operands of kernels, and of Terms, fit together slot by slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from dovetail.ir.types import Arg, Mode, Region, Term

Modes = Mapping[str, Sequence[Mode]]  # the modes of each kernel's operands, by the kernel's name


def modes_of(term: Term, modes: Modes) -> Sequence[Mode]:
    """Return the mode of each operand of a term; `each` for the operands of a sum."""
    return each(len(term.args)) if term.kernel is None else modes[term.kernel]


def each(count: int) -> Sequence[Mode]:
    """Return the modes of `count` operands of mode `each`."""
    mode: Mode = "each"
    return (mode,) * count


def num_terms(modes: Sequence[Mode], sizes: Sequence[int], slots: int) -> int:
    """Return how many terms each of a result's `slots` slots sums, from the sizes of the kernel's operands.

    >>> num_terms(("each_sum", "sum"), (8, 4), 2), num_terms(("each_sum",), (8,), 2), num_terms(("each",), (2,), 2)
    (4, 4, 1)
    """
    held = dict(zip(modes[::-1], sizes[::-1], strict=True))
    if "sum" in held:
        return held["sum"]
    return held["each_sum"] // max(slots, 1) if "each_sum" in held else 1


def slots_needed(mode: Mode, own: int, slots: int, terms: int) -> int:
    """Return how many slots an operand must have for a result of `slots` slots, each the sum of `terms` terms.

    `own`: the slots that it has.
    """
    return {"each": slots, "all": own, "sum": terms, "each_sum": slots * terms}[mode]


def own_slots(arg: Arg, modes: Modes) -> int:
    """Return the slots of an operand; 1 if they do not follow from the operand itself."""
    slots = known_slots(arg, modes)
    return 1 if slots is None else slots


def known_slots(arg: Arg, modes: Modes) -> int | None:
    """Return the slots of a region, or of a nested term, if its operands determine them; else None."""
    if not isinstance(arg, Term):
        return arg[1].num_slots
    contracted: dict[Mode, int] = {}
    for operand, mode in zip(arg.args, modes_of(arg, modes), strict=True):
        slots = None if mode == "all" else known_slots(operand, modes)
        if slots is not None and mode == "each":
            return slots
        if slots is not None:
            contracted.setdefault(mode, slots)
    return contracted["each_sum"] // max(contracted["sum"], 1) if len(contracted) == 2 else None


def leaves(term: Term) -> Iterator[tuple[int, Region]]:
    """Yield every region of a term, with its rank, from left to right."""
    for arg in term.args:
        if isinstance(arg, Term):
            yield from leaves(arg)
        else:
            yield arg


def mapped(term: Term, change: Callable[[Region], Region]) -> Term:
    """Return the term with `change(region)` in place of each region."""
    return Term(
        term.kernel, tuple(mapped(a, change) if isinstance(a, Term) else (a[0], change(a[1])) for a in term.args)
    )
