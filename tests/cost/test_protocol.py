"""Protocols of GPUs: costs of messages against values by hand; presets reproduce the published timings."""

from __future__ import annotations

import importlib
import json
from types import ModuleType

import needs
import numpy as np
import pytest

from dovetail.core import CostError
from dovetail.cost import Protocol, price_protocol, protocols
from dovetail.ir import Builder, Kind, Program, Region
from dovetail.machine import Machine, load
from dovetail.sim import simulate

GPUS = Machine("two", 2, (0, 0), facts={"link_bytes_per_s": 100e9})
SLOW = Protocol(2e-6, 10e9, efficiency=0.5)
BYTES = 100_000
WIRE_S, LANE_S = BYTES / 50e9, BYTES / 10e9


def message(pieces: int = 1) -> Program:
    """Rank 0 sends a message to rank 1 in `pieces` ops."""
    b = Builder("message", 2)
    b.buffer("x", "input", pieces)
    net, channel = b.lane("net", "net"), b.channel(0, 1)
    for piece in range(pieces):
        region = [Region("x", piece, 1)]
        b.add(Kind.send, 0, net, reads=region, chan_out=channel)
        b.add(Kind.recv, 1, net, writes=region, chan_in=channel)
    return b.build()


def makespan(program: Program, begins: np.ndarray | bool = True, switch: int | None = None) -> float:
    num_bytes = np.full(program.num_ops, 2 * BYTES / program.num_ops)
    prices = price_protocol(program, GPUS, SLOW, num_bytes, begins=begins, switch=switch)
    return simulate(program, prices).makespan_s


def test_a_message_occupies_a_port_and_then_a_lane() -> None:
    assert makespan(message()) == pytest.approx(WIRE_S + SLOW.latency_s + LANE_S)


def test_latency_is_paid_once_per_message_and_pieces_overlap() -> None:
    two, first = message(2), np.array([True, True, False, False])
    assert makespan(two, first) == pytest.approx(WIRE_S / 2 + SLOW.latency_s + LANE_S)
    assert makespan(two) == pytest.approx(WIRE_S / 2 + 2 * SLOW.latency_s + LANE_S)


def test_a_switch_takes_no_time() -> None:
    assert makespan(message(), switch=1) == pytest.approx(WIRE_S)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "has no fact 'protocols'"),
        ({"protocols": {"LL": {"speed": 1}}}, "malformed"),
        ({"protocols": 3}, "malf"),
    ],
)
def test_a_machine_without_protocols_is_named(facts: dict[str, object], said: str) -> None:
    with pytest.raises(CostError, match=f"'bare'.*{said}"):
        protocols(Machine("bare", 1, (0,), facts=facts))


def test_a_machine_without_a_link_is_named() -> None:
    with pytest.raises(CostError, match="link_bytes_per_s"):
        price_protocol(message(), Machine("bare", 2, (0, 0)), SLOW, np.zeros(2))


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark that fitted the presets."""
    monkeypatch.syspath_prepend(needs.ROOT / "bench" / "simulator")
    return importlib.import_module("calibrate_gpu")


@pytest.mark.parametrize("name", ["a100-8", "h100-8"])
class TestPublished:
    def rows(self, calibrate: ModuleType, name: str) -> list[tuple[str, int, float, str]]:
        table = json.loads(calibrate.PUBLISHED.read_text())["tables"][name]
        return [row for row in calibrate.rows_of(table) if row.num_bytes <= 32 << 20][::2]

    @pytest.mark.slow
    def test_presets_reproduce_public_timings(self, calibrate: ModuleType, name: str) -> None:
        machine, rows = load(name), self.rows(calibrate, name)
        assert calibrate.median_error(calibrate.errors(machine, rows)) < 0.15
        late = calibrate.with_values(machine, [("", "launch_s")], [2 * machine.facts["launch_s"]])  # the planted fault
        assert calibrate.median_error(calibrate.errors(late, rows)) > 0.15

    def test_short_messages_use_ll_and_long_ones_ll128(self, calibrate: ModuleType, name: str) -> None:
        machine = load(name)
        low, high = (
            [calibrate.predicted(machine, f"ring 4x8 {protocol}", size) for protocol in ("LL", "LL128")]
            for size in (1 << 20, 4 << 20)
        )
        assert low[0] < low[1]
        assert high[0] > high[1]
