"""Ten million events of four ranks, merged, then `stats`, `view`, `export`, `advise`: seconds and memory of each, in a
process of its own.

    bench/trace_scale.py [--events 10000000] [--budget 420] [--out FILE]

Ranks send to their neighbours and reduce now and then, as a stencil does: of 16 bytes an event, three or four a call.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from tuned import keep, options_of_time

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
RANKS, EVENTS = 4, 14  # of a step: Isend 3, Recv 4, Allreduce 3, Wait 4
MERGE = "from dovetail.trace import merge; print(merge({0!r}).num_rows)"
VERB = """
from dovetail.cli import main
import sys
sys.argv = ["dovetail", "trace", *{1!r}]
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
"""
VERBS = {
    "stats": ["stats", "{0}"],
    "view": ["view", "{0}", "-o", "{0}/page.html"],
    "export": ["export", "{0}", "--perfetto", "{0}/perfetto.json"],
    "advise": ["advise", "{0}"],
}
TIMED = """
import resource, time
begun = time.perf_counter()
{}
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        count = written(Path(place), args.events)
        found: dict[str, dict[str, float]] = {}
        codes = {"merge": MERGE.format(place)}
        codes |= {name: VERB.format(place, [word.format(place) for word in verb]) for name, verb in VERBS.items()}
        for name, code in codes.items():
            found[name] = timed(code, args.budget / len(codes))
            print(f"{name}: {found[name]['seconds']:.1f} s, {found[name]['gigabytes']:.2f} GB for {count} events")
            keep(args.out, "trace_scale", events=count, **found)


def timed(code: str, limit_s: float) -> dict[str, float]:
    command = [sys.executable, "-c", TIMED.format(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s)
    seconds, gigabytes = done.stdout.split()[-2:]
    return {"seconds": float(seconds), "gigabytes": float(gigabytes)}


def written(folder: Path, events: int) -> int:
    """The files of the ranks; how many events they hold."""
    from trace_files import write_process

    total = 0
    for rank in range(RANKS):
        found = steps(rank, events // (RANKS * EVENTS))
        write_process(folder, rank, {1: found}, num_ranks=RANKS)
        total += len(found)
    return total


def steps(rank: int, count: int) -> np.ndarray:
    """Isend to the right, Recv from the left, Allreduce, Wait, again and again."""
    from trace_files import EVENT, event, pair

    right, left = (rank + 1) % RANKS, (rank - 1) % RANKS
    one = [event("begin", 100, 4), event("send", pair(right, 1), 0, 4096), event("end", 150, 4, 7)]
    one += [event("begin", 200, 2), event("recv", pair(left, 1), 0, 4096), event("done", pair(left, 1), 0, 4096)]
    one += [event("end", 400, 2), event("begin", 500, 11), event("collective", 8, 0, 8), event("end", 700, 11)]
    one += [event("begin", 800, 6), event("request", 7, 0), event("done", pair(-1, -1), 0, 0)]
    one += [event("end", 820, 6)]
    array = np.tile(np.array(one, EVENT), count)
    clock = np.isin(array["about"] & 15, (3, 4))
    array["word"][clock] += np.repeat(np.arange(count, dtype="u8") * 1000 + rank, int(clock.sum()) // count)
    return array


if __name__ == "__main__":
    main()
