"""A Trace as an archive of OTF2, through the `otf2` package: for Vampir, Scalasca and their like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dovetail.core import EnvironmentFault
from dovetail.trace import Trace
from dovetail.trace.decode import KINDS
from dovetail.trace.matching import messages
from dovetail.trace.otf2_read import otf2_package
from dovetail.trace.trace import thread_title

_ENTER, _DETAIL, _LEAVE = 2, 1, 0  # at one moment: what ends before what begins
_OPS = {
    "Barrier": "BARRIER", "Bcast": "BCAST", "Gather": "GATHER", "Gatherv": "GATHERV", "Scatter": "SCATTER",
    "Scatterv": "SCATTERV", "Allgather": "ALLGATHER", "Allgatherv": "ALLGATHERV", "Alltoall": "ALLTOALL",
    "Alltoallv": "ALLTOALLV", "Alltoallw": "ALLTOALLW", "Allreduce": "ALLREDUCE", "Reduce": "REDUCE",
    "Reduce_scatter": "REDUCE_SCATTER", "Reduce_scatter_block": "REDUCE_SCATTER_BLOCK", "Scan": "SCAN",
    "Exscan": "EXSCAN",
}  # fmt: skip
_ATOMICS = {
    "Accumulate": ("ACCUMULATE", False), "Raccumulate": ("ACCUMULATE", False),
    "Get_accumulate": ("FETCH_AND_ACCUMULATE", True), "Rget_accumulate": ("FETCH_AND_ACCUMULATE", True),
    "Fetch_and_op": ("FETCH_AND_ACCUMULATE", True), "Compare_and_swap": ("COMPARE_AND_SWAP", True),
}  # fmt: skip


def write_trace_otf2(folder: str | Path, trace: Trace) -> Path:
    """Write calls and intervals as regions, messages that were received, collectives and one-sided calls.

    Returns the archive's `traces.otf2`. Raises EnvironmentFault where the folder is there already.

    A message is recorded in the call that sends it and in the one that takes it, whether these block or not. Points are
    regions of no length. Attributes tell what OTF2 has no word for: numbers of the program's own, and of polls that are
    one region how many they were, and the pauses between them.
    """
    otf2 = otf2_package()
    target = Path(folder)
    if target.exists():
        raise EnvironmentFault(f"cannot write {target}", found="it is there already", hint="name a new folder")
    with otf2.writer.open(str(target), timer_resolution=1_000_000_000) as archive:
        _Writer(otf2, archive, trace).write()
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
        meant = {
            "calls": "in this one region: each but the last looked in vain",
            "pause_ns": "between these calls, all together",
            "is_point": "something happened, and took no time",
            "arg": "the program's own number",
        }
        self.told = {name: made.attribute(name, text, otf2.Type.INT64) for name, text in meant.items()}
        self.regions = [made.region(name, paradigm=mpi if name.startswith("MPI_") else user) for name in trace.names]
        main = [min((at for at in self.threads if at[0] == r), default=None) for r in range(trace.num_ranks)]
        self.mains = [self.locations[at] for at in main if at is not None]
        made.group("", group_type=otf2.GroupType.COMM_LOCATIONS, paradigm=mpi, members=self.mains)
        self.comms = [self._comm(i) for i in range(len(trace.comms))]
        windows = [i for i, comm in enumerate(trace.comms) if comm.is_window]
        self.windows = {i: made.rma_win(f"window {i}", comm=self.comms[i]) for i in windows}

    def _comm(self, number: int) -> Any:
        mpi, made = self.otf2.Paradigm.MPI, self.archive.definitions
        ranks = [self.mains[r] for r in self.trace.comms[number].ranks if 0 <= r < len(self.mains)]
        group = made.group("", group_type=self.otf2.GroupType.COMM_GROUP, paradigm=mpi, members=ranks)
        return made.comm(f"communicator {number}", group=group)

    def write(self) -> None:
        told: dict[tuple[int, int], list[tuple[int, int, int, str, tuple[Any, ...]]]] = {at: [] for at in self.threads}
        self._regions(told)
        self._messages(told)
        self._collectives(told)
        self._one_sided(told)
        for at, events in told.items():
            writer = self.archive.event_writer_from_location(self.locations[at])
            for time_ns, _, _, name, args in sorted(events, key=lambda event: event[:3]):
                getattr(writer, name)(time_ns, *args)

    def _regions(self, told: Any) -> None:
        col = self.trace.columns
        rows = np.flatnonzero(col["part"] == 0)
        start, end = (np.rint(col[name][rows] * 1e9).astype("i8").tolist() for name in ("start_s", "end_s"))
        points = self.trace.of_kind("point")[rows].tolist()
        values = (col[name][rows].tolist() for name in ("rank", "thread", "name", "repeats", "pause_s", "arg"))
        for a, b, is_point, rank, thread, name, repeats, pause_s, arg in zip(start, end, points, *values, strict=True):
            region, length = self.regions[name], 0 if is_point else max(b, a + 1) - a
            about = {"calls": repeats + 1, "pause_ns": round(pause_s * 1e9)} if repeats else {}
            about |= {"is_point": 1} if is_point else {}
            if arg and (is_point or not self.trace.names[name].startswith("MPI_")):
                about["arg"] = arg
            more = ({self.told[key]: value for key, value in about.items()},) if about else ()
            first, last = (_DETAIL, _DETAIL) if is_point else (_ENTER, _LEAVE)
            told[rank, thread].append((a, first, -length, "enter", (region, *more)))
            told[rank, thread].append((a + length, last, length, "leave", (region,)))

    def _messages(self, told: Any) -> None:
        col, found = self.trace.columns, messages(self.trace)
        for i in np.flatnonzero(found.taken_row >= 0).tolist():
            row, taken = int(found.sent_row[i]), int(found.taken_row[i])
            number = int(col["comm"][taken] if col["comm"][taken] >= 0 else col["comm"][row])
            ranks = self.trace.comms[number].ranks
            src, dst, tag = int(found.src[i]), int(found.dst[i]), max(int(col["tag"][taken]), 0)
            if src not in ranks or dst not in ranks:
                continue
            sent, came = round(float(found.sent_s[i]) * 1e9), round(float(found.taken_s[i]) * 1e9)
            about = (self.comms[number], tag, int(found.num_bytes[i]))
            told[src, int(found.src_thread[i])].append((sent, _ENTER + 1, 0, "mpi_send", (ranks.index(dst), *about)))
            at = max(came, round(float(found.waited_s[i]) * 1e9) + 1)
            told[dst, int(found.dst_thread[i])].append((at, _LEAVE - 1, 0, "mpi_recv", (ranks.index(src), *about)))

    def _collectives(self, told: Any) -> None:
        """Blocking ones in their call; others asked for in theirs, and over in the one that waits for them."""
        col, kinds = self.trace.columns, self.otf2.CollectiveOp
        over = self._over()
        for row in np.flatnonzero(col["kind"] == KINDS.index("collective")).tolist():
            name, is_blocking = _operation(self.trace.names[col["name"][row]])
            op = getattr(kinds, _OPS.get(name, ""), None)
            number = int(col["comm"][row])
            if op is None or number < 0:
                continue
            ranks, root = self.trace.comms[number].ranks, int(col["peer"][row])
            known = ranks.index(root) if root in ranks else self.otf2.CollectiveRoot.NONE
            given = (op, self.comms[number], known, int(col["num_bytes"][row]), int(col["received_bytes"][row]))
            at = (int(col["rank"][row]), int(col["thread"][row]))
            start, end = round(float(col["start_s"][row]) * 1e9), round(float(col["end_s"][row]) * 1e9)
            request = int(col["request"][row])
            if is_blocking:
                told[at].append((start, _ENTER + 1, 0, "mpi_collective_begin", ()))
                told[at].append((max(end, start + 1), _LEAVE - 1, 0, "mpi_collective_end", given))
            elif request in over:
                told[at].append((start, _ENTER + 1, 0, "non_blocking_collective_request", (request,)))
                where, when = over[request]
                told[where].append((when, _LEAVE - 1, 0, "non_blocking_collective_complete", (*given, request)))

    def _over(self) -> dict[int, tuple[tuple[int, int], int]]:
        """By request: the thread that found it to be over, and when it knew."""
        col = self.trace.columns
        rows = np.flatnonzero((col["kind"] == KINDS.index("done")) & (col["request"] >= 0))
        ends = np.maximum(np.rint(col["end_s"][rows] * 1e9), np.rint(col["start_s"][rows] * 1e9) + 1).astype("i8")
        places = zip(col["rank"][rows].tolist(), col["thread"][rows].tolist(), strict=True)
        return dict(zip(col["request"][rows].tolist(), zip(places, ends.tolist(), strict=True), strict=True))

    def _one_sided(self, told: Any) -> None:
        """Puts and gets; accumulates, of which some fetch too."""
        col, otf2 = self.trace.columns, self.otf2
        put, get = KINDS.index("put"), KINDS.index("get")
        for row in np.flatnonzero(np.isin(col["kind"], (put, get))).tolist():
            window, peer, num_bytes = (int(col[name][row]) for name in ("comm", "peer", "num_bytes"))
            name = self.trace.names[col["name"][row]].removeprefix("MPI_").removesuffix("_c")
            is_put = col["kind"][row] == put
            if window not in self.windows or peer not in self.trace.comms[window].ranks:
                continue
            to = self.windows[window], self.trace.comms[window].ranks.index(peer)
            record: tuple[str, tuple[Any, ...]] = ("rma_put" if is_put else "rma_get", (*to, num_bytes, row))
            if name in _ATOMICS:
                if not is_put:
                    continue  # told with what it put
                kind, fetches = _ATOMICS[name]
                moved = (num_bytes, num_bytes if fetches else 0)
                record = "rma_atomic", (*to, getattr(otf2.RmaAtomicType, kind), *moved, row)
            at, start = (int(col["rank"][row]), int(col["thread"][row])), round(float(col["start_s"][row]) * 1e9)
            told[at].append((start, _ENTER + 1, 0, *record))


def _operation(name: str) -> tuple[str, bool]:
    """The blocking form of a collective's name, and whether this is it.

    >>> _operation("MPI_Ireduce_scatter"), _operation("MPI_Reduce_scatter_c"), _operation("MPI_Scan")
    (('Reduce_scatter', False), ('Reduce_scatter', True), ('Scan', True))
    """
    plain = name.removeprefix("MPI_").removesuffix("_c")
    if plain in _OPS or not plain.startswith("I"):
        return plain, True
    return plain[1:].capitalize(), False
