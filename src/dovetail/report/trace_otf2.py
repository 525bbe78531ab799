"""trace_otf2: write a Trace as an OTF2 archive with the `otf2` package, for Vampir, Scalasca and the like."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core import EnvironmentFault
from dovetail.ir.collectives import COLLECTIVES
from dovetail.report.otf2_events import (
    DETAIL,
    ENTER,
    LEAVE,
    WITH_ATTRIBUTES,
    Batch,
    EventWriter,
    by_location,
    library_errors,
)
from dovetail.trace import Trace
from dovetail.trace.analysis.matching import messages, of_name
from dovetail.trace.decode import KINDS
from dovetail.trace.exchange.otf2_read import otf2_errors, otf2_package
from dovetail.trace.trace import thread_title

Array = NDArray[Any]
_ATTRIBUTES = {
    "calls": "polling calls in this region; all but the last found nothing",
    "pause_ns": "total time between these calls",
    "is_point": "an event without duration",
    "arg": "a number given by the program",
}
_CALLS = [call for traits in COLLECTIVES.values() for call in traits.mpi]
_OPS = {call: call.upper() for call in (*_CALLS, "Scan", "Exscan")}
_ATOMICS = {
    "Accumulate": ("ACCUMULATE", False), "Raccumulate": ("ACCUMULATE", False),
    "Get_accumulate": ("FETCH_AND_ACCUMULATE", True), "Rget_accumulate": ("FETCH_AND_ACCUMULATE", True),
    "Fetch_and_op": ("FETCH_AND_ACCUMULATE", True), "Compare_and_swap": ("COMPARE_AND_SWAP", True),
}  # fmt: skip


def write_trace_otf2(folder: str | Path, trace: Trace) -> Path:
    """Write calls and intervals as regions, and the records of received messages, collectives and one-sided calls.

    A message is recorded in the call that sends it and in the call that receives it, blocking or not. Points are
    regions of no length. Attributes (`_ATTRIBUTES`) hold data for which OTF2 has no record.

    Returns
    -------
    Path
        The archive's `traces.otf2`.

    Raises
    ------
    EnvironmentFault
        If the folder exists already or the disk is full.

    """
    otf2 = otf2_package()
    target = Path(folder)
    if target.exists():
        raise EnvironmentFault(f"cannot write {target}", found="it exists already", hint="name a new folder")
    with library_errors() as errors:
        try:
            with otf2.writer.open(str(target), timer_resolution=1_000_000_000) as archive:
                _Writer(otf2, archive, trace).write()
        except otf2_errors() as error:
            errors.append(str(error))
    if errors:  # such as a full disk: the archive is incomplete
        shutil.rmtree(target, ignore_errors=True)
        hint = "free some space, or name a folder elsewhere"
        raise EnvironmentFault(f"cannot write {target}", found=errors[0], hint=hint)
    return target / "traces.otf2"


class _Writer:
    def __init__(self, otf2: Any, archive: Any, trace: Trace) -> None:
        self.otf2, self.archive, self.trace = otf2, archive, trace
        made = archive.definitions
        root = made.system_tree_node("machine")
        hosts = {about["rank"]: about["host"] for about in trace.meta.get("ranks", ())}
        nodes = {host: made.system_tree_node(host, parent=root) for host in dict.fromkeys(hosts.values())}
        col = trace.columns
        self.threads = sorted(set(zip(col["rank"].tolist(), col["thread"].tolist(), strict=True)))
        groups = [
            made.location_group(f"rank {rank}", system_tree_parent=nodes.get(hosts.get(rank), root))
            for rank in range(trace.num_ranks)
        ]
        self.locations = {
            (rank, thread): made.location(thread_title(trace.meta, rank, thread), group=groups[rank])
            for rank, thread in self.threads
        }
        mpi, user = otf2.Paradigm.MPI, otf2.Paradigm.USER
        self.attributes = {name: made.attribute(name, text, otf2.Type.INT64) for name, text in _ATTRIBUTES.items()}
        regions = [made.region(name, paradigm=mpi if name.startswith("MPI_") else user) for name in trace.names]
        main = [min((at for at in self.threads if at[0] == r), default=None) for r in range(trace.num_ranks)]
        self.mains = [self.locations[at] for at in main if at is not None]
        made.group("", group_type=otf2.GroupType.COMM_LOCATIONS, paradigm=mpi, members=self.mains)
        comms = [self._comm(i) for i in range(len(trace.comms))]
        windows = {
            i: made.rma_win(f"window {i}", comm=comms[i]) for i, comm in enumerate(trace.comms) if comm.is_window
        }
        self.region_rows, self.comm_rows = (np.array([it._ref for it in those], "i8") for those in (regions, comms))
        self.window_rows = np.array([windows[i]._ref if i in windows else -1 for i in range(len(comms))], "i8")
        self.location = np.zeros(0, "i4")  # for each row, the index of its thread in `threads`

    def _comm(self, number: int) -> Any:
        mpi, made = self.otf2.Paradigm.MPI, self.archive.definitions
        ranks = [self.mains[r] for r in self.trace.comms[number].ranks if 0 <= r < len(self.mains)]
        group = made.group("", group_type=self.otf2.GroupType.COMM_GROUP, paradigm=mpi, members=ranks)
        return made.comm(f"communicator {number}", group=group)

    def write(self) -> None:
        """Write every location's events."""
        col = self.trace.columns
        keys = np.array([rank << 32 | thread for rank, thread in self.threads], "i8")
        self.location = np.searchsorted(keys, col["rank"].astype("i8") << 32 | col["thread"]).astype("i4")
        shared = [*self._messages(keys), *self._collectives(), *self._one_sided()]
        parts = [by_location(batch, len(keys)) for batch in shared]
        del shared  # large, and copied into `parts`
        rows = np.flatnonzero(col["part"] == 0)
        rows = rows[np.argsort(self.location[rows], kind="stable")]
        bounds = np.searchsorted(self.location[rows], np.arange(len(keys) + 1)).tolist()
        writer = EventWriter(self.archive, [self.attributes[name]._ref for name in _ATTRIBUTES])
        try:
            for i, at in enumerate(self.threads):
                regions = self._regions(rows[bounds[i] : bounds[i + 1]])
                writer.write(self.locations[at], [*regions, *(part[i] for part in parts)])
        finally:
            writer.close()

    def _ns(self, name: str, rows: Array) -> Array:
        """Return a column of seconds as whole nanoseconds."""
        return np.rint(self.trace.columns[name][rows] * 1e9).astype("i8")

    def _regions(self, rows: Array) -> list[Batch]:
        """Return calls, intervals and points of one thread; `place` keeps their order among equal times."""
        col, start = self.trace.columns, self._ns("start_s", rows)
        is_point = col["kind"][rows] == KINDS.index("point")
        length = np.where(is_point, 0, np.maximum(self._ns("end_s", rows), start + 1) - start)
        is_mpi = of_name(self.trace.names, lambda name: name.startswith("MPI_"))[col["name"][rows]]
        repeats, place = col["repeats"][rows], 2 * np.arange(len(rows))
        calls, pause_ns = np.where(repeats > 0, repeats + 1, 0), np.where(repeats > 0, self._ns("pause_s", rows), 0)
        values = calls, pause_ns, is_point.astype("i8"), np.where(is_point | ~is_mpi, col["arg"][rows], 0)
        has_values = np.any([value != 0 for value in values], axis=0)
        region, where = self.region_rows[col["name"][rows]], self.location[rows]
        found = []
        for points, first, last in ((True, DETAIL, DETAIL), (False, ENTER, LEAVE)):
            for with_values in (False, True):
                at = np.flatnonzero((is_point == points) & (has_values == with_values))
                args = (region[at], *((value[at] for value in values) if with_values else ()))
                kind = WITH_ATTRIBUTES if with_values else "enter"
                order = place[at] if points else -place[at]  # of equal intervals the inner one comes, and ends, first
                found.append(Batch(kind, where[at], start[at], first, args, order))
            at = np.flatnonzero(is_point == points)
            ends = start[at] + length[at]
            found.append(Batch("leave", where[at], ends, last, (region[at],), place[at] + 1))
        return found

    def _messages(self, keys: Array) -> list[Batch]:
        """Return the records of each message in the call that sends it and in the call that receives it."""
        col, found = self.trace.columns, messages(self.trace)
        i = np.flatnonzero(found.received_row >= 0)
        row, taken = found.sent_row[i], found.received_row[i]
        number = np.where(col["comm"][taken] >= 0, col["comm"][taken], col["comm"][row])
        src, dst, tag = found.src[i].astype("i8"), found.dst[i].astype("i8"), np.maximum(col["tag"][taken], 0)
        to, of = self._places(number, dst), self._places(number, src)
        sent, arrived, waited = (np.rint(each[i] * 1e9) for each in (found.sent_s, found.received_s, found.waited_s))
        arrived = np.maximum(arrived, waited + 1)
        ends = []
        for kind, rank, thread, at_ns, order, other in (
            ("send", src, found.src_thread[i], sent, ENTER + 1, to),
            ("recv", dst, found.dst_thread[i], arrived, LEAVE - 1, of),
        ):
            where = np.searchsorted(keys, rank << 32 | thread.astype("i8"))
            args = (other, self.comm_rows[number], tag, found.num_bytes[i])
            ends.append(Batch(kind, where, at_ns.astype("i8"), order, args).rows((to >= 0) & (of >= 0)))
        return ends

    def _places(self, comms: Array, ranks: Array) -> Array:
        """Return the number of each rank in its communicator; -1 if it is no member."""
        found = np.full(len(ranks), -1, "i8")
        for number in np.unique(comms).tolist():
            place = np.full(self.trace.num_ranks, -1, "i8")
            members = np.array(self.trace.comms[number].ranks if number >= 0 else (), "i8")[::-1]
            known = (members >= 0) & (members < len(place))
            place[members[known]] = np.arange(len(members))[::-1][known]
            at = (comms == number) & (ranks >= 0) & (ranks < len(place))
            found[at] = place[ranks[at]]
        return found

    def _collectives(self) -> list[Batch]:
        """Return records of collectives: blocking ones in their call; others begin there, and end in the wait call."""
        col, kinds = self.trace.columns, self.otf2.CollectiveOp
        forms = [_operation(name) for name in self.trace.names]
        ops = [getattr(kinds, _OPS.get(name, ""), None) for name, _ in forms]
        op_of_name = np.array([-1 if op is None else op.value for op in ops], "i8")
        rows = np.flatnonzero((col["kind"] == KINDS.index("collective")) & (col["comm"] >= 0))
        rows = rows[op_of_name[col["name"][rows]] >= 0]
        root = self._places(col["comm"][rows], col["peer"][rows])
        root = np.where(root >= 0, root, self.otf2.CollectiveRoot.NONE.value)
        sizes = col["num_bytes"][rows], col["received_bytes"][rows]
        given = (op_of_name[col["name"][rows]], self.comm_rows[col["comm"][rows]], root, *sizes)
        start, request = self._ns("start_s", rows), col["request"][rows]
        end = np.maximum(self._ns("end_s", rows), start + 1)
        blocking = np.array([is_blocking for _, is_blocking in forms], bool)[col["name"][rows]]
        over_row = self._over(request)
        late = ~blocking & (over_row >= 0)
        over_ns = np.maximum(self._ns("end_s", over_row), self._ns("start_s", over_row) + 1)
        own, over = self.location[rows], self.location[over_row]
        return [
            Batch("collective_begin", own, start, ENTER + 1, ()).rows(blocking),
            Batch("collective_end", own, end, LEAVE - 1, given).rows(blocking),
            Batch("collective_request", own, start, ENTER + 1, (request,)).rows(late),
            Batch("collective_complete", over, over_ns, LEAVE - 1, (*given, request)).rows(late),
        ]

    def _over(self, requests: Array) -> Array:
        """Return the last row that reports each request complete; -1 if none does."""
        col = self.trace.columns
        done = np.flatnonzero((col["kind"] == KINDS.index("done")) & (col["request"] >= 0))[::-1]
        known, last = np.unique(col["request"][done], return_index=True)
        at = np.searchsorted(known, requests)
        found = np.append(known, -2)[at] == requests
        over: Array = np.where(found, np.append(done[last], -1)[at], -1)
        return over

    def _one_sided(self) -> list[Batch]:
        """Return records of puts, gets and atomics; one that also fetches has a single record with both sizes."""
        col, otf2 = self.trace.columns, self.otf2
        put, get = KINDS.index("put"), KINDS.index("get")
        names = [name.removeprefix("MPI_").removesuffix("_c") for name in self.trace.names]
        atomics = [_ATOMICS.get(name, ("", False)) for name in names]
        type_of_name = np.array([getattr(otf2.RmaAtomicType, t).value if t else -1 for t, _ in atomics], "i8")
        fetches = np.array([fetches for _, fetches in atomics], bool)
        rows = np.flatnonzero(np.isin(col["kind"], (put, get)) & (col["comm"] >= 0))
        place, name = self._places(col["comm"][rows], col["peer"][rows]), col["name"][rows]
        window = self.window_rows[col["comm"][rows]]
        start, sizes, is_put = self._ns("start_s", rows), col["num_bytes"][rows], col["kind"][rows] == put
        known, atomic = (window >= 0) & (place >= 0), type_of_name[name] >= 0
        fetched = np.where(fetches[name], sizes, 0)
        where = self.location[rows]
        both = (window, place, sizes, rows)
        return [
            Batch("put", where, start, ENTER + 1, both).rows(known & is_put & ~atomic),
            Batch("get", where, start, ENTER + 1, both).rows(known & ~is_put & ~atomic),
            Batch(*("atomic", where, start, ENTER + 1), (window, place, type_of_name[name], sizes, fetched, rows)).rows(
                known & is_put & atomic
            ),
        ]


def _operation(name: str) -> tuple[str, bool]:
    """Return the blocking form of a collective's name, and whether `name` is blocking.

    >>> _operation("MPI_Ireduce_scatter"), _operation("MPI_Reduce_scatter_c"), _operation("MPI_Scan")
    (('Reduce_scatter', False), ('Reduce_scatter', True), ('Scan', True))
    """
    plain = name.removeprefix("MPI_").removesuffix("_c")
    if plain in _OPS or not plain.startswith("I"):
        return plain, True
    return plain[1:].capitalize(), False
