"""Run PyTorch's own cases of parallel styles, from a checkout, on gloo, on dovetail, and with `overlapped` plans.

    python bench/pytorch/torch_plan_conformance.py FILE … [--ranks 2] [--json FILE]

FILE: test/distributed/tensor/parallel/test_tp_style.py or a neighbour, of the PyTorch release that is installed. The
cases run one after another in the same processes, a process group each. With `overlapped`, counts of collectives
are not asserted: the messages of a layer that overlaps are no collectives that PyTorch's CommDebugMode sees. Exit code
1: a case that passes on gloo fails otherwise.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from collections import defaultdict
from pathlib import Path

from torch_conformance import meet, read, table

WAYS = ("gloo", "dovetail", "overlapped")
LIMIT_S = 600  # of all cases one way


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return run_rank(args)
    found = {way: run_way(args, way) for way in WAYS}
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    passed = [name for name, (how, _) in found["gloo"].items() if how == "passed"]
    return int(any(found[way].get(name, ("failed",))[0] == "failed" for way in WAYS[1:] for name in passed))


def run_way(args, way):
    """Return {case: (passed, skipped or failed; why)}. A case counts as failed if it fails on any rank."""
    with tempfile.TemporaryDirectory() as folder:
        more = ["--ranks", str(args.ranks), "--way", way, "--folder", folder]
        command = [sys.executable, __file__, *map(str, args.files), *more]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        began = [subprocess.Popen([*command, "--rank", str(rank)], env=environ) for rank in range(args.ranks)]
        end = time.monotonic() + LIMIT_S
        while any(each.poll() is None for each in began) and time.monotonic() < end:
            time.sleep(0.2)
        for each in began:
            each.kill()
            each.wait()
        reports = [
            read(path) for path in (Path(folder, f"results.{rank}") for rank in range(args.ranks)) if path.exists()
        ]
    found = {}
    for name in reports[0] if len(reports) == args.ranks else ():
        each = [theirs.get(name) or ("failed", "no end") for theirs in reports]
        found[name] = tuple(next((it for it in each if it[0] == "failed"), each[0]))
    return found


# In a rank


def run_rank(args):
    import warnings

    import torch.distributed as dist

    import dovetail.torch  # noqa: F401

    warnings.simplefilter("ignore")
    store = dist.FileStore(str(args.folder / "control"), args.ranks)
    with (args.folder / f"results.{args.rank}").open("w") as results:
        for number, (name, case) in enumerate(cases(args)):
            meet(store, f"begin.{number}", args.rank, args.ranks)
            print(json.dumps([name, None]), file=results, flush=True)
            how = run_case(case, args, args.folder / f"group.{number}")
            print(json.dumps([name, how]), file=results, flush=True)
            meet(store, f"end.{number}", args.rank, args.ranks)


def cases(args):
    """Yield (name, case) for the classes of the files that start process groups of their own."""
    from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, LocalDTensorTestBase

    for path in args.files:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if args.way == "overlapped":
            overlap(module)
        for kind in list(vars(module).values()):
            is_case = isinstance(kind, type) and issubclass(kind, DTensorTestBase) and kind.__module__ == path.stem
            if is_case and not issubclass(kind, LocalDTensorTestBase):
                sized = type(kind.__name__, (kind,), {"world_size": args.ranks})
                for name in unittest.TestLoader().getTestCaseNames(sized):
                    yield f"{path.stem}.{name}", sized(name)


def overlap(module):
    """Wrap the plans that a module of cases gives to `parallelize_module`; let all counts of collectives be right."""
    import dovetail.torch

    inner = module.parallelize_module
    module.parallelize_module = lambda model, mesh=None, plan=None, **more: inner(
        model, mesh, dovetail.torch.overlapped(plan), **more
    )

    module.CommDebugMode = type("Uncounted", (module.CommDebugMode,), {
        "get_total_counts": lambda self: Right(), "get_comm_counts": lambda self: defaultdict(Right),
    })  # fmt: skip


class Right(int):
    """A number that equals each other one."""

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def run_case(case, args, file):
    import torch
    import torch.distributed as dist

    backend = "gloo" if args.way == "gloo" else "dovetail"

    def begin(*_, **__):
        dist.init_process_group(backend, init_method=f"file://{file}", world_size=args.ranks, rank=args.rank)

    case.rank, case.file_name, case.init_pg = args.rank, str(file), begin
    case.destroy_pg = lambda *_: None
    torch.manual_seed(0)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(case, case._testMethodName)()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as code:
        return "skipped", f"exit code {code.code}"
    except BaseException as error:
        print(case, traceback.format_exc(), file=sys.stderr, flush=True)
        return "failed", f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "passed", ""


if __name__ == "__main__":
    sys.exit(main())
