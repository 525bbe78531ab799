"""A model of a run, written call by call, for tests of advice and replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.advise.replay import makespan_s
from dovetail.trace.analysis.delays import Delays
from dovetail.trace.analysis.replay_model import SYNCHRONOUS, CollectiveCall, Message, ReplayModel, Step

US = 1e-6
DELAYS = Delays(np.array([8.0, 1e6]), np.array([50 * US, 50 * US + 0.01]))  # 50 us and 100 MB/s


class ModelBuilder:
    """Writes a model call by call; every call is a row and site of its own kind."""

    def __init__(self, num_ranks: int) -> None:
        self.steps: list[list[Step]] = [[] for _ in range(num_ranks)]
        self.own, self.within = [0.0] * num_ranks, [0.0] * num_ranks
        self.messages: list[Message] = []
        self.collectives: list[CollectiveCall] = []
        self.rows = 0
        self.sites: dict[int, str] = {}

    def work(self, rank: int, seconds: float) -> None:
        self.own[rank] += seconds

    def step(self, rank: int, row: int, kind, number: int) -> None:
        spent = self.own[rank] + self.within[rank]
        self.steps[rank].append(Step(spent, kind, number, row, self.within[rank], self.within[rank]))
        self.own[rank] = self.within[rank] = 0.0

    def row(self, site: str) -> int:
        self.sites[self.rows] = site
        self.rows += 1
        return self.rows - 1

    def message(self, src: int, dst: int, num_bytes: int, **about) -> int:
        delay = float(DELAYS(num_bytes))
        given = {"delay_s": delay, "rendezvous": False} | about
        self.messages.append(Message(src, dst, 10 * src + dst, num_bytes, **given))
        return len(self.messages) - 1

    def call(self, rank: int, site: str, *actions) -> None:
        row = self.row(site)
        for kind, number in actions:
            self.step(rank, row, kind, number)

    def all_reduce(self, site: str, num_bytes: int = 8, blocking: bool = True, before=None, group=()) -> None:
        """On all ranks, or those of `group`; `before`: work that is put between a non-blocking one and its wait."""
        group = group or tuple(range(len(self.steps)))
        collective = CollectiveCall(
            len(self.collectives), "MPI_Allreduce", group, SYNCHRONOUS, -1, num_bytes, 60 * US, blocking
        )
        self.collectives.append(collective)
        number = len(self.collectives) - 1
        for rank in group:
            if blocking:
                self.call(rank, site, ("join", number), ("joined", number))
            else:
                self.call(rank, site, ("join", number))
                self.work(rank, before[rank])
                self.call(rank, site + " wait", ("joined", number))

    def model(self) -> ReplayModel:
        for rank in range(len(self.steps)):
            self.step(rank, -1, "end", -1)
        empty = ReplayModel(
            tuple(map(tuple, self.steps)), tuple(self.messages), tuple(self.collectives), DELAYS, 0.0, ()
        )
        return replace(empty, makespan_s=makespan_s(empty))


class Calls(ModelBuilder):
    """A model with calls that wait for nobody."""

    def __init__(self, num_ranks: int) -> None:
        super().__init__(num_ranks)
        self.calls: dict[int, tuple[str, int]] = {}

    def alone(self, rank: int, site: str, name: str, us: float, num_bytes: int = 0) -> None:
        row = self.row(site)
        self.calls[row] = name, num_bytes
        within = self.within[rank]
        self.steps[rank].append(Step(self.own[rank] + within + us * US, "own", -1, row, within + us * US, within))
        self.own[rank] = self.within[rank] = 0.0

    def model(self) -> ReplayModel:
        return replace(super().model(), calls=self.calls)
