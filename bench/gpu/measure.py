"""All that is measured on a CUDA device, section by section, each a process with a limit of its own; see bench/gpu/run.

    bench/gpu/measure.py [--out FOLDER] [--limit-s SECONDS] [--small] [--only SECTION,…]

What a section finds is appended to `results.jsonl` as it comes, so that a crash, a hang or a cut loses nothing before
it; `results.json`, `table.txt` and `pages.tar.gz` are written anew after each section, its errors go to `errors.log`.
Whatever a run leaves is in these few files, in one folder.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 5.0  # that a section has beyond its time, to end by itself
SMALL_S = 60.0  # that a section may take with --small
LAST, LAST_S = "verdicts", 10.0  # what sums up has its time, whatever others took


def append(out: Path, **found: Any) -> None:
    """One line of JSON, on the disk before anything else happens."""
    with (out / "results.jsonl").open("a") as file:
        file.write(json.dumps(found) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_section(name: str, asked: argparse.Namespace, seconds: float) -> None:
    """In a section's own process: every row that it yields is kept at once, its line printed."""
    from sections import SECTIONS, Setting

    os.setsid()
    os.chdir(ROOT)
    out = asked.out
    with (out / "errors.log").open("a") as errors:
        print(f"==> {name}", file=errors, flush=True)
        os.dup2(errors.fileno(), sys.stderr.fileno())
    for row in SECTIONS[name].find(Setting(out, asked.pages, asked.small, time.monotonic() + seconds)):
        append(out, section=name, **row)
        if row.get("line"):
            print(f"  {row['line']}", flush=True)


def start_section(name: str, asked: argparse.Namespace, seconds: float) -> str:
    """Run a section in a process of its own, which begins with all that is imported here; how it ended."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        try:
            run_section(name, asked, seconds)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    until = time.monotonic() + seconds + GRACE_S
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            stop(child)
            return f"stopped: it took over {seconds + GRACE_S:.0f} s"
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(ended[1])
    return "done" if code == 0 else f"failed with code {code}: see errors.log"


def stop(child: int) -> None:
    """End a section with all that it started; one that the driver holds on to is left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    until = time.monotonic() + 10
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < until:
        time.sleep(0.01)


def gathered(out: Path) -> dict[str, Any]:
    """The document that the lines found so far make up."""
    sections: dict[str, Any] = {}
    for line in (out / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        found = sections.setdefault(row.pop("section"), {"rows": [], "ended": "cut short"})
        if "ended" in row:
            found |= row
        else:
            found["rows"].append(row)
    return {"schema": "dovetail.gpu/2", "sections": sections}


def table(document: dict[str, Any]) -> str:
    """The lines of all sections, one after the other."""
    lines = []
    for name, found in document["sections"].items():
        fault = "" if found["ended"] == "done" else f": {found['ended']}"
        lines.append(f"{name} ({found.get('took_s', '?')} s){fault}")
        lines += [f"  {row['line']}" for row in found["rows"] if row.get("line")] + [""]
    return "\n".join(lines)


def write(out: Path, pages: Path) -> dict[str, Any]:
    document = gathered(out)
    (out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    (out / "table.txt").write_text(table(document))
    if any(pages.iterdir()):
        with tarfile.open(out / "pages.tar.gz", "w:gz") as packed:
            packed.add(pages, "pages")
    return document


def measure(asked: argparse.Namespace) -> int:
    """All sections in turn; 1 if any did not come to its end, or found what is `bad`."""
    from sections import SECTIONS

    chosen = asked.only.split(",") if asked.only else list(SECTIONS)
    if unknown := sorted(set(chosen) - set(SECTIONS)):
        raise SystemExit(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # as Dovetail does; PyTorch may start CUDA first
    if {"interpreter", "pytorch", "planned_call"} & set(chosen):
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")  # once, for all sections that hold us against it
    asked.out.mkdir(parents=True, exist_ok=True)
    for old in ("results.jsonl", "errors.log"):
        (asked.out / old).unlink(missing_ok=True)
    until = time.monotonic() + asked.limit_s - LAST_S
    for name in (name for name in SECTIONS if name in chosen):
        begin = time.monotonic()
        left_s = (begin + LAST_S if name == LAST else until) - begin - GRACE_S
        seconds = min(SMALL_S if asked.small else SECTIONS[name].seconds, left_s)
        print(f"==> {name}", flush=True)
        ended = start_section(name, asked, seconds) if seconds >= 5 else "no time was left"
        append(asked.out, section=name, ended=ended, took_s=round(time.monotonic() - begin, 1))
        document = write(asked.out, asked.pages)
    shutil.rmtree(asked.pages, ignore_errors=True)  # they are packed
    print("\n" + table(document))
    sections = document["sections"].values()
    return int(any(found["ended"] != "done" or any(row.get("bad") for row in found["rows"]) for found in sections))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu" / "results")
    parser.add_argument("--limit-s", type=float, default=440.0)
    parser.add_argument("--small", action="store_true", help="the smallest sizes, to try the script itself")
    parser.add_argument("--only", default="", help="sections to run, instead of all")
    asked = parser.parse_args()
    asked.out = asked.out.resolve()
    asked.pages = Path(tempfile.mkdtemp(prefix="dovetail-pages-"))  # many files: they come back as one
    return measure(asked)


if __name__ == "__main__":
    raise SystemExit(main())
