"""Choosing collectives by measurement: the table and its files, the guard, the contest on planted times and on real
ranks, and the command."""

from __future__ import annotations

import json
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from dovetail.plan.arena import BY_LIBRARY, LAUNCHES, Arena, fill, variant
from dovetail.plan.contest import beats, contest, judge

from dovetail.cli import main
from dovetail.cli.collectives import bus_factor, written
from dovetail.collective import build, msccl
from dovetail.core import DovetailError, PlanError, ProgramError, RunError, WishError
from dovetail.ir import Builder, Kind, Region, Slot, Term, Workload, parse, verify
from dovetail.machine import SWITCH, Link, Machine, load
from dovetail.plan.contenders import (
    Aim,
    Contender,
    choices,
    finer,
    library_program,
    predict,
    shortlist,
    sliced,
    spec_for,
)
from dovetail.plan.selection import (
    Choice,
    Point,
    Row,
    Selection,
    keep,
    rows_of,
    selection_for,
    selection_path,
)
from dovetail.report.selections import nccl_tuner_csv, write_msccl
from dovetail.run import execute, fresh_inputs
from dovetail.run.check import check_rank
from dovetail.run.job import Job, JobResult, Outcome, Variant
from dovetail.run.load import Load
from dovetail.run.options import RunOptions

RING, TREE = Choice("ring_all_reduce", channels=2), Choice("double_tree_all_reduce", slice_bytes=65536)
SIZES = (1024, 16384, 1 << 20)


def star(ranks: int) -> Machine:
    """Hosts at a switch, with the costs of messages of a preset."""
    two = load("two-hosts-1gbit")
    links = tuple(Link(*way, "tcp") for a in range(ranks) for way in ((a, SWITCH), (SWITCH, a)))
    costs = {key: curve for key, curve in two.costs.items() if key.split(":")[0] in ("p2p", "exchange", "reduce")}
    return Machine(f"star-{ranks}", ranks, tuple(range(ranks)), links, costs, two.facts)


def table(*picked: tuple[Choice, int], ranks: int = 4) -> Selection:
    found = [(choice, Point(size, 1e-5, 2e-5, 1.5e-5, 0.01)) for choice, size in picked]
    return Selection({"mpi": "X"}, rows_of("all_reduce", ranks, 1, found))


# The table


def test_between_two_of_ours_the_break_is_the_geometric_mean():
    found = table((RING, 4096), (RING, 16384), (TREE, 65536))
    spans = [(row.algorithm, row.min_bytes, row.max_bytes) for row in found.rows]
    assert spans == [("ring_all_reduce", 4096, 32768), ("double_tree_all_reduce", 32768, 65537)]
    assert [len(row.points) for row in found.rows] == [2, 1]


@pytest.mark.parametrize(
    ("num_bytes", "found"),
    [(1023, None), (1024, "library"), (4095, "library"), (4096, RING[0]), (16384, RING[0]), (16385, "library")],
)
def test_what_was_not_measured_goes_to_the_library(num_bytes, found):
    table_of = table((Choice(), 1024), (RING, 4096), (RING, 16384), (Choice(), 65536))
    row = table_of.lookup("all_reduce", 4, num_bytes)
    assert (row and row.algorithm) == found


def test_what_reduces_serves_the_dtype_that_was_measured():
    rows = rows_of("all_reduce", 4, 1, [(RING, Point(4096, 1e-5))], "float32")
    found = Selection({}, (*rows, *rows_of("all_gather", 4, 1, [(RING, Point(4096, 1e-5))])))
    assert found.lookup("all_reduce", 4, 4096, dtype="float32") is found.lookup("all_reduce", 4, 4096) is not None
    assert found.lookup("all_reduce", 4, 4096, dtype="float16") is None
    assert found.lookup("all_gather", 4, 4096, dtype="float16") is not None
    assert [Aim(name, 2).reduces for name in ("all_reduce", "reduce_scatter", "all_to_all")] == [True, True, False]


