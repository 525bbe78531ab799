"""rewrites: the passes that a user would look for on a Program, as its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from dovetail.core.registry import at

PASSES = "dovetail.passes"  # the room above, of which only a call loads anything


class Rewrites:
    """What a Program can be rewritten to: each method returns a new Program, as the function of its name in
    `dovetail.passes` does, whose documentation shows a program before and after it.

    >>> from dovetail.collective import build
    >>> ring = build("ring_all_reduce", 2)
    >>> ring.num_ops, ring.split_slots(4).slice_messages(2).num_ops
    (6, 12)
    """

    def allocate_slots(self) -> Self:
        """Return the program with one buffer of scratch, of those slots alone that some op touches."""
        return self._rewritten("allocate_slots")

    def depend(self) -> Self:
        """Return the program with a dependency between every two conflicting ops of a rank, in the order of rows."""
        return self._rewritten("depend")

    def drop_redundant(self) -> Self:
        """Return the program without dependencies that follow from others."""
        return self._rewritten("drop_redundant")

    def fuse(self) -> Self:
        """Return the program with receives fused to the reduces and sends that follow them."""
        return self._rewritten("fuse")

    def inline_collectives(self, make: Callable[..., Any], depth: int = 8, ranks: range | None = None) -> Self:
        """Return the program with messages of its own in place of the library's collectives.

        Parameters
        ----------
        make : callable
            `make(kind, group size, in place)` returns the algorithm, a Program; None keeps the library's call.
        depth : int
            Messages that a new channel holds.
        ranks : range, optional
            Ranks whose ops are wanted. Default: all.

        Raises
        ------
        ProgramError
            Where members of a collective disagree about slots, or the algorithm does not fit.
        """
        return self._rewritten("inline_collectives", make, depth, ranks)

    def slice_messages(self, max_slots: int) -> Self:
        """Return the program with messages of more than `max_slots` slots cut into slices of about equal length."""
        return self._rewritten("slice_messages", max_slots)

    def split_slots(self, pieces: int) -> Self:
        """Return the program with `pieces` slots in place of each; ProgramError for one that has kernels."""
        return self._rewritten("split_slots", pieces)

    def two_sided(self) -> Self:
        """Return the program with sends and receives in place of puts, gets and their signals.

        Raises
        ------
        ProgramError
            For a program that does not complete.
        """
        return self._rewritten("two_sided")

    def _rewritten(self, name: str, *options: Any) -> Self:
        found: Self = at(f"{PASSES}:{name}")(self, *options)
        return found
