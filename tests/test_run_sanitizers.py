"""The native engine under ThreadSanitizer and AddressSanitizer: random programs on threads, in both progress modes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ["engine", "net", "moves", "send", "op", "load", "local", "order", "reduce", "kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_random_programs(sanitizer, tmp_path):
    compiler, binary = shutil.which("g++"), tmp_path / "run"
    if compiler is None:
        pytest.skip("needs compiler: no g++ command")
    sources = [ROOT / "native" / "test" / "run.cpp", *(ROOT / "native" / "run" / f"{name}.cpp" for name in SOURCES)]
    flags = ["-std=c++20", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    include = [f"-I{ROOT / 'native'}", f"-I{ROOT / 'src' / 'dovetail'}"]
    built = subprocess.run(
        [compiler, *flags, *include, *map(str, sources), "-o", str(binary)], capture_output=True, text=True, check=False
    )
    if "cannot find -l" in built.stderr:
        pytest.skip(f"needs compiler: g++ has no -fsanitize={sanitizer}")
    assert built.returncode == 0, built.stderr[-3000:]
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(
        [str(binary), "1", "60"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("needs compiler: the kernel's address layout is not one that the sanitizer knows")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    assert "all as expected" in done.stdout
