"""The native engine under ThreadSanitizer and AddressSanitizer: random programs, products on any regions, and
collectives in random timings."""

import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from msccl_files import index, path, verdict
from needs import ROOT
from thorough import THOROUGH, some

from dovetail.collective import ALGORITHMS, build
from dovetail.collective.msccl import read
from dovetail.core import OperatorError
from dovetail.ir import COLUMNS, Program, sizes_fault, slot_classes, uneven, verify
from dovetail.ir.shapes import ring_all_reduce
from dovetail.run import execute, fresh_inputs
from dovetail.run.arrays import allocate_buffer
from dovetail.trace import merge

RUN = ("engine", "net", "prepare", "send", "op", "load", "local", "order", "reduce", "kernel", "mailbox")
SHARED = ("segment", "peers", "ring_messages", "transport", "extent", "script", "loans", "stalls", "neighbours")
TCP = ("sockets", "stream", "host_messages")
SOURCES = [
    *(f"{room}/{name}" for room, names in (("run", RUN), ("shm", SHARED), ("tcp", TCP)) for name in names),
    "cuda/load",
]
PROGRAMS = ("run", "products", "collectives", "shared", "mail", "interpreter", "scripts")
SANITIZERS = ("thread", pytest.param("address,undefined", marks=pytest.mark.thorough))
EVERY = "SANITIZE_EVERY" in os.environ  # what takes minutes, too


@pytest.fixture(scope="module", params=SANITIZERS)
def binaries(request):
    """The test programs, built with one sanitizer; kept in build/, each unit until what it is compiled from changes."""
    if shutil.which("g++") is None:
        pytest.skip("needs compiler: no g++ command")
    place = ROOT / "build" / "sanitized" / request.param
    place.mkdir(parents=True, exist_ok=True)
    build_into(place, request.param)
    return place


def build_into(place: Path, sanitizer: str) -> None:
    """The engine's sources are compiled as two units, which read the headers twice, not ten times."""
    halves = [place / "first.cpp", place / "second.cpp"]
    for i, half in enumerate(halves):
        half.write_text("".join(f'#include "{name}.cpp"\n' for name in SOURCES[i::2]))
    units = [*halves, *(ROOT / "native" / "test" / f"{name}.cpp" for name in PROGRAMS)]
    units += [*(ROOT / "native" / "trace").glob("*.c")]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        objects = list(workers.map(lambda unit: compiled(unit, place, sanitizer), units))
    for name in PROGRAMS:
        parts = [each for each in objects if each.stem == name or each.stem not in PROGRAMS]
        command = [*watched("g++", sanitizer), *map(str, parts)]
        build_once(place / name, command, b"".join(each.read_bytes() for each in parts))


def compiled(unit: Path, place: Path, sanitizer: str) -> Path:
    """The object of a unit. Where addresses are watched, -Og takes two thirds as long to compile as -O1. The templates
    of the interpreter take eight times as long optimised and copied into their callers; only long runs gain by it."""
    level = ["-O1"] if sanitizer == "thread" else ["-Og"]
    if unit.stem == "interpreter" and not (sanitizer == "thread" and THOROUGH):
        level = ["-O0", "-DDOVETAIL_INLINE=inline"]
    language = ["gcc", "-std=gnu11"] if unit.suffix == ".c" else ["g++", "-std=c++20"]
    include = [f"-I{ROOT / 'native'}"]
    command = [*watched(language[0], sanitizer), language[1], *level, *include]
    target = place / f"{unit.stem}.o"
    build_once(target, [*command, "-c", str(unit)], checked([*command, "-E", str(unit)]))
    return target


