"""algorithm: an Algorithm records the operations on chunks by which a user writes a collective."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from dovetail.collective.compile import Lanes, Replicate, check_instances, compile_traced, depth_of
from dovetail.collective.emit import emit
from dovetail.collective.recorder import MOST_INSTANCES, Recorder
from dovetail.collective.ref import Ref
from dovetail.collective.spec import Spec, spec_of
from dovetail.core import OperatorError, ProgramError, parse_count
from dovetail.ir import Program
from dovetail.passes.hints import Hints

Protocol = Literal["Simple", "LL", "LL128"]


class Algorithm:
    """The algorithm of one collective, written as copies and reductions of chunks (seed 002).

    Parameters
    ----------
    name : str
        Name of the compiled Program.
    collective : str or Spec
        A kind of KINDS, which `chunks`, `in_place` and `root` complete, or a Spec.
    num_ranks : int
        Number of ranks; a Spec defines its own.
    chunks : int
        Slots per unit (see Spec).
    in_place : bool
        Whether input and output are one buffer.
    root : int
        Root of a rooted collective.
    protocol : str
        Simple, LL or LL128: sets how many messages a channel holds.
    instances : int
        Number of parallel copies of the algorithm, each on an equal part of the data.
    overwrite_input : bool
        Allow writing to the input out of place; by default this raises ProgramError, since it is the caller's data.

    Raises
    ------
    OperatorError
        If the collective, a number or the protocol is invalid.

    >>> p = Algorithm("swap_sums", "all_reduce", 2, in_place=True)
    >>> there = p.chunk(0, "input", 0).copy(1, "other")
    >>> total = p.chunk(1, "input", 0).reduce(there)
    >>> total.copy(0)
    Ref(input[0:1] of rank 0)
    >>> p.compile().num_ranks
    2
    """

    def __init__(
        self,
        name: str,
        collective: str | Spec,
        num_ranks: int | None = None,
        *,
        chunks: int = 1,
        in_place: bool = False,
        root: int = 0,
        protocol: Protocol = "Simple",
        instances: int = 1,
        overwrite_input: bool = False,
    ) -> None:
        if isinstance(collective, Spec):
            spec = collective
            if num_ranks not in (None, spec.num_ranks):
                raise OperatorError(f"{num_ranks} ranks", found=f"a {spec.kind} of {spec.num_ranks} ranks")
            if (chunks, in_place, root) != (1, False, 0):
                raise OperatorError(f"a Spec defines chunks, in_place and root of a {spec.kind} itself")
        else:
            if num_ranks is None:
                raise OperatorError(f"algorithm '{name}' needs a number of ranks")
            spec = spec_of(collective, num_ranks, chunks=chunks, in_place=in_place, root=root)
        depth_of(protocol)
        check_instances(instances)
        self.name, self.spec, self.protocol, self.instances = name, spec, protocol, instances
        self._recorder = Recorder(spec, overwrite_input)
        self._line = self._recorder.line()

    @property
    def num_ranks(self) -> int:
        return self.spec.num_ranks

    def __repr__(self) -> str:
        return f"<Algorithm {self.name}: {self.spec.kind} of {self.num_ranks} ranks, {self._recorder.time} operations>"

    def chunk(self, rank: int, buffer: str, index: int, count: int = 1) -> Ref:
        """Return a Ref to slots `index` to `index + count - 1` of a buffer: "input", "output" or a scratch buffer.

        Raises ProgramError, naming your line, if they lie outside the buffer or hold nothing yet.
        """
        recorder = self._recorder
        line = recorder.line()
        rank = recorder.rank(rank, line)
        if count.__class__ is not int or count < 1:
            count = recorder.whole(count, "the count", line, least=1)
        store, first = recorder.find(rank, buffer, index, count, line)
        recorder.check_filled(store, rank, first, count, line)
        return Ref(recorder, store, rank, first, count)

    @contextmanager
    def parallelize(self, copies: int) -> Iterator[None]:
        """Cut each operation written inside the block into `copies` parallel instances; nested blocks multiply."""
        recorder = self._recorder
        before, copies = recorder.copies, parse_count(copies, "copies")
        if not 1 <= copies <= MOST_INSTANCES // before:
            most = f"at most {MOST_INSTANCES} in all"
            raise OperatorError(f"parallelize({copies})", hint="at least 1" if copies < 1 else most)
        recorder.copies = before * copies
        try:
            yield
        finally:
            recorder.copies = before

    def trace(self) -> tuple[Program, Hints]:
        """Return the recorded operations as a Program with one net lane per rank, before any pass, and the hints."""
        return emit(self.name, self._recorder, depth_of(self.protocol))

    def compile(
        self,
        instances: int | None = None,
        protocol: Protocol | None = None,
        *,
        fuse: bool = True,
        lanes: Lanes = "auto",
        replicate: Replicate = "interleaved",
        strided: bool = True,
    ) -> Program:
        """Compile the algorithm and prove the Program.

        Parameters
        ----------
        instances, protocol
            Default: the algorithm's own.
        fuse : bool
            Fuse receives with the operations that follow them.
        lanes : "auto" or "manual"
            "manual": every operation must name its lanes.
        replicate : "interleaved" or "batched"
            Whether each instance has every k-th slot, or contiguous slots.
        strided : bool
            Whether one op may access every k-th slot. False, for formats without strides: such an op becomes one op per
            slot.

        Raises
        ------
        ProgramError
            Naming your line, if the Program cannot be proved.
        """
        copies = self.instances if instances is None else check_instances(instances)
        cut = not strided and replicate == "interleaved" and (copies > 1 or self._recorder.has_fragments)
        program, hints = emit(self.name, self._recorder, depth_of(protocol or self.protocol), cut)
        try:
            return compile_traced(program, hints, instances=copies, fuse=fuse, lanes=lanes, replicate=replicate)
        except ProgramError as error:
            if error.where is not None:
                raise
            where = self._recorder.text(self._line)  # an operation is missing: name the line that made the Algorithm
            raise ProgramError(error.what, where=where, found=error.found, hint=error.hint) from error
