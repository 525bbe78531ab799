"""Runs on a CUDA device, where there is none: the driver's entry points over host threads, which run what streams were
given in any order that streams and events allow. The same checks run on a real device (cuda_checks.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needs import ROOT

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


def checks(pretended, chosen="", **settings):
    about = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *(["-k", chosen] if chosen else [])]
    return under(pretended, "-m", "pytest", HERE / "cuda_checks.py", *about, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["TestMovement", "not TestMovement"])
def test_all_that_must_hold_on_a_device(pretended, part):
    done = checks(pretended, part)
    assert done.returncode == 0, done.stdout[-3000:]


FORGETFUL = """
import sys
import pytest
from dovetail.run.streams import Lowering

if "{fault}" == "readers":
    Lowering.wait_for_readers = lambda self, rank, region, waits: None
elif "{fault}" == "held":
    Lowering._find_held = lambda self: set()
else:
    give = Lowering.give
    Lowering.give = lambda self, op, waits, *action: give(self, op, [], *action)
about = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
sys.exit(pytest.main([*about, "tests/cuda_checks.py", "-k", "{chosen}"]))
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


OPEN = "from dovetail.run.cuda_device import Gpu; from dovetail.core import DovetailError\n"
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
        tmp_path, "-c", "import dovetail.run.cuda_device as c\nc.blas_paths = lambda: ['nowhere.so']\n" + OPEN + ask
    )
    assert "no cuBLASLt found" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_bench_measures_what_it_says(pretended, tmp_path):
    """Its smallest sizes; times of a pretended device mean nothing."""
    sections = ("engines", "calls", "refusals", "interpreter", "alone")
    about = ["--small", "--out", tmp_path, "--limit-s", "250", "--only", ",".join(sections)]
    done = under(pretended, ROOT / "bench" / "gpu" / "measure.py", *about, memory=1 << 34)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "results.json").read_text())
    assert tuple(found["sections"]) == sections
    assert found["sections"]["alone"]["label"] == "measured, one rank, peers emulated in host memory"
    assert len(found["sections"]["interpreter"]["rows"]) == 12
    assert (tmp_path / "table.txt").read_text().startswith("pretended device")


@pytest.mark.needs("no_gpu")
def test_the_bench_says_that_there_is_no_device(tmp_path):
    command = [ROOT / "bench" / "gpu" / "run", tmp_path / "out"]
    env = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "no CUDA device here: nothing was measured\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_doctor_tells_of_the_device(pretended):
    found = json.loads(under(pretended, "-m", "dovetail", "doctor", "--json").stdout)
    (cuda,) = [check for check in found["checks"] if check["name"] == "executor cuda"]
    assert cuda["ok"], cuda
    assert not cuda["needed"]
    for words in ("pretended device", "libcublasLt", "result checked", "ranks on several devices: not written"):
        assert words in cuda["found"]
