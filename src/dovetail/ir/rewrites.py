"""rewrites: the passes that a user would look for on a Program, as its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from dovetail.core.registry import at

PASSES = "dovetail.passes"  # imports this package, so it is loaded only when a method is called


class Rewrites:
    """The passes as methods. Each returns a new Program, as the function of the same name in `dovetail.passes` does;
    the function's documentation shows a program before and after.

    >>> from dovetail.collective import build
    >>> ring = build("ring_all_reduce", 2)
    >>> ring.num_ops, ring.split_slots(4).slice_messages(2).num_ops
    (6, 12)
    """

    def allocate_slots(self) -> Self:
        """Return the program with a single scratch buffer, of only those slots that some op touches."""
        return self._rewritten("allocate_slots")

    def depend(self) -> Self:
        """Return the program with a dependency between every two conflicting ops of a rank, in the order of rows."""
        return self._rewritten("depend")

    def drop_redundant(self) -> Self:
        """Return the program without dependencies that follow from others."""
        return self._rewritten("drop_redundant")

    def fuse(self) -> Self:
        """Return the program with receives fused with the reduces and sends that follow them."""
        return self._rewritten("fuse")

    def inline_collectives(self, make: Callable[..., Any], depth: int = 8, ranks: range | None = None) -> Self:
        """Return the program with its own messages in place of the library's collectives.

        Parameters
        ----------
        make : callable
            `make(kind, group_size, in_place)` returns the algorithm as a Program, or None to keep the library's call.
        depth : int
            Depth of new channels, in messages.
        ranks : range, optional
            Ranks whose ops are returned. Default: all.

        Raises
        ------
        ProgramError
            If members of a collective disagree about slots, or the algorithm does not fit.
        """
        return self._rewritten("inline_collectives", make, depth, ranks)

    def slice_messages(self, max_slots: int) -> Self:
        """Return the program with messages of more than `max_slots` slots cut into slices of about equal length."""
        return self._rewritten("slice_messages", max_slots)

    def split_slots(self, pieces: int) -> Self:
        """Return the program with `pieces` slots in place of each. Raises ProgramError if it calls kernels."""
        return self._rewritten("split_slots", pieces)

    def two_sided(self) -> Self:
        """Return the program with sends and receives in place of puts, gets and their signals.

        Raises
        ------
        ProgramError
            If the program does not complete.
        """
        return self._rewritten("two_sided")

    def _rewritten(self, name: str, *options: Any) -> Self:
        found: Self = at(f"{PASSES}:{name}")(self, *options)
        return found
