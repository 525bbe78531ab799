"""The command line: what it prints on stdout and stderr, and its exit codes."""

from __future__ import annotations

import importlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cli_reference
import needs
import pytest
import typer
from calm import be_calm
from sim_executor import SimExecutor, two_hosts

import dovetail
from dovetail import trace
from dovetail.cli import doctor, main
from dovetail.cli.app import ORDER, exit_code
from dovetail.cli.operators import OperatorRequest, Verb
from dovetail.cli.run import _note_library
from dovetail.core import CostError, EnvironmentFault, MachineError, OperatorError, PlanError, ProgramError, RunError
from dovetail.ir.registry import OPERATORS
from dovetail.machine import Machine
from dovetail.matmul import MatmulAllReduce
from dovetail.planner import plan
from dovetail.prober.baselines import Timing
from dovetail.store.machines import costs_on, machine_item, recall_machine, save_machine
from dovetail.trace import open_trace

GOLDEN = needs.GOLDEN
SIZES = ["--m", "512", "--k", "256", "--n", "128"]
ATLAS = ["--machine", "atlas-a2-8", "--m", "4096", "--k", "3072", "--n", "8192"]
SWAP = """program swap ranks 2
buffer x input 1
buffer y output 1
lane send net
lane recv net
channel 0->1 0 depth 1
channel 1->0 0 depth 1
post 0 y[0:1] = x@1[0:1]
post 1 y[0:1] = x@0[0:1]
rank 0 lane send
  send x[0:1] to 1
rank 0 lane recv
  recv from 1 -> y[0:1]
rank 1 lane send
  send x[0:1] to 0
rank 1 lane recv
  recv from 0 -> y[0:1]
"""


