"""Generated MPI programs of tiles, compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path


def built(mpi, text: str, folder: Path, *words: str) -> Path:
    (folder / "tiles.c").write_text(text)
    command = [
        mpi.mpicc,
        "-std=c99",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        *words,
        folder / "tiles.c",
        "-o",
        folder / "tiles",
    ]
    done = subprocess.run(command, env=mpi.env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "tiles"
