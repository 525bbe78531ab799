"""Ranks without MPI for tests: programs of tests/ranks."""

import os
import subprocess
import sys
import tempfile

import needs

from dovetail.run.shared.launch import Ranks


def run_shared(ranks, program, *words, limit_s=120, env=None):
    """Run a program of tests/ranks on ranks of this host; return the exit code (None: it hung), and what it printed."""
    path = os.pathsep.join([str(needs.SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = ["env", f"PYTHONPATH={path}", *(f"{name}={value}" for name, value in (env or {}).items()), sys.executable,
             str(needs.RANKS / program), *map(str, words)]  # fmt: skip
    with tempfile.TemporaryFile() as printed:
        started = Ranks(words, ranks, printed)
        try:
            code = started.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            started.end()
        printed.seek(0)
        return code, printed.read().decode(errors="replace")
