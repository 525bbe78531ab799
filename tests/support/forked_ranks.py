"""Ranks of PyTorch, forked from one process: importing torch takes longer than most of what they check."""

import ast
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CODES = "codes of ranks: "  # begins the line that a job ends with
# One thread a rank; what inductor compiles is compiled as fast as can be: without vectors, and no headers beforehand.
QUICK = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


class Job(NamedTuple):
    """A Python program with its arguments, run once for each mapping of environment variables, all at once."""

    words: list
    ranks: list


class Ended(NamedTuple):
    """What the ranks of a job printed, and their exit codes, as `subprocess` reports them; none if they hung."""

    printed: str
    codes: list


def run_jobs(jobs, limit_s=100, modules=()):
    """Run jobs one after another; return how each `Ended`.

    Their ranks have torch and further `modules` imported, but not dovetail.torch.
    """
    asked = json.dumps([[list(map(str, job.words)), job.ranks] for job in jobs])
    command = [sys.executable, __file__, asked, *modules]
    started = subprocess.Popen(
        command, env=os.environ | QUICK, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        printed = started.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        printed = started.communicate()[0]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    return list(_ends(printed, len(jobs)))


def _ends(printed, jobs):
    for _ in range(jobs):
        own, _, printed = printed.partition(CODES)
        codes, _, printed = printed.partition("\n")
        yield Ended(own, json.loads(codes or "[]"))


def ranks_of(size, **common):
    """Return the environment variables of each of `size` ranks of Dovetail."""
    return [common | {"DOVETAIL_RANKS": str(size), "DOVETAIL_RANK": str(rank)} for rank in range(size)]


def cache_in(folder):
    """Return the environment of a cache in `folder`, with the compiled libraries of the usual one."""
    from dovetail.core import LIBRARIES, cache_dir

    with suppress(FileExistsError):
        Path(folder, LIBRARIES).symlink_to(cache_dir(LIBRARIES))
    return {"DOVETAIL_CACHE": str(folder)}


def checks_of(program):
    """Return the names of a program's checks, in its order."""
    functions = [each for each in ast.parse(Path(program).read_text()).body if isinstance(each, ast.FunctionDef)]
    return [each.name for each in functions if each.name.startswith("check_")]


def by_check(printed):
    """Return {check: {rank: "passed" or a traceback}}, of lines that may run into each other."""
    found = defaultdict(dict)
    for line in printed.replace("][", "]\n[").splitlines():
        if line.startswith('["check_'):
            name, rank, text, _ = json.loads(line)
            found[name][rank] = text
    return found


def main():
    _, asked, *modules = sys.argv
    for name in ("torch.distributed", "dovetail", *modules):
        importlib.import_module(name)
    for words, ranks in json.loads(asked):
        begun = []
        for environment in ranks:
            if not (child := os.fork()):
                os.environ.update(environment)
                sys.argv = words
                runpy.run_path(words[0], run_name="__main__")
                return
            begun.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in begun]
        print(CODES + json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
