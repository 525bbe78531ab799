"""kineto: the collectives in files of PyTorch's profiler on CPUs, as MPI's calls, and the clocks of the files.

Spans of gloo and of Dovetail last to a collective's end. If their thread meanwhile runs operators, the
collective was begun, and the thread waits from its last operator on: two calls, as MPI_Iallreduce and MPI_Wait. Else it
is one call. Under these names all analyses of a trace, and its advice, know them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.ir.collectives import COLLECTIVES, traits_of

_OURS = re.compile(r"dovetail::(\w+) (\d+) B, group (\S+), by ")
_GLOO = re.compile(r"(?:gloo|nccl|mpi|ucc):_?(\w+?)(?:_base|_coalesced|_sparse|_tensor)?$")
_ISSUE = re.compile(r"c10d::_?(\w+?)(?:_base|_into_tensor|_tensor|_coalesced)*_?$")
_NAMES = {"allgather": "all_gather", "all_gather_into": "all_gather"}
_NAMES |= {"allreduce": "all_reduce", "alltoall": "all_to_all"}
_BYTES = {"float": 4, "double": 8, "int": 4, "long int": 8, "long": 8, "short": 2, "signed char": 1, "unsigned char": 1}
_BYTES |= {"c10::BFloat16": 2, "c10::Half": 2, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16}
_NO_WORK = ("python_function", "user_annotation", "Trace")  # categories of events that only enclose others
_ISSUES = ("c10d::", "record_param_comms", "_c10d_functional::")  # operators that call a collective
MOST_SHIFT = 16  # calls by which the files of two ranks may begin apart
SYNCHRONOUS = tuple(kind for kind, traits in COLLECTIVES.items() if not traits.rooted and not traits.to_next)
WORDS = {
    name: text
    for kind, traits in COLLECTIVES.items()
    if not traits.to_next and not kind.endswith("_v")
    for call in traits.mpi[:1]
    for name, text in ((f"MPI_{call}", kind), (f"MPI_I{call.lower()}", f"{kind}(async_op=True)"))
} | {"MPI_Wait": "work.wait()"}
WORDS |= {f"{where} MPI": f"{where} collectives" for where in ("in", "outside", "share of")}


class Span(NamedTuple):
    """A collective of one rank: kind, times in us, bytes sent and received, ranks, and the thread that called it."""

    kind: str
    start: float
    end: float
    sent: int
    got: int
    ranks: tuple[int, ...]
    thread: Any
    wait: float = -1.0  # when the thread begins to wait, if it does not from the start; `end`: it does not wait


class Call(NamedTuple):
    """A row of a trace: of kind "collective", "done" (the wait for one that was begun) or "interval". Times in us."""

    kind: str
    name: str
    rank: int
    thread: Any
    start: float
    end: float
    sent: int = 0
    got: int = 0
    ranks: tuple[int, ...] = ()
    request: int = -1
    begins: bool = False


def spans_of(events: Sequence[Any], about: Mapping[str, Any]) -> tuple[list[Span], list[Any]]:
    """Return the collectives of one rank in order of time, and all other events.

    `about`: the file's `distributedInfo`. Raises KeyError, TypeError or ValueError for malformed events.
    """
    groups = {str(it.get("pg_name", "")): tuple(it.get("ranks", ())) for it in about.get("pg_config", ())}
    everyone = tuple(range(int(about.get("world_size", 0))))
    found, others, places = list[Span](), list[Span](), set[int]()
    for place, event in enumerate(events):
        seen = _seen(event, groups, everyone) if event.get("ph") == "X" else None
        if seen is not None:
            kind, sent, got, ranks = seen
            start = float(event["ts"])
            end, thread = start + float(event.get("dur", 0.0)), (event.get("pid"), event.get("tid"))
            into = found if _OURS.match(event["name"]) else others
            into.append(Span(kind, start, end, sent, got, ranks, thread))
            places.add(place)
    found += _issued(others, events)
    work = _work(events, places)
    spans = sorted((_with_wait(span, work[span.thread]) for span in found), key=lambda span: span.start)
    return spans, [e for i, e in enumerate(events) if i not in places and not (found and _calls_one(e)) and _is_seen(e)]


def _is_seen(event: Mapping[str, Any]) -> bool:
    """Return whether the program did what an event says: the profiler adds one that spans its own time."""
    return event.get("cat") != "Trace"


def _issued(found: Sequence[Span], events: Sequence[Any]) -> list[Span]:
    """Return the collectives from their calls on. Gloo's own spans begin later, on threads of its own.

    Each belongs to the first operator of c10d of its kind, not after it, that no other belongs to.
    """
    calls: dict[str, list[tuple[float, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and (issue := _ISSUE.match(str(event.get("name", "")))):
            calls[_NAMES.get(issue[1], issue[1])].append((float(event["ts"]), (event.get("pid"), event.get("tid"))))
    made = []
    for queue in calls.values():
        queue.sort(key=lambda call: call[0])
    for span in sorted(found, key=lambda span: span.start):
        queue = calls[span.kind]
        if queue and queue[0][0] <= span.start:
            start, thread = queue.pop(0)
            span = span._replace(start=start, thread=thread)
        made.append(span)
    return made


def _calls_one(event: Mapping[str, Any]) -> bool:
    return str(event.get("name", "")).startswith(_ISSUES)


def calls_of(by_rank: Mapping[int, Sequence[Span]]) -> Iterator[Call]:
    """Yield the rows of all ranks' collectives. Those that some rank's file lacks, at its start, are intervals."""
    strays = {rank: set[int]() for rank in by_rank}
    for ranks in {span.ranks for spans in by_rank.values() for span in spans}:
        places = {r: [i for i, span in enumerate(by_rank[r]) if span.ranks == ranks] for r in by_rank if r in ranks}
        first = [by_rank[min(places)][i] for i in places[min(places)]] if places else []
        ahead = {rank: shift_of([by_rank[rank][i] for i in own], first) for rank, own in places.items()}
        for rank, shift in ahead.items():
            strays[rank].update(places[rank][: shift - min(ahead.values())])
    request = 0
    for rank, spans in by_rank.items():
        for place, span in enumerate(spans):
            at = rank, span.thread[1], span.start, span.end
            call = Call("collective", _mpi(span), *at, span.sent, span.got, span.ranks)
            if place in strays[rank]:
                yield call._replace(kind="interval", name=span.kind, ranks=())
            elif span.wait < 0:
                yield call
            else:
                yield call._replace(end=span.start, request=request, begins=True)
                yield Call("done", "MPI_Wait", rank, span.thread[1], span.wait, span.end, request=request)
                request += 1


def _mpi(span: Span) -> str:
    name = COLLECTIVES[span.kind].mpi[0]
    return f"MPI_{name}" if span.wait < 0 else f"MPI_I{name.lower()}"


def _seen(event: Mapping[str, Any], groups: Mapping[str, Any], everyone: tuple[int, ...]) -> Any:
    """Return the kind, the bytes sent and received, and the ranks of a collective; None for other events."""
    name = str(event.get("name", ""))
    if ours := _OURS.match(name):
        kind, num_bytes, ranks = ours[1], int(ours[2]), groups.get(ours[3]) or everyone
    elif gloo := _GLOO.match(name):
        kind, ranks = _NAMES.get(gloo[1], gloo[1]), everyone
        num_bytes = _input_bytes(event.get("args") or {})
        num_bytes *= len(ranks) if traits_of(kind).joined and not traits_of(kind).cut else 1
    else:
        return None
    if kind not in COLLECTIVES or not COLLECTIVES[kind].mpi:
        return None
    traits, part = COLLECTIVES[kind], num_bytes // max(len(ranks), 1)
    sent = part if traits.joined and not traits.cut else num_bytes
    got = part if traits.cut and not traits.joined else num_bytes
    return kind, sent, got, ranks


def _input_bytes(args: Mapping[str, Any]) -> int:
    """Return the bytes of the inputs of an event; 0 if the profile has no shapes (`record_shapes`)."""
    shapes, kinds = args.get("Input Dims") or [], args.get("Input type") or []
    total = 0
    for shape, kind in zip(shapes, kinds, strict=False):
        count = 1
        for length in shape if all(isinstance(each, int) for each in shape) else ():
            count *= length
        total += count * _BYTES.get(str(kind), 0) if shape else 0
    return total


def _work(events: Sequence[Mapping[str, Any]], places: set[int]) -> dict[Any, list[tuple[float, float]]]:
    """Return the times of each thread's outermost operators, in order, without those that call a collective."""
    found: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for place, event in enumerate(events):
        is_op = event.get("ph") == "X" and event.get("cat") not in _NO_WORK and place not in places
        if is_op and not _calls_one(event):
            start = float(event["ts"])
            found[event.get("pid"), event.get("tid")].append((start, start + float(event.get("dur", 0.0))))
    for thread, spans in found.items():
        outer: list[tuple[float, float]] = []
        for start, end in sorted(spans, key=lambda it: (it[0], -it[1])):
            if not outer or start >= outer[-1][1]:
                outer.append((start, end))
        found[thread] = outer
    return found