def test_lookup_minds_collective_ranks_and_nodes():
    found = table((RING, 4096)).merged(Selection({}, rows_of("all_reduce", 4, 2, [(TREE, Point(4096, 1e-5))])))
    assert found.lookup("all_reduce", 4, 4096, nodes=2).choice == TREE
    assert found.lookup("all_reduce", 4, 4096, nodes=1).choice == RING
    assert found.lookup("all_reduce", 4, 4096) is not None
    assert found.lookup("all_reduce", 4, 4096, nodes=4) is None
    assert found.lookup("all_reduce", 3, 4096) is found.lookup("all_gather", 4, 4096) is None


def test_newer_rows_replace_all_of_a_group():
    old, new = table((RING, 1024), (TREE, 1 << 20)), table((Choice(), 1024))
    kept = Selection({}, rows_of("all_gather", 4, 1, [(Choice("ring_all_gather"), Point(64, 1e-6))]))
    found = old.merged(kept).merged(new)
    assert [row.algorithm for row in found.rows] == ["ring_all_gather", "library"]


def test_json_round_trip(tmp_path):
    found = table((Choice(), 1024), (RING, 4096), (TREE, 65536))
    assert Selection.load(found.save(tmp_path / "s.json")) == found


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("min_bytes", 1 << 40),
        ("ranks", 0),
        ("channels", "two"),
        ("slice_bytes", -1),
        ("colour", 1),
        ("points", [{"x": 1}]),
    ],
)
def test_broken_documents_are_refused(change, value):
    document = table((RING, 4096)).to_json()
    document["rows"][0][change] = value
    with pytest.raises(PlanError):
        Selection.from_json(document)


def test_overlapping_rows_are_refused():
    row = table((RING, 4096)).rows[0]
    with pytest.raises(PlanError, match="overlap"):
        Selection({}, (row, replace(row, min_bytes=row.max_bytes - 1, max_bytes=row.max_bytes + 1)))


def test_the_cache_is_keyed_by_library_and_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
    keep(table((RING, 4096)), "MPICH 5", ["a", "b"])
    keep(table((TREE, 4096), ranks=2), "MPICH 5", ["a", "b"])
    assert [row.ranks for row in selection_for("MPICH 5", ["a", "b"]).rows] == [2, 4]
    assert selection_for("MPICH 5", ["b", "a"]) is selection_for("Open MPI 5", ["a", "b"]) is None
    selection_path("MPICH 5", ["a", "b"]).write_text("{")
    with pytest.raises(DovetailError):
        selection_for("MPICH 5", ["a", "b"])
    keep(table((RING, 4096)), "MPICH 5", ["a", "b"])
    monkeypatch.setenv("DOVETAIL_SELECTION", str(tmp_path / "mine.json"))
    assert selection_path("any", []) == tmp_path / "mine.json"


# Files of other tools


def test_nccl_rows_say_only_what_nccl_can_do():
    rows = [Row("all_reduce", 8, 1, low, low + 64, name) for low, name in ((0, "ring_all_reduce"), (64, "made_up"))]
    rows += [Row("all_to_all", 8, 1, 0, 64, "direct_all_to_all"), Row("all_gather", 8, 2, 0, 9, "ring_all_gather", 4)]
    lines = nccl_tuner_csv(Selection({}, tuple(rows))).splitlines()
    said = [line for line in lines if not line.startswith("#")]
    assert said == ["allgather,0,8,ring,simple,4,2,8,-1,-1", "allreduce,0,63,ring,simple,1,1,8,-1,-1"]
    assert len(lines) == 5
    assert all(len(line) < 256 for line in lines)  # the plugin's line buffer


