"""The store: with any faulty file, the result is correct, after one warning and without waiting; for every kind."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from store_doors import DEEP, DOORS, MACHINE, PRODUCT, PROGRAM, STENCIL

from dovetail import store
from dovetail.core import DovetailError, cache_dir
from dovetail.core import cache as cache_module
from dovetail.store.machines import machine_item, save_machine, saved_machines
from dovetail.store.program_cache import program_of
from dovetail.store.store import ENVELOPE, KINDS, SCHEDULES, SCHEMA, Item, item

OTHER = 54321


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the test's own cache folder; also a folder for temporary files, and warnings are never suppressed."""
    for name, folder in (("TMPDIR", "tmp"), ("DOVETAIL_CACHE", "cache")):
        (tmp_path / folder).mkdir(mode=0o755)
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name in ("DOVETAIL_SELECTION", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    cache_module.warn_once.cache_clear()
    return tmp_path / "cache"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def file_of(place: Path, kind: str) -> Path:
    [path] = (place / kind).iterdir()
    return path


def warned(act: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return what `act` returns, and its warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = act()
    return found, [str(each.message) for each in seen]


# What is found


def test_saved_items_are_found(place, kind):
    door = DOORS[kind]
    assert warned(door.read) == (door.nothing, [])
    door.save()
    assert warned(door.read) == (door.good, [])
    path = file_of(place, kind)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    envelope = json.loads(text_of(path))
    assert [*envelope] == ["schema", "kind", "about", "made", "document"]
    assert (envelope["schema"], envelope["kind"]) == (SCHEMA, kind)


def text_of(path: Path) -> str:
    """Return the text of the envelope in a file."""
    if path.suffix == ".json":
        return path.read_text()
    with np.load(path) as held:
        return held[ENVELOPE].tobytes().decode()


def with_text(path: Path, text: str) -> None:
    """Replace the text of the envelope in a file."""
    if path.suffix == ".json":
        path.write_text(text)
        return
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays | {ENVELOPE: np.frombuffer(text.encode(), np.uint8)})
    path.write_bytes(file.getvalue())


def test_items_of_different_parts_are_different():
    parts = [("a", "b"), ("ab",), ("a", ["b"]), ({"a": "b"},), ("a", 1), ("a", "1"), ("b", "a"), ("a", None)]
    keys = {item(each, *part).key for part in parts for each in KINDS.values()}
    assert len(keys) == len(parts) * len(KINDS)


# What is wrong with a file


def edited(**changed: Any) -> Callable[[Path], None]:
    return lambda path: with_text(path, json.dumps(json.loads(text_of(path)) | changed))


def reformed(path: Path) -> None:
    """Change a document to that of another version."""
    envelope = json.loads(text_of(path))
    envelope["document"] |= {"schema": "dovetail.another/9"}
    with_text(path, json.dumps(envelope))


def emptied(path: Path) -> None:
    """Remove all but the schema from a document."""
    envelope = json.loads(text_of(path))
    envelope["document"] = {"schema": envelope["document"]["schema"]}
    with_text(path, json.dumps(envelope))


def flipped(path: Path) -> None:
    found = bytearray(path.read_bytes())
    middle = len(found) // 2
    found[middle : middle + 4] = bytes(255 - each for each in found[middle : middle + 4])
    path.write_bytes(found)


def replaced_by(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def plant(path: Path) -> None:
        path.unlink()
        make(path)

    return plant


FAULTS = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "no JSON": lambda path: path.write_text("{"),
    "nested too deep": lambda path: path.write_text("[" * 100_000),
    "a list": lambda path: path.write_text("[]"),
    "changed bytes": flipped,
    "another version": edited(schema="dovetail.store/2"),
    "another kind": edited(kind="another"),
    "no document": edited(document=None),
    "another document": reformed,
    "half a document": emptied,
    "writable by all": lambda path: path.chmod(0o666),
    "a folder": replaced_by(Path.mkdir),
    "a pipe": replaced_by(os.mkfifo),
    "a link": replaced_by(lambda path: path.symlink_to("/dev/zero")),
}


# by code that reads the envelope only
READABLE = ("another document", "half a document", "changed bytes")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_used_causes_one_warning(place, kind, fault):
    door = DOORS[kind]
    door.save()
    path = file_of(place, kind)
    FAULTS[fault](path)
    found, said = warned(lambda: (door.read(), door.read()))
    assert found == (door.nothing, door.nothing)
    [text] = said
    assert f"the cached {KINDS[kind].what} {path} is not used: " in text
    assert text.endswith(f"Try: dovetail cache clear --kind {kind}")
    if fault == "a folder":
        _, [text] = warned(door.save)
        assert "is not saved" in text
        assert [*store.entries([kind])] == []
        return
    [entry] = store.entries([kind])
    assert entry.about.startswith("cannot be used: ") or fault in READABLE
    assert warned(lambda: (door.save(), door.read())[1]) == (door.good, [])


@pytest.mark.needs("root")
def test_a_file_of_another_user(place, kind):
    door = DOORS[kind]
    door.save()
    os.chown(file_of(place, kind), OTHER, -1)
    found, [text] = warned(door.read)
    assert found == door.nothing
    assert f"uid {OTHER} owns" in text
    assert warned(lambda: (door.save(), door.read())[1]) == (door.good, [])


def test_a_file_that_cannot_be_read(place, kind, monkeypatch):
    door = DOORS[kind]
    door.save()
    plain = Path.open

    def refuse(self: Path, *how: Any, **more: Any) -> Any:
        if self.suffix in (".json", ".npz"):
            raise PermissionError(13, "Permission denied")
        return plain(self, *how, **more)

    monkeypatch.setattr(Path, "open", refuse)
    found, [text] = warned(door.read)
    assert (found, "Permission denied" in text) == (door.nothing, True)


def test_a_program_is_correct_whatever_its_file_contains(place):
    program_of(STENCIL, DEEP, 2)
    for fault in ("empty", "truncated", "changed bytes", "half a document"):
        FAULTS[fault](file_of(place, "programs"))
        found, said = warned(lambda: (program_of(STENCIL, DEEP, 2), program_of(STENCIL, DEEP, 2)))
        assert found == (PROGRAM, PROGRAM)
        assert len(said) == 1, fault


# What is wrong with a folder


def read_only(folder: Path) -> Callable[[], None]:
    """Make a folder read-only, for root by mounting another over it; return a function that undoes it."""
    if os.geteuid():
        folder.chmod(0o500)
        return lambda: folder.chmod(0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "ro,mode=755", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root: nothing can be mounted here")
    return lambda: subprocess.run(["umount", str(folder)], check=True) and None


def test_a_folder_that_cannot_be_written(place, tmp_path, kind):
    door, undo = DOORS[kind], read_only(place)
    try:
        found, said = warned(lambda: [door.read(), door.save(), door.read()])
        folder = cache_dir()
    finally:
        undo()
    assert (found[0], found[2]) == (door.nothing, door.good)
    [text] = said
    assert text.startswith(f"cannot write to the cache {place} (")
    assert folder == tmp_path / "tmp" / f"dovetail-{os.geteuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not (place / kind).exists()


def test_without_any_folder(kind, monkeypatch):
    """Without even a temporary folder, nothing is found and nothing is saved."""
    monkeypatch.setenv("DOVETAIL_CACHE", "/proc/cache")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    door = DOORS[kind]
    found, said = warned(lambda: [door.read(), door.save(), door.read()])
    assert (found[0], found[2]) == (door.nothing, door.nothing)
    assert sum("is not saved" in text for text in said) == 1


def test_a_disk_that_fills_up_leaves_what_was_there(place, kind, monkeypatch):
    door = DOORS[kind]
    door.save()

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    _, said = warned(lambda: (door.save(), door.save()))
    [text] = said
    assert f"the {KINDS[kind].what} (" in text
    assert text.endswith("is not saved: No space left on device")
    assert warned(door.read) == (door.good, [])
    assert len([*(place / kind).iterdir()]) == 1


# Several processes

WRITER = """
import sys
sys.path.insert(0, {tests!r})
from store_doors import DOORS
print("ready", flush=True)
door = DOORS[{kind!r}]
for _ in range({count}):
    door.save()
"""


@pytest.mark.parametrize("kind", ["machines", "programs"])  # one of each format
def test_written_by_two_at_once(place, kind):
    """Readers always find one complete file or the other."""
    door, count = DOORS[kind], 20
    line = WRITER.format(tests=str(needs.SUPPORT), kind=kind, count=count)
    with subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        for _ in range(count):
            assert warned(lambda: (door.save(), door.read())[1]) == (door.good, [])
    assert other.returncode == 0
    assert warned(door.read) == (door.good, [])
    assert len([*(place / kind).iterdir()]) == 1


# Listing and removing entries


def test_entries_and_clear(place):
    for door in DOORS.values():
        door.save()
    cache_dir("libraries")
    (place / "libraries" / "jacobi2d-0123.c").write_text("int a;")
    (place / "libraries" / ".jacobi2d-0123.so.abcd").touch()  # another process is writing it
    found = list(store.entries())
    assert [entry.kind for entry in found] == [*KINDS, "libraries"]
    abouts = {entry.kind: entry.about for entry in found}
    assert abouts["libraries"] == "C source jacobi2d"
    assert abouts["machines"] == "shared-memory-2, 2 ranks on 1 nodes"
    assert abouts["schedules"].startswith(f"{PRODUCT.title} on 2 ranks: ")
    assert abouts["programs"].endswith(f"{PROGRAM.num_ops} ops")

    assert [entry.kind for entry in store.clear(["costs", "programs"])] == ["costs", "programs"]
    assert store.clear(older_than_s=3600.0) == []
    for path in [*(place / "libraries").iterdir(), file_of(place, "proofs")]:
        os.utime(path, (1.0, 1.0))
    removed = store.clear(older_than_s=3600.0)
    assert [entry.kind for entry in removed] == ["proofs", "libraries", "libraries"]
    assert "killed while it wrote" in " ".join(entry.about for entry in removed)
    assert [entry.kind for entry in store.clear()] == ["machines", "schedules", "selections", "settings", "launches"]
    assert [*store.entries()] == []


def test_the_least_recently_used_is_removed(place):
    kind = replace(SCHEDULES, most=2)
    for age, name in enumerate("abc"):
        place_of = item(kind, name)
        store.save(place_of, name, {"name": name})
        os.utime(place_of.path, (age, age))
        if name == "b":  # used now, however old
            assert store.recall(item(kind, "a"), lambda document: document["name"]).value == "a"
    store.save(item(kind, "d"), "d", {"name": "d"})
    assert {entry.about for entry in store.entries(["schedules"])} == {"a", "d"}


def test_machines_are_listed_the_newest_first(place):
    for age, name in enumerate(("old", "new", "broken")):
        where = machine_item(name, 2)
        save_machine(where, replace(MACHINE, name=name))
        os.utime(where.path, (age, age))
    machine_item("broken", 2).path.write_text("{")
    found, said = warned(lambda: [machine.name for _, machine in saved_machines()])
    assert found == ["new", "old"]
    assert len(said) == 1


def test_an_internal_error_is_not_blamed_on_a_file():
    with pytest.raises(TypeError, match="JSON"):
        store.save(Item(SCHEDULES, "a"), "a", {"a": object()})


def test_the_error_of_a_reader_is_reported():
    def read(document: dict[str, Any]) -> None:
        raise DovetailError("no such thing", found="another")

    store.save(Item(SCHEDULES, "a"), "a", {})
    assert "is not used: no such thing (found another). Try" in store.recall(Item(SCHEDULES, "a"), read).why_not


@pytest.mark.mpi
@pytest.mark.usefixtures("own_cache")
def test_every_entry_point_on_ranks(mpi, monkeypatch):
    """Each rank warns once, and no rank waits."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    done = mpi.run(2, needs.RANKS / "broken_cache_ranks.py")
    assert (done.stdout, done.returncode) == ("all right\n", 0), done.stderr
