"""CostModel: the right curve for each op, with its error; exceptions name what is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dovetail.core import CostError
from dovetail.cost import CostModel, Curve, Samples, fit, fit_factor
from dovetail.cost.model import PRIOR_BYTES_PER_S
from dovetail.ir import Builder, Kind, Region
from dovetail.machine import Link, Machine, load


def line(slope: float, start: float = 0.0, **fields: object) -> dict[str, object]:
    return Curve.through([0, 1e9], [start, start + slope * 1e9], high=1e9, **fields).to_json()


def machine(costs: dict[str, dict[str, object]], **facts: object) -> Machine:
    return Machine("pair", 2, (0, 1), (Link(0, 1, "tcp"), Link(1, 0, "tcp")), costs, facts)


KEY = "matmul:k=64:n=32:float32:block=16"


def test_one_machine_has_one_model() -> None:
    first = machine({"copy": line(1e-9)})
    assert CostModel.of(first) is CostModel.of(first)
    assert CostModel.of(first.with_costs({"copy": line(2e-9)})).seconds("copy", 1.0) == pytest.approx(2e-9)


@pytest.mark.parametrize(
    ("costs", "found"),
    [
        ({f"kernel:{KEY}": 3.0, "kernel:matmul:k=64:n=32:float32": 2.0, "flops:matmul:float32": 1.0}, f"kernel:{KEY}"),
        ({"kernel:matmul:k=64:n=32:float32": 2.0, "flops:matmul:float32": 1.0}, "kernel:matmul:k=64:n=32:float32"),
        ({"flops:matmul:float32": 1.0, "kernel:matmul:k=65:n=32:float32": 2.0}, "flops:matmul:float32"),
    ],
)
def test_a_kernel_uses_its_own_curve_before_the_rate(costs: dict[str, float], found: str) -> None:
    model = CostModel.of(machine({key: line(slope) for key, slope in costs.items()}))
    assert model.kernel_curve(KEY) == found
    rows, per_row = np.array([0, 2, 5]), costs[found] * (7.0 if found.startswith("flops") else 1.0)
    assert model.kernel_seconds(KEY, rows, 7.0 * rows) == pytest.approx(rows * per_row)


def test_a_kernel_of_another_dtype_is_not_guessed() -> None:
    model = CostModel.of(machine({"flops:matmul:float16": line(1.0)}))
    with pytest.raises(CostError, match=r"no cost 'kernel:matmul.*' and no 'flops:matmul:float32'"):
        model.kernel_seconds(KEY, 1.0, 1.0)


def test_the_error_for_a_missing_cost_lists_the_known_costs() -> None:
    model = CostModel.of(load("atlas-a2-8"))
    with pytest.raises(CostError, match="no cost 'all_reduce:4'") as caught:
        model.seconds("all_reduce:4", 1.0)
    assert caught.value.found == "costs all_reduce:8, flops:matmul:float16"
    assert "did you mean 'all_reduce:8'" in str(caught.value.hint)
    with pytest.raises(CostError, match="costs none"):
        CostModel.of(Machine("bare", 1, (0,))).seconds("p2p:tcp", 1.0)


def test_a_refused_size_names_the_cost() -> None:
    model = CostModel.of(machine({"p2p:tcp": line(1e-9)}))
    with pytest.raises(CostError, match="p2p:tcp: the cost is known from 0 to 1e"):
        model.seconds("p2p:tcp", 2e9)
    assert model.seconds("p2p:tcp", 2e9, extrapolate=True) == pytest.approx(2.0)


def test_the_error_for_a_bad_curve_names_machine_and_key() -> None:
    bad = {**line(1e-9), "segments": [[0, 1, 1], [5, 2, 1]]}
    with pytest.raises(CostError, match="machine 'pair', cost 'reduce': the cost falls at 5"):
        CostModel.of(machine({"reduce": bad}))


def test_priors_are_flagged() -> None:
    bare, full = CostModel.of(machine({})), CostModel.of(machine({"reduce": line(1.0), "copy": line(1.0)}))
    assert bare.seconds("reduce", 1e9) == pytest.approx(1e9 / PRIOR_BYTES_PER_S)
    assert bare.accuracy("reduce").label == "prior"
    assert any("`reduce`" in text for text in bare.assumptions())
    assert not any("`reduce`" in text or "`copy`" in text for text in full.assumptions())
    preset = CostModel.of(load("two-hosts-1gbit")).assumptions()
    assert "some costs are preset, not measured here" in preset


def test_only_assumptions_that_affect_the_program_are_reported() -> None:
    b = Builder("library", 2)
    b.buffer("A", "input", 1)
    net, compute = b.lane("net", "net"), b.lane("compute", "compute")
    b.add(Kind.collective, 0, net, reads=[Region("A", 0, 1)], call=b.collective("all_reduce", [0, 1]))
    model = CostModel.of(load("atlas-a2-8"))
    assert model.assumptions(b.build()) == ("some costs are published, not measured here",)
    b.add(Kind.compute, 0, compute, call=b.kernel("matmul", []))
    assert any("cil:compute" in line for line in model.assumptions(b.build()))
    b.add(Kind.recv_reduce_send, 0, net, reads=[Region("A", 0, 1)], chan_in=b.channel(1, 0), chan_out=b.channel(0, 1))
    reported = model.assumptions(b.build())
    assert any("`reduce`" in line for line in reported)
    assert any("eager" in line for line in reported)
    assert not any("`copy`" in line for line in reported)


def test_a_measured_curve_says_how_wrong_it_is() -> None:
    rough = fit(Samples.of({x: [1e-6 * x * (1.1 if k % 2 else 0.9)] * 5 for k, x in enumerate(range(1, 40))}))
    reported = CostModel.of(machine({"p2p:tcp": rough.to_json()})).accuracy("p2p:tcp")
    assert reported.label == "measured"
    assert 0.0 < reported.median_error <= reported.max_error
    assert math.isnan(CostModel.of(load("atlas-a2-8")).accuracy("all_reduce:8").median_error)


def test_factors_hold_at_their_ends_and_never_speed_up() -> None:
    curve = fit_factor(Samples.of({1024: [2.0], 65536: [1.2]}))
    model = CostModel.of(machine({"cil:compute": curve.to_json()}))
    assert model.factor("cil:compute", [1, 1024, 65536, 1 << 30]) == pytest.approx([2.0, 2.0, 1.2, 1.2])
    assert model.factor("cil:net", [1, 2]).tolist() == [1.0, 1.0]
    wild = Curve.through([0, 10], [0.5, 0.7], rising=False, high=10).to_json()
    assert CostModel.of(machine({"cil:net": wild})).factor("cil:net", 5.0) == 1.0


@pytest.mark.parametrize(
    ("facts", "limit"),
    [
        ({}, math.inf),
        ({"eager_limit_bytes": None}, math.inf),
        ({"eager_limit_bytes": 4096}, 4096),
        ({"eager_limit_bytes": {"tcp": 0, "shm": 1}}, 0),
        ({"eager_limit_bytes": {"shm": 1}}, math.inf),
    ],
)
def test_the_eager_limit_is_one_number_or_one_per_kind(facts: dict[str, object], limit: float) -> None:
    assert CostModel.of(machine({}, **facts)).eager_limit("tcp") == limit


def test_a_cached_model_is_found_without_comparing_machines(monkeypatch):
    """Machines of one name and topology, probed one after the other, differ in costs only and have equal hashes."""
    first = load("atlas-a2-8")
    alike = [replace(first, costs=dict(first.costs)) for _ in range(4)]
    models = [CostModel.of(each) for each in alike]
    compared: list[object] = []
    monkeypatch.setattr(Machine, "__eq__", lambda self, other: bool(compared.append(other)) or self is other)
    assert [CostModel.of(each) for each in alike] == models
    assert not compared
    assert alike[0] != alike[1]  # by a comparison of all costs
    assert compared
