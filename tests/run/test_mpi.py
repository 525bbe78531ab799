"""The mpi executor on real ranks, under each MPI: results, timelines, faults; and what it is made of, without ranks."""

import os
import pickle
import random
import shutil
import subprocess
import tempfile
from dataclasses import replace
from itertools import pairwise

import needs
import numpy as np
import pytest
from matmul_programs import program
from run_programs import DTYPES, Maker, library_call, uneven_of, workload_of

from dovetail.collective import ALGORITHMS, build
from dovetail.core import EnvironmentFault, OperatorError, ProgramError, cache_dir, compiler
from dovetail.ir import Builder, Kind, Region, Slot, Term, Workload, verify
from dovetail.ir.shapes import ring_all_reduce
from dovetail.matmul import MatmulAllReduce
from dovetail.run import numpy_dtype
from dovetail.run.engine import DTYPES as NATIVE_DTYPES
from dovetail.run.job import Job, Variant, disturbed_rounds, run_rounds
from dovetail.run.mpi.executor import MpiExecutor
from dovetail.run.options import RunOptions
from dovetail.run.ranks import library as mpi_library
from dovetail.run.ranks.worker import closest_to_median, merge_facts
from dovetail.run.reduce import REDUCE_OPS

REDUCING = ("all_reduce", "reduce_scatter")
FLOATS = DTYPES[:4]
BOTH = (RunOptions("poll", window=4), RunOptions("thread"))
SLICED = (RunOptions(slice_bytes=64), RunOptions("thread", slice_bytes=20_000))
LARGE = ((BOTH[0], 60_000), (SLICED[0], 20_000), (SLICED[1], 60_000))  # how, and the bytes of a message


def random_cases(ranks: int, count: int):
    """Random verified programs on exactly so many ranks; half types only where no library adds."""
    cases, seed = [], 0
    while len(cases) < count:
        asked = Maker(random.Random(seed), 16).program()
        seed += 1
        if asked.num_ranks != ranks:
            continue
        asked = asked.with_depth(verify(asked).min_fifo_depth)
        adds = any(call.kind in REDUCING for call in asked.collectives)
        dtype = (DTYPES[2:] if adds else DTYPES)[len(cases) % (6 if adds else 8)]
        length = 3 if adds else 3 + 30 * (len(cases) % 2)  # Open MPI's own sums of 8 bits saturate where they are long
        cases.append((asked, workload_of(asked, (length,), dtype), BOTH + SLICED[: len(cases) % 2]))
    return cases


