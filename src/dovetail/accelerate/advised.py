"""advised: end findings of `trace advise` in the command line of `accelerate`, where one of its levers serves them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from dovetail.accelerate.expected import LEAST_GAIN, Prospects, plain_call, prospects, transfer_s
from dovetail.accelerate.traced import counts_of_trace, level_of
from dovetail.advise.advise import Advice
from dovetail.advise.finding import Finding
from dovetail.core import DovetailError, share_text
from dovetail.trace import Trace, TraceFile

CALLS = (
    "merge",
    "seldom",
    "collective",
    "barrier",
    "overlap",
    "nonblocking",
)  # kinds that faster collectives serve too
MESSAGES = ("eager", "rendezvous", "progress", "standard")  # kinds that knobs for messages between hosts serve too
_CALL = re.compile(r"MPI_(\w+?)(?:_c)?\b")


def with_levers(advice: Advice, trace: Trace | TraceFile, path: Path) -> Advice:
    """Return the advice; findings that a lever serves end in the command, and a note names it if no finding does.

    Parameters
    ----------
    advice : Advice
        Of the trace.
    trace : Trace or TraceFile
        The trace, which the command starts with.
    path : path
        Where the trace is, as the user named it.
    """
    try:
        found = prospects(counts_of_trace(trace), level_of(trace), ())
    except DovetailError:  # of no MPI program
        return advice
    served = _served(found)
    findings = tuple(_ended(it, served, path) for it in advice.findings)
    notes = advice.notes
    if served and findings == advice.findings:
        share = share_text(found.served_s / max(found.counts.rank_s, 1e-12))
        what = ", ".join(f"MPI_{call}" for call in served)
        notes += (f"The unchanged program may gain by faster {what} ({share} of the time): {_line(served, path)}.",)
    return replace(advice, findings=findings, notes=notes)


def _served(found: Prospects) -> dict[str, bool]:
    """Return the calls that levers serve and that take 1 % of the time, and whether shared memory serves them."""
    least_s = LEAST_GAIN * found.counts.rank_s
    sums: dict[str, float] = {}
    for bucket in found.counts.buckets:
        sums[plain_call(bucket)] = sums.get(plain_call(bucket), 0.0) + transfer_s(bucket)
    memory = {plain_call(bucket) for bucket in found.in_memory}
    calls = dict.fromkeys([*memory, *(each.call for each in found.knobs.candidates)])
    return {call: call in memory for call in sorted(calls) if call == "Send" or sums.get(call, 0.0) >= least_s}


def _ended(it: Finding, served: dict[str, bool], path: Path) -> Finding:
    """Return a finding with the command in its action, if a lever serves it."""
    named = set(_CALL.findall(f"{it.where} {it.evidence}"))
    mine = {call: by for call, by in served.items() if call in named} if it.kind in CALLS else {}
    if it.kind in MESSAGES and "Send" in served:
        mine["Send"] = False
    return replace(it, action=f"{it.action}; or leave the program: {_line(mine, path)}") if mine else it


def _line(served: dict[str, bool], path: Path) -> str:
    flag = "--replace " if any(served.values()) else ""
    return f"`dovetail accelerate {flag}--from {path} -- COMMAND`"
