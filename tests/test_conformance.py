"""Conformance: every registered executor runs the same jobs; every registered operator goes down the whole river.

What is tested is what the registries hold: the built-ins, packages that are installed, and those of examples/extend.
"""

import json
import re
from dataclasses import replace

import needs
import numpy as np
import pytest
from registered import names_in, small
from sim_executor import line, two_hosts

import dovetail as dt
from dovetail import trace
from dovetail.collective import AllReduce
from dovetail.core import CostError, EnvironmentFault, OperatorError, ProgramError, RunError
from dovetail.ir import Schedule
from dovetail.ir.registry import OPERATORS, prove
from dovetail.loops.problems import wave1d
from dovetail.run.executor import EXECUTORS, OPTIONS, Executor, executor_on
from dovetail.run.job import Job, Variant
from dovetail.trace.to_timeline import lanes_of, span_rows

pytestmark = pytest.mark.usefixtures("examples_installed")
NEEDS = {"mpi": "mpich", "cuda": "gpu"}  # what an executor of ours needs of a machine; others say it when they run
RANKS = 2


def variant_of(operator, schedule, name="one", ranks=RANKS):
    """A schedule, whose results must agree with its post-conditions and, where it has one, its reference program."""
    program = operator.program(schedule, ranks)
    reference = operator.reference(schedule, ranks)
    against = reference and (reference, operator.workload(reference, schedule))
    return Variant(name, program, operator.workload(program, schedule), check=True, against=against)


def jobs():
    """Small Programs of every kind, which every executor runs: results must be those of the NumPy executor, too."""
    product, stencil, pipeline = (small(name, RANKS) for name in ("matmul_all_reduce", "jacobi2d", "sync_p2p"))
    two_tiles = Schedule.of("given", tiles=(3, 4), by="ring")
    for variant in (
        variant_of(AllReduce(1 << 10), AllReduce(1 << 10).by("ring_all_reduce"), "collective"),
        variant_of(product, two_tiles, "product"),
        variant_of(stencil, stencil.default_schedule(RANKS), "stencil"),
        variant_of(pipeline, pipeline.default_schedule(RANKS), "pipeline"),
        variant_of(small("smooth", RANKS), Schedule.of("overlap", first="inner"), "a package's operator"),
    ):
        yield replace(variant, against=variant.against or (variant.program, variant.workload))


def unruly():
    """Programs that leave something else than they are asked for, and whether the check must find it."""
    for right in (each for each in jobs() if each.name in ("collective", "product")):
        posts = [post._replace(terms=post.terms[:1]) for post in right.program.posts]
        asked = replace(right, program=replace(right.program, posts=tuple(posts)), against=None)
        yield replace(asked, name=f"{right.name}: its post-conditions"), True
    stencils = [small("jacobi2d", RANKS, steps=steps) for steps in (1, 2)]
    of_steps = [variant_of(stencil, stencil.serial(RANKS), "stencil") for stencil in stencils]
    bare = replace(of_steps[1].program, posts=of_steps[1].program.posts[:0])
    for other, is_wrong in zip(of_steps, (True, False), strict=True):
        name = f"stencil: {'another' if is_wrong else 'the same'} reference"
        yield replace(of_steps[1], name=name, program=bare, against=other.against), is_wrong


# Executors


def run(name, variants, executor=None, *, verified=True, rounds=1):
    """The outcomes of a job, by variant; a skip that names what is missing where the executor cannot run here."""
    needs.need(*([NEEDS[name]] if name in NEEDS else []))
    job, executor = Job(tuple(variants), rounds=rounds, warmup=0), executor or executor_on(name)
    try:
        found = (executor.execute if verified else executor.execute_unverified)(job)
    except EnvironmentFault as fault:
        pytest.skip(f"needs {name}: {fault}")
    return {outcome.name: outcome for outcome in found.outcomes}


@pytest.fixture(params=names_in(EXECUTORS))
def on(request):
    """The name of an executor."""
    return request.param


def test_an_executor_runs_every_job_right(on):
    found = run(on, jobs(), rounds=2)
    assert len(found) == 5
    for name, outcome in found.items():
        assert outcome.max_rel_error <= outcome.tolerance, name
        assert not outcome.is_wrong, name
        assert len(outcome.seconds) >= 2, name
        assert min(outcome.seconds) > 0, name


def test_an_executor_finds_what_is_wrong(on):
    """By post-conditions, and by the program that results must agree with: whatever the Program's proof would say."""
    asked = list(unruly())
    found = run(on, [variant for variant, _ in asked], verified=False)
    assert {name: outcome.is_wrong for name, outcome in found.items()} == {each.name: bad for each, bad in asked}


def test_an_executor_refuses_what_is_not_proved(on):
    variant, _ = next(unruly())
    with pytest.raises(ProgramError):
        executor_on(on).execute(Job((variant,), rounds=1, warmup=0))


