"""All that is measured on a CUDA device, section by section, each within its share of the time; see bench/gpu/run.

    bench/gpu/measure.py [--out FOLDER] [--limit-s SECONDS] [--small] [--only SECTION,…]

After each section `results.json` and `table.txt` are written anew, so that a run that is cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sections import SECTIONS, Setting

ROOT = Path(__file__).resolve().parents[2]
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu,driver_version"


def said(*command: str) -> str:
    """What a command prints; nothing where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def facts(setting: Setting) -> dict[str, Any]:
    """The device, its driver and clocks, and the commit."""
    read = said("nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader").split(", ")
    clocks = dict(zip(CLOCKS.split(","), read, strict=False))
    commit = said("git", "rev-parse", "--short", "HEAD")
    return {**setting.gpu.facts(), "clocks": clocks, "commit": commit, "small": setting.small}


def run_section(name: str, section: Callable[[Setting], dict[str, Any]], setting: Setting) -> dict[str, Any]:
    """What a section found, and how long it took; or why it failed."""
    begin = time.monotonic()
    try:
        found = section(setting)
    except Exception as error:
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {error}"}
    return {**found, "took_s": round(time.monotonic() - begin, 1)}


def table(document: dict[str, Any]) -> str:
    """The lines of all sections, one after the other."""
    lines = [f"{document['facts']['device']}, commit {document['facts']['commit'] or '?'}"]
    for name, found in document["sections"].items():
        lines += ["", f"{name} ({found['took_s']} s)"]
        lines += [f"  FAILED: {found['failed']}"] if "failed" in found else [f"  {line}" for line in found["lines"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu" / "results")
    parser.add_argument("--limit-s", type=float, default=440.0)
    parser.add_argument("--small", action="store_true", help="the smallest sizes, to try the script itself")
    parser.add_argument("--only", default="", help="sections to run, instead of all")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    setting = Setting(asked.out, asked.small, time.monotonic() + asked.limit_s)
    document: dict[str, Any] = {"schema": "dovetail.gpu/1", "facts": facts(setting), "sections": {}}
    for name, section in SECTIONS.items():
        if asked.only and name not in asked.only.split(","):
            continue
        if setting.left_s < 10:
            document["sections"][name] = {"failed": "no time was left", "took_s": 0.0}
            continue
        print(f"==> {name}", flush=True)
        document["sections"][name] = run_section(name, section, setting)
        (asked.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        (asked.out / "table.txt").write_text(table(document))
    print(table(document))
    return int(any("failed" in found for found in document["sections"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
