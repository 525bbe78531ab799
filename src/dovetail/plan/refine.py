"""refine: the best predicted schedules measured in turn, the best of those varied and measured again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dovetail.core import Say
from dovetail.plan.alone import alone
from dovetail.plan.plan import Choices, Plan
from dovetail.run.job import Executor, Job, JobResult, Outcome, Variant

RIVALS = 4  # predicted best that are measured beside the plan
WORTH = 0.02  # a variation must gain this share to be varied further


class Tried(NamedTuple):
    """Choices that were measured, the schedule family they began as, and the seconds of a run (see `measure`)."""

    schedule: str
    choices: Choices
    seconds: float


@dataclass(frozen=True)
class Measured:
    """The final measurement: serial, the plan, and either side alone, interleaved in one job.

    `serial`, `planned`: outcomes, one and the same where the plan is serial; `compute_s`, `comm_s`: medians of the
    whole product and of the library's all_reduce of all of C, each alone; `own_comm_s`: of the plan's own messages
    alone, where it uses such.
    """

    serial: Outcome
    planned: Outcome
    compute_s: float
    comm_s: float
    own_comm_s: float | None
    result: JobResult
    tried: tuple[Tried, ...] = ()

    @property
    def ideal_s(self) -> float:
        return max(self.compute_s, self.comm_s)

    @property
    def noise(self) -> float:
        """Share of the serial time within which two medians of this job are the same."""
        return max(0.01, 1.5 * self.serial.spread / math.sqrt(max(len(self.serial.seconds), 1)))


def refine(plan: Plan, executor: Executor, *, rounds: int = 4, seed: int = 0, say: Say | None = None) -> list[Tried]:
    """Measure the plan and its best rivals in turn, then variations of the fastest: all tried, fastest first."""
    tell = say or (lambda what, done: None)
    tell("measuring the best predicted", 0.8)
    found = [(plan.schedule, plan.choices), *((r.schedule, r.choices) for r in plan.rivals)]
    serial = plan.serial
    first = _distinct([(name, c) for name, c in found if c != serial])[:RIVALS]
    tried = measure(plan, executor, [("serial", serial), *first], rounds, seed)
    for step in range(2):
        best = min(tried, key=lambda t: t.seconds)
        if best.choices == serial and step:
            break
        base = best if best.choices != serial else min(tried[1:], key=lambda t: t.seconds, default=best)
        known = {t.choices for t in tried}
        moves = [(base.schedule, c) for c in variations(base.choices) if c not in known]
        if not moves:
            break
        tell("measuring variations", 0.85 + 0.05 * step)
        again = measure(plan, executor, [(base.schedule, base.choices), *moves], rounds, seed)
        scale = base.seconds / again[0].seconds  # jobs differ in mood: compare within one
        tried += [t._replace(seconds=t.seconds * scale) for t in again[1:]]
        if min(t.seconds for t in again) > (1 - WORTH) * again[0].seconds:
            break
    return sorted(tried, key=lambda t: t.seconds)


def measure(plan: Plan, executor: Executor, found: list[tuple[str, Choices]], rounds: int, seed: int) -> list[Tried]:
    """Seconds of each of `found`, interleaved in one job, in their order: those of the first, times the median of the
    ratios to it in each round, for rounds may differ in mood."""
    variants = tuple(
        replace(c.variant(str(i), plan.wish, plan.ranks, plan.serial_s), check=None) for i, (_, c) in enumerate(found)
    )
    result = executor.execute(Job(variants, rounds=rounds, seed=seed))
    first = result.outcomes[0]
    return [
        Tried(name, choices, first.median_s * outcome.over(first))
        for (name, choices), outcome in zip(found, result.outcomes, strict=True)
    ]


def variations(choices: Choices) -> Iterator[Choices]:
    """Neighbours of a schedule: its messages driven otherwise, its tiles merged, split or moved between.

    >>> [c.tiles for c in variations(Choices((64, 128)))][-3:]
    [(192,), (64, 64, 64), (32, 160)]
    """
    other = "thread" if choices.progress == "poll" else "poll"
    yield replace(choices, progress=other)  # type: ignore[arg-type]
    longest = max(choices.tiles, default=0)
    if choices.progress == "poll" and longest >= 2:
        yield replace(choices, block_rows=0 if choices.block_rows else -(-longest // 2))
    if choices.all_reduce != "library" and longest >= 4:
        rows = choices.rows_per_message or longest
        yield replace(choices, rows_per_message=-(-rows // 2))
        if choices.rows_per_message:
            yield replace(choices, rows_per_message=None)
    yield from (replace(choices, tiles=tiles) for tiles in _retiled(choices.tiles))


def _retiled(tiles: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(tiles) < 2:
        return
    least = min(range(len(tiles) - 1), key=lambda i: tiles[i] + tiles[i + 1])
    yield (*tiles[:least], tiles[least] + tiles[least + 1], *tiles[least + 2 :])
    big = max(range(len(tiles)), key=lambda i: tiles[i])
    if tiles[big] >= 2:
        yield (*tiles[:big], tiles[big] - tiles[big] // 2, tiles[big] // 2, *tiles[big + 1 :])
    if tiles[0] >= 2:
        yield (tiles[0] - tiles[0] // 2, tiles[1] + tiles[0] // 2, *tiles[2:])
    if tiles[-1] >= 2 and len(tiles) > 2:
        yield (*tiles[:-2], tiles[-2] + tiles[-1] // 2, tiles[-1] - tiles[-1] // 2)


def measure_final(
    plan: Plan, executor: Executor, *, rounds: int = 9, seed: int = 0, budget_s: float = 60.0
) -> Measured:
    """Serial, the plan, and either side alone, interleaved; the products are checked against float64."""
    wish, ranks = plan.wish, plan.ranks
    serial = replace(plan.serial, all_reduce="library", rows_per_message=None)
    work, whole = wish.workload(ranks), serial.program(wish, ranks)
    planned = plan.choices.variant("planned", wish, ranks, plan.serial_s)
    mine = [] if plan.choices == serial else [planned]
    patient = replace(planned.options, block_rows=0)
    sides = [Variant(f"{engine} alone", alone(whole, engine), work, patient) for engine in ("compute", "net")]
    own = plan.choices.all_reduce != "library" and ranks > 1
    if own:
        sides.append(Variant("own messages alone", alone(plan.program, "net"), work, patient))
    variants = (serial.variant("serial", wish, ranks, plan.serial_s), *mine, *sides)
    result = executor.execute(Job(variants, rounds=rounds, seed=seed, budget_s=budget_s))
    at = result.__getitem__
    own_s = at("own messages alone").median_s if own else None
    sides_s = at("compute alone").median_s, at("net alone").median_s
    return Measured(at("serial"), at("planned" if mine else "serial"), *sides_s, own_s, result)


def _distinct(found: list[tuple[str, Choices]]) -> list[tuple[str, Choices]]:
    seen: dict[Choices, str] = {}
    for name, choices in found:
        seen.setdefault(choices, name)
    return [(name, choices) for choices, name in seen.items()]
