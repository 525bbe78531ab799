"""trace_tables: statistics of a trace as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dovetail.advise.conditions import conditions
from dovetail.advise.words import renaming
from dovetail.report.advice import crowded_text, disturbed_text
from dovetail.report.tables import Align, render_table
from dovetail.report.units import num_bytes, percent, seconds
from dovetail.trace.analysis.call_classes import SETUP, SYSTEM_IO, class_of
from dovetail.trace.analysis.stats import CallStats, Stats
from dovetail.trace.partial import partial_words

OVERLAP = {"hta": "HTA", "imb_nbc": "IMB-NBC", "imb": "IMB", "osu": "OSU"}
MOST_CALLS, MOST_RANKS, MOST_PAIRS, BAR = 20, 16, 12, 30


class Table(NamedTuple):
    """Headers, rows of texts, and the alignment of each column."""

    headers: list[str]
    rows: list[list[str]]
    aligns: list[Align]


def tables(stats: Stats) -> list[Table]:
    """Return tables of calls, call sites, ranks, waits, message sizes, and traffic between ranks.

    Calls are named as in the traced program.
    """
    say = renaming(stats.meta.get("words", {}))
    return [
        Table([say(head) for head in made.headers], [[say(cell) for cell in row] for row in made.rows], made.aligns)
        for made in _tables(stats)
    ]


def _tables(stats: Stats) -> list[Table]:
    found = [_calls(stats), *([_sites(stats)] if stats.sites else []), _ranks(stats)]
    if stats.waits:
        found.append(_waits(stats))
    return [*found, _sizes(stats), _matrix(stats)] if sum(stats.sizes) else found


def stats_text(stats: Stats, *, terminal: bool = False, width: int = 100) -> str:
    """Return who else used the ranks' cores, the tables, then remarks on how far the trace can be trusted."""
    about = conditions(stats.meta, stats.num_ranks)
    parts = [*crowded_text(about.crowded, ""), *disturbed_text(about.disturbed)]
    parts += [render_table(*table, terminal=terminal, width=width) for table in tables(stats)]
    return "\n\n".join([*parts, *([text] if (text := "\n".join(remarks(stats))) else [])])


def remarks(stats: Stats) -> Iterator[str]:
    """Yield sentences on how far the trace can be trusted."""
    meta, shares = stats.meta, stats.overlap
    if any(shares.values()):
        words = ", ".join(f"{percent(share)} by the formula of {OVERLAP[name]}" for name, share in shares.items())
        yield f"Communication hidden behind work: {words}."
    clocks = meta.get("clocks", {})
    errors = [rank.get("clock_error_s") for rank in meta.get("ranks", ())]
    if errors and all(error == 0 for error in errors):
        yield "All ranks read one clock."
    elif errors and all(error is not None for error in errors):
        yield f"Clocks agree within {seconds(max(errors))} (from round trips)."
    elif errors:
        yield "The ranks' clocks were never compared: times follow the hosts' own clocks."
    if clocks.get("received_before_sent"):
        early = seconds(clocks["earliest_s"])
        count = f"{clocks['received_before_sent']} of {clocks['messages']} messages"
        yield f"{count} were received before they were sent, by up to {early}."
    if clocks.get("without_partner"):
        yield f"{clocks['without_partner']} sends and receives have no partner in the trace."
    yield from (f"{text}." for text in partial_words(meta))
    if meta.get("lost") and not meta.get("partial"):
        yield (
            f"{meta['lost']} events were lost: the buffer was full, or newer events overwrote them. Counts lack "
            "them, and messages may be shown with a wrong partner or none."
        )
    for rank in stats.ranks:
        if rank.open_calls:
            yield f"Rank {rank.rank} ended within {', '.join(rank.open_calls)}."
    yield from meta.get("faults", ())


def _calls(stats: Stats) -> Table:
    """Return the table of calls. MPI_Init and MPI_Finalize come last, without a share: run times exclude them."""
    whole = sum(rank.seen_s for rank in stats.ranks) or 1.0
    setup = [call for call in stats.calls if class_of(call.name) == SETUP]
    counted = [call for call in stats.calls if class_of(call.name) != SETUP]
    rows = [
        [
            *(call.name, str(call.count), _moved(call), seconds(call.seconds)),
            *(seconds(call.seconds / call.count), percent(call.seconds / whole)),
        ]
        for call in counted[:MOST_CALLS]
    ]
    rest = counted[MOST_CALLS:]
    if rest:
        spent, count = sum(call.seconds for call in rest), sum(call.count for call in rest)
        rows.append([f"{len(rest)} others", str(count), "", seconds(spent), "", percent(spent / whole)])
    rows += [
        [call.name, str(call.count), "", seconds(call.seconds), seconds(call.seconds / call.count), "apart"]
        for call in setup
    ]
    aligns: list[Align] = ["left", "right", "right", "right", "right", "right"]
    return Table(["call", "count", "bytes", "time", "each", "share of run"], rows, aligns)