@pytest.fixture(autouse=True)
def _cache(own_cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def planned(call, tmp_path):
    """A folder with a plan for two ranks."""
    folder = tmp_path / "planned"
    code, _, err = call("plan", "matmul_all_reduce", *SIZES, "--machine", "shared-memory-2", "--out", folder)
    assert code == 0, err
    return folder


@pytest.fixture
def swap(tmp_path):
    path = tmp_path / "swap.txt"
    path.write_text(SWAP)
    return path


def dovetail_command(*words: object, **options):
    return subprocess.run(
        [sys.executable, "-m", "dovetail", *map(str, words)], capture_output=True, text=True, check=False, **options
    )


# The list of verbs and options


def option_lines() -> list[str]:
    lines = []
    for name, command in cli_reference.commands():
        lines.append(name)
        for param in command.params:
            default = "required" if param.required else f"default {param.default!r}"
            lines.append(f"  {' '.join(param.opts)}: {default}")
    return lines


def test_options_are_frozen():
    """A changed option breaks users' scripts. If the change is intended, change the golden file, too."""
    assert option_lines() == (GOLDEN / "cli_options.txt").read_text().splitlines()


def test_reference_page_is_current():
    assert (needs.ROOT / "docs" / "cli.md").read_text() == cli_reference.reference(), "python tools/cli_reference.py"


@pytest.mark.parametrize("verb", ORDER)
def test_every_verb_has_help(call, verb):
    code, out, err = call(verb, "--help")
    assert (code, err) == (0, "")
    assert f"dovetail {verb}" in out


def test_every_option_has_help():
    found = dict(cli_reference.commands())
    assert {name.split()[0] for name in found} == set(ORDER)
    assert all(param.help for command in found.values() for param in command.params)


@pytest.mark.parametrize("verb", ["tune", "probe", "plan"])
def test_every_verb_of_operators_shows_the_options_of_one(call, verb):
    code, out, err = call(verb, "matmul_all_reduce", "--help")
    assert (code, err) == (0, "")
    assert "--m " in out
    assert ("--by" in out) == (verb != "probe")
    assert "matmul_all_reduce" in call(verb, "--help")[1]


def test_help_without_a_verb(call):
    code, out, err = call()
    assert code == 2
    assert "tune" in out + err
    assert call("--help")[0] == 0


def test_version(call):
    assert call("--version") == (0, f"dovetail {dovetail.__version__}\n", "")


# Operators


def test_the_operator_may_follow_options(document):
    first = document("plan", "matmul_all_reduce", *ATLAS)
    assert document("plan", *ATLAS, "matmul_all_reduce") == first


class Bare:
    """An operator of another package."""

    name, families, by_size = "bare", ("serial", "wild"), False
    options = ()


def test_an_operator_of_another_package_has_its_command(monkeypatch, request):
    """The code of the command line contains neither its name, nor its options, nor its families."""
    from dovetail.ir import Option

    option = Option("grid_size", int, "Points.", 8, least=2)
    limit = Option("depth", int, "Steps at once.", of="schedules", choices=())
    Bare.options = (option, limit)
    monkeypatch.setitem(sys.modules, "elsewhere", SimpleNamespace(Bare=Bare))
    declare(monkeypatch, request, [SimpleNamespace(name="bare", value="elsewhere:Bare")])
    heard = []

    def listen(said: OperatorRequest, ranks: int = 2) -> None:
        heard.append((said, ranks))

    command = Verb(listen, limits=True).command("bare")
    assert [param.opts[0] for param in command.params] == ["--grid-size", "--schedule", "--depth", "--ranks"]
    command(["--grid-size", "9", "--schedule", "wild", "--depth", "3", "--ranks", "4"], standalone_mode=False)
    assert heard == [(OperatorRequest(Bare, {"grid_size": 9}, {"schedule": "wild", "depth": 3}), 4)]
    with pytest.raises(OperatorError, match="no operator 'bear'"):
        Verb(listen).command("bear")
    with pytest.raises(OperatorError, match="did you mean 'wild'"):
        command(["--schedule", "mild"], standalone_mode=False)


def declare(monkeypatch, request, points):
    """Declare these entry points of other packages until the test ends."""
    OPERATORS.forget()
    request.addfinalizer(OPERATORS.forget)
    monkeypatch.setattr("dovetail.core.registry.entry_points", lambda group: points)


BROKEN = {
    "absent": ("no_such_package:Operator", "ModuleNotFoundError: No module named 'no_such_package'"),
    "nameless": ("elsewhere:Missing", "AttributeError"),
    "raising": ("raises:Operator", "RuntimeError: at import"),
    "plain": ("elsewhere:number", "7"),
    "poor": ("elsewhere:Poor", "it lacks options"),
}


def test_a_broken_package_is_named_and_ignored(monkeypatch, request, tmp_path, call):
    """All other operators still plan. Asking for its operator by name raises an error with the reason."""
    (tmp_path / "raises.py").write_text("raise RuntimeError('at import')")
    monkeypatch.syspath_prepend(tmp_path)
    poor = type("Poor", (), {"name": "poor", "families": ("serial",), "by_size": False})
    monkeypatch.setitem(sys.modules, "elsewhere", SimpleNamespace(number=7, Poor=poor))
    points = [SimpleNamespace(name=name, value=place) for name, (place, _) in BROKEN.items()]
    points.append(SimpleNamespace(name="matmul_all_reduce", value="elsewhere:Poor", dist=SimpleNamespace(name="thief")))
    declare(monkeypatch, request, points)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        said = call("plan", "matmul_all_reduce", "--m", 64, "--k", 32, "--n", 64, "--machine", "shared-memory-2")
    assert said[0] == 0, said
    words = said[2]
    assert words.count("Warning: ") == 1 + len(BROKEN)
    assert "'matmul_all_reduce' of package thief is ignored" in words
    for name, (place, cause) in BROKEN.items():
        assert f"'{name}' of another package" in words
        code, _, errors = call("plan", name)
        assert code == 2
        assert place in errors
        assert cause in errors


def test_missing_options_come_from_the_machines_facts():
    from dovetail.machine import load
    from dovetail.matmul import MatmulAllReduce

    request = OperatorRequest(MatmulAllReduce, {"m": 8, "k": 4, "n": 2, "dtype": None}, {})
    assert request.operator(load("atlas-a2-8")).dtype == "float16"
    assert request.operator().dtype == "float32"
    assert request._replace(given={**request.given, "dtype": "float64"}).operator(load("atlas-a2-8")).dtype == "float64"


# Unknown names


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["plam"], "plan"),
        (["plan", "matmul_allreduce", *SIZES], "matmul_all_reduce"),
        (["plan", "matmul_all_reduce", *SIZES, "--machine", "atlas"], "atlas-a2-8"),
        (["plan", "matmul_all_reduce", *ATLAS, "--schedule", "optimum"], "optimal"),
        (["plan", "matmul_all_reduce", *ATLAS, "--reading", "maximum"], "max"),
        (["plan", "matmul_all_reduce", *ATLAS, "--dtype", "float61"], "float16"),
        (["plan", "matmul_all_reduce", *ATLAS, "--by", "rings"], "ring"),
        (["tune", "matmul_allreduce", *SIZES, "--ranks", "2"], "matmul_all_reduce"),
        (["plan", "matmul_all_reduce", *ATLAS, "--schedules", "mc2"], "--schedule"),
        (["probe", "matmul_allreduce", *SIZES], "matmul_all_reduce"),
        (["machines", "two-hosts"], "two-hosts-1"),
    ],
)
def test_unknown_names_offer_the_nearest(call, words, nearest):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert nearest in err.split("try")[-1] + err.split("Did you mean")[-1] + err.split("Possible")[-1]


def test_an_operator_tuned_by_size_names_the_verb_to_use(call):
    code, _, err = call("probe", "all_reduce", "--ranks", "2")
    assert code == 2
    assert "all_reduce has no single plan" in err
    assert "dovetail tune all_reduce" in err


