"""The documentation as a site that needs no network: `python tools/docs_site build/docs` (or `make docs`)."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import api
import catalogue
import stage
from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).parent


def build(out: Path) -> int:
    """Write the site to `out/html`; return Sphinx's exit code. `out/source` holds the pages that it is made from."""
    source = out / "source"
    shutil.rmtree(source, ignore_errors=True)
    stage.pages(source)
    api.pages(source / "api")
    catalogue.pages(source / "catalogue")
    for name in ("conf.py", "static"):
        (shutil.copytree if (HERE / name).is_dir() else shutil.copy)(HERE / name, source / name)
    strict = ["-W", "--keep-going"]  # a warning fails the build, once all of them are printed
    places = ["-d", str(out / "doctrees"), str(source), str(out / "html")]
    return sphinx(["-q", "-j", "auto", *strict, "-b", "html", *places])


if __name__ == "__main__":
    begin = time.perf_counter()
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs")
    code = build(target)
    print(f"{target}/html/index.html, {time.perf_counter() - begin:.0f} s")
    sys.exit(code)
