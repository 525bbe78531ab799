"""ref: a Ref is a chunk in a buffer of a rank, which an algorithm copies, reduces, groups and splits."""

from __future__ import annotations

from dovetail.collective.recorder import COPY, MOST, REDUCE, SEND_COPY, SEND_REDUCE, Recorder, Store


class Ref:
    """`count` neighbouring slots of a buffer on one rank, with the contents that they had when the Ref was made.

    When an operation overwrites them, the Ref becomes stale; using it raises ProgramError, which names both lines. In
    place, `buffer` is the one of "input" and "output" whose indices count the whole array.
    """

    __slots__ = ("_recorder", "_store", "_time", "count", "index", "rank")

    def __init__(self, recorder: Recorder, store: Store, rank: int, index: int, count: int) -> None:
        self._recorder, self._store, self._time = recorder, store, recorder.time
        self.rank, self.index, self.count = rank, index, count

    @property
    def buffer(self) -> str:
        return self._store.name

    def __repr__(self) -> str:
        return f"Ref({self.buffer}[{self.index}:{self.index + self.count}] of rank {self.rank})"

    def copy(
        self,
        rank: int,
        buffer: str | None = None,
        index: int | None = None,
        *,
        ch: int | None = None,
        send_lane: int | None = None,
        recv_lane: int | None = None,
    ) -> Ref:
        """Copy the chunk to `rank`; return the Ref there.

        Parameters
        ----------
        rank : int
            Destination.
        buffer : str, optional
            Destination buffer; a new name creates a scratch buffer. Default: this chunk's buffer.
        index : int, optional
            First slot there. Default: this chunk's index; for a scratch buffer given by name, its end.
        ch : int, optional
            Channel id.
        send_lane, recv_lane : int, optional
            Lanes (threadblocks) of the sender and the receiver. A copy within a rank uses `send_lane`.

        Raises
        ------
        ProgramError
            Naming your line, if the Ref is stale, the place is invalid or overlaps the chunk, or the input may not be
            written. A copy of a chunk onto itself does nothing.
        """
        recorder = self._recorder
        line = recorder.line()
        recorder.check_current(self._store, self.rank, self.index, self.count, self._time, line)
        rank = recorder.rank(rank, line)
        store, first = self._target(rank, buffer, index, line)
        if store is self._store and rank == self.rank and first == self.index:
            return self
        recorder.check_writable(store, rank, first, line)
        self._check_apart(self, store, rank, first, line)
        what = COPY if rank == self.rank else SEND_COPY
        self._note(what, self, self, store, rank, first, (ch, send_lane, recv_lane), line)
        return Ref(recorder, store, rank, first, self.count)

    def reduce(
        self,
        other: Ref,
        buffer: str | None = None,
        index: int | None = None,
        *,
        ch: int | None = None,
        send_lane: int | None = None,
        recv_lane: int | None = None,
    ) -> Ref:
        """Add the chunk `other`, of any rank, to this one; return the Ref to the sum.

        Without `buffer` the sum overwrites this chunk, and this Ref stays valid. With `buffer` the sum is written
        there, on this chunk's rank. Both chunks must have equal length. Other parameters and errors: see `copy`.
        """
        recorder = self._recorder
        line = recorder.line()
        if other.__class__ is not Ref or other._recorder is not recorder:
            recorder.fail(f"{other!r} is no chunk of this algorithm", line)
        recorder.check_current(self._store, self.rank, self.index, self.count, self._time, line)
        recorder.check_current(other._store, other.rank, other.index, other.count, other._time, line)
        if other.count != self.count:
            found = f"{self} and {other}"
            recorder.fail(
                f"{other.count} slots cannot be added to {self.count}", line, found, "split or group one of them"
            )
        self._check_apart(other, self._store, self.rank, self.index, line, even_equal=True)
        store, first = self._target(self.rank, buffer, index, line)
        recorder.check_writable(store, self.rank, first, line)
        asked = (ch, send_lane, recv_lane)
        self._check_apart(self, store, self.rank, first, line)
        if other.rank != self.rank:
            self._note(SEND_REDUCE, other, self, store, self.rank, first, asked, line)
        else:
            self._check_apart(other, store, self.rank, first, line)
            self._add_here(other, store, first, asked, line)
        if store is self._store and first == self.index:
            self._time = recorder.time
            return self
        return Ref(recorder, store, self.rank, first, self.count)

    def group(self, other: Ref) -> Ref:
        """Return this chunk and the adjacent chunk `other` as one Ref. Raise ProgramError if they are not adjacent."""
        recorder = self._recorder
        line = recorder.line()
        if other.__class__ is not Ref or other._recorder is not recorder:
            recorder.fail(f"{other!r} is no chunk of this algorithm", line)
        for ref in (self, other):
            recorder.check_current(ref._store, ref.rank, ref.index, ref.count, ref._time, line)
        low, high = (self, other) if self.index <= other.index else (other, self)
        if low._store is not high._store or low.rank != high.rank or low.index + low.count != high.index:
            recorder.fail("only adjacent chunks can be grouped", line, f"{self} and {other}")
        return Ref(recorder, low._store, low.rank, low.index, low.count + high.count)

    def split(self, parts: int) -> list[Ref]:
        """Return the chunk as `parts` equal chunks, in order. Raise ProgramError if `parts` does not divide it."""
        recorder = self._recorder
        line = recorder.line()
        parts = recorder.whole(parts, "the number of parts", line, least=1)
        if self.count % parts:
            recorder.fail(f"{self.count} slots do not split into {parts} equal parts", line, f"{self}")
        recorder.check_current(self._store, self.rank, self.index, self.count, self._time, line)
        size = self.count // parts
        return [Ref(recorder, self._store, self.rank, self.index + part * size, size) for part in range(parts)]

    def _target(self, rank: int, buffer: str | None, index: int | None, line: int) -> tuple[Store, int]:
        """Return the store and first slot of the destination asked for."""
        if buffer is not None:
            return self._recorder.target(rank, buffer, index, self.index, self.count, line)
        name = self._store.name
        return self._recorder.target(rank, name, self.index if index is None else index, self.index, self.count, line)

    def _check_apart(self, ref: Ref, store: Store, rank: int, first: int, line: int, even_equal: bool = False) -> None:
        """Raise ProgramError if a chunk and a place overlap partly; with `even_equal`, also if they are equal."""
        overlap = ref._store is store and ref.rank == rank and abs(ref.index - first) < ref.count
        if overlap and (ref.index != first or even_equal):
            place = f"{store.name}[{first}:{first + ref.count}] of rank {rank}"
            ref._recorder.fail(f"source and destination overlap: {ref} and {place}", line)

    def _add_here(self, other: Ref, store: Store, first: int, asked: tuple[int | None, ...], line: int) -> None:
        """Record the sum of two chunks of this rank: copy this one to the place unless one is there; add the other."""
        if store is other._store and first == other.index:
            self._note(REDUCE, self, self, store, self.rank, first, asked, line)
            return
        if store is not self._store or first != self.index:
            self._note(COPY, self, self, store, self.rank, first, asked, line)
        self._note(REDUCE, other, self, store, self.rank, first, asked, line)

    def _note(
        self,
        what: int,
        src: Ref,
        add: Ref,
        store: Store,
        rank: int,
        first: int,
        asked: tuple[int | None, ...],
        line: int,
    ) -> None:
        recorder = self._recorder
        if asked == (None, None, None):
            channel = send_lane = recv_lane = -1
        else:
            names = ("channel", "send_lane", "recv_lane")
            channel, send_lane, recv_lane = (
                -1 if value is None else recorder.whole(value, name, line, most=MOST)
                for value, name in zip(asked, names, strict=True)
            )
        fields = (
            *(what, src.rank, src._store.number, src.index, add._store.number, add.index),
            *(rank, store.number, first, self.count, channel, send_lane, recv_lane, line, recorder.copies),
        )
        recorder.record(fields, store, rank, first, self.count)