def test_msccl_files_carry_the_sizes(tmp_path):
    found = table((Choice(), 1024), (Choice("ring_all_reduce"), 4096))
    for dialect, most in (("msccl", 4097), ("rccl", 4096)):
        paths, refused = write_msccl(found, tmp_path, lambda row: build(row.algorithm, row.ranks), dialect)
        assert not refused
        (text,) = [path.read_text() for path in paths]
        assert 'minBytes="4096"' in text
        assert f'maxBytes="{most}"' in text


def test_exported_instances_have_runs_of_chunks(tmp_path):
    """What runs here has every second slot, which a step of a runtime cannot name."""
    halving = Choice("recursive_halving_doubling_all_reduce", instances=2)
    files, refused = written(table((halving, 4096), ranks=8), Aim("all_reduce", 8), tmp_path)
    assert not refused
    assert [path.name for path in files[2:]] == ["recursive_halving_doubling_all_reduce-8-4096-4096.xml"]
    assert msccl.certify(msccl.read(files[2]), "msccl").ok


def test_what_a_runtime_cannot_do_is_said(tmp_path):
    def refusing(row):
        raise ProgramError("too many channels")

    assert write_msccl(table((RING, 4096)), tmp_path, refusing)[1] == [
        "No msccl file of ring_all_reduce, 2 channels: too many channels."
    ]


# Contenders and predictions


@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "all_to_next"]
)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_contender_and_the_library_do_what_is_asked(collective, ranks):
    aim = Aim(collective, ranks)
    for choice in [Choice(), *choices(aim)]:
        program = aim.program(choice)
        assert verify(program).ok, choice
        spec = spec_for(aim, program)
        assert {buffer.name for buffer in spec.buffers} <= {buffer.name for buffer in program.buffers}
        assert [program.slots_of(b.name, 0) for b in spec.buffers] == [b.slots[0] for b in spec.buffers]


def test_predictions_tell_latency_from_bandwidth():
    aim, machine = Aim("all_to_all", 8), star(8)
    small, large = (shortlist(aim, size, machine)[0] for size in (64, 4 << 20))
    assert small.predicted_s < large.predicted_s
    assert all(a.predicted_s <= b.predicted_s for a, b in zip(*[iter(shortlist(aim, 4096, machine))] * 2, strict=False))


def test_a_shortlist_holds_several_algorithms():
    names = {each.choice.algorithm for each in shortlist(Aim("all_reduce", 4), 65536, star(4), most=6)}
    assert len(names) >= 4


RELAY = """program relay ranks 3
buffer input input 1
lane net net
channel 0->1 0 depth 2
channel 1->2 0 depth 2
post 0 1 2 input[0:1] = input@0[0:1]
rank 0 lane net
  send input[0:1] to 1
rank 1 lane net
  recv_copy_send from 0 -> input[0:1] to 2
rank 2 lane net
  recv from 1 -> input[0:1]
"""


def test_slices_are_predicted_to_pipeline_through_a_forwarder():
    aim = Aim("broadcast", 3, makers={"relay": lambda choice: parse(RELAY)})
    whole, cut = (predict(aim, Choice("relay", slice_bytes=size), 4 << 20, star(3)) for size in (0, 256 << 10))
    assert 0.5 * whole < cut < 0.7 * whole  # 17 slices' time on the wire instead of 32
    sizes = [each.slice_bytes >> 10 for each in sliced(aim, Choice("relay"), 1 << 20)]
    assert sizes == [8, 16, 32, 64, 256]
    assert not list(sliced(aim, Choice("relay"), 8 << 10))
    assert finer(parse(RELAY), 4).buffers[0].slots == (4, 4, 4)


def test_counts_are_of_what_a_rank_holds_most_of():
    assert Aim("reduce_scatter", 4).bytes_of(1000) == 992
    assert Aim("broadcast", 4).bytes_of(1) == 4
    with pytest.raises(WishError):
        Aim("all_reduce", 3, 2)
    with pytest.raises(WishError):
        Aim("all_reduced", 2)


# The guard, and the contest on planted times