def collective_cases(ranks: int):
    """Every built-in algorithm, slots of every size, whole and in pieces."""
    cases = []
    for place, name in enumerate(ALGORITHMS):
        try:
            asked = build(name, ranks)
        except OperatorError:  # an algorithm for other numbers of ranks
            continue
        dtype, most = DTYPES[place % len(DTYPES)], (40, 30_000)[place % 2]
        op = "avg" if dtype in FLOATS and place % 3 == 0 else "sum"
        how = [replace(each, reduce_op=op) for each in (RunOptions(spans=False), SLICED[place // 2 % 2])]
        cases.append((asked, uneven_of(asked, dtype, place, most), how))
    return cases


def uneven_cases(ranks: int):
    """The library's collectives in parts of different sizes, some of them of nothing, on all ranks and on some."""
    rng, cases = np.random.default_rng(ranks), []
    how = (*BOTH, RunOptions(blocking=True))
    for turn in range(12):
        group = tuple(rng.permutation(ranks)[: max(1, ranks - turn % 2)].tolist())
        matrix = rng.integers(0, 4, (len(group), len(group)))
        if turn > 9:
            matrix[...] = 0
        dtype = DTYPES[turn % len(DTYPES)]
        for kind in ("all_gather", "reduce_scatter", "all_to_all"):
            counts = matrix.tolist() if kind == "all_to_all" else matrix[0].tolist()
            for in_place in (False, True) if kind == "all_gather" else (False,):
                asked = library_call(kind, counts, group, in_place, turn % 3 == 0, ranks)
                cases.append((asked, workload_of(asked, (3,), dtype), how))
                cases.append((asked, uneven_of(asked, dtype, turn), how[turn % 3 :][:1]))
    return cases


def library(ranks: int):
    """An all_reduce of the library's own."""
    b, everyone = Builder("library", ranks), range(ranks)
    b.buffer("x", "input", 2), b.buffer("y", "output", 2)
    x, y, net = Region("x", 0, 2), Region("y", 0, 2), b.lane("net", "net")
    for rank in everyone:
        call = b.collective("all_reduce", tuple(everyone))
        b.add(Kind.collective, rank, net, reads=[x], writes=[y], call=call)
    b.post(everyone, y, [Term(None, ((rank, x),)) for rank in everyone])
    return b.build()


def shipped_cases(ranks: int):
    """Rings whose messages are large enough for a rendezvous, or hundreds of pieces; and products of every family."""
    cases = []
    for turn, dtype in enumerate(NATIVE_DTYPES):
        ring, (how, num_bytes) = ring_all_reduce(ranks, 2, 2), LARGE[turn % 3]
        length = num_bytes // numpy_dtype(dtype).itemsize
        cases.append((ring.with_depth(1), workload_of(ring, (length,), dtype), (how,)))
        ops = REDUCE_OPS if dtype in FLOATS else REDUCE_OPS[:4]
        how = [RunOptions(reduce_op=op, blocking=bool(place % 2)) for place, op in enumerate(ops)]
        for asked in (ring.with_depth(1), library(ranks)):
            cases.append((asked, workload_of(asked, (9,), dtype), how))
    for dtype in DTYPES[:4]:
        operator = MatmulAllReduce(24, 6, 5, dtype)
        for family in ("library", "ring", *(["exchange"] if ranks == 2 else [])):
            asked = program(operator, ranks, [7, 17], family)
            cases.append((asked, operator.workload(asked, operator.serial(asked.num_ranks)), BOTH))
    return cases


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_results_equal_the_reference(mpi, ranks, tmp_path):
    cases = tmp_path / "cases"
    cases.write_bytes(
        pickle.dumps([*random_cases(ranks, 30), *shipped_cases(ranks), *collective_cases(ranks), *uneven_cases(ranks)])
    )
    done = mpi.run(ranks, needs.RANKS / "mpi_ranks.py", cases, timeout_s=280)
    assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


LATE = """
from dovetail.core import RunError
from dovetail.run.ranks.library import Shim, build_shim
from dovetail.run.ranks.world import World

world = World(Shim(build_shim()))
if world.rank == 0:
    try:
        world.recv(1, limit_s=0.2)
    except RunError as error:
        print(error)
    world.send("now", 1)
    print(world.recv(1))
else:
    world.recv(0)
    world.send("after all", 0)
world.finalize()
"""


@pytest.mark.mpi
def test_a_receive_that_was_given_up_takes_nothing(mpi):
    """What comes after all is there for the next receive, and does not land in memory of before."""
    done = mpi.run(2, "-c", LATE)
    assert "rank 1 did not answer rank 0" in done.stdout, done.stderr[-2000:]
    assert "after all" in done.stdout, done.stderr[-2000:]


def product_job() -> Job:
    operator = MatmulAllReduce(64, 32, 48, "float32")
    variants = []
    for family in ("library", "exchange", "ring"):
        asked = program(operator, 2, [16, 16, 32], family)
        for how in BOTH:
            variants.append(
                Variant(
                    f"{family} {how.progress}",
                    asked,
                    operator.workload(asked, operator.serial(asked.num_ranks)),
                    how,
                    True,
                )
            )
    return Job(tuple(variants), rounds=3, keep_all=True)


def lying_product() -> Job:
    """A program that takes its own part of the product for the whole."""
    operator = MatmulAllReduce(64, 32, 48, "float32")
    asked = program(operator, 2, [64], "library")
    col = {name: column.copy() for name, column in asked.columns.items()}
    col["kind"][col["kind"] == Kind.collective] = Kind.copy
    return Job(
        (
            Variant(
                "lying", asked.with_columns(col), operator.workload(asked, operator.serial(asked.num_ranks)), check=True
            ),
        ),
        rounds=1,
    )


def short_message() -> Job:
    """A receive larger than its message: MPI itself takes that without a word."""
    b = Builder("short", 2)
    b.buffer("x", "input", 1), b.buffer("y", "output", 1)
    net = b.lane("net", "net")
    b.add(Kind.send, 0, net, reads=[Region("x", 0, 1)], chan_out=b.channel(0, 1))
    b.add(Kind.recv, 1, net, writes=[Region("y", 0, 1)], chan_in=b.channel(0, 1))
    workload = Workload({"x": (Slot((4,), "int8"),) * 2, "y": (Slot((6,), "int8"),) * 2})
    return Job((Variant("short", b.build(), workload),), rounds=1)


def stalling() -> Job:
    """Rank 1 waits for a message that rank 0 never sends."""
    b = Builder("stall", 2)
    b.buffer("y", "output", 1)
    b.add(Kind.nop, 0, b.lane("net", "net"))
    b.add(Kind.recv, 1, b.lane("net", "net"), writes=[Region("y", 0, 1)], chan_in=b.channel(0, 1))
    workload = Workload({"y": (Slot((4,), "int8"),) * 2})
    return Job((Variant("stall", b.build(), workload, RunOptions(stall_s=0.5)),), rounds=1)


@pytest.fixture(scope="module", params=["mpich", "openmpi"])
def answers(request, tmp_path_factory):
    """What one MPI makes of all the jobs of this file."""
    mpi, place = needs.mpi(request.param), tmp_path_factory.mktemp("jobs")
    jobs = {
        "products": (product_job(), None, True),
        "lying": (lying_product(), None, False),
        "three": (product_job(), 3, True),
        "short": (short_message(), None, True),
        "stall": (stalling(), None, False),
    }
    (place / "ask").write_bytes(pickle.dumps(list(jobs.values())))
    command = [str(mpi.python), str(needs.RANKS / "mpi_job.py"), str(place / "ask"), str(place / "answer")]
    done = needs.subprocess.run(command, env=mpi.env, text=True, capture_output=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(jobs, pickle.loads((place / "answer").read_bytes()), strict=True))


@pytest.mark.mpi
class TestJobs:
    def test_products_are_right(self, answers):
        result = answers["products"]
        assert result.rounds >= 3
        for outcome in result.outcomes:
            assert outcome.num_wrong == 0
            assert outcome.max_rel_error < outcome.tolerance
            assert len(outcome.seconds) == result.rounds

    def test_a_wrong_product_is_noticed(self, answers):
        (outcome,) = answers["lying"].outcomes
        assert outcome.num_wrong > 2 * 48, "of both ranks"
        assert outcome.max_rel_error > outcome.tolerance

    def test_timelines_tell_one_story(self, answers):
        for variant, outcome in zip(product_job().variants, answers["products"].outcomes, strict=True):
            for timeline in outcome.timelines:
                self.check_timeline(variant.program, timeline)
            longest = max(outcome.seconds)
            ends = [timeline.columns["end_s"].max() for timeline in outcome.timelines]
            assert np.median(ends) < 3 * longest + 2 * outcome.timelines[0].meta["clock_error_s"]

    def check_timeline(self, asked, timeline):
        col = timeline.columns
        assert sorted(col["op"]) == list(range(asked.num_ops))
        assert (col["start_s"] >= 0).all()
        assert (col["end_s"] >= col["start_s"]).all()
        assert timeline.meta["clock_error_s"] == 0.0, "ranks of one host read one clock"
        row = {int(op): i for i, op in enumerate(col["op"])}
        start, end = ([col[f"{side}_s"][row[i]] for i in range(asked.num_ops)] for side in ("start", "end"))
        for op in asked.ops():
            assert all(end[before] <= start[op.index] + 1e-9 for before in op.after)
        begun = list(start)
        for rows in asked.queues().values():
            order = sorted(rows, key=lambda i: (start[i], end[i]))
            assert all(end[a] <= start[b] + 1e-9 for a, b in pairwise(order))
            for a, b in pairwise(order):  # what began beside the one before is shown after it
                begun[b] = begun[a] if start[b] <= end[a] + 1e-9 else start[b]
        self.check_messages(asked, begun, end, 1e-6)  # what two engines' readings of it may differ by

    def check_messages(self, asked, begun, end, slack_s):
        """No message comes before it was sent, on the common clock."""
        ends = {}
        for op in asked.ops():
            if op.kind == Kind.send:
                ends.setdefault(op.chan_out, ([], []))[0].append(begun[op.index])
            elif op.chan_in >= 0:
                ends.setdefault(op.chan_in, ([], []))[1].append(end[op.index])
        for sent, came in ends.values():
            if len(sent) == len(came):
                assert all(s <= c + slack_s for s, c in zip(sent, came, strict=True))

    def test_facts_name_the_library(self, answers):
        assert any(name in answers["products"].facts["mpi"] for name in ("MPICH", "Open MPI"))

    def test_wrong_number_of_ranks(self, answers):
        assert "the job has 2 ranks, the launcher started 3" in answers["three"]

    def test_a_message_shorter_than_its_receive(self, answers):
        assert "rank 1 failed" in answers["short"]
        assert "the message has another size than its receive" in answers["short"]

    def test_a_stall_is_reported(self, answers):
        assert "rank 1 stalled: no op moved for" in answers["stall"]
        assert "waits at its op 0 'recv'" in answers["stall"]
        assert "for a message from rank 0" in answers["stall"]


def test_a_bad_program_starts_no_rank(tmp_path):
    right = product_job().variants[0]
    col = dict(right.program.columns)
    col["dep_start"], col["dep"] = np.zeros_like(col["dep_start"]), col["dep"][:0]
    job = Job((right, Variant("wrong", right.program.with_columns(col), right.workload)))
    with pytest.raises(ProgramError, match="races"):
        MpiExecutor(launch="false", folder=tmp_path / "never").execute(job)
    assert not (tmp_path / "never").exists()


class TestRounds:
    def job(self, rounds=5, variants=1, **rest):
        variant = product_job().variants[0]
        return Job((variant,) * variants, rounds=rounds, warmup=1, **rest)

    def test_steady_noise_is_no_disturbance(self):
        seconds = 1 + 0.1 * np.random.default_rng(0).random((40, 3))
        assert not disturbed_rounds(seconds).any()

    def test_one_variant_disturbs_its_round(self):
        seconds = np.ones((9, 2))
        seconds[4, 1] = 1.5
        assert np.flatnonzero(disturbed_rounds(seconds)).tolist() == [4]

    def test_disturbed_rounds_are_repeated(self):
        times = iter([9.0, 1, 1.01, 7, 1, 0.99, 1])
        seconds, disturbed, kept = run_rounds(self.job(), lambda variant, index: next(times), lambda: 0.0)
        assert seconds[:, 0].tolist() == [1, 1.01, 1, 0.99, 1]
        assert disturbed == 1
        assert kept == [1, 2, 4, 5, 6]

    def test_repeats_are_bounded(self):
        calls = []

        def run_one(variant, index):
            calls.append(index)
            return 1.0 + 5 * (index % 2)

        run_rounds(self.job(rounds=4), run_one, lambda: 0.0)
        assert len(calls) <= 1 + 2 * 4

    def test_variants_change_places_and_keep_their_columns(self):
        job, orders = self.job(rounds=8, variants=3), []
        named = tuple(replace(variant, name=str(i)) for i, variant in enumerate(job.variants))

        def run_one(variant, index):
            orders.append(variant.name)
            return 1.0 + int(variant.name)

        seconds = run_rounds(replace(job, variants=named), run_one, lambda: 0.0).seconds
        assert (seconds == [1.0, 2.0, 3.0]).all()
        rounds = {tuple(orders[i : i + 3]) for i in range(0, len(orders), 3)}
        assert len(rounds) > 2
        assert all(set(names) == {"0", "1", "2"} for names in rounds)

    def test_time_is_up(self):
        clock = iter(range(100))
        ran = run_rounds(self.job(rounds=50, budget_s=3), lambda variant, index: 1.0, lambda: float(next(clock)))
        assert 3 <= len(ran.seconds) <= 5

    def test_the_round_shown_is_the_median(self):
        from dovetail.run.ranks.worker import Spans

        spans = [Spans(0.0, [0], [0.0], [end]) for end in (5.0, 1.0, 3.0)]
        assert closest_to_median([5.0, 1.0, 3.0], spans) == 2

    def test_facts_merge(self):
        assert merge_facts([{"a": 1, "b": 2}, {"a": 1, "b": 3}]) == {"a": 1, "b": [2, 3]}


@pytest.mark.needs("mpich", "compiler")
class TestShim:
    def test_is_built_once(self, tmp_path, monkeypatch):
        monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))
        first = mpi_library.build_shim()
        stamp = first.stat().st_mtime_ns
        compiler._answer.cache_clear()  # as in another process
        asked, run = [], subprocess.run
        monkeypatch.setattr(subprocess, "run", lambda line, **how: asked.append(line) or run(line, **how))
        assert mpi_library.build_shim() == first
        assert first.stat().st_mtime_ns == stamp
        assert [line[1:] for line in asked] == [["-show"]]
        assert [path.name for path in (tmp_path / "cache" / "libraries").iterdir()] == [first.name]

    @pytest.mark.slow
    def test_another_source_is_another_shim(self, tmp_path, monkeypatch):
        monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
        first = mpi_library.build_shim()
        changed = tmp_path / "source" / mpi_library.SOURCE.name
        shutil.copytree(mpi_library.SOURCE.parent, changed.parent, ignore=shutil.ignore_patterns("*.py*"))
        changed.write_text(mpi_library.SOURCE.read_text() + "/* more */\n")
        monkeypatch.setattr(mpi_library, "SOURCE", changed)
        assert mpi_library.build_shim() != first

    def test_what_does_not_compile_is_reported(self, tmp_path, monkeypatch):
        monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path))
        broken = tmp_path / "source" / mpi_library.SOURCE.name
        broken.parent.mkdir()
        broken.write_text("not C\n")
        monkeypatch.setattr(mpi_library, "SOURCE", broken)
        with pytest.raises(EnvironmentFault, match="could not compile the MPI shim"):
            mpi_library.build_shim()
        assert not list(tmp_path.rglob("*.so"))

    def test_of_another_version_is_refused(self, tmp_path):
        source, library = tmp_path / "old.c", tmp_path / "old.so"
        source.write_text("struct { int version; void* functions[64]; } dovetail_mpi_table = {4};\n")
        subprocess.run([shutil.which("cc") or shutil.which("gcc"), "-shared", "-o", library, source], check=True)
        with pytest.raises(EnvironmentFault, match="differ in version"):
            mpi_library.Shim(library)


def test_no_mpi(monkeypatch):
    monkeypatch.setattr(mpi_library, "find_tool", lambda *names: None)
    with pytest.raises(EnvironmentFault, match="no MPI found"):
        mpi_library.build_shim()


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOVETAIL_CACHE", os.fspath(tmp_path / "file" / "cache"))
    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.warns(RuntimeWarning, match="cannot write to the cache"):
        assert tmp_path in cache_dir().parents
