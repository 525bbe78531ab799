"""smith_waterman: scores of local alignments of two texts: 2 for a match, -1 for a mismatch or a gap."""

from __future__ import annotations

from typing import Any

from dovetail.loops.expressions import maximum, where
from dovetail.loops.nest import array, nest
from dovetail.loops.record import loop


@nest(score=array("n", "m", dtype="int32"), a=array("n", dtype="uint8"), b=array("m", dtype="uint8"))
def smith_waterman(score: Any, a: Any, b: Any) -> None:
    n, m = score.shape
    for i in loop(1, n):
        for j in loop(1, m):
            matched = score[i - 1, j - 1] + where(a[i] == b[j], 2, -1)
            gapped = maximum(score[i - 1, j], score[i, j - 1]) - 1
            score[i, j] = maximum(0, maximum(matched, gapped))