def outcome(seconds: float, *, wrong: int = 0, noise: float = 0.0, seed: int = 0) -> Outcome:
    times = seconds * (1 + noise * np.random.default_rng(seed).standard_normal(9))
    return Outcome("x", tuple(times), (), 0.0, 0.0, num_wrong=wrong)


@pytest.mark.parametrize(
    ("ours_s", "noise", "wins"),
    [(0.5, 0.0, True), (0.98, 0.0, True), (0.995, 0.0, False), (1.0, 0.0, False), (0.95, 0.3, False)],
)
def test_ours_must_beat_the_library_by_more_than_the_noise(ours_s, noise, wins):
    library, ours = outcome(1.0, noise=noise, seed=1), outcome(ours_s, noise=noise, seed=2)
    assert beats([(ours, library)]) is wins
    assert judge(64, [{BY_LIBRARY: library, RING: ours}], {}, {}).choice == (RING if wins else BY_LIBRARY)


@pytest.mark.parametrize("rounds", [1, 2, 5, 13])
def test_few_rounds_make_no_winner_of_an_equal(rounds):
    """However many there were: of equals about one in forty is taken for faster, not one in five."""
    random = np.random.default_rng(rounds)

    def timed():
        return Outcome("x", tuple(np.exp(0.05 * random.standard_normal(rounds))), ())

    assert np.mean([beats([(timed(), timed()) for _ in range(2)]) for _ in range(1000)]) < 0.07


def test_a_drift_that_both_share_is_no_noise():
    drift = np.linspace(1, 3, 9)
    library, ours = (Outcome("x", tuple(s * drift), ()) for s in (1.0, 0.97))
    assert beats([(ours, library)])


def test_what_is_wrong_is_never_chosen():
    found = judge(64, [{BY_LIBRARY: outcome(1.0), RING: outcome(0.1, wrong=3), TREE: outcome(0.5)}], {}, {})
    assert found.choice == TREE
    assert found.wrong == {RING: 3}
    assert judge(64, [{BY_LIBRARY: outcome(1.0), RING: outcome(0.1, wrong=3)}], {}, {}).choice == BY_LIBRARY


def test_a_library_that_is_slow_in_one_launch_only_is_not_beaten():
    ours, slow, quick = outcome(1.0), outcome(2.0), outcome(0.9)
    launches = [{BY_LIBRARY: slow, RING: ours}, {BY_LIBRARY: quick, RING: ours}]
    assert judge(64, launches, {}, {}).choice == BY_LIBRARY
    assert judge(64, launches[:1] * 2, {}, {}).choice == RING
    assert judge(64, launches[:1] * 2, {RING: 1.0, BY_LIBRARY: 0.9}, {}).choice == BY_LIBRARY


class Planted:
    """An executor that takes what `seconds(bytes, algorithm)` says, and keeps the jobs."""

    def __init__(self, seconds):
        self.seconds, self.jobs = seconds, []

    def execute(self, job: Job) -> JobResult:
        self.jobs.append(job)
        outcomes = []
        for each in job.variants:
            size, name = each.name.split(" ", 1)
            seconds = self.seconds(int(size), name.split(",")[0])
            outcomes.append(Outcome(each.name, (seconds,) * job.rounds, (), 0.0, 0.0, num_wrong=0))
        return JobResult(tuple(outcomes), job.rounds, 0, {"mpi": "planted", "host": "here"})


def test_the_contest_takes_the_fastest_at_each_size():
    aim, machine = Aim("all_reduce", 4), star(4)
    least, middle, most = SIZES
    best = {least: "library"} | {size: shortlist(aim, size, machine)[1].choice.algorithm for size in (middle, most)}
    executor = Planted(lambda size, name: 1e-5 if name == best[size] else 2e-5)
    found = contest(aim, SIZES, machine, executor)
    assert {each.num_bytes: each.choice.algorithm for each in found.judged} == best
    assert [found.selection.lookup("all_reduce", 4, size).algorithm for size in SIZES] == list(best.values())
    assert found.judged[1].speedup == pytest.approx(2.0)
    assert all(each.check for each in executor.jobs[-LAUNCHES].variants)
    assert all(job.num_ranks == 4 for job in executor.jobs)