def test_unknown_file_offers_the_nearest(call, planned):
    code, _, err = call("show", planned / "plan.jsn")
    assert code == 2
    assert "plan.json" in err


def test_a_folder_without_a_plan_is_reported(call, tmp_path):
    code, _, err = call("verify", tmp_path)
    assert code == 2
    assert "is a folder without a plan.json" in err


# Exit codes and errors


def test_exit_codes():
    """1: the answer is no. 2: misuse or a broken environment."""
    codes = {kind: exit_code(kind("x")) for kind in (ProgramError, PlanError)}
    assert set(codes.values()) == {1}
    codes = {
        kind: exit_code(kind("x")) for kind in (OperatorError, MachineError, CostError, RunError, EnvironmentFault)
    }
    assert set(codes.values()) == {2}


def test_an_error_is_one_paragraph_on_stderr(call):
    code, out, err = call("plan", "matmul_all_reduce", *SIZES, "--machine", "atlas-a2-8", "--ranks", "9")
    assert (code, out) == (2, "")
    first, *rest = err.splitlines()
    assert first == "OperatorError: the operator is for 9 ranks"
    assert all(line.startswith("  ") for line in rest)
    assert "Traceback" not in err


def test_debug_shows_the_traceback(call):
    code, _, err = call("plan", "matmul_all_reduce", "--debug", *SIZES, "--machine", "atlas-a2-8", "--ranks", "9")
    assert code == 2
    assert "Traceback" in err


def test_a_bug_of_dovetail_is_reported_as_a_bug(call, monkeypatch):
    monkeypatch.setattr("dovetail.machine.load", lambda *name: 1 / 0)
    code, out, err = call("machines", "x")
    assert (code, out) == (2, "")
    assert "ZeroDivisionError" in err
    assert "--debug" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("error", [KeyboardInterrupt, typer.Abort])
def test_interrupted(call, monkeypatch, error):
    def interrupted():
        raise error

    monkeypatch.setattr("dovetail.machine.presets", interrupted)
    code, out, err = call("machines")
    assert (code, out) == (130, "")
    assert err == "Interrupted.\n"


def test_a_closed_pipe_is_no_error(planned):
    command = f"{sys.executable} -m dovetail show {planned} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("size", ["-1", "1.5", "many"])
def test_sizes_are_whole_numbers(call, size):
    code, out, err = call("plan", "matmul_all_reduce", "--m", size, "--k", "1", "--n", "1")
    assert (code, out) == (2, "")
    assert "--m" in err


# plan


def test_plan_of_seed_000(document):
    """The worked example of seed 000: 512 rows, then four times 896."""
    found = document("plan", "matmul_all_reduce", *ATLAS, "--schedule", "mc2")
    assert found["tiles"] == [512, 896, 896, 896, 896]
    assert {key: found["steps"][key] for key in ("m0", "m1", "count")} == {"m0": 384, "m1": 768, "count": 4}
    assert found["predicted_s"] == pytest.approx(1283e-6, abs=2e-6)
    assert found["operator"]["dtype"] == "float16"  # the machine's
    keys = {"schedule", "tiles", "steps", "predicted_s", "serial_s", "ideal_s", "losses", "rivals", "machine"}
    assert keys <= set(found)
    assert {"schedule", "predicted_s", "why_not"} <= set(found["rivals"][0])
    assert sum(found["losses"].values()) == pytest.approx(found["predicted_s"] - found["ideal_s"])


def test_plan_takes_every_option(document):
    options = ["--reading", "min", "--contention", "1.15", "--floor", "256", "--align", "64", "--dtype", "float16"]
    found = document("plan", "matmul_all_reduce", *ATLAS, *options, "--ranks", "8", "--schedule", "optimal")
    assert found["schedule"] == "optimal"
    assert min(found["tiles"]) >= 256
    assert sum(found["tiles"]) == 4096


def test_plan_explains_itself(call):
    code, out, err = call("plan", "matmul_all_reduce", *ATLAS)
    assert (code, err) == (0, "")
    assert "Not chosen:" in out


def test_plan_writes_plan_timeline_and_page(planned, call):
    names = {path.name for path in planned.iterdir()}
    assert names == {"plan.json", "predicted.json", "report.html"}
    assert "<title>" in (planned / "report.html").read_text()
    code, out, _ = call("plan", "matmul_all_reduce", *SIZES, "--machine", "shared-memory-2", "--out", planned)
    assert code == 0
    assert out.splitlines()[-1] == str(planned / "report.html")


def test_plan_without_a_machine_says_how_to_probe(call):
    code, out, err = call("plan", "matmul_all_reduce", *SIZES, "--ranks", "2", "--launch", "mpiexec -n {ranks}")
    assert (code, out) == (2, "")
    assert "dovetail probe matmul_all_reduce --m 512 --k 256 --n 128 --dtype float32 --ranks 2" in err


