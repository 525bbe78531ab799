"""mc2: seed 000, the MC² case study: the expansion cases, the rule for tiles, and the worked example."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.cost import CostModel
from dovetail.machine import Machine, load
from dovetail.matmul.all_reduce import MatmulAllReduce
from dovetail.matmul.tiles import PRIOR, mc2_short, pipeline_s
from dovetail.planner import plan
from dovetail.reproduce.rows import CONFLICT, REPRODUCED, Row, cannot, exact, factor, printed

CASES, FIT, STEPS = "Analyzing Main Bottlenecks, factor 2", "Preparations, step 3", "Tiling algorithm steps"
EXAMPLE = "Verifying Optimization Benefits"
M, K, N, RANKS = 4096, 3072, 8192, 8
MATMUL_US, ALL_REDUCE_US, SERIAL_US, FUSED_US = 803, 1071, 1874, 1262
TILES = (512, 896, 896, 896, 896)
WHOLE_US = 200  # of the product of the expansion cases
EXPANSION = (("no", 100, 100), ("moderate", 150, 50), ("severe", 200, -50))  # us of each half, and the benefit
CUBE = 4096 * 1.8 * 1024 * 20 * 0.85  # multiplications/us: the library's own model (hicann/ops-transformer@c29bc106)
MIB = 1 << 20


def rows() -> Iterator[Row]:
    """Yield a row for each figure. The fits are the source's; nothing is measured."""
    machine = load("atlas-a2-8")
    yield from _expansion()
    yield from _short_block()
    yield from _worked(machine)
    yield from _benefit(machine)


def comm_us(machine: Machine, num_rows: float) -> float:
    """Return the microseconds of an all_reduce of `num_rows` rows of the example, by the source's fit."""
    seconds = CostModel.of(machine).seconds(f"all_reduce:{RANKS}", np.array([num_rows * N * 2.0]), extrapolate=True)
    return 1e6 * float(seconds[0])


def _expansion() -> Iterator[Row]:
    """Yield the three cases: two halves, the first half's communication beside the second half's product."""
    for name, half_us, theirs in EXPANSION:
        found = {comm: _two_halves_us(half_us, comm) for comm in (100, 150)}
        why = "two halves overlap; needs 150 µs of communication a half, which the text does not print"
        why += f" (with 100 µs a half: {found[100]:g})"
        yield exact(CASES, f"{name} expansion: benefit", theirs, found[150], why, unit="us")


def _two_halves_us(half_us: float, comm_us: float) -> float:
    def product(rows: np.ndarray) -> np.ndarray:
        return np.where(rows == 2, WHOLE_US, half_us).astype(float)

    def message(rows: np.ndarray) -> np.ndarray:
        return comm_us * rows.astype(float)

    return pipeline_s([2], product, message) - pipeline_s([1, 1], product, message)


def _short_block() -> Iterator[Row]:
    """Yield the choice of the short block."""
    least, most = mc2_short(K, N, "min"), mc2_short(K, N, "max")
    why = f"the text takes min(a, b, c) = min({least['a']}, {least['b']}, {least['c']}) = {least['m0']}; "
    why += "its example has the greatest of the three, as its library does"
    verdict = CONFLICT if most["m0"] == 384 else REPRODUCED
    yield Row(STEPS, "m0 of the example", 384, least["m0"], verdict, why, best=most["m0"], unit="rows")
    yield exact(STEPS, "c, the smallest with c ≥ 3 · 128", 384, most["c"], "3 · 128", unit="rows")


