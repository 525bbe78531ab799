"""ficco: the static rule of FiCCO, which picks one of its schedules from the sizes of a product (seed 001, V-C)."""

from __future__ import annotations

from typing import NamedTuple

LITERAL_S = 1.0  # the text compares FLOP with FLOP a second: a threshold of one second, unsaid
UPPER = 5.0  # the text's "5" of the machine's, whose multiplication sign was lost


class Ruled(NamedTuple):
    """The family that the rule picks, and the values by which it does."""

    family: str
    steps: dict[str, float | int | str]


def ficco_rule(m: int, k: int, flops: float, flop_per_s: float, threshold_s: float) -> Ruled:
    """2-D where M ≤ K. Else by op-to-byte ratio times memory traffic, which is the FLOP of the product whatever its
    dtype, over the machine's, which is FLOP a second times a `threshold_s` that the paper does not name: below 1
    uniform-fused-1D, above 5 hetero-unfused-1D, between them hetero-fused-1D.

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
