"""Ten million events of four ranks, merged, then `stats`, `view`, `export`, `advise`: seconds and memory of each, in a
process of its own, as a Markdown table.

    bench/traces/trace_scale.py [--events 100000,10000000] [--rounds 3] [--budget 420] [--out FILE]

Ranks send to their neighbours and reduce now and then, as a stencil does: of 16 bytes an event, three or four a call.
Seconds are from the start of the process to its end: the interpreter and imports count, from cached bytecode.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benches share

from tuned import commit, keep, options_of_time, until

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
RULE = "|---|---|---|---|"
RANKS, EVENTS = 4, 14  # of a step: Isend 3, Recv 4, Allreduce 3, Wait 4
LIMITS = {10**5: "2 s", 10**7: "60 s and 1.5 GB"}  # of each verb, by events
TITLES = {
    "merge": "merged on one clock into one file (`trace merge`)",
    "stats": "added up (`trace stats`)",
    "view": "a page (`trace view`)",
    "perfetto": "for Perfetto (`trace export --perfetto`)",
    "otf2": "for Vampir (`trace export --otf2`)",
    "advise": "what to change (`trace advise`)",
}
VERBS = {
    "merge": ["merge", "{0}"],
    "stats": ["stats", "{0}"],
    "view": ["view", "{0}", "-o", "{0}/page.html"],
    "perfetto": ["export", "{0}", "--perfetto", "{0}/perfetto.json"],
    "otf2": ["export", "{0}", "--otf2", "{0}/archive-{1}"],
    "advise": ["advise", "{0}"],
}
CODE = """
import resource, sys
from dovetail.cli import main
code = main(["trace", *{!r}])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6)
sys.exit(code)
"""
FIGURES = ("seconds", "cpu_s", "gigabytes")
Row = dict[str, list[float]]  # these figures of each round


def main() -> None:
    parser = options_of_time(__doc__)
    parser.add_argument("--events", default="100000,10000000", help="events of the traces, one after another")
    parser.add_argument("--rounds", type=int, default=3, help="how often each verb is timed; 3")
    args = parser.parse_args()
    verbs = [name for name in VERBS if name != "otf2" or find_spec("otf2")]
    found: dict[int, dict[str, Row]] = {}
    is_over = until(args.budget)
    for asked in map(int, args.events.split(",")):
        with tempfile.TemporaryDirectory() as place:
            count = written(Path(place), asked)
            rows = found[count] = {name: {figure: [] for figure in FIGURES} for name in verbs}
            for turn in range(args.rounds):
                if turn and is_over():
                    break
                for name in verbs:
                    measured = timed([word.format(place, turn) for word in VERBS[name]])
                    for figure, value in zip(FIGURES, measured, strict=True):
                        rows[name][figure].append(value)
                    keep(args.out, "trace_scale", machine=machine(), rounds=turn + 1, events=found)
    print(table(found))


def timed(words: list[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and gigabytes of one verb in a process of its own."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", CODE.format(words)]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"dovetail trace {' '.join(words)}: {done.stderr}")
    cpu_s, gigabytes = done.stdout.split()[-2:]
    return seconds, float(cpu_s), float(gigabytes)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{name}, {os.cpu_count()} cores"


def table(found: dict[int, dict[str, Row]]) -> str:
    """The results as Markdown: medians of the rounds, the least and the most in brackets; the most memory."""
    rounds = max(len(row["seconds"]) for rows in found.values() for row in rows.values())
    about = f"{RANKS} ranks, medians of {rounds} rounds (least to most), most memory; a process each, imports included."
    lines = [f"{machine()}; commit {commit()['commit']}, {commit()['date']}; `bench/traces/trace_scale.py`.", about]
    for count, rows in found.items():
        bound = next((f"; each is to take less than {text}" for size, text in LIMITS.items() if near(count, size)), "")
        lines += [
            "",
            f"| {count:,} events{bound} | seconds | CPU seconds | memory |".replace(",", " "),
            "|---|---|---|---|",
        ]
        for name, row in rows.items():
            least, *_, most = sorted([*row["seconds"], *row["seconds"][:1]])
            spread = f"{statistics.median(row['seconds']):.2f} ({least:.2f} to {most:.2f})"
            cpu_s = statistics.median(row["cpu_s"])
            lines.append(f"| {TITLES[name]} | {spread} | {cpu_s:.2f} | {max(row['gigabytes']):.2f} GB |")
    return "\n".join(lines)


def near(count: int, size: int) -> bool:
    """Whether this is the number of events that was asked for: whole steps of all ranks."""
    return 0 <= size - count < RANKS * EVENTS


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
