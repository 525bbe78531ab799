"""Runs on a CUDA device, where there is none: the driver's entry points over host threads, which run what streams were
given in any order that streams and events allow. The same checks run on a real device (cuda_checks.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import ROOT, SHARED

HERE = Path(__file__).parent
PRETENDED = ROOT / "build" / "editable" / "pretended"
pytestmark = pytest.mark.needs("cuda")


@pytest.fixture(scope="module")
def pretended():
    """The folder of the pretended driver, built."""
    cmake = Path(sys.prefix) / "bin" / "cmake"
    built = subprocess.run(
        [cmake, "--build", ROOT / "build" / "editable", "--target", "pretended"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout[-3000:]
    return PRETENDED


def under(pretended, *command, **settings):
    """Run Python where the driver is the pretended one."""
    path = (
        f"{pretended}:{os.environ.get('LD_LIBRARY_PATH', '')}" if pretended else os.environ.get("LD_LIBRARY_PATH", "")
    )
    env = os.environ | {"LD_LIBRARY_PATH": path} | {f"PRETENDED_{k.upper()}": str(v) for k, v in settings.items()}
    how = {"cwd": ROOT, "capture_output": True, "text": True, "check": False, "timeout": 280}
    return subprocess.run([sys.executable, *map(str, command)], env=env, **how)


QUIET = ("-p", "no:cacheprovider", "-p", "no:xdist")


def checks(pretended, chosen="", **settings):
    about = ["-q", *QUIET, *(["-k", chosen] if chosen else [])]
    return under(pretended, "-m", "pytest", HERE / "cuda_checks.py", *about, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [pytest.param("TestMovement", marks=pytest.mark.thorough), "not TestMovement and not TestSeveralDevices"]
)
def test_all_that_must_hold_on_a_device(pretended, part):
    done = checks(pretended, part)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_all_that_must_hold_on_several_devices(pretended):
    done = checks(pretended, "TestSeveralDevices", devices=2)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "9 passed" in done.stdout


@pytest.mark.slow
def test_devices_that_are_no_peers_are_refused(pretended):
    done = checks(pretended, "TestSeveralDevices and every_family", devices=2, peers=0)
    assert done.returncode == 1
    assert "CUDA device 0 cannot reach the memory of device 1" in done.stdout, done.stdout[-3000:]


@pytest.mark.slow
def test_the_pretended_driver_refuses_what_a_real_one_does(pretended):
    done = under(pretended, "-m", "pytest", HERE / "cuda_refusals.py", "-q", *QUIET, devices=2)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_bad_input_is_refused_before_anything_is_launched(pretended):
    """Planted beside it: a run, whose launch ends the process where none may come."""
    refused = "too_little or more_lanes or arrays_elsewhere or another_shape or other_kernels"
    done = checks(pretended, refused, launches=0)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "5 passed" in done.stdout
    assert checks(pretended, "test_runs_again", launches=0).returncode < 0


FORGETFUL = """
import sys
import pytest
from dovetail.run.cuda.streams import Lowering

if "{fault}" == "readers":
    Lowering.wait_for_readers = lambda self, rank, region, waits: None
elif "{fault}" == "held":
    Lowering._find_held = lambda self: set()
else:
    give = Lowering.give
    Lowering.give = lambda self, op, waits, *action: give(self, op, [], *action)
about = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
sys.exit(pytest.main([*about, "tests/run/cuda_checks.py", "-k", "{chosen}"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "chosen"),
    [("readers", "waits_for_who_reads"), ("held", "kept_where"), ("waits", "random_programs_on_streams")],
)
def test_planted_faults_are_caught(pretended, fault, chosen):
    """Streams that do not wait for readers, keep no message, or wait for nothing: some order shows it."""
    done = under(pretended, "-c", FORGETFUL.format(fault=fault, chosen=chosen))
    assert done.returncode == 1, done.stdout[-3000:]
    assert "failed" in done.stdout


OPEN = "from dovetail.run.cuda.device import Gpu; from dovetail.core import DovetailError\n"
TRY = OPEN + "try:\n    print(Gpu({index}).facts())\nexcept DovetailError as error:\n    print(error)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "index", "words"),
    [
        ({"devices": 0}, 0, "the CUDA driver does not start: no CUDA-capable device is detected"),
        ({"version": 11040}, 0, "the CUDA driver is too old: it supports CUDA 11.4"),
        ({}, 3, "no CUDA device 3: there are 1"),
    ],
)
def test_devices_that_cannot_be_opened(pretended, settings, index, words):
    done = under(pretended, "-c", TRY.format(index=index), **settings)
    assert words in done.stdout, done.stdout + done.stderr


@pytest.mark.needs("no_gpu")
def test_no_driver_at_all():
    done = under(None, "-c", TRY.format(index=0))
    assert "no CUDA driver: libcuda.so.1" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_no_library_of_products(pretended, tmp_path):
    (tmp_path / "libcuda.so.1").symlink_to(pretended / "libpretended.so")
    ask = "try:\n    Gpu().blas\nexcept DovetailError as error:\n    print(error)\n"
    done = under(
        tmp_path, "-c", "import dovetail.run.cuda.device as c\nc.blas_paths = lambda: ['nowhere.so']\n" + OPEN + ask
    )
    assert "no cuBLASLt found" in done.stdout, done.stdout + done.stderr


MEASURE = ROOT / "bench" / "gpu" / "measure.py"


