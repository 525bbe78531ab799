"""collectives: every kind of collective and what sets it apart; all other lists of kinds are picked from this table."""

from __future__ import annotations

from typing import NamedTuple


class Traits(NamedTuple):
    """What a kind of collective has or does, beside moving arrays between ranks."""

    is_op: bool = False  # the library's own may be an op of a Program
    reduces: bool = False
    rooted: bool = False
    chosen: bool = False  # the best algorithm for it is chosen by size, and kept in a selection table


# In the order in which mpi_table.h numbers them; program.hpp numbers those of Programs, which come first.
COLLECTIVES = {
    "all_reduce": Traits(is_op=True, reduces=True, chosen=True),
    "all_gather": Traits(is_op=True, chosen=True),
    "reduce_scatter": Traits(is_op=True, reduces=True, chosen=True),
    "all_to_all": Traits(is_op=True, chosen=True),
    "broadcast": Traits(is_op=True, rooted=True, chosen=True),
    "barrier": Traits(),
    "reduce": Traits(reduces=True, rooted=True),
    "gather": Traits(rooted=True),
    "scatter": Traits(rooted=True),
    "all_to_next": Traits(chosen=True),
    "all_gather_v": Traits(),
    "reduce_scatter_v": Traits(reduces=True),
    "all_to_all_v": Traits(),
}


def collectives_that(trait: str) -> tuple[str, ...]:
    """The kinds that have a trait, in the order of the table.

    >>> collectives_that("rooted")
    ('broadcast', 'reduce', 'gather', 'scatter')
    """
    return tuple(kind for kind, traits in COLLECTIVES.items() if getattr(traits, trait))


OP_COLLECTIVES = collectives_that("is_op")