def _with_wait(span: Span, work: Sequence[tuple[float, float]]) -> Span:
    """Return the collective with the time from which its thread waits, if it works before."""
    first = bisect_left(work, (span.start, 0.0))
    last = bisect_left(work, (span.end, 0.0)) - 1
    return span if last < first else span._replace(wait=min(work[last][1], span.end))


def offsets(by_rank: Mapping[int, Sequence[Span]]) -> tuple[dict[int, float], list[str]]:
    """Return the us by which each rank's clock is set ahead, and faults.

    No collective that joins all its ranks ends before each of them has called it. A clock that breaks this is moved to
    the middle of the moves that mend it; one that does not stays as it is.

    >>> late = [Span("barrier", 1000.0 + at, 1010.0 + at, 0, 0, (0, 1), 1) for at in (0, 500)]
    >>> offsets({0: [Span("barrier", 0.0 + at, 10.0 + at, 0, 0, (0, 1), 1) for at in (0, 500)], 1: late})
    ({0: 0.0, 1: -1000.0}, [])
    """
    found, faults = {min(by_rank, default=0): 0.0}, list[str]()
    while rest := [rank for rank in by_rank if rank not in found]:
        met = {rank: _bounds(by_rank, found, rank) for rank in rest}
        met = {rank: bounds for rank, bounds in met.items() if bounds is not None}
        if not met:
            faults += [f"the clocks of ranks {', '.join(map(str, rest))} are not compared: no collective joins them"]
            return found | dict.fromkeys(rest, 0.0), faults
        for rank, (least, most) in met.items():
            found[rank] = 0.0 if least <= 0.0 <= most else (least + most) / 2
            if least > most:
                faults.append(f"the clock of rank {rank} drifts by {least - most:.0f} us")
    return found, faults


