"""collectives: the table of all kinds of collectives and their traits; all other lists of kinds derive from it."""

from __future__ import annotations

from typing import NamedTuple


class Traits(NamedTuple):
    """What distinguishes a kind of collective. A new kind is a new row of `COLLECTIVES`.

    Every rank has an input and an output, unless `from_root` or `to_root` restricts them to the root. A *part* is
    what one rank contributes for, or to, one other rank.

    Attributes
    ----------
    cut : bool
        An input consists of one part for each rank.
    joined : bool
        An output consists of one part from each rank.
    reduces : bool
        An output is the reduction (sum, maximum, …) of all inputs.
    from_root, to_root : bool
        Only the root sends; only the root receives.
    to_next : bool
        Rank i sends to rank i + 1 only; the last rank sends nothing.
    moves : bool
        Whether there are inputs and outputs at all.
    even : str
        For a v-variant, whose parts differ in size: the kind whose parts are of equal size.
    is_op : bool
        The library's own call may be an op of a Program.
    chosen : bool
        A selection table holds the best algorithm for each size.
    mpi : tuple of str
        The MPI calls that do this, without `MPI_`.
    nccl : str
        NCCL's name, in its tuner's table and in files of MSCCL and MSCCL++.
    """

    cut: bool = False
    joined: bool = False
    reduces: bool = False
    from_root: bool = False
    to_root: bool = False
    to_next: bool = False
    moves: bool = True
    even: str = ""
    is_op: bool = False
    chosen: bool = False
    mpi: tuple[str, ...] = ()
    nccl: str = ""

    @property
    def rooted(self) -> bool:
        return self.from_root or self.to_root

    @property
    def in_parts(self) -> bool:
        """Whether the larger of input and output consists of one part for each rank."""
        return self.cut or self.joined

    @property
    def exchanges(self) -> bool:
        """Whether each rank sends a different part to each rank."""
        return self.cut and self.joined

    @property
    def input_is_part(self) -> bool:
        """Whether an input is one part of each output."""
        return self.joined and not self.cut

    @property
    def output_is_part(self) -> bool:
        """Whether an output is one part of each input, or of their sum."""
        return self.cut and not self.joined

    @property
    def input_at_root(self) -> bool:
        """Whether only the root has an input buffer."""
        return self.from_root and self.cut

    @property
    def fills_output(self) -> bool:
        """Whether each output has room for all that its rank sends and receives, so that algorithms may work in it."""
        return not (self.cut or self.to_root or self.to_next)

    @property
    def sums_everywhere(self) -> bool:
        """Whether every rank gets the reduction of all inputs, each as a whole."""
        return self.reduces and self.fills_output

    @property
    def may_be_in_place(self) -> bool:
        """Whether one buffer of equal size on all ranks can be both input and output."""
        return not (self.in_parts and self.rooted) and not (self.exchanges and self.even)

    def parts(self, ranks: int) -> tuple[int, int]:
        """Return the number of parts in the larger inputs and in the larger outputs.

        >>> COLLECTIVES["all_gather"].parts(4), COLLECTIVES["broadcast"].parts(4)
        ((1, 4), (1, 1))
        """
        return ranks if self.cut else 1, ranks if self.joined else 1


# In the order in which mpi_table.h numbers them; program.hpp numbers those of Programs, which come first.
COLLECTIVES = {
    "all_reduce": Traits(reduces=True, is_op=True, chosen=True, mpi=("Allreduce",), nccl="allreduce"),
    "all_gather": Traits(joined=True, is_op=True, chosen=True, mpi=("Allgather",), nccl="allgather"),
    "reduce_scatter": Traits(
        cut=True, reduces=True, is_op=True, chosen=True, mpi=("Reduce_scatter_block",), nccl="reducescatter"
    ),
    "all_to_all": Traits(cut=True, joined=True, is_op=True, chosen=True, mpi=("Alltoall",), nccl="alltoall"),
    "broadcast": Traits(from_root=True, is_op=True, chosen=True, mpi=("Bcast",), nccl="broadcast"),
    "barrier": Traits(moves=False, mpi=("Barrier",)),
    "reduce": Traits(reduces=True, to_root=True, mpi=("Reduce",), nccl="reduce"),
    "gather": Traits(joined=True, to_root=True, mpi=("Gather", "Gatherv")),
    "scatter": Traits(cut=True, from_root=True, mpi=("Scatter", "Scatterv")),
    "all_to_next": Traits(to_next=True, chosen=True),
    "all_gather_v": Traits(joined=True, even="all_gather", mpi=("Allgatherv",)),
    "reduce_scatter_v": Traits(cut=True, reduces=True, even="reduce_scatter", mpi=("Reduce_scatter",)),
    "all_to_all_v": Traits(cut=True, joined=True, even="all_to_all", mpi=("Alltoallv", "Alltoallw")),
}


def collectives_that(trait: str) -> tuple[str, ...]:
    """Return the kinds whose trait (an attribute or property of `Traits`) is true, in the order of the table.

    >>> collectives_that("rooted")
    ('broadcast', 'reduce', 'gather', 'scatter')
    """
    return tuple(kind for kind, traits in COLLECTIVES.items() if getattr(traits, trait))


def traits_of(kind: str) -> Traits:
    """Return the traits of a kind; for an unknown kind, traits that move nothing.

    >>> traits_of("broadcast").rooted, traits_of("custom").in_parts
    (True, False)
    """
    return COLLECTIVES.get(kind, Traits(moves=False))


def kind_of_mpi(call: str) -> str:
    """Return the kind of an MPI call (for a v-variant, the kind of equal parts); "" for other calls.

    >>> kind_of_mpi("Alltoallw"), kind_of_mpi("Gatherv"), kind_of_mpi("Scan")
    ('all_to_all', 'gather', '')
    """
    return next((traits.even or kind for kind, traits in COLLECTIVES.items() if call in traits.mpi), "")


OP_COLLECTIVES = collectives_that("is_op")
