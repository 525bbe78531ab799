"""Running programs with kernels from files: the operator is named in the file or on the command line."""

import json
from dataclasses import replace

import pytest

import dovetail as dt
from dovetail.cli.provenance import with_made_of
from dovetail.core import OperatorError, save_json, save_text
from dovetail.ir import to_text
from dovetail.ir.registry import BUILT_IN, operator_class
from dovetail.matmul import MATMUL, AllToAllMatmul, MatmulAllReduce, Product
from dovetail.store.provenance import MadeOf, shaped

OPERATORS = [name for name in BUILT_IN if issubclass(operator_class(name), Product)]
TINY = "--m", "13", "--k", "9", "--n", "11"


@pytest.fixture
def ran(call):
    """Return a function that runs a command, checks that results are correct, and returns its JSON document."""

    def _ran(*words):
        code, out, err = call("run", *words, "--rounds", "1", "--seed", "5", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert found["num_wrong"] == 0
        assert found["max_rel_error"] <= found["tolerance"]
        return found

    return _ran


def planned(operator, place, **asked):
    """Write a plan to a file."""
    return save_json(place / "plan.json", dt.plan(operator, "shared-memory-2", extrapolate=True, **asked).to_json())


def serial_file(operator, place, ranks=3):
    """Write the serial schedule of an operator, and its provenance, to a file."""
    serial = operator.serial(ranks)
    text = with_made_of(to_text(operator.program(serial, ranks)), "text", MadeOf(operator, serial))
    return save_text(place / "serial.txt", text)


def compiled(call, plan, form, place):
    """Return the file that `compile` writes for a plan."""
    assert call("compile", plan, "--to", form, "--out", place)[0] == 0
    return place


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_runs_from_a_file_whatever_its_schedule(call, ran, tmp_path, name):
    operator, families = operator_class(name)(13, 9, 11), set()
    for family in operator.families:
        try:
            plan = planned(operator, tmp_path, schedule=family)
        except dt.DovetailError:  # that family has nothing for so few rows
            continue
        families.add(family)
        file = compiled(call, plan, "text", tmp_path / "program.txt")
        assert ran(file, "--on", "numpy")["operator"] == operator.title
    assert len(families) > 2
    assert ran(serial_file(operator, tmp_path), "--on", "numpy")["ranks"] == 3
    again = compiled(call, file, "json", tmp_path / "program.json")  # the provenance is kept
    found = ran(again, "--on", "threads")
    assert (found["ranks"], found["dtype"], found["program"]) == (2, "float32", name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_every_dtype(ran, tmp_path, dtype):
    file = serial_file(MatmulAllReduce(16, 9, 5, dtype), tmp_path)
    for place in ("numpy", "threads"):
        assert ran(file, "--on", place)["dtype"] == dtype


def test_tokens_shared_unevenly(ran, tmp_path):
    counts = ((0, 4, 1), (2, 0, 0), (0, 3, 3))
    assert ran(serial_file(AllToAllMatmul(13, 5, 4, counts=counts), tmp_path), "--on", "threads")["ranks"] == 3


@pytest.mark.parametrize(("name", "sizes"), [("jacobi2d", {"grid": "12x10", "steps": 2}), ("lcs", {"grid": "24x20"})])
def test_nests_are_compared_with_their_reference(ran, tmp_path, name, sizes):
    (operator,) = operator_class(name).points(**sizes)
    found = ran(serial_file(operator, tmp_path, 2), "--on", "threads")
    assert found["operator"] == operator.title


@pytest.mark.mpi
@pytest.mark.needs("mpich")
@pytest.mark.parametrize("name", OPERATORS)
def test_on_ranks(call, ran, tmp_path, name):
    plan = planned(operator_class(name)(13, 9, 11), tmp_path)
    found = ran(compiled(call, plan, "json", tmp_path / "program.json"))
    assert "MPICH" in found["facts"]["mpi"]


@pytest.mark.parametrize("place", ["numpy", "threads"])
def test_a_wrong_product_is_reported(call, tmp_path, monkeypatch, place):
    """Planted fault: a kernel adds one to an element."""
    plan = planned(MatmulAllReduce(8, 9, 5), tmp_path)
    file = compiled(call, plan, "text", tmp_path / "program.txt")
    right = MadeOf.workload

    def wrong(reads, writes):
        MATMUL.call(reads, writes)
        writes[0].flat[0] += 1

    planted = replace(MATMUL, call=wrong, native=None)
    monkeypatch.setattr(MadeOf, "workload", lambda self, program: replace(right(self, program), forms=(planted,)))
    code, out, _ = call("run", file, "--on", place, "--rounds", "1")
    assert code == 1
    assert "WRONG" in out


class TestWhatAFileLacks:
    @pytest.fixture
    def bare(self, tmp_path):
        """Return a file with a program of products without provenance."""
        operator = MatmulAllReduce(13, 9, 11)
        (tmp_path / "bare.txt").write_text(to_text(operator.program(operator.serial(2), 2)))
        return tmp_path / "bare.txt"

    def test_the_error_asks_for_it(self, call, bare):
        code, _, err = call("run", bare, "--on", "numpy")
        assert code == 2
        assert all(word in err for word in ("kernels matmul", "--operator", "--shape A=… --shape B=…"))

    def test_may_be_given_by_an_operator(self, ran, bare):
        found = ran(bare, "--on", "numpy", "--operator", " ".join(["matmul_all_reduce", *TINY, "--dtype", "float64"]))
        assert (found["operator"], found["dtype"]) == ("matmul_all_reduce 13 × 9 × 11 float64", "float64")

    def test_may_be_given_by_a_plan(self, ran, bare, tmp_path):
        plan = planned(MatmulAllReduce(13, 9, 11), tmp_path)
        assert ran(bare, "--on", "numpy", "--operator", plan)["operator"] == "matmul_all_reduce 13 × 9 × 11 float32"

    def test_may_be_given_by_shapes(self, ran, bare):
        shapes = [f"--shape={each}" for each in ("A=5,4", "B=5x11,4x11", "P=11", "C=11")]
        found = ran(bare, "--on", "numpy", "--dtype", "float64", *shapes)
        assert (found["operator"], found["dtype"]) == (None, "float64")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--operator", "matmul_all_reduce --m 14 --k 9 --n 11"], "the operator has 70"),
            (["--operator", "all_gather_matmul --m 13 --k 9 --n 11"], "is not one of all_gather_matmul"),
            (["--operator", "matmul_all_reduced --m 1"], "did you mean 'matmul_all_reduce'"),
            (["--operator", "matmul_all_reduce --m 13 --k 9"], "--n"),
            (["--operator", "matmul_all_reduce --m -1 --k 9 --n 11"], "Invalid value for '--m'"),
            (["--operator", ""], "--operator is empty"),
            (["--operator", '"'], "--operator"),
            (["--shape", "A=5"], "the shape of a slot of buffer 'B' is missing"),
            (["--shape", "Q=5"], "no buffer 'Q'"),
            (["--shape", "A"], "--shape BUFFER="),
            (["--shape", "A=5x"], "--shape BUFFER="),
            (["--shape", "A=5,4,3", "--shape", "B=5x11", "--shape", "P=11", "--shape", "C=11"], "3 shapes for 2 ranks"),
            (["--shape", "A=5", "--shape", "B=7x11", "--shape", "P=11", "--shape", "C=11"], "do not fit"),
        ],
    )
    def test_a_wrong_operator_is_reported(self, call, bare, words, said):
        code, _, err = call("run", bare, "--on", "numpy", *words)
        assert code == 2, err
        assert said in err
        assert "Traceback" not in err
        assert "fault of dovetail" not in err

    def test_kernels_that_only_their_operator_knows(self):
        (operator,) = operator_class("jacobi2d").points(grid="12x10", steps=2)
        program = operator.program(operator.serial(2), 2)
        with pytest.raises(OperatorError, match="is unknown without the program's operator"):
            shaped(program, {buffer.name: [[2]] for buffer in program.buffers}, "float32")


@pytest.mark.parametrize("words", [["--launch", "x"], ["--trace", "t"]])
def test_options_for_ranks_are_refused_elsewhere(call, tmp_path, words):
    plan = planned(MatmulAllReduce(8, 9, 5), tmp_path)
    code, _, err = call("run", plan, "--on", "threads", *words)
    assert code == 2
    assert f"ranks on 'threads' have no {words[0]}" in err


def test_a_plan_runs_without_an_mpi(call, tmp_path):
    plan = planned(MatmulAllReduce(64, 9, 5), tmp_path, schedule="uniform")
    for place in ("numpy", "threads"):
        code, out, err = call("run", plan, "--on", place, "--rounds", "1", "--json", "--out", tmp_path / place)
        assert code == 0, err
        found = json.loads(out)
        assert found["max_rel_error"] <= found["tolerance"]
        assert (tmp_path / place / "measured.json").exists() == (place == "threads")