def test_plan_beyond_what_was_measured(call, tmp_path, document):
    machine = document("machines", "shared-memory-2")
    for key in machine["costs"]:
        if key.startswith("flops:"):
            machine["costs"][key]["high"] = 1e6
    (tmp_path / "narrow.json").write_text(json.dumps(machine))
    words = ["plan", "matmul_all_reduce", *SIZES, "--machine", tmp_path / "narrow.json"]
    code, _, err = call(*words)
    assert code == 2
    assert "--extrapolate" in err
    assert call(*words, "--extrapolate")[0] == 0


def test_plan_uses_the_probed_machine(document, monkeypatch):
    from dovetail.machine import load

    launch = "mpiexec -n {ranks}"
    save_machine(machine_item(launch, 2), load("shared-memory-2"))
    found = document("plan", "matmul_all_reduce", *SIZES, "--ranks", "2", "--launch", launch)
    assert found["machine"] == "shared-memory-2"
    assert document("machines")["machines"][-1]["origin"] == "measured"


# verify, simulate, show, compare


def test_verify_a_valid_program(document, swap):
    found = document("verify", swap)
    assert found["ok"]
    assert list(found["checks"]) == ["bounds", "deadlock", "races", "result", "limits"]
    assert all(set(check) >= {"ok", "message"} for check in found["checks"].values())
    assert found["min_fifo_depth"] == 1
    assert "collective_found" in found


def test_verify_an_invalid_program(call, document, swap):
    swap.write_text(SWAP.replace("  recv from 0 -> y[0:1]\n", ""))
    assert not document("verify", swap, code=1)["ok"]
    code, out, _ = call("verify", swap)
    assert code == 1
    assert "NOT valid" in out


def test_verify_json_and_plan(document, call, swap, planned, tmp_path):
    code, out, _ = call("show", swap, "--json")
    assert code == 0
    (tmp_path / "swap.json").write_text(out)
    assert document("verify", tmp_path / "swap.json")["ok"]
    assert document("verify", planned)["ok"]
    assert document("verify", planned / "plan.json")["ok"]


def test_verify_reads_stdin(swap):
    done = dovetail_command("verify", "-", input=SWAP)
    assert (done.returncode, done.stderr) == (0, "")


def test_verify_a_target(call, swap):
    assert call("verify", swap, "--target", "msccl")[0] in (0, 1)
    code, _, err = call("verify", swap, "--target", "mscl")
    assert code == 2
    assert "msccl" in err


@pytest.mark.parametrize("text", ["program", "{", "{}", ""])
def test_verify_a_file_without_a_program(call, tmp_path, text):
    (tmp_path / "x").write_text(text)
    code, out, err = call("verify", tmp_path / "x")
    assert (code, out) == (2, "")
    assert err


def test_verify_numbers_that_are_far_too_large(call, tmp_path):
    (tmp_path / "vast.json").write_text('{"gpus": ' + "9" * 5000 + "}")
    code, _, err = call("verify", tmp_path / "vast.json")
    assert (code, "vast.json is not JSON" in err) == (2, True)


def test_verify_page_says_why(call, tmp_path):
    ring = tmp_path / "ring.txt"
    assert call("compile", "ring_all_gather", "--ranks", 4, "--out", ring)[0] == 0
    assert call("verify", ring, "--fifo-depth", 1, "--out", tmp_path)[0] == 1
    assert "declare depth 2, the least that completes" in (tmp_path / "ring.html").read_text()


def test_verify_a_missing_file(call, tmp_path):
    code, out, err = call("verify", tmp_path / "none.txt")
    assert (code, out) == (2, "")
    assert "No such file" in err


def test_simulate_a_plan_gives_its_prediction(document, planned):
    plan = json.loads((planned / "plan.json").read_text())
    timeline = document("simulate", planned, "--machine", "shared-memory-2")
    assert timeline["label"] == "predicted"
    assert max(timeline["columns"]["end_s"]) == pytest.approx(plan["predicted_s"])