def _worked(machine: Machine) -> Iterator[Row]:
    """Yield the steps of the worked example, in its order."""
    x = 384 * N * 2 / MIB
    yield exact(EXAMPLE, "x of 384 rows", 6.0, x, "384 · 8192 · 2 / 1024²", unit="MiB")
    in_bytes = -0.9698202 * (x * MIB) ** 2 + 27.0622573 * x * MIB + 14.769
    why = f"the text has x in bytes, which gives {in_bytes:.2g} µs; x in MiB gives the printed times"
    yield Row(FIT, "unit of x", "bytes", "MiB", CONFLICT, why)
    t1 = comm_us(machine, 384)
    why = f"the fit gives {t1:.2f}, which rounds to 142"
    yield Row(EXAMPLE, "t of the short block", 143, round(t1, 2), CONFLICT, why, unit="us")
    yield printed(EXAMPLE, "the same, times 1.15", "164", t1 * PRIOR, "1.15 times the unrounded fit", unit="us")
    steps = plan(MatmulAllReduce(M, K, N, "float16"), machine, schedule="mc2", contention=1.0).schedule.steps
    why = "CostMM as a line through 0 and 803 µs, without 1.15, rounded down to 128; to the nearest would give 896"
    yield exact(EXAMPLE, "m1", 768, steps["m1"], f"{why}; neither CostMM nor the rounding is printed", unit="rows")
    yield printed(EXAMPLE, "(4096 - 384) / 768", "4.83", (M - 384) / 768, "as printed")
    yield exact(EXAMPLE, "number of long blocks", 4, steps["count"], "cut off")
    yield exact(EXAMPLE, "(4096 - 384) / 4", 928, (M - 384) // 4, "as printed", unit="rows")
    yield exact(EXAMPLE, "m1, adjusted", 896, steps["m1_final"], "down to a multiple of 128", unit="rows")
    yield exact(EXAMPLE, "m0, adjusted", 512, steps["m0_final"], "4096 - 4 · 896", unit="rows")
    yield Row(EXAMPLE, "rankK in the code", 4096, K, CONFLICT, "the text of the example has K = 3072")


def _benefit(machine: Machine) -> Iterator[Row]:
    """Yield the times before and after fusion, and the benefit."""
    modelled = N * K * M / CUBE
    why = "given; it is also what the library's own model of the product gives"
    yield printed(EXAMPLE, "time of the product", str(MATMUL_US), round(modelled, 2), why, unit="us", basis="predicted")
    alone = comm_us(machine, M)
    why = f"called measured, but it is 1.15 times the fit ({PRIOR * alone:.1f}); the fit itself gives {alone:.0f}"
    yield Row(EXAMPLE, "time of the all_reduce", ALL_REDUCE_US, round(alone, 2), CONFLICT, why, unit="us")
    yield exact(EXAMPLE, "serial time", SERIAL_US, MATMUL_US + ALL_REDUCE_US, "the sum of both", unit="us")
    operator = MatmulAllReduce(M, K, N, "float16")
    theirs = plan(operator, machine, schedule="mc2", contention=1.0)
    best = plan(operator, machine, contention=1.0)
    yield exact(EXAMPLE, "blocks", list(TILES), list(theirs.tiles), "by the rule", best=list(best.tiles), unit="rows")
    why = f"the same blocks by the source's fits; best: {list(best.tiles)}"
    times = [round(1e6 * each.predicted_s, 1) for each in (theirs, best)]
    yield factor(EXAMPLE, "time of the fused operator", FUSED_US, times[0], why, best=times[1], unit="us")
    why = f"(1874 - 1262) / 1874, both times as printed; the serial time includes contention ({PRIOR} times the fit)"
    gain = _gain(SERIAL_US, FUSED_US)
    yield printed(EXAMPLE, f"benefit, of {SERIAL_US} µs as printed", "32.7", round(gain, 3), why, unit="%")
    serial = 1e6 * best.serial_s
    gains = [round(_gain(serial, each), 2) for each in times]
    why = f"the text prints no serial time without contention; of {serial:.0f} µs, its {FUSED_US} µs would gain "
    why += f"{_gain(serial, FUSED_US):.1f} %"
    item = f"benefit, of {serial:.0f} µs by the fits"
    yield cannot(EXAMPLE, item, None, why, ours=gains[0], best=gains[1], unit="%", basis="predicted")


def _gain(serial: float, fused: float) -> float:
    """Return the share of `serial` that `fused` saves, in percent.

    >>> round(_gain(1874, 1262), 3)
    32.657
    """
    return 100 * (serial - fused) / serial