@pytest.mark.slow
@pytest.mark.thorough
def test_the_bench_measures_what_it_says(pretended, tmp_path):
    """Its smallest sizes; times of a pretended device mean nothing."""
    sections = ("device", "engines", "calls", "refusals", "checks", "corpus", "full_size", "families", "interpreter")
    sections += ("alone", "pytorch", "planned_call", "schedules", "verdicts")
    about = ["--small", "--out", tmp_path, "--limit-s", "275", "--only", ",".join(sections)]
    done = under(pretended, MEASURE, *about, memory=1 << 34)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert tuple(found) == sections
    assert "passed (5 passed)" in found["checks"]["rows"][0]["line"]
    assert [row["wrong"] for row in found["full_size"]["rows"]] == [[0, 0]] * 9
    assert found["alone"]["rows"][0]["label"] == "measured, one rank, peers emulated in host memory"
    assert len(found["interpreter"]["rows"]) == 16
    rows = {name: section["rows"] for name, section in found.items()}
    assert rows["corpus"][-1]["line"].endswith("to the bit" if SHARED.is_dir() else "build/gpu/corpus")
    assert {row["graph"]: row["call_s"] > 0 for row in rows["planned_call"]} == {True: True, False: True}
    assert {row["chooser"] for row in rows["schedules"][1:]} >= {"measured", "simulation", "FiCCO, literal"}
    reported = {row["what"].split(",")[0] for row in rows["verdicts"] if "what" in row}
    assert {"µs of the calling thread for a graph's replay", "regret of measured"} <= reported
    assert [row["bad"] for row in rows["refusals"]] == [False] * 4, rows["refusals"]
    assert [len(row["errors"]) for row in rows["families"]] == [4, 16, 11, 7, 14, 9]
    assert all(section["ended"] == "done" for section in found.values()), found
    assert (tmp_path / "table.txt").read_text().splitlines()[1].startswith("  pretended device")
    assert (tmp_path / "pages.tar.gz").stat().st_size > 0
    assert not list(tmp_path.glob("*/"))  # all files lie in one folder


@pytest.mark.slow
def test_a_device_that_computes_nothing_is_found_wrong(pretended, tmp_path):
    """Planted: every section that looks at results says so, and its verdict does."""
    sections = ["checks", "full_size", "families", "products", "alone"]
    about = ["--small", "--out", tmp_path, "--limit-s", "200", "--only", ",".join([*sections, "verdicts"])]
    done = under(pretended, MEASURE, *about, memory=1 << 34, idle=1)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert [name for name in sections if not any(row["bad"] for row in found[name]["rows"])] == []
    missed = [row["what"].split(":")[0] for row in found["verdicts"]["rows"] if row.get("met") is False]
    assert missed[:5] == sections


FAULTY = """
import os, sys, time
sys.path.insert(0, {folder!r})
import sections

def broken(setting):
    yield dict(line="before it broke")
    {fault}

sections.SECTIONS = dict(first=sections.Section(broken, {seconds}), second=sections.Section(sections.refusals, 20))
import measure
measure.GRACE_S = 1.0
sys.exit(measure.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "seconds", "words"),
    [
        ("os.abort()", 40, "failed with code -6"),
        ("raise ValueError('broken')", 40, "failed with code 1"),
        ("time.sleep(99)", 5, "stopped: it took over 6 s"),
    ],
)
def test_a_section_that_breaks_loses_nothing(pretended, tmp_path, fault, seconds, words):
    """Planted: a section crashes, raises or hangs; its rows, and the sections after it, are there."""
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY.format(folder=str(MEASURE.parent), fault=fault, seconds=seconds))
    done = under(pretended, script, "--out", tmp_path / "out", memory=1 << 34)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "out" / "results.json").read_text())["sections"]
    assert [row["line"] for row in found["first"]["rows"]] == ["before it broke"]
    assert found["first"]["ended"].startswith(words)
    assert found["second"]["ended"] == "done"
    assert "too little memory" in (tmp_path / "out" / "table.txt").read_text()


@pytest.mark.needs("no_gpu")
def test_the_bench_says_that_there_is_no_device(tmp_path):
    command = [ROOT / "bench" / "gpu" / "run", tmp_path / "out"]
    env = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "no CUDA device here: nothing was measured\n")
    assert not (tmp_path / "out").exists()


def told_by_doctor(pretended, **settings):
    found = json.loads(under(pretended, "-m", "dovetail", "doctor", "--json", **settings).stdout)
    (cuda,) = [check for check in found["checks"] if check["name"] == "executor cuda"]
    assert not cuda["needed"]
    return cuda


@pytest.mark.slow
def test_doctor_tells_of_the_device(pretended):
    cuda = told_by_doctor(pretended)
    assert cuda["ok"], cuda
    for words in ("pretended device", "libcublasLt", "result checked", "not yet run on any device"):
        assert words in cuda["found"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"idle": 1}, "wrong"),
        ({"devices": 0}, "no CUDA-capable device"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ({"version": 11040}, "the CUDA driver is too old: it supports CUDA 11.4"),
                ({"memory": 1 << 10}, "too little memory"),
            )
        ),
    ],
)
def test_doctor_tells_what_is_wrong(pretended, settings, words):
    """Planted: a device that computes nothing, an old driver, none at all, no memory."""
    cuda = told_by_doctor(pretended, **settings)
    assert not cuda["ok"]
    assert words in json.dumps(cuda), cuda