class TestSimulateWithoutAMachine:
    """A plan names its machine, which is found, with the operator's costs."""

    LAUNCH = "mpiexec -n {ranks}"

    @pytest.fixture
    def probed(self):
        """Save a probed machine without costs of computations, and another with the costs of an operator."""
        from dovetail.machine import load

        whole = load("shared-memory-2")
        links = replace(
            whole,
            name="probed-here",
            facts={**whole.facts, "probed": "monday"},
            costs={key: cost for key, cost in whole.costs.items() if not key.startswith("flops:")},
        )
        save_machine(machine_item(self.LAUNCH, 2), links)
        costs = costs_on(links, MatmulAllReduce(512, 256, 128), 2)
        save_machine(costs, replace(links, costs=whole.costs))
        return costs

    @pytest.fixture
    def made(self, call, probed, tmp_path):
        words = "--ranks", "2", "--launch", self.LAUNCH, "--out", tmp_path / "made"
        code, _, err = call("plan", "matmul_all_reduce", *SIZES, *words)
        assert code == 0, err
        return tmp_path / "made"

    def test_a_plan_for_a_preset(self, document, planned):
        assert document("simulate", planned) == document("simulate", planned, "--machine", "shared-memory-2")

    def test_a_plan_for_a_probed_machine(self, call, document, made):
        plan = json.loads((made / "plan.json").read_text())
        assert plan["machine"] == "probed-here"
        assert max(document("simulate", made)["columns"]["end_s"]) == pytest.approx(plan["predicted_s"])
        for verb in ("simulate", "show", "verify"):
            code, _, err = call(verb, made / "plan.json")
            assert (code, err) == (0, "")
        assert call("compare", made, made)[0] == 0

    def test_links_probed_again_keep_the_operators_costs(self, document, made):
        """Every tuning checks the links, and probes them again if they changed."""
        before, place = document("simulate", made), machine_item(self.LAUNCH, 2)
        links = recall_machine(place)
        save_machine(place, replace(links, facts={**links.facts, "probed": "tuesday"}))
        assert document("simulate", made) == before

    def test_missing_costs_name_the_probe(self, call, made, probed):
        probed.path.unlink()
        code, _, err = call("simulate", made)
        assert code == 2
        assert "dovetail probe matmul_all_reduce --m 512" in err

    def test_costs_that_changed_are_reported(self, call, made, probed):
        machine = recall_machine(probed).to_json()
        for key, cost in machine["costs"].items():
            if key.startswith("flops:"):
                machine["costs"][key]["segments"] = [[*at, 100 * slope, 0.0] for *at, slope, _ in cost["segments"]]
        save_machine(probed, Machine.from_json(machine))
        code, _, err = call("simulate", made)
        assert code == 0
        assert "made with other costs or options" in err

    def test_an_unknown_machine_is_reported(self, call, made, probed):
        machine_item(self.LAUNCH, 2).path.unlink()
        probed.path.unlink()
        code, _, err = call("simulate", made)
        assert code == 2
        assert "'probed-here', which was not probed here" in err
        assert "--machine" in err
        assert call("simulate", made, "--machine", "shared-memory-2")[0] == 0

    def test_a_program_names_no_machine(self, call, swap):
        code, _, err = call("simulate", swap, "--slot", "1M")
        assert code == 2
        assert "names no machine" in err


def test_simulate_a_program_needs_slot_sizes(call, document, swap):
    code, _, err = call("simulate", swap, "--machine", "shared-memory-2")
    assert code == 2
    assert "--slot" in err
    whole = document("simulate", swap, "--machine", "shared-memory-2", "--slot", "1M")
    each = document("simulate", swap, "--machine", "shared-memory-2", "--slot", "x=1M", "--slot", "y=1M")
    assert whole["columns"] == each["columns"]
    assert call("simulate", swap, "--machine", "shared-memory-2", "--slot", "z=1M")[0] == 2


def test_simulate_a_deadlock(call, swap):
    swap.write_text(SWAP.replace("  send x[0:1] to 0\n", "  nop\n"))
    code, out, err = call("simulate", swap, "--machine", "shared-memory-2", "--slot", "1K")
    assert (code, out) == (1, "")
    assert err.startswith("ProgramError")


def test_compare(document, call, planned, tmp_path):
    found = document("compare", planned, planned / "predicted.json")
    assert found["ratio"] == 1
    page = tmp_path / "both.html"
    code, out, _ = call("compare", planned, planned / "predicted.json", "--page", page)
    assert code == 0
    assert out.splitlines()[-1] == str(page)
    assert page.exists()


def test_compare_refuses_other_files(call, planned, swap):
    code, _, err = call("compare", planned, swap)
    assert code == 2
    assert "timeline" in err


def test_show_every_kind(call, document, planned, swap, tmp_path):
    (tmp_path / "certificate.json").write_text(json.dumps(document("verify", swap)))
    (tmp_path / "machine.json").write_text(json.dumps(document("machines", "two-hosts-1gbit")))
    comparison = document("compare", planned, planned / "predicted.json")
    (tmp_path / "comparison.json").write_text(json.dumps(comparison))
    for path in (*tmp_path.glob("*.json"), planned, planned / "predicted.json", swap):
        code, out, err = call("show", path)
        assert (code, err) == (0, ""), path
        assert out.strip()
    assert call("show", swap)[1].startswith("program swap ranks 2")


