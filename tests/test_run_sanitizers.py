"""The native engine under ThreadSanitizer and AddressSanitizer: random programs, and collectives in random timings."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dovetail.collective import ALGORITHMS, build
from dovetail.core import WishError
from dovetail.ir import COLUMNS, Program, sizes_fault, slot_classes, uneven
from dovetail.run import execute, fresh_inputs
from dovetail.run.arrays import allocate_buffer

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ["engine", "net", "prepare", "send", "op", "load", "local", "order", "reduce", "kernel"]
SANITIZERS = ("thread", "address,undefined")


@pytest.fixture(scope="module", params=SANITIZERS)
def binaries(request, tmp_path_factory):
    """Both test programs, built with one sanitizer."""
    compiler, place = shutil.which("g++"), tmp_path_factory.mktemp("sanitized")
    if compiler is None:
        pytest.skip("needs compiler: no g++ command")
    flags = ["-std=c++20", "-O1", "-g1", "-pthread", f"-fsanitize={request.param}", "-fno-sanitize-recover=all"]
    include = [f"-I{ROOT / 'native'}", f"-I{ROOT / 'src' / 'dovetail'}"]

    def compiled(*arguments: object) -> None:
        command = [compiler, *flags, *include, *map(str, arguments)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if "cannot find -l" in built.stderr:
            pytest.skip(f"needs compiler: g++ has no -fsanitize={request.param}")
        assert built.returncode == 0, built.stderr[-3000:]

    def unit(path: str) -> Path:
        compiled("-c", ROOT / "native" / f"{path}.cpp", "-o", (made := place / f"{Path(path).name}-{path[0]}.o"))
        return made

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        *shared, first, second = workers.map(
            unit, [*(f"run/{name}" for name in SOURCES), "test/run", "test/collectives"]
        )
    for name, main in (("run", first), ("collectives", second)):
        compiled(*shared, main, "-o", place / name)
    return place


def ran(*command: object, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("needs compiler: the kernel's address layout is not one that the sanitizer knows")
    return done


@pytest.mark.slow
def test_random_programs(binaries):
    done = ran(binaries / "run", 1, 150)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


def programs() -> list[Program]:
    """Every built-in algorithm, on even, odd and two-level ranks, some with channels and instances."""
    found = []
    for name in ALGORITHMS:
        for ranks, more in ((3, {}), (4, {"nodes": 2, "instances": 2}), (6, {"nodes": 2}), (8, {"nodes": 4})):
            try:
                found.append(build(name, ranks, **more))
            except WishError:  # an algorithm for other numbers of ranks
                continue
    return found


def listed(values: object) -> str:
    flat = np.asarray(values, np.int64).ravel().tolist()
    return " ".join(map(str, [len(flat), *flat]))


def written(program: Program, seed: int, spoil: bool = False) -> str:
    """The program as native/test/collectives.cpp reads it, with random uneven slots where it allows them."""
    classes = slot_classes(program)
    count = 1 + max(int(part.max(initial=-1)) for parts in classes.values() for part in parts)
    rng = np.random.default_rng(seed)
    size = rng.integers(0, 40, count) if sizes_fault(program) is None else np.full(count, 29)
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


@pytest.mark.slow
def test_collectives_in_random_timings(binaries, tmp_path):
    cases = [written(program, seed) for seed, program in enumerate(programs())]
    (tmp_path / "programs").write_text("\n".join([str(len(cases)), *cases]))
    done = ran(binaries / "collectives", tmp_path / "programs", 6, 1, timeout_s=280)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout


@pytest.mark.slow
def test_a_wrong_element_is_noticed(binaries, tmp_path):
    """Planted: one element of what must come is another."""
    (tmp_path / "programs").write_text("1\n" + written(build("ring_all_reduce", 3), 0, spoil=True))
    done = ran(binaries / "collectives", tmp_path / "programs", 1, 1)
    assert done.returncode == 1
    assert "is wrong" in done.stdout
