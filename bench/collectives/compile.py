"""Time and memory of compile: algorithm written, traced, passed and proved, each case in a process of its own.

`python bench/collectives/compile.py [--json] [--most RANKS]`. `trace` is writing and tracing the algorithm,
`passes` the rewrites, `proof` the certificate of what comes out, all in CPU seconds; `process` is all CPU seconds of
the process, imports included, and `MB` the most memory that it held.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

CASES: tuple[tuple[str, int, dict[str, Any], int], ...] = (
    *(("ring_all_reduce", ranks, {}, 1) for ranks in (8, 64, 128, 256, 512, 1024)),
    ("ring_all_reduce", 8, {"channels": 8}, 24),
    *(("all_pairs_all_reduce", ranks, {}, 1) for ranks in (16, 32, 64, 128, 256, 512, 1024)),
    *(("recursive_halving_doubling_all_reduce", ranks, {}, 1) for ranks in (64, 128, 256, 1024)),
    *(("hierarchical_all_reduce", 8 * nodes, {"nodes": nodes}, 1) for nodes in (2, 16, 32, 128)),
    *(("two_step_all_to_all", 8 * nodes, {"nodes": nodes}, 1) for nodes in (2, 8, 16, 32, 64, 128)),
    *(("three_step_all_to_all", 8 * nodes, {"nodes": nodes}, 1) for nodes in (16, 32)),
    *(("all_to_next", 8 * nodes, {"nodes": nodes}, 16) for nodes in (3, 32)),
)


def one(name: str, ranks: int, options: dict[str, Any], instances: int) -> dict[str, Any]:
    """Compile one case in this process."""
    from dovetail.collective import make_algorithm
    from dovetail.ir import verify
    from dovetail.passes.lower import lower

    times = [time.process_time()]
    traced, hints = make_algorithm(name, ranks, **options).trace()
    times.append(time.process_time())
    program = lower(traced, hints, instances=instances)
    times.append(time.process_time())
    verify(program).raise_if_bad()
    times.append(time.process_time())
    trace, passes, proof = (after - before for before, after in pairwise(times))
    return {"ops": program.num_ops, "trace_s": trace, "passes_s": passes, "proof_s": proof}


def apart(name: str, ranks: int, options: dict[str, Any], instances: int) -> dict[str, Any]:
    """The same in a fresh process, with what that process took."""
    words = [sys.executable, __file__, "--one", json.dumps([name, ranks, options, instances])]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    case = {"algorithm": name, "ranks": ranks, **options, "instances": instances}
    if status:
        return {**case, "failed": status}
    spent = {"process_s": usage.ru_utime + usage.ru_stime, "max_rss_bytes": usage.ru_maxrss * 1024}
    return {**case, **json.loads(text), **spent}


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(one(*json.loads(sys.argv[sys.argv.index("--one") + 1]))))
        return
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    most = int(sys.argv[sys.argv.index("--most") + 1]) if "--most" in sys.argv else 1024
    head = {"bench": "compile", "machine": platform.processor() or platform.machine(), "commit": git.stdout.strip()}
    if "--json" not in sys.argv:
        print(f"compile, {head['machine']}, commit {head['commit']}")
        print(f"{'algorithm':<46}{'ops':>9}{'trace':>8}{'passes':>8}{'proof':>8}{'process':>9}{'MB':>7}")
    rows = []
    for case in CASES:
        if case[1] > most:
            continue
        row = apart(*case)
        rows.append(row)
        if "--json" in sys.argv:
            continue
        extra = "".join(f" {word}={row[word]}" for word in ("nodes", "channels", "instances") if row.get(word, 1) != 1)
        reported = f"{row['algorithm']} {row['ranks']}{extra}"
        if "failed" in row:
            print(f"{reported:<46} failed, status {row['failed']}")
            continue
        seconds = "{trace_s:>8.2f}{passes_s:>8.2f}{proof_s:>8.2f}{process_s:>9.2f}".format(**row)
        print(f"{reported:<46}{row['ops']:>9}{seconds}{row['max_rss_bytes'] / 1e6:>7.0f}", flush=True)
    if "--json" in sys.argv:
        print(json.dumps({**head, "rows": rows}))


if __name__ == "__main__":
    main()