class Beside(Planted):
    """The same, beside another program in one of the launches of each final."""

    def execute(self, job: Job) -> JobResult:
        share = 0.3 if len(self.jobs) % 2 else 0.0
        return replace(super().execute(job), disturbed=4, load=Load(share, 0.0, "core 1", "core 1"))


def test_what_other_programs_took_is_told_once():
    found = contest(Aim("all_reduce", 4), SIZES, star(4), Beside(lambda *_: 1e-5))
    assert [each.to_json()["foreign_load"] for each in found.judged] == [0.3] * len(SIZES)
    assert [each.to_json()["steal"] for each in found.judged] == [0.0] * len(SIZES)
    assert found.notes == ("Other programs used 30 % of core 1: repeat on a quiet machine.",)


def test_a_budget_that_is_spent_leaves_sizes_out_and_says_so():
    found = contest(Aim("all_reduce", 4), (64, 16 << 20, 32 << 20), star(4), Planted(lambda *_: 1e-5), budget_s=0.0)
    assert [each.num_bytes for each in found.judged] == [64]
    assert str(16 << 20) in found.notes[0]


class Breaking(Planted):
    """An executor whose jobs break where one of `names` runs."""

    def __init__(self, *names: str):
        super().__init__(lambda *_: 1e-5)
        self.names = names

    def execute(self, job: Job) -> JobResult:
        for each in job.variants:
            if any(name in each.name for name in self.names):
                raise RunError(f"rank 1 failed: variant '{each.name}', round 0: rank 1 stalled")
        return super().execute(job)


def test_what_breaks_its_job_is_left_out_and_named():
    names = "ring_all_reduce", "recursive_doubling_all_reduce"
    found = contest(Aim("all_reduce", 4), [1024], star(4), Breaking(*names))
    assert found.judged[0].num_bytes == 1024
    assert not {choice for choice in found.judged[0].tried if choice.algorithm in names}
    assert [note.split(":")[0] for note in found.notes] == [
        f"{name} was left out at 1024 bytes" for name in names[::-1]
    ]


def test_a_library_that_breaks_the_job_is_no_choice_of_ours():
    with pytest.raises(RunError, match="library"):
        contest(Aim("all_reduce", 4), [1024], star(4), Breaking("library"))
    found = contest(Aim("all_reduce", 4), [1024, 16 << 20], star(4), Breaking("16777216 library"))
    assert [each.num_bytes for each in found.judged] == [1024]
    assert "16777216" in found.notes[0]


def test_long_runs_get_what_short_ones_leave():
    assert fill([1.0, 9.0, 2.0], 8.0) == [1.0, 5.0, 2.0]
    lists = {size: [Contender(Choice(name), size * 1e-8) for name in "abcdefgh"] for size in (1024, 16 << 20)}
    arena = Arena(Aim("all_reduce", 2), Planted(lambda *_: 1.0), 0, 9, lists)
    assert arena.run_s(16 << 20) == pytest.approx(0.168, rel=0.01)
    arena.fastest_s[1024] = 2 * 1024e-8
    assert arena.run_s(16 << 20) == pytest.approx(0.336, rel=0.01)  # predictions were off by two so far
    assert arena.heat_s([1024]) < 1.5 < arena.heat_s([16 << 20])


def test_a_heat_that_cannot_be_afforded_is_left_out():
    lists = {16 << 20: [Contender(Choice("ring_all_reduce", n), 1.0 + n) for n in (1, 2, 4)]}
    executor = Planted(lambda *_: 2.0)
    arena = Arena(Aim("all_reduce", 2), executor, 0, 9, lists)
    assert arena.heat([16 << 20], 10.0) == {16 << 20: {}}
    assert not executor.jobs
    assert len(arena.heat([16 << 20], 35.0)[16 << 20]) == 3  # the library and two
    assert (executor.jobs[0].warmup, executor.jobs[0].budget_s) == (0, 35.0)


