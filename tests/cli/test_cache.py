"""`dovetail cache` lists and removes the files that are saved between runs."""

from __future__ import annotations

import json
import os

import pytest

from dovetail.core import cache_dir
from dovetail.machine import load
from dovetail.store.machines import machine_item, save_machine


@pytest.fixture
def kept(own_cache):
    """Save two machines, one of which is broken, and a library."""
    for path in (own_cache / "libraries").iterdir():
        path.unlink()
    for age, launch in ((3 * 86400, "srun"), (0, "mpiexec")):
        path = save_machine(machine_item(launch, 2), load("shared-memory-2"))
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    path.write_text("{")
    (cache_dir("libraries") / "mpi_shim-0123456789abcdef.so").write_bytes(bytes(2048))
    return own_cache


def test_list(call, kept):
    code, out, err = call("cache", "list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["kind", "about", "size", "age"]
    assert "cannot be used: the file is truncated or corrupted" in out
    [old] = [line for line in lines if "shared-memory-2, 2 ranks" in line]
    assert old.split()[0] == "machines"
    assert old.endswith("3 days")
    [library] = [line for line in lines if line.startswith("libraries")]
    assert "compiled mpi_shim" in library
    assert "2 KiB" in library
    assert lines[-1].startswith("3 files, ")
    assert lines[-1].endswith(f" in {kept}")


def test_list_as_a_document(call, kept):
    found = json.loads(call("cache", "list", "--kind", "libraries", "--kind", "libraries", "--json")[1])
    [library] = found.pop("files")
    assert found == {"schema": "dovetail.cache/1", "folder": str(kept), "removed": False, "num_bytes": 2048}
    assert library.pop("age_s") < 1000
    path = str(kept / "libraries" / "mpi_shim-0123456789abcdef.so")
    assert library == {"kind": "libraries", "about": "compiled mpi_shim", "num_bytes": 2048, "path": path}


def test_clear(call, kept):
    code, out, _ = call("cache", "clear", "--older-than", "2")
    assert code == 0
    assert "shared-memory-2, 2 ranks" in out
    assert f"removed from {kept}" in out
    found = json.loads(call("cache", "clear", "--kind", "machines", "--json")[1])
    assert (found["removed"], len(found["files"])) == (True, 1)
    assert [path.suffix for path in kept.rglob("*.*")] == [".so"]
    assert call("cache", "clear")[1].splitlines()[-1] == f"1 file, 2 KiB, removed from {kept}"
    assert call("cache", "list")[1] == f"0 files, 0 B, in {kept}\n"


def test_no_such_kind(call, kept):
    code, out, err = call("cache", "clear", "--kind", "machine")
    assert (code, out) == (2, "")
    assert "did you mean 'machines'?" in err
    assert len([*kept.rglob("*.*")]) == 3
