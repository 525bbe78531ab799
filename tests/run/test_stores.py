"""The way that messages are stored follows what it costs, in simulated time; planted faults are found."""

from __future__ import annotations

import shutil
import subprocess

import needs
import pytest

NATIVE = needs.ROOT / "native"
FAULTS = {
    "reads are forgotten": ("+ (hears_ ? reads_[index(way)].value() : 0.0f)", "", "near: few laps"),
    "no least gain": ("least_gain = 0.7", "least_gain = 3.0", "near: few laps"),
    "a slower way is not doubted": ("&& !is_doubted", "", "after a change to far"),
    "no second try": ("way_ = best_;\n        laps_ = 0;", "way_ = best_;\n        laps_ = -9999;", "after a change"),
    "tries go on as often": ("interval_ = std::min(2 * interval_, static_cast<int>(most))", "", "near: tries"),
    "the latest lap decides": ("std::array<float, 9>", "std::array<float, 1>", "interrupts do not decide"),
    "no last part": ("std::memcpy(to + at, from + at, num_bytes - at);\n#else", "#else", "stores past the caches"),
}


def output(folder, old: str = "", new: str = "") -> str:
    """What the checks print, with one text of the code replaced."""
    if shutil.which("g++") is None:
        pytest.skip("needs compiler: no g++ command")
    source = (NATIVE / "shm" / "stores.hpp").read_text()
    assert old in source
    (folder / "shm").mkdir()
    (folder / "shm" / "stores.hpp").write_text(source.replace(old, new, 1))
    command = [
        "g++",
        "-std=c++20",
        "-O0",
        f"-I{folder}",
        f"-I{NATIVE}",
        NATIVE / "test" / "stores.cpp",
        "-o",
        folder / "a",
    ]
    subprocess.run(command, check=True)
    return subprocess.run([folder / "a"], capture_output=True, text=True, check=True).stdout


def test_the_faster_way_is_chosen_and_stores_every_byte(tmp_path):
    assert output(tmp_path) == "done\n"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path, fault):
    old, new, said = FAULTS[fault]
    assert said in output(tmp_path, old, new)
