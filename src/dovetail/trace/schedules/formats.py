"""formats: GOAL and Chakra as trace formats, whose files `dovetail simulate` replays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail.trace.formats import TraceFormat
from dovetail.trace.schedules.dag import Replay


class Goal(TraceFormat):
    """GOAL, the text that LogGOPSim simulates."""

    schedules = (".goal",)

    def replay(self, paths: Sequence[Path]) -> Replay:
        from dovetail.trace.schedules.goal import read_goals

        return read_goals(paths)


class Chakra(TraceFormat):
    """Chakra execution traces, a file for each rank."""

    schedules = (".et",)
    by_rank = True

    def replay(self, paths: Sequence[Path]) -> Replay:
        from dovetail.trace.schedules.chakra import read_chakra

        return read_chakra(paths)
