"""modes: detect several speeds among timings; and find the size from which a send waits for its receive."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core import CostError
from dovetail.cost.curve import Mode
from dovetail.cost.samples import Samples

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A gap between two groups of timings is measured in multiples of the wider group's spread. On unimodal noise (normal,
# Laplace, exponential, lognormal, Student's t with 2 degrees; 5 to 50 timings) a gap of PLAIN spreads occurs at about
# 2 % of sizes, one of STRONG spreads at about 0.1 %. As a sweep has dozens of sizes, a STRONG gap counts only if a
# neighbouring size has a PLAIN one, and PLAIN gaps only if three neighbours have one: below 1 % of sweeps by chance.
PLAIN, STRONG = 6.0, 15.0
LEAST_RATIO = 1.1  # speeds closer than this count as one
LEAST_SHARE = 0.15  # smaller groups are outliers, not modes
SAME_RATIO = 1.5  # if the modes of a size are this factor further apart, or closer, than elsewhere, they are outliers
MOST_MODES = 4
NARROWEST = 0.01  # least relative spread of a group


class EagerLimit(NamedTuple):
    """The greatest size that is sent without waiting; the least that waits (None: none did); sizes that did both."""

    limit_bytes: int
    waits_bytes: int | None
    mixed: tuple[int, ...]


def modes(samples: Samples) -> tuple[Mode, ...]:
    """Return the speeds that the timings alternate between, fastest first; a single Mode if there is only one.

    An Open MPI exchange runs both ways at once (88 ms) or one after the other (175 ms), which varies from run to run:

    >>> fast, slow = modes(Samples.of({1 << 20: [0.088, 0.175, 0.089, 0.176, 0.088, 0.174, 0.087, 0.089]}))
    >>> fast.share, slow.share, slow.ratio, slow.seconds
    (0.625, 0.375, 1.989, (0.175,))
    """
    parted = zip(samples.sizes, mode_rows(samples), strict=True)
    split = {float(x): [samples.seconds[rows] for rows in parts] for x, parts in parted if len(parts) > 1}
    if not split:
        x, seconds = tuple(map(float, samples.sizes)), tuple(map(float, samples.medians))
        return (Mode(1.0, 1.0, x, seconds),)
    count = Counter(map(len, split.values())).most_common(1)[0][0]
    groups = {x: parts for x, parts in split.items() if len(parts) == count}
    total = sum(len(part) for parts in groups.values() for part in parts)
    medians = np.array([[np.median(part) for part in parts] for parts in groups.values()])
    ratios = np.median(medians / medians[:, :1], axis=0)
    shares = [sum(len(parts[i]) for parts in groups.values()) / total for i in range(count)]
    return tuple(
        Mode(shares[i], round(float(ratios[i]), 3), tuple(groups), tuple(map(float, medians[:, i])))
        for i in range(count)
    )


def mode_rows(samples: Samples) -> list[list[Ints]]:
    """Return the rows of the timings at each size, split into modes, fastest first (one list if there is one mode)."""
    if not len(samples.x):
        raise CostError("no samples to fit", hint="measure at least one size")
    plain = [_split(samples, rows, PLAIN, least=2) for rows in samples.rows]
    two = np.array([False, *(len(parts) > 1 for parts in plain), False])
    result = []
    for i, rows in enumerate(samples.rows, start=1):
        strong = _split(samples, rows, STRONG, least=3)
        alone = len(samples.sizes) == 1
        if len(strong) > 1 and (alone or two[i - 1] or two[i + 1]):
            result.append(strong)
        elif any(two[k : k + 3].all() for k in range(max(i - 2, 0), i + 1) if k + 3 <= len(two)):
            result.append(plain[i - 1])
        else:
            result.append([rows])
    return _joined(samples, result)


def _joined(samples: Samples, split: list[list[Ints]]) -> list[list[Ints]]:
    """Return the rows with modes joined again at sizes where they are spaced otherwise than at most sizes."""
    ends = [
        [np.median(samples.seconds[parts[i]]) for i in (0, -1)] if len(parts) > 1 else [1.0, math.nan]
        for parts in split
    ]
    ratios = np.array([slow / fast for fast, slow in ends])
    if np.isnan(ratios).all():
        return split
    typical = np.nanmedian(ratios)
    good = (ratios < typical * SAME_RATIO) & (ratios > typical / SAME_RATIO)
    return [parts if ok else [np.sort(np.concatenate(parts))] for parts, ok in zip(split, good, strict=True)]


def eager_limit(samples: Samples, late_s: float) -> EagerLimit:
    """Return up to which size a send returns without waiting for its receive.

    `samples`: seconds of sends whose receive was posted `late_s` seconds later, against bytes. A send counts as early
    if it took less than half of `late_s`, so `late_s` must be well above the time on the wire. The limit is the
    greatest size such that it and all smaller sizes were early in most repeats; 0 if even the smallest waited. `mixed`
    are sizes with 10 % to 90 % early sends, and early sizes above one that waits.

    >>> eager_limit(Samples.of({1024: [2e-6] * 3, 32768: [9e-6] * 3, 65536: [0.0301] * 3}), late_s=0.03)
    EagerLimit(limit_bytes=32768, waits_bytes=65536, mixed=())
    """
    if not (0.0 < late_s < math.inf):
        raise CostError("late_s is the delay of the receive in seconds", found=repr(late_s))
    if not len(samples.x):
        raise CostError("no samples to find an eager limit from")
    limit, waits, mixed = 0, None, []
    for x, group in zip(samples.sizes, samples.groups, strict=True):
        share = float(np.mean(group < 0.5 * late_s))
        early = share > 0.5
        if not early and waits is None:
            waits = int(x)
        if early and waits is None:
            limit = int(x)
        if 0.1 <= share <= 0.9 or (early and waits is not None):
            mixed.append(int(x))
    return EagerLimit(limit, waits, tuple(mixed))


def _split(samples: Samples, rows: Ints, wide: float, least: int) -> list[Ints]:
    """Return rows split at gaps of at least `wide` spreads of the widest group, fastest first; at most MOST_MODES.

    Splits at the widest gap, the two widest, and so on are tried; the split whose narrowest gap is widest, measured in
    spreads, wins.
    """
    order = rows[np.argsort(samples.seconds[rows], kind="stable")]
    times = samples.seconds[order]
    least = max(least, math.ceil(LEAST_SHARE * len(times)))
    if len(times) < 2 * least or times[0] <= 0:
        return [rows]
    logs = np.log(times)
    gaps = np.diff(logs)
    allowed = [k for k in range(least, len(times) - least + 1) if gaps[k - 1] >= math.log(LEAST_RATIO)]
    ranked = sorted(allowed, key=lambda k: (-gaps[k - 1], k))
    best, cuts = wide, []
    for count in range(1, min(len(ranked), MOST_MODES - 1) + 1):
        places = sorted(ranked[:count])
        groups = np.split(logs, places)
        ratio = gaps[ranked[count - 1] - 1] / max(NARROWEST, *map(_spread, groups))
        if min(map(len, groups)) >= least and ratio >= best:
            best, cuts = ratio, places
    return [np.sort(part) for part in np.split(order, cuts)]


def _spread(logs: Floats) -> float:
    """Return the mean distance from the median, without the farthest fifth."""
    away = np.sort(np.abs(logs - np.median(logs)))
    return float(away[: max(math.ceil(0.8 * len(away)), 2)].mean())