def test_an_executor_runs_collectives_of_the_library_or_says_that_it_cannot(on):
    product = small("matmul_all_reduce", RANKS)
    try:
        said = "wrong" if run(on, [variant_of(product, product.serial(RANKS))])["one"].is_wrong else "right"
    except RunError as error:
        said = str(error)
    assert said == "right" or "cannot run this program" in said


def test_an_executor_says_the_whole_protocol(on, tmp_path):
    kind = EXECUTORS[on]
    made = executor_on(on)
    assert Executor in kind.__mro__
    assert {*kind.takes} <= {*OPTIONS}
    assert made.trace is None
    assert isinstance(made.buffers_early_sends, bool)
    assert type(made.in_folder(tmp_path)) is kind
    if "launch" in kind.takes:
        assert executor_on(on, launch="start {ranks}").launched_by == "start {ranks}"
    for option in {*OPTIONS} - {*kind.takes}:
        with pytest.raises(OperatorError, match=f"have no {OPTIONS[option]}"):
            executor_on(on, **{option: "x"})


def test_an_executor_that_traces_leaves_every_op_of_every_rank(on, tmp_path):
    if "trace" not in EXECUTORS[on].takes:
        assert executor_on(on).trace is None
        return
    (variant,) = (each for each in jobs() if each.name == "product")
    run(on, [variant], executor_on(on, trace=tmp_path))
    ops = traced(tmp_path, variant.program)
    assert np.bincount(ops["arg"]).tolist() == [len(ops["arg"]) // variant.program.num_ops] * variant.program.num_ops
    assert np.array_equal(ops["rank"], variant.program.columns["rank"][ops["arg"]])


def traced(folder, program):
    """The spans of a trace on the lanes of a program, which a process of several ranks calls by rank, too."""
    found = trace.merge(folder).read()
    rows = span_rows(found)
    titles, at = lanes_of(found, rows)
    names = [lane.name for lane in program.lanes]
    lanes = {*names, *(f"rank {rank} {name}" for rank in range(program.num_ranks) for name in names)}
    is_op = np.isin(at, [place for place, title in enumerate(titles) if title in lanes])
    return {name: column[rows[is_op]] for name, column in found.columns.items()}


# Operators


def test_a_wave_goes_round_a_ring_unchanged():
    form = np.random.default_rng(0).integers(-9, 9, 12).astype("f8")
    levels = np.stack([form, np.roll(form, 1)])
    assert np.array_equal(wave1d.reference(levels, steps=30)[1], np.roll(form, 31))


@pytest.fixture(params=names_in(OPERATORS))
def name(request):
    """The name of an operator."""
    return request.param


def planned(operator):
    """The plan for two pretended hosts, on which whatever the operator asks for is a straight line."""
    machine = two_hosts().with_costs({f"{c.kind}:{RANKS}": line(1e-4, 1e-8) for c in operator.library_calls(RANKS)})
    for _ in range(100):
        try:
            return dt.plan(operator, machine, extrapolate=True)
        except CostError as error:
            (key,) = re.findall("has no cost '(kernel:[^']*)'", str(error))
            machine = machine.with_costs({key: line(1e-6, 1e-9, "rows")})
    raise AssertionError(f"{operator.title} asks for more and more kernels")


@pytest.mark.usefixtures("own_cache")
def test_an_operator_is_planned_proved_run_and_traced(name, tmp_path):
    operator = small(name, RANKS)
    plan = planned(operator)
    assert plan.predicted.makespan_s > 0
    assert dt.Plan.from_json(json.loads(json.dumps(plan.to_json()))).program == plan.program
    schedules = dict.fromkeys((operator.serial(RANKS), operator.default_schedule(RANKS), plan.schedule))
    for schedule in schedules:
        assert prove(operator, schedule, operator.program(schedule, RANKS)).ok, schedule
    outcomes = run("numpy", [variant_of(operator, each, str(place)) for place, each in enumerate(schedules)])
    assert not any(outcome.is_wrong for outcome in outcomes.values())
    trace.init(tmp_path)
    (outcome,) = run("threads", [variant_of(operator, plan.schedule)]).values()
    trace.finalize()
    assert not outcome.is_wrong
    assert dt.compare(plan.predicted, *outcome.timelines).ratio > 0
    assert {*traced(tmp_path, plan.program)["arg"].tolist()} == {*range(plan.program.num_ops)}


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_operator_is_proved_on_other_ranks_or_refuses_them(name, ranks):
    try:
        operator = small(name, ranks)
        schedule = operator.default_schedule(ranks)
        said = str(prove(operator, schedule, operator.program(schedule, ranks)).ok)
    except OperatorError as error:
        said = str(error)
    assert said == "True" or (ranks == 1 and "at least 2" in said)


@pytest.mark.mpi
@pytest.mark.usefixtures("own_cache")
def test_operators_are_called_on_ranks(mpi):
    done = mpi.run(RANKS, needs.RANKS / "conformance_ranks.py")
    assert f"{len(names_in(OPERATORS))} called" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