def watched(name: str, sanitizer: str) -> list[str]:
    how = ["-g1", "-pthread", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    return [shutil.which(name) or "cc", *how]


def build_once(target: Path, command: list[str], source: bytes) -> None:
    """Run a compiler, unless a file beside `target` says that this one made it from this source by this command."""
    version = checked([command[0], "--version"])
    key = hashlib.sha256(b"\0".join([version, *map(str.encode, command), source])).hexdigest()
    stamp = target.with_name(f"{target.name}.made_from")
    if stamp.exists() and target.exists() and stamp.read_text() == key:
        return
    stamp.unlink(missing_ok=True)
    checked([*command, "-o", str(target)])
    stamp.write_text(key)


def checked(command: list[str]) -> bytes:
    """What a compiler prints; the test fails where it does, and skips where there is no such sanitizer."""
    built = subprocess.run(command, capture_output=True, check=False)
    said = built.stderr.decode(errors="replace")
    if "cannot find -l" in said:
        pytest.skip("needs compiler: g++ lacks the sanitizer's library")
    assert built.returncode == 0, said[-3000:]
    return built.stdout


def be_batch() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def ran(*command: object, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    """As a batch job: its many threads, which sleep for microseconds, then do not interrupt each other."""
    how = {"capture_output": True, "text": True, "timeout": timeout_s, "check": False, "preexec_fn": be_batch}
    done = subprocess.run([*map(str, command)], env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}, **how)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("needs compiler: the kernel's address layout is not one that the sanitizer knows")
    return done


@pytest.mark.slow
def test_random_programs(binaries, tmp_path):
    """Some traced as they run, by both threads of a rank: every end has its beginning."""
    for done in (ran(binaries / "run", 1, some(138)), ran(binaries / "run", 139, some(12), tmp_path)):
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
        assert "all as expected" in done.stdout
    found = merge(tmp_path)
    assert found.num_rows > 1000
    assert (found.meta["faults"], found.meta["ends_without_begin"]) == ([], 0)


@pytest.mark.slow
def test_products(binaries):
    done = ran(binaries / "products", 1, 20000)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "hosts"), [(2, 0), (3, 0), (2, 2), *(pytest.param(5, n, marks=pytest.mark.thorough) for n in (0, 2))]
)
def test_messages(binaries, ranks, hosts):
    """Messages and collectives of random sizes, from ring to ring, small enough to be full often, and by sockets."""
    done = ran(binaries / "shared", ranks, 60, ranks, hosts)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "hosts"), [(2, 0), (3, 0), (2, 2), (4, 2)])
def test_mailboxes(binaries, ranks, hosts):
    """Sends and receives by tag from several threads, also from any rank; a wrong size, and an end before a message."""
    done = ran(binaries / "mail", ranks, 30, ranks, hosts)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


def programs() -> list[Program]:
    """Every built-in algorithm, on even, odd and two-level ranks, some with channels and instances."""
    found = []
    for name in ALGORITHMS:
        for ranks, more in ((3, {}), (4, {"nodes": 2, "instances": 2}), (6, {"nodes": 2}), (8, {"nodes": 4})):
            try:
                found.append(build(name, ranks, **more))
            except OperatorError:  # an algorithm for other numbers of ranks
                continue
    return found


def listed(values: object) -> str:
    flat = np.asarray(values, np.int64).ravel().tolist()
    return " ".join(map(str, [len(flat), *flat]))


