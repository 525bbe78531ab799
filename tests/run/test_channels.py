"""Channels in shared memory (native/shm/channel.hpp): every interleaving of small cases is right, planted faults are
found. The code itself is explored, with std::atomic replaced (native/test/interleavings.hpp)."""

import shutil
import subprocess
from functools import cache

import pytest
from needs import ROOT

NATIVE = ROOT / "native"
CHANNELS = NATIVE / "shm" / "channel.hpp"
CASES = {  # case: least number of executions, so that none is empty by mistake
    "lines": 1000,
    "slots": 100,
    "lines and slots": 200,
    "exchange by lines": 500,
    "exchange by slots": 500,
    "loans": 100,
    "three ranks": 200,
}
NUMBER = "number.store(++(fits_line(num_bytes) ? line_ : slot_), std::memory_order_release);"
UNPUBLISHED, OVERWRITTEN = "a race: data is not published", "a race: data is overwritten while it is read"
FAULTS = {  # what is replaced in the code, by what, the case, and the error that must be found
    "the flag of a line may overtake its data": (NUMBER, NUMBER.replace("release", "relaxed"), "lines", UNPUBLISHED),
    "the flag of a slot may overtake its data": (NUMBER, NUMBER.replace("release", "relaxed"), "slots", UNPUBLISHED),
    "a line may be read before its flag": (
        "fifo_.line(line_).number.load(std::memory_order_acquire)",
        "fifo_.line(line_).number.load(std::memory_order_relaxed)",
        "lines",
        UNPUBLISHED,
    ),
    "a line more than the ring holds": (
        "line_ - lines_taken_ < g.lines",
        "line_ - lines_taken_ <= g.lines",
        "lines",
        "a deadlock",
    ),
    "a slot more than the ring holds": (
        "slot_ - slots_taken_ < g.slots",
        "slot_ - slots_taken_ <= g.slots",
        "slots",
        "a deadlock",
    ),
    "credit for one slot too many": ("store(++slot_, std::", "store(++slot_ + 1, std::", "slots", "a race"),
    "credit may be seen before the reads that it stands for": (
        "lines_taken().store(line_, std::memory_order_release)",
        "lines_taken().store(line_, std::memory_order_relaxed)",
        "lines",
        OVERWRITTEN,
    ),
    "credit may be taken before it is seen": (
        "taken = said.load(std::memory_order_acquire);",
        "taken = said.load(std::memory_order_relaxed);",
        "slots",
        OVERWRITTEN,
    ),
    "credit is never given": (
        "fifo_.lines_taken().store(line_, std::memory_order_release);",
        ";",
        "lines",
        "a deadlock",
    ),
    "what was lent is overwritten before it was read": (
        "slots_taken_ >= slots ||",
        "slots_taken_ + 1 >= slots ||",
        "loans",
        "a race",
    ),
    "that a loan was read may be seen before the read": (
        "(slots_taken_ = fifo_.slots_taken().load(std::memory_order_acquire))",
        "(slots_taken_ = fifo_.slots_taken().load(std::memory_order_relaxed))",
        "loans",
        OVERWRITTEN,
    ),
    "a loan stays in a slot that holds data": (
        "fifo_.slot_loan(slot_) = loan;",
        "if (loan.is_one) fifo_.slot_loan(slot_) = loan;",
        "loans",
        "what was lent is still there",
    ),
    "an old flag is taken for a new one": (
        "load(std::memory_order_acquire) == slot_ + 1",
        "load(std::memory_order_acquire) != 0",
        "slots",
        "a race",
    ),
}
CHECKS = [  # what the exploration itself finds, as the memory model allows it
    ("check: relaxed flag", UNPUBLISHED),
    ("check: relaxed look", UNPUBLISHED),
    ("check: store buffers", "both loads came before both stores"),
    ("check: total order", "4 executions"),
    ("check: nobody answers", "a deadlock"),
]


@pytest.fixture(scope="module")
def explore(tmp_path_factory):
    """Explores a case of the code, or of the code with one text replaced: the output."""
    if shutil.which("g++") is None:
        pytest.skip("needs compiler: no g++ command")

    def build(edit: tuple[str, str]):
        folder = tmp_path_factory.mktemp("interleavings")
        (folder / "shm").mkdir()
        source = CHANNELS.read_text()
        assert edit[0] in source
        (folder / "shm" / "channel.hpp").write_text(source.replace(edit[0], edit[1], 1))
        include = [f"-I{each}" for each in (folder, NATIVE / "test" / "explored", NATIVE)]
        binary = folder / "interleavings"
        command = ["g++", "-std=c++20", "-O0", *include, NATIVE / "test" / "interleavings.cpp", "-o", binary]
        subprocess.run(command, check=True)
        return binary

    built = cache(build)

    def run(case: str, *edit: str) -> str:
        return subprocess.run([built(edit or ("", "")), case], capture_output=True, text=True, check=False).stdout

    return run


@pytest.mark.parametrize("case", CASES)
def test_every_interleaving_delivers_every_message(explore, case):
    count, word = explore(case).split(maxsplit=1)
    assert word.strip() == "executions"
    assert int(count) >= CASES[case]


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[] if i % 8 == 0 else pytest.mark.thorough) for i, name in enumerate(FAULTS)]
)
def test_a_planted_fault_is_found(explore, fault):
    old, new, case, error = FAULTS[fault]
    assert explore(case, old, new).startswith(error)


@pytest.mark.parametrize(("case", "found"), CHECKS)
def test_the_exploration_finds_what_the_memory_model_allows(explore, case, found):
    assert explore(case).startswith(found)
