"""What a wheel says of itself and carries: the licences of all that is compiled into it, C that is compiled later."""

from __future__ import annotations

import re
import shutil
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from needs import ROOT

from dovetail import _native
from dovetail.core import compiler, native_folder

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def words(text: str) -> str:
    """Without line breaks and the stars of comments."""
    return " ".join(re.sub(r"^ ?\*+ ?", "", text, flags=re.MULTILINE).split())


def carried() -> str:
    return words("\n".join((ROOT / name).read_text(encoding="utf-8") for name in PROJECT["license-files"]))


def test_the_notice_of_nanobind_is_carried() -> None:
    pytest.importorskip("nanobind", reason="needs nanobind: it is there where Dovetail is built")
    [path] = [each for each in distribution("nanobind").files or () if each.name == "LICENSE"]
    assert words(path.read_text(encoding="utf-8")) in carried()


def test_the_notices_of_robin_map_are_carried() -> None:
    """nanobind brings these headers; each opens with its notice."""
    nanobind = pytest.importorskip("nanobind", reason="needs nanobind: it is there where Dovetail is built")
    headers = [*Path(nanobind.__file__).parent.glob("ext/robin_map/include/tsl/*.h")]
    assert headers
    for header in headers:
        notice = header.read_text(encoding="utf-8").split("*/")[0].removeprefix("/**")
        assert words(notice) in carried(), header.name


def test_who_made_it() -> None:
    assert PROJECT["authors"] == [{"name": "The Dovetail developers"}]
    assert PROJECT["classifiers"]
    assert PROJECT["keywords"]


def lacking(installed: Path) -> list[str]:
    """C sources that Python has compiled where it runs, and that an installed package lacks or has otherwise."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    folders = {name for text in texts for name in re.findall(r'native_folder\("([\w/]+)"\)', text)}
    sources = sorted(path for name in folders for path in _compiled_there(name))
    assert len(sources) > 20
    places = {path: installed / path.relative_to(ROOT / "native") for path in sources}
    return [path.name for path, at in places.items() if not at.exists() or at.read_bytes() != path.read_bytes()]


def _compiled_there(folder: str) -> list[Path]:
    """C of a folder, or C++ that needs PyTorch's headers."""
    return list((ROOT / "native" / folder).glob("*.[ch]pp" if folder == "torch" else "*.[ch]"))


def test_c_that_is_compiled_where_it_is_used_is_installed(tmp_path: Path) -> None:
    assert lacking(Path(str(_native._core.__file__)).parent) == [], "make build"
    copy = shutil.copytree(ROOT / "native", tmp_path / "native")
    assert lacking(copy) == []
    (copy / "prober/calls.c").unlink()
    (copy / "run/mpi_table.h").write_text("// another")
    assert lacking(copy) == ["calls.c", "mpi_table.h"]


def test_c_is_read_in_place_in_a_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_folder("run") == ROOT / "native" / "run"
    (tmp_path / "native" / "run").mkdir(parents=True)
    for above, found in (("src", "native/run"), ("lib", "lib/dovetail/_native/run")):
        monkeypatch.setattr(compiler, "_PACKAGE", tmp_path / above / "dovetail")
        assert native_folder("run") == tmp_path / found
    monkeypatch.setattr(compiler, "_PACKAGE", tmp_path / "src" / "dovetail")
    assert native_folder("other") == tmp_path / "src/dovetail/_native/other"
