"""Install each wheel of dist/ into empty environments, and try every verb where there is no MPI, compiler or PyTorch.

    tools/try_wheels.py [PYTHON ...]        default: those of python3.11, python3.12 and python3.13 that are here

Pythons are looked for on PATH and, as tools/wheels does, among those of pyenv and those that it fetched.

Each verb must work, or end with what is missing and how to get it; a traceback is a failure. On PATH are the
environment and six plain tools, so that nothing of the machine is found by chance.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PYTHONS = ("python3.11", "python3.12", "python3.13")
TOOLS = ("true", "sh", "env", "uname", "cat", "ls")
PRODUCT = "--m 256 --k 256 --n 256 --machine shared-memory-2 --extrapolate"
WORKS = (  # in order: some need what others wrote
    "doctor", "machines list", f"plan matmul_all_reduce {PRODUCT} --out p", "show p", "verify p", "simulate p",
    "diff p p", "run p --on threads --rounds 1 --out q", "compile ring_all_reduce --ranks 2 --out r.txt",
    "run r.txt --on shared --rounds 1", "compare p q/measured.json",
    "tune all_reduce --ranks 2 --on shared --min 8 --max 128 --budget 5 --out t",
    "bench all_reduce --ranks 2 --on shared --min 8 --max 128 --rounds 1",
    "tile --deps 3,1;1,2 --tile 6,2;2,4 --space 30x20", "cache list", "reproduce mc2",
    "launch --ranks 2 -- true",
)  # fmt: skip
MISSING = (  # and what the answer must name
    ("run p --on mpi --rounds 1", "mpi"), ("probe matmul --shapes 8x8x8", "mpi"), ("run p --on cuda", "CUDA"),
    ("accelerate -- true", "compiler"), ("trace run -- true", "compiler"),
)  # fmt: skip


def main() -> None:
    asked = {name: found(name) for name in sys.argv[1:] or PYTHONS}
    pythons = [path for path in asked.values() if path]
    missing = [name for name, path in asked.items() if not path]
    if missing and (sys.argv[1:] or not pythons):
        sys.exit(f"no {', '.join(missing)}")
    failed = [answer for python in pythons for answer in tried(python)]
    print("", *(f"not tried, since it is not here: {name}" for name in missing))
    print("", *failed, f"{len(failed)} failed" if failed else "all verbs answer", sep="\n")
    sys.exit(bool(failed))


def found(name: str) -> str | None:
    """Return a Python of this name, or at this path, that runs; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [*pyenv.glob(f"versions/*/bin/{name}"), *(ROOT / "build/wheels/pythons").glob(f"*/bin/{name}")]
    for path in filter(None, (shutil.which(name), *map(str, places))):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def tried(python: str) -> list[str]:
    """Try the wheel that fits this Python; return what failed."""
    tag = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:2])"], text=True).split()
    minor = int(tag[1])
    wheels = [*DIST.glob(f"*-cp3{minor}-cp3{minor}-*.whl"), *(DIST.glob("*-abi3-*.whl") if minor >= 12 else ())]
    if not wheels:
        return [f"dist/ has no wheel for Python {'.'.join(tag)}: tools/wheels {python}"]
    with tempfile.TemporaryDirectory() as place:
        path = prepared(Path(place), python, wheels[0])
        print(f"\nPython {'.'.join(tag)}, {wheels[0].name}", flush=True)
        works = [answer for verb in WORKS for answer in wrong(Path(place), path, verb, "")]
        return works + [answer for verb, name in MISSING for answer in wrong(Path(place), path, verb, name)]


def prepared(place: Path, python: str, wheel: Path) -> str:
    """Make the environment, with a folder of plain tools; return the PATH."""
    subprocess.run([python, "-m", "venv", place / "env"], check=True)
    subprocess.run([place / "env/bin/python", "-m", "pip", "install", "-q", wheel], check=True)
    (place / "bin").mkdir()
    for tool in TOOLS:
        (place / "bin" / tool).symlink_to(shutil.which(tool) or sys.exit(f"no {tool}"))
    return os.pathsep.join([str(place / "env/bin"), str(place / "bin")])


def wrong(place: Path, path: str, verb: str, missing: str) -> list[str]:
    """Run one verb; return what is wrong with its answer. `missing`: what it should say that it lacks; "": nothing."""
    env = {"PATH": path, "HOME": str(place), "DOVETAIL_CACHE": str(place / "cache"), "LC_ALL": "C.UTF-8"}
    words = [place / "env/bin/dovetail", *verb.split()]
    done = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)
    text = done.stdout + done.stderr
    if missing:
        good = missing.lower() in text.lower() and ("try" in text or done.returncode == 0)
    else:
        good = done.returncode == 0
    good = good and "Traceback" not in text
    print(f"  {'ok' if good else 'WRONG':6}{done.returncode:3}  dovetail {verb}", flush=True)
    return [] if good else [f"{path.split(os.sep)[2]}: dovetail {verb} ended with {done.returncode}:\n{text[-600:]}"]


if __name__ == "__main__":
    main()