def test_the_program_of_the_library_is_one_call():
    program = library_program(Aim("all_gather", 4))
    assert (program.num_ops, program.collectives[0].kind) == (4, "all_gather")


# What is held against float64


def ran(program, dtype="float32", op="sum", elements=5):
    """A run of a program on this machine's threads: its workload, its inputs and what each rank holds in the end."""
    workload = Workload({b.name: (Slot((elements,), dtype),) * program.num_ranks for b in program.buffers})
    inputs = fresh_inputs(program, workload, seed=3)
    outputs = execute(program, inputs, workload=workload, reduce_op=op).outputs
    return workload, inputs, outputs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("op", ["sum", "min", "max", "prod"])
def test_right_results_pass_and_planted_ones_do_not(dtype, op):
    program = build("ring_all_reduce", 3)
    workload, inputs, outputs = ran(program, dtype, op)
    for rank in range(3):
        held = {"input": outputs["input"][rank]}
        found = check_rank(program, workload, rank, held, lambda name, at: inputs[name][at], op)
        assert found.num_wrong == 0, found
        held["input"][1, 2] += 3
        found = check_rank(program, workload, rank, held, lambda name, at: inputs[name][at], op)
        assert found.num_wrong == 1
        assert found.max_rel_error > found.tolerance


def test_what_is_only_moved_must_be_equal_to_the_bit():
    program = build("ring_all_gather", 3)
    workload, inputs, outputs = ran(program)
    held = {"output": outputs["output"][0], "input": inputs["input"][0]}
    asked = program, workload, 0, held, lambda name, at: inputs[name][at]
    assert check_rank(*asked).num_wrong == 0
    held["output"][2, 0] = np.nextafter(held["output"][2, 0], np.float32(2))
    held["output"][0, 1] = np.nan
    assert check_rank(*asked).num_wrong == 2


def lying() -> Job:
    """A program that says it is an all_reduce, and only sends each rank's array to the other."""
    b = Builder("lying", 2)
    b.buffer("input", "input", 1), b.buffer("output", "output", 1)
    b.post((0, 1), Region("output", 0, 1), [Term(None, ((rank, Region("input", 0, 1)),)) for rank in (0, 1)])
    for rank in (0, 1):
        send, recv = b.lane("send", "net"), b.lane("recv", "net")
        b.add(Kind.send, rank, send, reads=[Region("input", 0, 1)], chan_out=b.channel(rank, 1 - rank))
        b.add(Kind.recv, rank, recv, writes=[Region("output", 0, 1)], chan_in=b.channel(1 - rank, rank))
    workload = Workload({name: (Slot((1000,), "float32"),) * 2 for name in ("input", "output")})
    return Job((Variant("lying", b.build(), workload, RunOptions(spans=False), True),), rounds=2)


