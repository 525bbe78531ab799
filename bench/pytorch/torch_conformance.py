"""Run the cases of torch's own DistributedTest, as the wheel has them, on backends "gloo" and "dovetail"; count them.

    python bench/pytorch/torch_conformance.py [--ranks 2] [--backends gloo dovetail] [--only NAME …] [--json FILE]

The cases run one after another in the same processes, a process group each. Their guards see the name "gloo" (or "mpi",
where a case runs under no other name on CPUs), so that both backends run the same cases. Exit code 1: "dovetail" fails
a case that "gloo" passes.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from collections import Counter
from datetime import timedelta
from pathlib import Path

STUCK_S = 90  # without a result: the case hangs, its processes are ended, and the next case runs in new ones
ONLY_GLOO = ("test_get_backend", "test_monitored_barrier")  # torch asks for the backend's name there
SECONDS = 30  # of a group's calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backends", nargs="+", default=["gloo", "dovetail"])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return run_rank(args.backends[0], args.rank, args.ranks, args.folder)
    found = {backend: run_backend(backend, args.ranks, args.only) for backend in args.backends}
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    missed = [name for name, (how, _) in found.get("gloo", {}).items() if how == "passed" and "dovetail" in found]
    missed = [name for name in missed if found["dovetail"][name][0] == "failed"]
    return 1 if missed else 0


def run_backend(backend, ranks, only):
    """Return {case: (passed, skipped or failed; why)}. A case counts as failed if it fails on any rank."""
    found, left = {}, only
    while left is not None:
        with tempfile.TemporaryDirectory() as folder:
            hung = run_once(backend, ranks, left, Path(folder), found)
        print(f"{backend}: {len(found)} cases" + (f", {hung} hangs" if hung else ""), file=sys.stderr)
        if hung is None:
            break
        found[hung] = ("failed", f"no end within {STUCK_S} s")
        names = only or json.loads(Path(tempfile.gettempdir(), "torch_cases.json").read_text())
        left = [name for name in names if name not in found] or None
    return found


def run_once(backend, ranks, only, folder, found):
    """Run cases in new processes, into `found`; return the one that hangs, or None."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir()
    (folder / "only.json").write_text(json.dumps(only))
    environ = os.environ | {
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "TEMP_DIR": str(folder),
        "INIT_METHOD": f"file://{folder}/init_dir/shared",
        "OMP_NUM_THREADS": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
    }
    more = ["--ranks", str(ranks), "--backends", backend, "--folder", str(folder)]
    command = [sys.executable, __file__, *more]
    output = (folder / "output").open("w+")
    began = [
        subprocess.Popen([*command, "--rank", str(rank)], env=environ, stdout=output, stderr=output)
        for rank in range(ranks)
    ]
    last, size = time.monotonic(), -1
    results = [folder / f"results.{rank}" for rank in range(ranks)]
    while any(each.poll() is None for each in began):
        time.sleep(0.2)
        now = sum(path.stat().st_size for path in results if path.exists())
        if now != size:
            last, size = time.monotonic(), now
        if time.monotonic() - last > STUCK_S:
            break
    for each in began:
        each.kill()
        each.wait()
    reports = [read(path) for path in results]
    begun = [name for name, how in reports[0].items() if how is None]
    for name, how in reports[0].items():
        each = [theirs.get(name) for theirs in reports]
        if how is not None and None not in each:
            found[name] = tuple(next((it for it in each if it[0] == "failed"), how))
    if not reports[0]:
        output.seek(0)
        raise SystemExit(output.read()[-3000:])
    unfinished = [name for name in begun if name not in found]
    return unfinished[0] if unfinished else next((n for n in reports[0] if n not in found), None)


def read(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row[0]: row[1] for row in rows}


def table(found):
    """Return the counts, the causes of skips, and the failures."""
    lines = []
    for backend, cases in found.items():
        counts = Counter(how for how, _ in cases.values())
        lines.append(f"{backend}: {counts['passed']} passed, {counts['skipped']} skipped, {counts['failed']} failed")
        for why, number in Counter(why for how, why in cases.values() if how == "skipped").most_common():
            lines.append(f"    skipped {number:3}  {why}")
        lines += [f"    failed  {name}: {why.splitlines()[0]}" for name, (how, why) in cases.items() if how == "failed"]
    return "\n".join(lines)


# In a rank


def run_rank(backend, rank, ranks, folder):
    import torch.distributed as dist

    case_class, skips = load()
    names = json.loads((folder / "only.json").read_text()) or unittest.TestLoader().getTestCaseNames(case_class)
    if rank == 0:
        Path(tempfile.gettempdir(), "torch_cases.json").write_text(json.dumps(list(names)))
    store = dist.FileStore(str(folder / "control"), ranks)
    results = (folder / f"results.{rank}").open("w")
    for number, name in enumerate(names):
        if not hasattr(case_class, name):
            raise SystemExit(f"DistributedTest has no case {name}")
        print(json.dumps([name, None]), file=results, flush=True)
        meet(store, f"begin.{number}", rank, ranks)
        how = run_case(case_class, skips, backend, rank, ranks, name, folder)
        meet(store, f"end.{number}", rank, ranks)
        for path in (folder / "barrier").iterdir() if rank == 0 else ():
            path.unlink()
        print(json.dumps([name, how]), file=results, flush=True)
    return


def load():
    """Return the class of torch's cases, and what its exit codes for skips mean."""
    import warnings

    warnings.simplefilter("ignore")
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    import dovetail.torch  # noqa: F401

    class Cases(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        init_method = os.environ["INIT_METHOD"]

    return Cases, {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}


def meet(store, key, rank, ranks):
    store.set(f"{key}.{rank}", "")
    store.wait([f"{key}.{each}" for each in range(ranks)], timedelta(seconds=300))


def run_case(case_class, skips, backend, rank, ranks, name, folder):
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed
    from torch.testing._internal.distributed import distributed_test

    if backend != "gloo" and name.startswith(ONLY_GLOO):
        return "skipped", "torch lets only a backend named gloo run it"
    set_rng_seed()
    distributed_test.BACKEND = "mpi" if "all_to_all" in name else "gloo"
    distributed_test.Barrier.barrier_id = 0
    case = case_class(name)
    case.rank, case.file_name = rank, str(folder / "init_dir" / name)
    said = io.StringIO()
    try:
        limit = timedelta(seconds=distributed_test.CUSTOM_PG_TIMEOUT.get(name, SECONDS))
        dist.init_process_group(
            backend, init_method=f"file://{case.file_name}", world_size=ranks, rank=rank, timeout=limit
        )
        case._barrier()
        with contextlib.redirect_stdout(said):
            getattr(case, name)()
        case._barrier()
    except unittest.SkipTest as skip:
        return "skipped", re.sub(r"'?\w*\d+x\w*'?", "…", str(skip))
    except SystemExit as code:
        return "skipped", skips.get(code.code, f"exit code {code.code}")
    except BaseException as error:
        print(name, traceback.format_exc(), flush=True)
        return "failed", f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "passed", ""


if __name__ == "__main__":
    sys.exit(main())
