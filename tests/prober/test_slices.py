"""Products of slices of K are measured, too, so that FiCCO's schedules of slices have their own cost curves."""

from dataclasses import replace

import numpy as np
import pytest
from sim_executor import SimExecutor, line, two_hosts

from dovetail.ir import Kind, compute_calls, verify
from dovetail.matmul import AllGatherMatmul, AllToAllMatmul
from dovetail.planner.costs import Costs
from dovetail.prober import probe_operator, programs
from dovetail.prober.take import Budget
from dovetail.run import fresh_inputs
from dovetail.run.local import execute_local

QUICK = Budget(each_s=0.02, most=12)
SLICED = ("uniform-fused-2D", "uniform-unfused-2D", "hetero-fused-2D", "hetero-unfused-2D")


def keys_of(operator, schedule, ranks):
    """Return the cost curves that a schedule's products use."""
    program = operator.program(schedule, ranks)
    workload = operator.workload(program, schedule)
    kinds = compute_calls(program, workload).kinds
    return {workload.form(program.kernels[kind.kernel].name).work(kind.reads, kind.writes).key for kind in kinds}


@pytest.mark.parametrize(
    ("operator", "ranks"),
    [(AllGatherMatmul(256, 97, 130), 2), (AllGatherMatmul(256, 96, 64), 4), (AllToAllMatmul(240, 50, 24), 3)],
    ids=str,
)
def test_schedules_of_slices_use_measured_curves(operator, ranks):
    true = replace(two_hosts(), ranks=ranks, nodes=(0,) * ranks, links=())
    more = {f"{kind}:{ranks}": line(1e-4, 1e-8) for kind in ("all_reduce", "all_gather", "all_to_all")}
    true = true.with_costs(more | {"p2p:shm": line(1e-6, 1e-10), "exchange:shm": line(1e-6, 1e-10)})
    bare = replace(true, costs={key: cost for key, cost in true.costs.items() if "matmul" not in key})
    found = probe_operator(SimExecutor(true), bare, operator, ranks, QUICK)
    costs, _ = Costs.of(operator, found, ranks)
    sliced = [each for each in operator.schedules(costs) if each.family in SLICED]
    assert {each.family for each in sliced} == set(SLICED)
    rows = np.array([8, operator.m // ranks, operator.samples(ranks)[1].most])
    for schedule in sliced:
        assert costs.scored(schedule).predicted_s > 0
        for key in keys_of(operator, schedule, ranks):
            flops = 2e-9 * np.prod([float(part[2:]) for part in key.split(":")[1:3]])
            assert costs.model.seconds(f"kernel:{key}", rows) == pytest.approx(5e-6 + rows * flops / 110, rel=0.05)


@pytest.mark.parametrize("operator", [AllGatherMatmul(12, 7, 5), AllGatherMatmul(12, 8, 6, "float64")], ids=str)
def test_slices_are_proved_and_run(operator):
    _, sample = operator.samples(3)
    for amounts in ([4] * 9, [12] * 4, [5, 5, 5, 4, 3], [1] * 40):
        b = programs.Builder("slices", 3)
        rows = sample.add(b, 3, amounts)
        program = b.build()
        workload = operator.workload(program, operator.serial(3))
        assert verify(program).ok
        assert [len(mine) for mine in rows.values()] == [len(amounts)] * 3
        execute_local(program, workload, fresh_inputs(program, workload, 0))
        adds = [program.kernels[op.call].accumulate for op in program.ops() if op.kind == Kind.compute]
        assert not adds[0]
        assert any(adds)


def test_operators_without_slices_have_no_sample_of_slices():
    assert len(AllGatherMatmul(64, 2, 8).samples(3)) == 1
    assert len(AllGatherMatmul(64, 96, 8).samples(1)) == 1
