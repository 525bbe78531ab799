"""ficco: FiCCO's scenarios, and its static rule, which picks a schedule from the sizes of a product (seed 001)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dovetail.ir import Heuristic

RULE = "ficco-heuristic"
TRANCHES = ("uniform-fused-1D", "hetero-fused-1D", "hetero-unfused-1D")  # the threshold decides between these
PICKED = (*TRANCHES, "uniform-fused-2D")
LITERAL_S = 1.0  # the paper compares FLOP with FLOP/s, which implies a threshold of one second
TRIED = 141  # thresholds that `best_threshold` tries, in equal ratios
UPPER = 5.0  # the paper's "5" times the machine's ratio (its multiplication sign is missing)
MEMORY_S = 36.2e-3 / 8  # time to read 192 GB of memory at 5.3 TB/s, for a whole product; each of 8 ranks has N / 8
HEURISTICS = (
    Heuristic("FiCCO, fitted", RULE, {}, PICKED),
    Heuristic("FiCCO, literal", RULE, {"ficco_threshold_s": LITERAL_S}, PICKED),
    Heuristic("FiCCO, by memory", RULE, {"ficco_threshold_s": MEMORY_S}, PICKED),
)
NO_RULE = (Heuristic("FiCCO", why_not="applies to operators that communicate before they multiply"),)
MI300X, GPUS = "mi300x-8", 8
SCENARIOS = {  # (M, N, K) of Table I; N is over all GPUs: else the printed speed-ups would be impossible
    "g1": (16384, 16384, 131072),
    "g2": (131072, 16384, 16384),
    "g3": (53248, 16384, 131072),
    "g4": (131072, 53248, 16384),
    "g5": (8192, 8192, 262144),
    "g6": (262144, 8192, 8192),
    "g7": (28672, 8192, 262144),
    "g8": (262144, 28672, 8192),
    "g9": (196608, 18432, 16384),
    "g10": (196608, 106496, 16384),
    "g11": (1048576, 10240, 8192),
    "g12": (1048576, 57344, 8192),
    "g13": (1607680, 57344, 8192),
    "g14": (147456, 28672, 4096),
    "g15": (327680, 28672, 4096),
    "g16": (229376, 28672, 4096),
}
EXPERTS = ("g13", "g14", "g15", "g16")  # scenarios in which tokens are exchanged, not gathered


class Ruled(NamedTuple):
    """The family that the rule picks, and the values that it compared."""

    family: str
    steps: dict[str, float | int | str]


def ficco_rule(m: int, k: int, flops: float, flop_per_s: float, threshold_s: float) -> Ruled:
    """Choose a schedule by FiCCO's rule: 2-D if M ≤ K, else by x = `flops` / (`flop_per_s` · `threshold_s`).

    x < 1: uniform-fused-1D; x > 5: hetero-unfused-1D; between: hetero-fused-1D. The paper multiplies an op-to-byte
    ratio by the memory traffic, which gives `flops`. It does not state `threshold_s`.

    `m`, `k` of one rank's product, `flops` its floating-point operations, `flop_per_s` the machine's peak.

    >>> ficco_rule(131072, 16384, 2 * 131072 * 16384 * 16384, 1307.4e12, 36.2e-3).family
    'hetero-fused-1D'
    >>> ficco_rule(131072, 16384, 2 * 131072 * 16384 * 16384, 1307.4e12, LITERAL_S).family
    'uniform-fused-1D'
    """
    at_peak_s = flops / flop_per_s if flop_per_s else 0.0
    ratio = at_peak_s / threshold_s
    steps: dict[str, float | int | str] = {"m": m, "k": k, "flop": flops, "peak_s": at_peak_s, "ratio": ratio}
    steps["threshold_s"] = threshold_s
    if m <= k:
        return Ruled("uniform-fused-2D", steps)
    if ratio < 1.0:
        return Ruled("uniform-fused-1D", steps)
    return Ruled("hetero-unfused-1D" if ratio > UPPER else "hetero-fused-1D", steps)


class Outcome(NamedTuple):
    """The arguments of `ficco_rule` for a product of one rank, and the seconds of each family's best schedule."""

    sizes: tuple[int, int, float, float]
    families: Mapping[str, float]


def best_threshold(found: Sequence[Outcome]) -> float:
    """Return the threshold, in seconds, with which the rule's picks are fastest by geometric mean (the middle of those
    thresholds).

    >>> found = [Outcome((64, 2, each, 1.0), {name: 1.0 + (name != best) for name in TRANCHES})
    ...          for each, best in zip((1.0, 10.0, 100.0), TRANCHES, strict=True)]
    >>> 1 < best_threshold(found) < 10
    True
    """
    peaks = [flops / speed for (_, _, flops, speed), _ in found if flops and speed]
    if not peaks:
        return LITERAL_S
    known = [each for each in found if set(TRANCHES) <= set(each.families)]
    grid = np.geomspace(min(peaks) / (2 * UPPER), 2 * max(peaks), TRIED)
    lost = [sum(np.log(each.families[ficco_rule(*each.sizes, t).family]) for each in known) for t in grid]
    best = grid[np.array(lost) <= min(lost) + 1e-9]
    return float(f"{np.sqrt(best[0] * best[-1]):.3g}")
