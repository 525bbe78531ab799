"""Stage the pages: copy docs/ and the files that it links to into one folder; every link stays inside the site."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from os.path import relpath
from pathlib import Path

import shelves

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BESIDE = {  # pages of the site that lie elsewhere in the repository
    "README.md": "index",
    "CHANGELOG.md": "changelog",
    "bench/results/README.md": "results",
    **{f"bench/results/{name}.md": f"results-{name}" for name in shelves.RESULTS},
    "tools/testbed/README.md": "testbed",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|<)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^( {0,3}(`{3,}|~{3,})).*?^ {0,3}\2`*[ ]*$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^```(\w+) title=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURES = (".svg", ".png")
WORDS = {".py": "python", ".c": "c", ".h": "c", ".toml": "toml", ".sh": "bash", ".json": "json", ".f90": "fortran"}


def pages(out: Path) -> None:
    """Write every page, with the pictures of docs/ and the sources that pages link to, and the index of each shelf."""
    shutil.copytree(DOCS, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md"))
    places = {path: path.relative_to(DOCS).with_suffix("").as_posix() for path in sorted(DOCS.rglob("*.md"))}
    found = tuple(places.values())
    places |= {ROOT / path: name for path, name in BESIDE.items()}
    linked: set[Path] = set()
    for path, name in places.items():
        if name != "index":
            _write(out / f"{name}.md", _page(path, name, places, linked))
    for path in _sources(linked):
        if path.suffix in PICTURES:
            (out / "files" / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, out / "files" / path.relative_to(ROOT))
            continue
        _write(out / f"{_source_page(path)}.md", _shown(path))
    _write(out / "index.md", _index((*found, *list(BESIDE.values())[1:], "api/index", "catalogue/index")))


def targets(text: str) -> Iterator[tuple[str, str]]:
    """Yield (path, anchor) of the links of a page to files of the repository, outside of fenced code."""
    for match in LINK.finditer(FENCE.sub("", text)):
        yield match[1], (match[2] or "")[1:]


def _page(path: Path, name: str, places: dict[Path, str], linked: set[Path]) -> str:
    """Return a page's text with its links turned to the site's pages; note the sources that it links to."""

    def turned(match: re.Match[str]) -> str:
        target = (path.parent / match[1]).resolve()
        if target.is_relative_to(DOCS) and target.suffix != ".md":
            place = target.relative_to(DOCS).as_posix()
        elif target in places:
            place = f"{places[target]}.md"
        elif target.suffix in PICTURES:
            place = f"files/{target.relative_to(ROOT).as_posix()}"
            linked.add(target)
        else:
            linked.add(target)
            place = f"{_source_page(target)}.md"
        return relpath(place, Path(name).parent.as_posix()) + (match[2] or "")

    text, parts, at = path.read_text(encoding="utf-8"), [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(turned, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return NAMED.sub(_captioned, "".join([*parts, LINK.sub(turned, text[at:])]))


def _captioned(match: re.Match[str]) -> str:
    """Return a block of code that names its file as Sphinx writes it."""
    return f"```{{code-block}} {match[1]}\n:caption: {match[2]}\n\n{match[3]}```"


def _sources(linked: set[Path]) -> Iterator[Path]:
    """Yield the linked sources, and those inside linked folders."""
    for path in sorted(linked):
        yield path
        if path.is_dir():
            yield from (each for each in sorted(path.rglob("*")) if each.suffix in WORDS and each not in linked)


def _source_page(path: Path) -> str:
    """Return the name of the page that shows a source or a folder."""
    return f"files/{path.relative_to(ROOT).as_posix()}"


def _shown(path: Path) -> str:
    """Return a page that shows a source, or lists the sources of a folder."""
    head = f"---\norphan: true\n---\n\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        inside = [each for each in sorted(path.rglob("*")) if each.suffix in WORDS]
        return head + "\n".join(f"- [{each.relative_to(path)}]({each.relative_to(path.parent)}.md)" for each in inside)
    return f"{head}``````{WORDS.get(path.suffix, '')}\n{path.read_text(encoding='utf-8').rstrip()}\n``````\n"


def _index(found: tuple[str, ...]) -> str:
    """Return the first page: what Dovetail is, and the four shelves."""
    about = (DOCS / "index.md").read_text(encoding="utf-8") if (DOCS / "index.md").exists() else "# Dovetail\n"
    parts = [about.rstrip()]
    for shelf in shelves.shelved(page for page in found if page != "index"):
        parts.append(f"## {shelf.title}\n\n{shelf.about}")
        for group, names in shelf.groups.items():
            caption = f"{shelf.title}: {group}" if group else shelf.title
            body = "\n".join(names)
            heading = f"### {group}\n\n" if group else ""
            parts.append(f"{heading}```{{toctree}}\n:caption: {caption}\n:maxdepth: 1\n\n{body}\n```")
    return "\n\n".join(parts) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
