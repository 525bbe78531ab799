"""failures: `dovetail simulate --fail`: what hangs once a link or a rank has failed, and how to plan around it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli import output
from dovetail.core import OperatorError, parse_seconds, save_json, seconds_text

if TYPE_CHECKING:
    from dovetail.cli.algorithms import Case
    from dovetail.machine import Fault
    from dovetail.sim.failure import Failed

SCHEMA = "dovetail.failure/1"


def show(case: Case, fail: str, around: str, out: Path | None, json: bool) -> int:
    """Simulate a failure such as `rank:5@2ms` and print what hangs. Return exit code 1 if anything does.

    `around`: the command, all but its machine, that finds what to do on what is left.
    """
    from dovetail.machine import Fault, without
    from dovetail.sim.failure import simulate_failure

    text, at, time = fail.rpartition("@")
    if not at:
        raise OperatorError(f"--fail {fail}", hint="what and when: rank:5@2ms, or link:3-4@2ms")
    fault, at_s = Fault.parse(text), parse_seconds(time)
    fault.check(case.machine)
    links = fault.rows(case.machine)
    failed = simulate_failure(
        case.program, case.prices, at_s, rank=fault.rank, links=links, machine_name=case.machine.name
    )
    left = without(case.machine, fault).name
    if out is not None:
        save_json(out, failed.timeline.to_json())
    if json:
        ops = {"struck": list(failed.struck), "hung": list(failed.hung)}
        ranks = list(failed.ranks(case.program))
        times = {"at_s": at_s, "last_end_s": failed.timeline.makespan_s, "without_failure_s": failed.whole_s}
        output.emit(
            {
                "schema": SCHEMA,
                "fault": str(fault),
                **times,
                "survives": failed.survives,
                **ops,
                "ranks": ranks,
                "left": left,
            }
        )
    else:
        print(f"{fault} fails at {seconds_text(at_s)}: {_text(failed, case, at_s)}.")
        if not failed.survives:
            print(_way_around(around, case, fault, left))
    return 0 if failed.survives else 1


def _text(failed: Failed, case: Case, at_s: float) -> str:
    if at_s >= failed.whole_s:
        return f"that is after the end of {case.program.name}, at {seconds_text(failed.whole_s)}"
    return failed.explain(case.program)


def _way_around(around: str, case: Case, fault: Fault, left: str) -> str:
    """Return what to do on the machine that is left; plans write out every rank there."""
    from dovetail.planner.by_size import MOST_EXPANDED

    ranks = case.machine.ranks - (fault.rank is not None)
    verb = around.partition(" ")[0]
    if verb == "plan" and ranks > MOST_EXPANDED:
        return f"{ranks} ranks are left on '{left}'; a plan around a failure is made for at most {MOST_EXPANDED}."
    if verb == "simulate" and "--bytes" not in around and fault.rank is not None:  # a file's ranks are its own
        return f"What is left is machine '{left}': run the program for one rank less there."
    return f"To {verb} around it: dovetail {around} --machine {shlex.quote(left)}"
