"""What was asked of a device, beside what was found: one line for each figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

Found = Mapping[str, Sequence[Mapping[str, Any]]]  # rows by section
Verdicts = Iterator[tuple[str, float, float, bool]]  # what, found, asked, whether it is enough
LARGE = 64 << 20


CORRECT = ("refusals", "checks", "corpus", "full_size", "families", "products", "alone", "sanitized")
GRAPH, CALL = "µs of the calling thread for a graph's replay", "µs of a planned call over streams by hand"
SHARE = "share of a plain sum's bytes per second"
SUMS = tuple(f"{SHARE}, {name}" for name in ("ring", "all pairs", "sums"))
IDEAL, SERIAL, RIVAL = "median share of the ideal gain", "tuned over serial", "tuned over PyTorch's best chunking"
BALANCE = "longer over shorter of product and transfers"
REGRETS = tuple(f"regret of {name}" for name in ("measured", "simulation"))
ASKED = (*CORRECT, GRAPH, CALL, *SUMS, IDEAL, BALANCE, SERIAL, RIVAL, *REGRETS)  # how what is asked of a device begins


def verdicts(found: Found) -> Iterator[dict[str, Any]]:
    """A row for each figure, and one for each of which nothing was measured."""
    reported = []
    for what, value, asked, good in _figures(found):
        reported.append(what)
        line = f"{'met   ' if good else 'MISSED'} {what}: {value:.4g}, asked {asked:.4g}"
        yield {"what": what, "found": value, "asked": asked, "met": good, "line": line}
    for what in ASKED:
        if not any(each.startswith(what) for each in reported):
            yield {"what": what, "met": None, "line": f"NO FIGURE {what}: nothing was measured"}
    yield from _crossings(found)


def _figures(found: Found) -> Verdicts:
    makers: tuple[Callable[[Found], Verdicts], ...] = (_correct, _calls, _sums, _gains, _regrets)
    return chain.from_iterable(make(found) for make in makers)


def _correct(found: Found) -> Verdicts:
    for section in CORRECT:
        rows = [row for row in found.get(section, ()) if "bad" in row]
        if rows:
            bad = sum(bool(row["bad"]) for row in rows)
            yield f"{section}: parts that are wrong or were not tried, of {len(rows)}", bad, 0, bad == 0


def _calls(found: Found) -> Verdicts:
    for row in found.get("calls", ()):
        if row.get("graph"):
            yield GRAPH, 1e6 * row["seconds"], 10, row["seconds"] <= 10e-6
    for row in found.get("planned_call", ()):
        if "over_s" in row:
            yield f"{CALL}, {row['title']}", 1e6 * row["over_s"], 30, row["over_s"] <= 30e-6


def _sums(found: Found) -> Verdicts:
    large = [row for row in found.get("interpreter", ()) if row.get("num_bytes", 0) >= LARGE]
    for key in dict.fromkeys((row["name"], row["num_bytes"]) for row in large):
        rows = [row for row in large if (row["name"], row["num_bytes"]) == key]
        share = max(row["moved_per_s"] / row["plain_per_s"] for row in rows)
        yield f"{SHARE}, {key[0]} of {key[1] >> 20} MiB", share, 0.8, share >= 0.8


def _gains(found: Found) -> Verdicts:
    rival: dict[str, float] = {}
    for row in [row for row in found.get("pytorch", ()) if "seconds" in row]:
        rival[row["title"]] = min(row["seconds"], rival.get(row["title"], row["seconds"]))
    rows = [row for row in found.get("alone", ()) if "measured_s" in row]
    gains = [row["ideal_gain"] or 0.0 for row in rows]
    if gains:
        median = statistics.median(gains)
        yield f"{IDEAL}, {len(gains)} shapes", median, 0.85, median >= 0.85
    for row in rows:
        over = max(row["compute_s"], row["comm_s"]) / max(min(row["compute_s"], row["comm_s"]), 1e-12)
        yield f"{BALANCE}, {row['title']}", over, 2, over <= 2
    for row in [*rows, *found.get("products", ())]:
        over = row["measured_s"] / row["serial_s"]
        yield f"{SERIAL}, {row['title']}, {row['ranks']} ranks", over, 1.02, over <= 1.02
    for row in rows:
        if row["title"] in rival:
            over = row["measured_s"] / rival[row["title"]]
            yield f"{RIVAL}, {row['title']}", over, 1, over < 1


def _regrets(found: Found) -> Verdicts:
    for row in found.get("schedules", ()):
        if row.get("chooser") in ("measured", "simulation"):
            yield f"regret of {row['chooser']}, {row['shapes']} shapes", row["regret"], 0.02, row["regret"] <= 0.02


def _crossings(found: Found) -> Iterator[dict[str, Any]]:
    """The largest size at which LL, or LL128, is faster than Simple."""
    rows = found.get("interpreter", ())
    best: dict[tuple[str, str, int], float] = {}
    for row in rows:
        if "protocol" in row and "plain_sum_s" in row:
            key = row["name"], row["protocol"], row["num_bytes"]
            best[key] = min(row["seconds"], best.get(key, row["seconds"]))
    for name in dict.fromkeys(key[0] for key in best):
        for protocol in ("LL", "LL128"):
            sizes = sorted(size for which, other, size in best if (which, other) == (name, protocol))
            faster = [s for s in sizes if best[name, protocol, s] < best.get((name, "Simple", s), 0.0)]
            line = f"{name}: {protocol} is faster than Simple " + (f"up to {faster[-1]} B" if faster else "nowhere")
            yield {"name": name, "protocol": protocol, "up_to": faster[-1] if faster else None, "line": line}
