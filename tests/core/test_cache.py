"""The cache folder: no file that other users could have written is loaded, and no fault causes a traceback."""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from dovetail.core import (
    CACHED,
    EnvironmentFault,
    RunError,
    cache_dir,
    compile_for_here,
    is_cached,
    read_own,
    save_json,
    save_text,
)
from dovetail.core import cache as cache_module

OTHER = 54321
CODE = "int answer(void) { return %d; }\n"


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Give the test its own home and temporary folder; repeat every warning."""
    for name, folder in (("HOME", "home"), ("TMPDIR", "tmp"), ("DOVETAIL_CACHE", "cache")):
        (tmp_path / folder).mkdir(mode=0o755)
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    cache_module.warn_once.cache_clear()
    cache_module._temporary.cache_clear()


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def fallback(tmp_path: Path) -> Path:
    return tmp_path / "tmp" / f"dovetail-{os.geteuid()}"


# Owners of folders


def make_writable(place: Path) -> None:
    place.chmod(0o777)


def make_sticky(place: Path) -> None:
    place.chmod(0o1777)


def make_group_writable(place: Path) -> None:
    os.chown(place, -1, OTHER)
    place.chmod(0o775)


def make_foreign(place: Path) -> None:
    os.chown(place, OTHER, -1)


def make_parent_foreign(place: Path) -> None:
    os.chown(place.parent, OTHER, -1)


def make_parent_writable(place: Path) -> None:
    place.parent.chmod(0o777)


def make_foreign_link(place: Path) -> None:
    place.rename(place.with_name("real"))
    place.symlink_to("real")
    os.lchown(place, OTHER, -1)


def make_link_to_writable(place: Path) -> None:
    place.rename(place.with_name("real"))
    place.with_name("real").chmod(0o777)
    place.symlink_to("real")


FOR_ROOT = (make_group_writable, make_foreign, make_parent_foreign, make_foreign_link)
DANGERS = {
    make_writable: "everyone can write to",
    make_sticky: "everyone can write to",
    make_group_writable: f"group gid {OTHER} can write to",
    make_foreign: f"uid {OTHER} owns",
    make_parent_foreign: f"uid {OTHER} owns",
    make_parent_writable: "everyone can write to",
    make_foreign_link: f"uid {OTHER} owns the link",
    make_link_to_writable: "everyone can write to",
}


@pytest.mark.parametrize(
    "danger",
    [pytest.param(each, marks=pytest.mark.needs("root") if each in FOR_ROOT else ()) for each in DANGERS],
    ids=lambda each: each.__name__,
)
def test_another_users_folder_is_not_used(tmp_path, monkeypatch, danger) -> None:
    place = tmp_path / "deep" / "cache"
    place.mkdir(parents=True)
    monkeypatch.setenv("DOVETAIL_CACHE", str(place))
    assert cache_dir() == place
    danger(place)
    with pytest.warns(RuntimeWarning, match="nothing is loaded from the cache") as reported:
        assert cache_dir() == fallback(tmp_path)
    [text] = [str(each.message) for each in reported]
    assert DANGERS[danger] in text
    assert str(place) in text
    assert "set DOVETAIL_CACHE to a folder that only you can write" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warned once
        assert cache_dir("programs") == fallback(tmp_path) / "programs"
    assert mode(fallback(tmp_path)) == 0o700


def test_a_sticky_parent_folder_is_safe(tmp_path, monkeypatch) -> None:
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "tmp" / "mine"))
    assert cache_dir() == tmp_path / "tmp" / "mine"


def test_the_users_own_link_is_followed(tmp_path, monkeypatch) -> None:
    (tmp_path / "link").symlink_to("cache")
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "link"))
    assert cache_dir() == tmp_path / "cache"


def test_the_users_private_group_may_write(tmp_path) -> None:
    """On systems with a private group per user, the umask lets the group write."""
    import grp

    user = pwd.getpwuid(os.geteuid())
    if grp.getgrgid(user.pw_gid).gr_name != user.pw_name:
        pytest.skip("needs root: this user has no group of their own")
    (tmp_path / "cache").chmod(0o775)
    assert cache_dir() == tmp_path / "cache"


def test_a_subfolder_that_others_can_write_is_not_used(tmp_path) -> None:
    (tmp_path / "cache" / "programs").mkdir()
    (tmp_path / "cache" / "programs").chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"everyone can write to .*programs"):
        assert cache_dir("programs") == fallback(tmp_path) / "programs"
    assert cache_dir("machines") == tmp_path / "cache" / "machines"


@pytest.mark.needs("root")
def test_the_name_of_the_private_folder_is_taken(tmp_path) -> None:
    fallback(tmp_path).mkdir(mode=0o700)
    os.chown(fallback(tmp_path), OTHER, -1)
    (tmp_path / "cache").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="is used instead"):
        place = cache_dir()
    assert place.parent == tmp_path / "tmp"
    assert place != fallback(tmp_path)
    assert mode(place) == 0o700
    assert cache_dir() == place


# Owners of files


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(lambda path: os.chown(path, OTHER, -1), id="foreign", marks=pytest.mark.needs("root")),
        pytest.param(lambda path: path.chmod(0o777), id="writable"),
        pytest.param(lambda path: (path.rename(f"{path}.b"), path.symlink_to(f"{path}.b")), id="link"),
    ],
)
def test_another_users_library_is_not_loaded(tmp_path, plant) -> None:
    good = compile_for_here(CODE % 1, "answer", "the answer")
    planted = compile_for_here(CODE % 2, "answer", "the answer")
    planted.replace(good)
    plant(good)
    with pytest.warns(RuntimeWarning, match="a cached file is not used"):
        found = compile_for_here(CODE % 1, "answer", "the answer")
    assert (found, answer(found)) == (good, 1)
    assert is_cached(found)


@pytest.mark.needs("compiler")
def test_a_library_in_another_users_folder_is_not_loaded(tmp_path) -> None:
    good = compile_for_here(CODE % 3, "answer", "the answer")
    compile_for_here(CODE % 4, "answer", "the answer").replace(good)
    (tmp_path / "cache").chmod(0o777)
    with pytest.warns(RuntimeWarning, match="nothing is loaded from the cache"):
        found = compile_for_here(CODE % 3, "answer", "the answer")
    assert (found, answer(found)) == (fallback(tmp_path) / "libraries" / good.name, 3)


@pytest.mark.needs("root")
def test_another_users_pickle_is_not_read(tmp_path) -> None:
    (tmp_path / "job.pkl").write_bytes(b"job")
    assert read_own(tmp_path / "job.pkl") == b"job"
    os.chown(tmp_path / "job.pkl", OTHER, -1)
    with pytest.raises(RunError, match=f"uid {OTHER} owns it"):
        read_own(tmp_path / "job.pkl")


# The umask


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027, 0o002])
def test_files_follow_the_umask(tmp_path, umask, mask) -> None:
    umask(mask)
    assert mode(save_text(tmp_path / "new" / "a.txt", "a")) == 0o666 & ~mask
    assert mode(tmp_path / "new") == 0o777 & ~mask
    assert mode(save_json(cache_dir("machines") / "a.json", {}, CACHED)) == 0o600
    assert mode(cache_dir("machines")) == 0o700
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_libraries_are_private_whatever_the_umask(umask, mask) -> None:
    umask(mask)
    found = compile_for_here(CODE % (10 + mask), "answer", "the answer")
    assert (mode(found), mode(found.parent)) == (0o700, 0o700)
    assert {mode(path) for path in found.parent.glob("*.c")} == {0o600}


def test_devices_and_pipes_are_written_to(tmp_path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    save_text(tmp_path / "link", "new")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "file").read_text()) == (True, "new")
    line = "from dovetail.core import save_text; save_text('/dev/stdout', 'said')"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "said"
    with pytest.raises(EnvironmentFault, match="Is a directory"):
        save_text(tmp_path, "text")


# The place of the cache


def test_an_empty_variable_counts_as_unset(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "")
    assert cache_dir() == tmp_path / "home" / ".cache" / "dovetail"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "dovetail"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / "home" / ".cache" / "dovetail"


@pytest.mark.parametrize("home", [None, "", "not/absolute"])
def test_without_a_home_folder(tmp_path, monkeypatch, home) -> None:
    monkeypatch.delenv("DOVETAIL_CACHE")
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)

    def nobody(uid: int):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.warns(RuntimeWarning, match=f"no home folder of uid {os.getuid()}.*set DOVETAIL_CACHE"):
        assert cache_dir() == fallback(tmp_path)


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("DOVETAIL_CACHE")
    (tmp_path / "home" / ".cache").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="there is no cache folder to write"):
        assert cache_dir() == fallback(tmp_path)


def test_a_home_of_an_unknown_user(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "~no-such-user-here/cache")
    with pytest.warns(RuntimeWarning, match="cannot write to the cache"):
        assert cache_dir() == fallback(tmp_path)


@pytest.mark.parametrize("name", ["file", "file/cache", "loop"])
def test_a_path_that_is_no_folder(tmp_path, monkeypatch, name) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / name))
    with pytest.warns(RuntimeWarning, match="cannot write to the cache") as reported:
        assert cache_dir() == cache_dir() == fallback(tmp_path)
    [text] = [str(each.message) for each in reported]
    assert text.endswith("set DOVETAIL_CACHE to a folder that only you can write")


@pytest.mark.needs("compiler")
def test_libraries_of_a_cache_that_cannot_be_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "/proc/cache")
    with pytest.warns(RuntimeWarning, match="cannot write to the cache /proc/cache") as reported:
        found = compile_for_here(CODE % 5, "answer", "the answer")
    assert (found.parent, answer(found), len(reported)) == (fallback(tmp_path) / "libraries", 5, 1)


def test_where_nothing_can_be_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "/proc/cache")
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(EnvironmentFault, match="no cache folder can be made"):
        cache_dir()


# A full disk


@pytest.fixture
def full(monkeypatch):
    """A full disk: files can be created, but nothing can be written to them."""

    def write(self, *args, **how):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write)


def test_a_full_disk_is_reported(tmp_path, full) -> None:
    for write in (lambda: save_text(tmp_path / "a.txt", "a"), lambda: compile_for_here(CODE % 7, "answer", "it")):
        with pytest.raises(EnvironmentFault, match="No space left") as reported:
            write()
        assert "free some space" in (reported.value.hint or "")
    assert not (tmp_path / "a.txt").exists()
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_a_compiler_on_a_full_disk(tmp_path, monkeypatch) -> None:
    from dovetail.core import compile_c

    script, source = tmp_path / "cc", tmp_path / "any.c"
    script.write_text(
        "#!/bin/sh\n[ $# = 1 ] && exit\necho 'ld: a.so: No space left on device' >&2; echo more >&2; exit 1"
    )
    script.chmod(0o755)
    source.touch()
    with pytest.raises(EnvironmentFault, match="No space left on device") as reported:
        compile_c(str(script), [source], "any", "it")
    assert "free some space" in (reported.value.hint or "")
    assert not list((tmp_path / "cache").rglob("*.*"))