def _bounds(by_rank: Mapping[int, Sequence[Span]], known: Mapping[int, float], rank: int) -> Any:
    """Return the least and the most by which a rank's clock may be set ahead; None if nothing limits it."""
    least, most = [], []
    for other, moved in known.items():
        for own, its in paired(by_rank[rank], by_rank[other], rank, other):
            if own.kind in SYNCHRONOUS:
                least.append(its.start + moved - own.end)
                most.append(its.end + moved - own.start)
    return (max(least), min(most)) if least else None


def paired(ours: Sequence[Span], theirs: Sequence[Span], rank: int, other: int) -> Iterator[tuple[Span, Span]]:
    """Yield the collectives that two ranks share: the n-th of each group, where the files begin at the same one."""
    for ranks in dict.fromkeys(span.ranks for span in ours if rank in span.ranks and other in span.ranks):
        a, b = ([span for span in spans if span.ranks == ranks] for spans in (ours, theirs))
        shift = shift_of(a, b)
        yield from zip(a[max(shift, 0) :], b[max(-shift, 0) :], strict=False)


def shift_of(a: Sequence[Span], b: Sequence[Span]) -> int:
    """Return how many collectives `a` begins before `b`: the shift by which most have equal kinds and bytes."""

    def alike(shift: int) -> tuple[int, int]:
        pairs = zip(a[max(shift, 0) :], b[max(-shift, 0) :], strict=False)
        return sum((x.kind, x.sent) == (y.kind, y.sent) for x, y in pairs), -abs(shift)

    most = min(MOST_SHIFT, max(len(a), len(b)))
    return max(range(-most, most + 1), key=alike)
