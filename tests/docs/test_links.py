"""Every link of a page leads to a file that exists, and to a heading that it has; every page stands on one shelf."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from needs import ROOT

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CHANGELOG.md"))]
PAGES += [*sorted((ROOT / "bench/results").glob("*.md")), ROOT / "tools/testbed/README.md"]
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def site():
    """The modules of tools/docs_site that need no Sphinx."""
    sys.path.insert(0, str(ROOT / "tools/docs_site"))
    yield importlib.import_module("stage"), importlib.import_module("shelves")
    sys.path.pop(0)


def anchor(heading: str) -> str:
    """The name that GitHub and the site give a heading: words of letters and digits, joined by hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken(page: Path, stage) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for target, mark in stage.targets(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if not path.exists():
            found.append(target)
        elif mark and mark not in map(anchor, HEADING.findall(path.read_text(encoding="utf-8"))):
            found.append(f"{target}#{mark}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page, site):
    assert broken(page, site[0]) == []


def test_a_broken_link_is_found(tmp_path, site):
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](page.md#a-page) [b](gone.md) [c](page.md#gone)\n```\n[d](gone.md)\n```\n")
    assert broken(page, site[0]) == ["gone.md", "page.md#gone"]


def test_shelves_name_pages_that_exist(site):
    stage, shelves = site
    there = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    there = (there | set(stage.BESIDE.values()) | {"api/index", "catalogue/index"}) - {"index"}
    named = [page for shelf in shelves.shelved(there) for page in shelf.pages]
    assert sorted(named) == sorted(there)


def test_links_stay_inside_the_site(tmp_path, site):
    """Staged, no page links to a file that the site lacks; programs that name their file get a caption."""
    stage, _ = site
    stage.pages(tmp_path)
    made = {"api/index.md", "catalogue/index.md"}
    for page in sorted(tmp_path.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for target, _mark in stage.targets(text):
            path = (page.parent / target).resolve()
            assert path.exists() or str(path.relative_to(tmp_path)) in made, f"{page.relative_to(tmp_path)}: {target}"
    assert ":caption: multiply.py" in (tmp_path / "tutorials/first_speed_up.md").read_text(encoding="utf-8")
