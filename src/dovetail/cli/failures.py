"""failures: `dovetail simulate --fail`: what hangs once a link or a rank has failed, and how to plan around it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli import output
from dovetail.core import OperatorError, parse_seconds, save_json

if TYPE_CHECKING:
    from dovetail.cli.algorithms import Case

SCHEMA = "dovetail.failure/1"


def show(case: Case, fail: str, out: Path | None, json: bool) -> int:
    """Simulate a failure such as `rank:5@2ms` and print what hangs. Return exit code 1 if anything does."""
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
        print(f"{fault} fails at {time}: {failed.explain(case.program)}.")
        if not failed.survives:
            print(f"To plan around it: dovetail plan OPERATOR --machine {shlex.quote(left)}")
    return 0 if failed.survives else 1