def test_show_a_page(call, planned, tmp_path):
    for source in (planned, planned / "predicted.json"):
        page = tmp_path / "page.html"
        page.unlink(missing_ok=True)
        assert call("show", source, "--page", page)[0] == 0
        assert page.exists()


# machines, doctor


def test_machines(document, call, tmp_path):
    names = [row["name"] for row in document("machines")["machines"]]
    assert "atlas-a2-8" in names
    assert "not measured" in call("machines")[1]
    code, out, _ = call("machines", "two-hosts-100mbit", "--plot", tmp_path / "curves.html")
    assert code == 0
    assert "p2p:tcp" in out
    assert (tmp_path / "curves.html").exists()


@pytest.mark.slow
def test_doctor_names_what_is_broken(document, call, monkeypatch):
    monkeypatch.setattr("dovetail.run.ranks.library.find_tool", lambda *names: None)
    monkeypatch.setattr("dovetail.run.mpi.executor.find_tool", lambda *names: None)
    monkeypatch.delenv("DOVETAIL_LAUNCH", raising=False)
    found = document("doctor", code=2)
    broken = [check["name"] for check in found["checks"] if check["needed"] and not check["ok"]]
    assert broken == ["mpicc", "launcher", "executor mpi"]
    assert "pip install" in call("doctor")[1]


@pytest.mark.mpi
def test_doctor_without_any_mpi(document, call, monkeypatch):
    """Ranks of one host need none: what is absent is named, with how to get it, and all is well."""
    for room in ("dovetail.run.ranks.library", "dovetail.run.mpi.executor", "dovetail.core"):
        monkeypatch.setattr(f"{room}.find_tool", lambda *names: None)
    monkeypatch.delenv("DOVETAIL_LAUNCH", raising=False)
    found = document("doctor")
    absent = [check["name"] for check in found["checks"] if not check["ok"] and "pip install" in check["hint"]]
    assert absent == ["mpicc", "launcher", "executor mpi", "MPI thread level"]


@pytest.mark.needs("mpich")
@pytest.mark.mpi
def test_doctor_if_everything_works(document):
    found = document("doctor")
    assert found["ok"]
    assert {check["name"] for check in found["checks"]} >= {"executor local", "executor shared", "executor mpi", "BLAS"}


@pytest.mark.parametrize(("many_s", "costs"), [(1.4e-6, True), (2.7e-7, False)])
def test_doctor_says_what_the_thread_level_costs(monkeypatch, many_s, costs):
    program = SimpleNamespace(
        time=lambda *_, level, **__: {8: Timing(8, ({"single": 2.6e-7, "multiple": many_s}[level], 1.0), 0)}
    )
    monkeypatch.setattr("dovetail.prober.baselines.baselines", lambda launch: nullcontext(program))
    found = doctor.examined("level", False, lambda: doctor.level("mpiexec"))
    assert found.found.startswith("all_reduce of 8 B: 260 ns by MPI_Init")
    assert ("5.4 times as slow" in found.hint) is costs
    assert ('thread_level = "serialized"' in found.hint) is costs


# Streams