def _moved(call: CallStats) -> str:
    """Return the bytes that calls moved; empty for I/O of the C library, whose bytes are not recorded."""
    return "" if call.name.startswith(SYSTEM_IO) else num_bytes(call.num_bytes)


def _sites(stats: Stats) -> Table:
    """Return the time in MPI by call site, as mpiP's main table shows it."""
    rows = [
        [
            it.site or "unknown",
            it.name,
            seconds(it.seconds),
            percent(it.mpi_share),
            str(it.count),
            num_bytes(it.num_bytes),
        ]
        for it in stats.sites[:MOST_CALLS]
    ]
    if rest := stats.sites[MOST_CALLS:]:
        count, moved = sum(it.count for it in rest), num_bytes(sum(it.num_bytes for it in rest))
        times = seconds(sum(it.seconds for it in rest)), percent(sum(it.mpi_share for it in rest))
        rows.append([f"{len(rest)} others", "", *times, str(count), moved])
    aligns: list[Align] = ["left", "left", "right", "right", "right", "right"]
    return Table(["call site", "call", "time", "share of MPI", "count", "bytes"], rows, aligns)


def _ranks(stats: Stats) -> Table:
    shown = sorted(stats.ranks, key=lambda rank: rank.mpi_s)
    if len(shown) > MOST_RANKS:
        half = MOST_RANKS // 2
        shown = [*shown[:half], *shown[-half:]]
    rows = [
        [str(rank.rank), seconds(rank.seen_s), seconds(rank.mpi_s), percent(rank.mpi_s / (rank.seen_s or 1)),
         seconds(rank.waited_s), seconds(rank.critical_s), percent(rank.hidden_s / (rank.under_way_s or 1))]
        for rank in sorted(shown, key=lambda rank: rank.rank)
    ]  # fmt: skip
    return Table(["rank", "run time", "in MPI", "share", "waiting", "critical path", "overlap"], rows, ["right"] * 7)


def _waits(stats: Stats) -> Table:
    rows = [
        [wait.state.replace("_", " "), wait.name, str(wait.count), seconds(wait.seconds),
         f"{wait.most_rank}: {seconds(wait.most_s)}", f"{wait.cause_rank}: {seconds(wait.cause_s)}"]
        for wait in stats.waits[:MOST_CALLS]
    ]  # fmt: skip
    aligns: list[Align] = ["left", "left", "right", "right", "right", "right"]
    return Table(["wait state", "in call", "calls", "time", "most by rank", "caused most by rank"], rows, aligns)


def _sizes(stats: Stats) -> Table:
    used = np.flatnonzero(stats.sizes)
    most = max(stats.sizes)
    rows = [
        [num_bytes(1 << (i - 1)) if i else "0 B", str(stats.sizes[i]), "#" * -(-BAR * stats.sizes[i] // most)]
        for i in range(int(used[0]), int(used[-1]) + 1)
    ]
    return Table(["size from", "messages", ""], rows, ["right", "right", "left"])


def _matrix(stats: Stats) -> Table:
    """Return bytes by sender and receiver; for more than 8 ranks, only the pairs with the most bytes."""
    n, sent = stats.num_ranks, stats.matrix_bytes
    if n <= 8:
        rows = [[f"{src}", *(num_bytes(int(x)) if c else "·" for x, c in zip(*pair, strict=True))]
                for src, pair in enumerate(zip(sent, stats.matrix_messages, strict=True))]  # fmt: skip
        return Table(["from \\ to", *map(str, range(n))], rows, ["right"] * (n + 1))
    order = np.argsort(-sent, axis=None, kind="stable")[:MOST_PAIRS].tolist()
    pairs = [divmod(cell, n) for cell in order if stats.matrix_messages.flat[cell]]
    rows = [[str(a), str(b), str(int(stats.matrix_messages[a, b])), num_bytes(int(sent[a, b]))] for a, b in pairs]
    return Table(["from", "to", "messages", "bytes"], rows, ["right"] * 4)