@pytest.mark.mpi
def test_a_job_counts_wrong_elements_on_all_ranks(mpi, tmp_path):
    aim = Aim("all_reduce", 2)
    choices = [Choice(), Choice("ring_all_reduce"), Choice("recursive_doubling_all_reduce")]
    honest = Job(tuple(variant(aim, choice, 4000, 20, True) for choice in choices), rounds=2)
    ask, answer = tmp_path / "ask", tmp_path / "answer"
    ask.write_bytes(pickle.dumps([(honest, None, True), (lying(), None, False)]))
    command = [str(mpi.python), str(Path(__file__).parent / "mpi_job.py"), str(ask), str(answer)]
    done = subprocess.run(command, env=mpi.env, text=True, capture_output=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    right, wrong = pickle.loads(answer.read_bytes())
    assert isinstance(right, JobResult), right
    assert [outcome.num_wrong for outcome in right.outcomes] == [0, 0, 0]
    assert all(outcome.timelines == () for outcome in right.outcomes)
    assert all(outcome.median_s > 0 for outcome in right.outcomes)
    assert wrong["lying"].num_wrong > 1900  # a rank's own part may be 0


# The command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune", "all_reduce", "--ranks", "2", "--m", "64"], "--m"),
        (["tune", "all_reduce", "--ranks", "2", "--schedule", "mc2"], "--schedule"),
        (["tune", "all_reduce", "--ranks", "2", "--min", "64K", "--max", "1K"], "--min"),
        (["tune", "all_reduce", "--ranks", "1"], "ranks"),
        (["tune", "all_reduce", "--ranks", "3", "--nodes", "2"], "nodes"),
        (["tune", "all_reduces", "--ranks", "2"], "all_reduce"),
        (["tune", "matmul_all_reduce", "--ranks", "2", "--m", "64"], "--k, --n"),
        (["tune", "matmul_all_reduce", "--ranks", "2", "--m", "4", "--k", "4", "--n", "4", "--min", "1K"], "--min"),
        (["bench", "all_gater", "--ranks", "2"], "all_gather"),
        (["bench", "all_gather", "--ranks", "2", "--algorithm", "ring_all_gater"], "ring_all_gather"),
    ],
)
def test_misuse_is_told_before_anything_runs(words, said, capsys, monkeypatch):
    monkeypatch.setattr("dovetail.run.mpi.MpiExecutor.execute", lambda *_: pytest.fail("ranks were started"))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_a_selection_can_be_shown(capsys, tmp_path):
    path = table((Choice(), 1024), (RING, 4096), (RING, 16384)).save(tmp_path / "s.json")
    assert main(["show", str(path)]) == 0
    assert "ring_all_reduce, 2 channels  2.00 … 2.00" in capsys.readouterr().out


def test_bandwidths_are_those_of_nccl_tests():
    assert [bus_factor(name, 8) for name in ("all_reduce", "reduce_scatter", "all_to_all")] == [1.75, 0.875, 0.875]
    assert bus_factor("broadcast", 8) == bus_factor("all_to_next", 8) == 1.0


# On real ranks


def dovetail(mpi: needs.Mpi, cache: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(mpi.python), "-m", "dovetail", *map(str, words)]
    env = mpi.env | {"DOVETAIL_CACHE": str(cache)}
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=280, check=False)


@pytest.mark.mpi
@pytest.mark.parametrize(("collective", "ranks"), [("all_reduce", 2), ("all_gather", 3)])
def test_tune_then_bench(mpi, collective, ranks, tmp_path):
    machine = replace(load("shared-memory-2"), ranks=ranks, nodes=(0,) * ranks)
    (tmp_path / "machine.json").write_text(json.dumps(machine.to_json()))
    span = ["--min", "64", "--max", "4K", "--factor", "64", "--ranks", ranks]
    limits = ["--rounds", 3, "--budget", 1, "--machine", tmp_path / "machine.json", "--out", tmp_path / "o"]
    done = dovetail(mpi, tmp_path, "tune", collective, *span, *limits, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["rows"]
    assert all(row["measured_s"] <= row["library_s"] for row in document["rows"])
    assert all(not row["wrong"] for row in document["rows"])
    found = Selection.load(tmp_path / "o" / "selection.json")
    assert found.lookup(collective, ranks, 64) is not None
    assert (tmp_path / "o" / "nccl_tuner.conf").read_text().startswith("# collective_type")
    timed = dovetail(mpi, tmp_path, "bench", collective, *span, "--rounds", 2, "--json")
    assert timed.returncode == 0, timed.stderr
    rows = json.loads(timed.stdout)["rows"]
    assert [row["num_wrong"] for row in rows] == [0] * len(rows)
    chosen = [row["algorithm"] for row in document["rows"]]
    assert [row["algorithm"] for row in rows][: len(chosen)] == chosen
