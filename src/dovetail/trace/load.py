"""load: the kernel's counters in a trace: CPU time that a rank used and waited for, and what its CPUs did for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.trace.clocks import RankClock
from dovetail.trace.process_file import ProcessFile

TICK_S = 0.01  # of the counters of /proc/stat
COLUMNS = ("time_s", "used_s", "waited_s", "programs_s", "interrupts_s", "steal_s", "switches", "faults")
EMPTY: dict[str, Any] = {"booted_s": 0.0, "cpus": [], **{name: [] for name in COLUMNS}}
WAITS = ("thread", "time_s", "seconds")
NO_WAITS: dict[str, Any] = {name: [] for name in WAITS}
_SCALES = (1.0, 1e-9, 1e-9, TICK_S, TICK_S, TICK_S, 1, 1)


def load_of(process: ProcessFile, clock: RankClock, start_ns: float) -> dict[str, Any]:
    """Return `{"load": …}` for the meta of a process's rank; empty if its file has no counters.

    `cpus`: those that the process may use. `booted_s`: boot time of its machine. Other columns have a number per
    reading: `time_s` on the trace's clock; seconds so far of CPU that the process `used`, that its threads `waited` for
    a CPU, and that `programs` of all kinds, `interrupts` and the hypervisor (`steal`) took of `cpus`; involuntary
    `switches` and major page `faults` so far. None: the kernel does not count.
    """
    rows = [note["load"] for note in process.notes if "load" in note]
    place = next((note for note in process.notes if "booted_ns" in note), None)
    if not rows or place is None:
        return {}
    columns: dict[str, list[float | None]] = {
        name: [None if value < 0 else value * scale for value in column]
        for name, scale, column in zip(COLUMNS, _SCALES, zip(*rows, strict=True), strict=True)
    }
    columns["time_s"] = [(clock.line(row[0]) - start_ns) * 1e-9 for row in rows]
    return {"load": {"booted_s": place["booted_ns"] * 1e-9, "cpus": list(place["cpus"]), **columns}}


def waits_of(process: ProcessFile, clock: RankClock, start_ns: float) -> dict[str, Any]:
    """Return `{"core_waits": …}` for the meta of a process's rank; empty if its file has none.

    An entry of each column per wait of a thread for a core: the `thread`, when it next called MPI (`time_s`, on the
    trace's clock), and the `seconds` that it had waited in its work before that. A thread's first entry has 0 s.
    """
    rows = [note["waits"] for note in process.notes if "waits" in note]
    if not rows:
        return {}
    threads, clocks, waited = zip(*rows, strict=True)
    times_s = [(clock.line(at) - start_ns) * 1e-9 for at in clocks]
    columns = [thread - 1 for thread in threads], times_s, [ns * 1e-9 for ns in waited]
    return {"core_waits": dict(zip(WAITS, columns, strict=True))}


def is_waits(found: Any) -> bool:
    """Return whether an entry `core_waits` of a trace's meta has the form that `waits_of` writes."""
    if not isinstance(found, Mapping) or found.keys() != {*WAITS}:
        return False
    columns = list(found.values())
    is_whole = all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns)
    return is_whole and all(isinstance(x, int | float) for column in columns for x in column)


def is_load(found: Any) -> bool:
    """Return whether an entry `load` of a trace's meta has the form that `load_of` writes."""
    if not isinstance(found, Mapping) or not EMPTY.keys() <= found.keys():
        return False
    columns = [found[name] for name in COLUMNS]
    sizes = {len(column) for column in columns if isinstance(column, list)}
    numbers = all(isinstance(x, int | float | None) for column in columns for x in column)
    return len(sizes) == 1 and numbers and all(isinstance(cpu, int) for cpu in found["cpus"])