def test_only_data_on_stdout(planned):
    done = dovetail_command("plan", "matmul_all_reduce", *ATLAS, "--json")
    json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_colour_in_a_pipe(planned):
    done = dovetail_command("verify", planned, env=os.environ | {"FORCE_COLOR": ""})
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "coloured"), [("TERM", "xterm", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)]
)
def test_colours_on_a_colour_terminal(name, value, coloured):
    environment = {key: v for key, v in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    terminal, ours = pty.openpty()
    line = [sys.executable, "-m", "dovetail", "machines"]
    environment |= {"TERM": "xterm", name: value}
    with subprocess.Popen(line, env=environment, stdout=ours, stderr=subprocess.DEVNULL) as job:
        os.close(ours)
        shown = b""
        with suppress(OSError):  # the terminal is closed once the command has ended
            while part := os.read(terminal, 4096):
                shown += part
    os.close(terminal)
    assert job.returncode == 0
    assert b"atlas-a2-8" in shown
    assert (b"\x1b[" in shown) == coloured


# On real ranks


@pytest.mark.parametrize(
    "asked", ["--schedule serial --by library", "--schedule mc2 --by library", "--schedule uniform"]
)
def test_a_serial_plan_runs_without_a_comparison(call, document, monkeypatch, tmp_path, asked):
    """A serial plan runs alone: compared with serial, it would differ only by noise. A uniform plan runs beside it."""
    ratio = "uniform" in asked
    ran, pretended = [], SimExecutor(two_hosts(), noise=0.2)
    monkeypatch.setattr("dovetail.run.mpi.executor.MpiExecutor.execute", lambda self, job: ran.append(job) or run(job))
    run = pretended.execute
    sizes = ["--m", "8", *SIZES[2:]] if "mc2" in asked else SIZES
    words = "plan", "matmul_all_reduce", *sizes, "--machine", "shared-memory-2", *asked.split()
    assert call(*words, "--out", tmp_path)[0] == 0
    code, out, err = call("run", tmp_path)
    assert (code, err) == (0, "")
    assert ("times as fast as serial" in out) == ratio
    assert ("The plan is serial" in out) != ratio
    assert [variant.name for variant in ran[0].variants] == (["serial", "planned"] if ratio else ["planned"])
    found = document("run", tmp_path)
    assert (found["measured_s"] == found["serial_s"]) != ratio
    (tmp_path / "tune.json").write_text("{}")
    found = document("run", tmp_path)  # a tune's timeline stays
    assert found["timeline"] == str(tmp_path / "run" / "measured.json")
    assert {"serial.json", "measured.json"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.needs("mpich")
@pytest.mark.mpi
def test_run_compare_show(document, call, planned):
    found = document("run", planned, "--rounds", "3")
    keys = {"schedule", "predicted_s", "measured_s", "serial_s", "max_rel_error", "tolerance", "timeline", "rounds"}
    assert keys | {"foreign_load", "steal", "disturbed"} <= set(found)
    assert found["max_rel_error"] <= found["tolerance"]
    comparison = document("compare", planned, found["timeline"])
    assert comparison["measured_label"] == "measured"
    assert comparison["num_missing"] == 0
    assert call("show", found["timeline"])[0] == 0
    assert not (planned / "runs").exists()  # kept only after a failure


def test_a_run_says_that_its_messages_go_another_way_than_planned(monkeypatch, capsys):
    machine = replace(two_hosts(), facts={"mpi": "MPICH  5"})
    monkeypatch.setattr("dovetail.cli.probed.planned_for", lambda document: machine)
    for ran, notes in (("MPICH 5", 0), ("shared memory", 1)):
        plan, result = SimpleNamespace(to_json=lambda: {"machine": "probed"}), SimpleNamespace(facts={"mpi": ran})
        _note_library(plan, result)
        assert capsys.readouterr().err.count("by MPICH 5; here they went by shared memory (--on)") == notes


@pytest.mark.needs("mpich")
@pytest.mark.mpi
@pytest.mark.slow
def test_probe_then_plan_then_tune(document, call, tmp_path, monkeypatch):
    """The main workflow at a small size: probe, plan from the cache, tune. The page's path is printed last."""
    be_calm(monkeypatch.setattr)
    machine = document("probe", "matmul_all_reduce", *SIZES, "--ranks", "2", "--out", tmp_path / "machine.json")
    assert {"p2p:shm", "all_reduce:2", "reduce"} <= set(machine["costs"])
    assert any(key.startswith("kernel:matmul") for key in machine["costs"])
    assert (tmp_path / "machine.json").exists()
    planned = document("plan", "matmul_all_reduce", *SIZES, "--ranks", "2", "--extrapolate")
    assert planned["machine"] == machine["name"]
    sizes = [*SIZES, "--ranks", "2", "--rounds", "3", "--budget", "2", "--seed", "7"]
    found = document("tune", "matmul_all_reduce", *sizes, "--out", tmp_path / "out", "--trace", tmp_path / "trace")
    ran = {"planned"} if found["schedule"] == "serial" else {"serial", "planned"}  # serial, by the library, is run once
    assert ran < {*open_trace(tmp_path / "trace" / "trace.dovetail").names}
    keys = {"measured_s", "serial_s", "ideal_gain", "max_rel_error", "report", "tiles", "losses", "rivals"}
    assert keys | {"foreign_load", "steal", "disturbed"} <= set(found)
    assert found["ideal_gain"] is None or found["measured_s"] != found["serial_s"]
    assert found["max_rel_error"] <= found["tolerance"]
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"plan.json", "measured.json", "report.html"}
    serial = ["--machine", tmp_path / "machine.json", "--schedule", "serial", "--out", tmp_path / "serial"]
    code, out, _ = call("tune", "matmul_all_reduce", *sizes, *serial)
    assert code == 0
    assert out.splitlines()[-1] == str(tmp_path / "serial" / "report.html")


def test_an_operator_without_sizes_is_balanced(call, monkeypatch):
    from dovetail.matmul import MatmulAllReduce
    from dovetail.prober import balance

    def stop(operator, ranks, **_):
        raise PlanError(f"planted: {operator.m} on {ranks}")

    operator = MatmulAllReduce(192, 64, 128)
    found = balance.Balanced(operator, 3, 0.02, 0.025, operator.flops / 3, 4 * 192 * 128)
    asked = []
    monkeypatch.setattr(balance, "balanced", lambda executor, *how, **more: asked.append((*how, more)) or found)
    monkeypatch.setattr("dovetail.tuner.tune", stop)
    code, out, err = call("tune", "matmul_all_reduce", "--ranks", "3", "--dtype", "float64")
    assert (code, out) == (1, "")
    assert "--m 192 --k 64 --n 128 balances this machine: 20.0 ms of compute, 25.0 ms of the library's" in err
    assert "on each of 3 ranks, all_reduce 3.75 MiB/s" in err
    assert "planted: 192 on 3" in err
    assert asked == [(MatmulAllReduce, 3, {"dtype": "float64"})]


def test_options_other_than_sizes_stay_when_sizes_are_balanced(call, monkeypatch):
    from dovetail.matmul import AllGatherMatmul
    from dovetail.prober import balance

    def stop(operator, ranks, **_):
        raise PlanError(f"planted: {operator.m} rows, {operator.several} B, gathered {operator.gathered}")

    operator = AllGatherMatmul(192, 64, 128)
    found = balance.Balanced(operator, 3, 0.02, 0.025, operator.flops / 3, 192 * 64)
    monkeypatch.setattr(balance, "balanced", lambda *_, **__: found)
    monkeypatch.setattr("dovetail.tuner.tune", stop)
    _, _, err = call("tune", "all_gather_matmul", "--ranks", "3", "--several", "2", "--gathered")
    assert "planted: 192 rows, 2 B, gathered True" in err


def test_one_rank_without_sizes_has_nothing_to_balance(call):
    code, _, err = call("tune", "matmul_all_reduce", "--ranks", "1")
    assert code == 2
    assert "one rank has no communication to balance with" in err
    assert "--m, --k and --n" in err


@pytest.mark.parametrize("words", [["--m", "8", "--n", "8"], ["--m", "8", "--n", "8", "--machine", "shared-memory-2"]])
def test_some_sizes_are_not_enough(call, words):
    code, out, err = call("tune", "matmul_all_reduce", "--ranks", "2", *words)
    assert (code, out) == (2, "")
    assert "matmul_all_reduce needs --k" in err
    assert "--m … --k … --n …" in err


def test_tune_runs_the_chosen_schedule_once_more_with_tracing(monkeypatch, tmp_path, capsys):
    """One round of serial and of the chosen schedule, on traced ranks. The folder must not have another trace."""
    tune, ran = importlib.import_module("dovetail.cli.tune"), []

    def execute(job):
        trace.init(tmp_path)
        ran.append(job)
        trace.finalize()

    made = plan(MatmulAllReduce(512, 256, 128), two_hosts())
    tune._trace(SimpleNamespace(plan=made), SimpleNamespace(execute=execute), tmp_path)
    assert "dovetail trace view" in capsys.readouterr().err
    (job,) = ran
    assert ([variant.name for variant in job.variants], job.rounds) == (["serial", "planned"], 1)
    assert job.variants[1].program == made.program
    code = main(["tune", "matmul_all_reduce", *SIZES, "--ranks", "2", "--trace", str(tmp_path)])
    assert (code, "holds a trace already" in capsys.readouterr().err) == (2, True)


@pytest.mark.slow
def test_tune_on_a_simulated_machine(document, call, monkeypatch, tmp_path):
    """The main workflow without ranks prints the table, and last the page's path; the page shows the command."""
    monkeypatch.setattr("dovetail.run.executor.executor_on", lambda *_, **options: SimExecutor(two_hosts()))
    monkeypatch.setattr("sys.argv", ["dovetail", "tune", "typed"])
    words = ["matmul_all_reduce", *SIZES, "--ranks", "2", "--seed", "7", "--align", "64"]
    code, out, err = call("tune", *words, "--by", "library", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("schedule")
    assert "Medians of " in out
    assert out.splitlines()[-1] == str(tmp_path / "report.html")
    assert "dovetail tune typed" in (tmp_path / "report.html").read_text()
    found = document("tune", *words, "--schedule", "uniform", "--max-tiles", "3", "--out", tmp_path / "two")
    assert (found["schedule"], found["report"]) == ("uniform", str(tmp_path / "two" / "report.html"))
    assert len(found["tiles"]) <= 3
    assert json.loads((tmp_path / "two" / "tune.json").read_text()) == found
    assert call("show", tmp_path / "two" / "tune.json")[0] == 0
    assert call("verify", tmp_path / "two" / "tune.json")[0] == 0


@pytest.mark.needs("mpich")
@pytest.mark.mpi
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_a_run_ends_its_ranks(planned, sign):
    command = [sys.executable, "-m", "dovetail", "run", str(planned), "--rounds", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        deadline = time.monotonic() + 120
        while len(ready := list(planned.glob("runs/*/ready.*.json"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [json.loads(path.read_text())["pid"] for path in ready]
        job.send_signal(sign)
        try:
            _, err = job.communicate(timeout=120)
        finally:
            job.kill()
    assert job.returncode == (130 if sign == signal.SIGINT else 143)
    assert "Traceback" not in err
    assert not [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    """Return whether a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
