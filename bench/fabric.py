"""Hosts of the testbed for a bench of collectives: up, how ranks start there, a machine for predictions, down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.collective.operators import CollectiveOperator
from dovetail.ir import Schedule
from dovetail.machine import SWITCH, Link, Machine, load, presets
from dovetail.run.job import Job, Outcome
from dovetail.run.mpi.executor import MpiExecutor
from dovetail.store.selection import Choice
from dovetail.tuner.measure import Entry

HERE = Path(__file__).parent
TESTBED = HERE.parent / "tools" / "testbed" / "testbed"
NAME = f"fabric-{os.getpid()}"
SMALL_FRAMES = {"1gbit": 9000}  # else 1500: latencies are measured too, and a frame is shaped as a whole


@contextmanager
def fabric(
    hosts: int, per_host: int, rate: str, nics: int = 1, mtu: int | None = None, tcp: str | None = None
) -> Iterator[tuple[MpiExecutor, Machine]]:
    """Ranks by this Python's MPI, `per_host` on each host, that leave it through one of its `nics` links each.

    `mtu`: bytes of a frame; default: small ones. `tcp`: how TCP finds its pace; default: as this machine is set to.
    """
    pace = ("--tcp", tcp) if tcp else ()
    testbed("up", hosts, rate, "--nics", nics, "--mtu", mtu or SMALL_FRAMES.get(rate, 1500), *pace)
    try:
        launch = testbed("launcher", "--env-dir", sys.prefix, "--ranks-per-host", per_host).strip()
        yield MpiExecutor(launch), machine_of(hosts, per_host, rate, nics)
    finally:
        testbed("down")


def testbed(*words: object) -> str:
    """One testbed command; its output."""
    done = subprocess.run(
        [TESTBED, "--name", NAME, *map(str, words)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def machine_of(hosts: int, per_host: int, rate: str, nics: int = 1) -> Machine:
    """What the presets say of such hosts, for predictions; nothing in it was measured here. Rates without a preset
    count as 100 Mbit/s.

    A rank with a link of its own is a node of its own to the simulator, with a way to each rank of its host.
    """
    if nics not in (1, per_host):
        raise ValueError("a rank shares its host's one link with all, or with nobody")
    ranks, own = range(hosts * per_host), nics > 1
    nodes = tuple(rank if own else rank // per_host for rank in ranks)
    links = [Link(*ends, "tcp") for node in dict.fromkeys(nodes) for ends in ((node, SWITCH), (SWITCH, node))]
    if own:
        links += [Link(a, b, "shm") for a in ranks for b in ranks if a != b and a // per_host == b // per_host]
    near = f"two-hosts-{rate}" if f"two-hosts-{rate}" in presets() else "two-hosts-100mbit"
    net, shm = load(near).costs, load("shared-memory-2").costs
    costs = {"p2p:tcp": net["p2p:tcp"], "p2p:shm": shm["p2p:shm"]}
    facts = {} if own else {"stores_messages": ["tcp"]}
    about = {"label": "preset, not measured here", "source": "presets of two hosts and of shared memory"}
    return Machine(f"{hosts} hosts of {per_host}", len(ranks), nodes, tuple(links), costs, facts, about)


def measured(
    executor: MpiExecutor,
    operator: CollectiveOperator,
    ranks: int,
    schedules: Sequence[Schedule],
    rounds: int,
    repeats: int = 1,
) -> Found:
    """Each schedule of one size, all interleaved in one job, and held against float64 once at its end.

    A timing is of `repeats` runs, with no barrier between them.
    """
    entry = Entry(operator.title, operator, ranks, operator.serial(ranks), {})
    variants = tuple(entry.variant(schedule, repeats, check=True) for schedule in schedules)
    result = executor.execute(Job(variants, rounds=rounds))
    wrong = [outcome.name for outcome in result.outcomes if outcome.num_wrong]
    if wrong:
        sys.exit(f"wrong elements: {', '.join(wrong)}")
    return Found(dict(zip(map(Choice.of, schedules), result.outcomes, strict=True)), result.facts, result.rounds)


class Found(NamedTuple):
    """What one job measured."""

    outcomes: dict[Choice, Outcome]
    facts: dict[str, Any]
    rounds: int

    def row(self, num_bytes: int) -> dict[str, Any]:
        """Seconds and spread of each choice, by its name, over how many rounds."""
        seconds = {str(choice): outcome.median_s for choice, outcome in self.outcomes.items()}
        spread = {str(choice): outcome.spread for choice, outcome in self.outcomes.items()}
        return {"bytes": num_bytes, "seconds": seconds, "spread": spread, "rounds": self.rounds}


def write(path: Path, bench: str, facts: dict[str, Any], document: dict[str, Any]) -> None:
    """A results file, as far as it goes: what, and on which machine, library and commit."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    known = {"machine": f"{facts.get('cpu')}, {os.cpu_count()} cores", "mpi": facts.get("mpi")}
    head = {"bench": bench, "label": "measured", **known, "commit": described.stdout.strip()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**head, "date": time.strftime("%Y-%m-%d"), **document}, indent=1) + "\n")
