"""What a wheel says of itself: the licences of all that is compiled into it."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from needs import ROOT

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