def written(program: Program, seed: int, spoil: bool = False, most: int = 40) -> str:
    """The program as native/test/collectives.cpp reads it, with random uneven slots where it allows them, of fewer than
    `most` elements."""
    classes = slot_classes(program)
    count = 1 + max(int(part.max(initial=-1)) for parts in classes.values() for part in parts)
    rng = np.random.default_rng(seed)
    size = rng.integers(0, most, count) if sizes_fault(program) is None else np.full(count, max(3 * most // 4, 1))
    known = {name: tuple(size[part] for part in parts) for name, parts in classes.items()}
    workload = uneven(program, known, "int64")
    inputs = fresh_inputs(program, workload, seed)
    expected = execute(program, inputs, workload=workload).outputs
    if spoil:
        name = min(expected)
        next(part for part in expected[name] if part.size)[0] += 1
    col, ranks = program.columns, range(program.num_ranks)
    columns = ("kind", "rank", "lane", "chan_in", "chan_out", "call", "dep_start", "dep")
    sides = [name for side in ("read", "write") for name in COLUMNS if name.startswith(side)]
    lines = [program.name.replace(" ", "_"), str(program.num_ranks)]
    lines += [listed([lane.engine == "net" for lane in program.lanes])]
    lines += [listed([(c.src, c.dst, c.depth) for c in program.channels])]
    lines += [listed(col[name]) for name in (*columns, *sides)] + [str(len(program.buffers))]
    for rank in ranks:
        for buffer in program.buffers:
            lines.append(listed(workload.starts(buffer.name, rank) * 8))
        for buffer in program.buffers:
            held = inputs[buffer.name][rank] if buffer.name in inputs else None
            lines.append(listed(allocate_buffer(program, workload, buffer.name, rank) if held is None else held))
        for buffer in program.buffers:
            lines.append(listed(expected[buffer.name][rank] if buffer.name in expected else []))
    return "\n".join(lines)


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    """A file of all programs, with inputs and results, for both sanitizers."""
    cases = [written(program, seed) for seed, program in enumerate(programs())]
    path = tmp_path_factory.mktemp("collectives") / "programs"
    path.write_text("\n".join([str(len(cases)), *cases]))
    return path


@pytest.mark.slow
def test_collectives_in_random_timings(binaries, collectives):
    done = ran(binaries / "collectives", collectives, 6 if THOROUGH else 2, 1, timeout_s=280)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


@pytest.mark.slow
def test_scripts_in_random_timings(binaries, collectives):
    """Ranks are threads on channels in their memory, so short that every ring runs full."""
    done = ran(binaries / "scripts", collectives, 4 if THOROUGH else 2, 1)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "0 of " in done.stdout
    assert "all others as expected; messages lent" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["collectives", "scripts"])
def test_a_wrong_element_is_noticed(binaries, tmp_path, name):
    """Planted: one element of what must come is another."""
    (tmp_path / "programs").write_text("1\n" + written(build("ring_all_reduce", 3), 0, spoil=True))
    done = ran(binaries / name, tmp_path / "programs", 1, 1)
    assert done.returncode == 1
    assert "is wrong" in done.stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_the_interpreter_in_random_timings(binaries, collectives):
    done = ran(binaries / "interpreter", collectives, 1)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


def few_threads(program: Program) -> bool:
    """Others take seconds each under a sanitizer."""
    return len(program.queues()) <= 200 and program.num_ops <= 600


def into_file(place: Path, files: list[Program], most: int = 40) -> Path:
    cases = [written(file, seed, most=most) for seed, file in enumerate(files)]
    place.write_text("\n".join([str(len(cases)), *cases]))
    return place


@pytest.fixture(scope="module")
def valid_files():
    """All valid files of the corpus, at a depth at which they end."""
    files = [read(path(row).read_text()).program for row in index() if verdict(row) == "valid"]
    return [file.with_depth(max(verify(file).min_fifo_depth, 2)) for file in files]


def clean(binaries: Path, *arguments: object) -> None:
    done = ran(binaries / "interpreter", *arguments)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.needs("shared")
def test_the_interpreter_on_valid_files(binaries, valid_files, tmp_path):
    """Those of many threads by one protocol each; in full below."""
    few = [file for file in valid_files if few_threads(file)]
    many = [file for file in valid_files if not few_threads(file)]
    clean(binaries, into_file(tmp_path / "few", few), 3)
    assert len(many) > 10
    clean(binaries, into_file(tmp_path / "many", many), 3, "in_turn")


if EVERY:

    @pytest.mark.needs("shared")
    @pytest.mark.parametrize("most", [2, 40, 100])
    def test_the_interpreter_on_valid_files_in_full(binaries, valid_files, tmp_path, most):
        """Every file by every protocol, in three sizes."""
        for number, file in enumerate(valid_files):
            clean(binaries, into_file(tmp_path / str(number), [file], most), most)


@pytest.fixture
def ring(tmp_path):
    (tmp_path / "ring").write_text("1\n" + written(ring_all_reduce(3, 1).with_depth(1), 0))
    return tmp_path / "ring"


@pytest.mark.slow
def test_a_flag_lost_by_the_interpreter_stalls_or_harms_nothing(binaries, ring):
    """Planted: one counter, or one line's flag, is never set."""
    done = ran(binaries / "interpreter", ring, 2, "lost")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    stalls = [int(line.split(": ")[1][0]) for line in done.stdout.splitlines() if line.startswith("protocol")]
    assert len(stalls) == 3
    assert min(stalls) > 0


@pytest.mark.slow
def test_counters_that_order_nothing_are_noticed(binaries, ring):
    """Planted: counters are set without ordering what was written before."""
    done = ran(binaries / "interpreter", ring, 1, "unordered")
    assert ("data race" in done.stderr) == (done.returncode != 0) == (binaries.name == "thread")
