"""What an event costs with tracers of others, for trace_cost.py: LTTng-UST and uftrace of Debian, viztracer of PyPI.

Debian's packages may be unpacked anywhere (`dpkg -x`): `root` is that place, or / where they are installed. What is not
there is left out, with the cause.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
LIMIT_S = 20
CALLED = """
#include <stdio.h>
#include <time.h>
enum { CALLS = 300000 };
static volatile int sink;
__attribute__((noinline)) void called(int i) { sink = i; }
int main(void) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < CALLS; ++i) called(i);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%.3f\\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / CALLS);
    return 0;
}
"""
PYTHON = """
import json, sys, time, dovetail.trace as trace
COUNT = 100000
def spent(each):
    begun = time.perf_counter()
    for i in range(COUNT):
        each(i)
    return (time.perf_counter() - begun) / COUNT * 1e9
def nothing(i):
    pass
def interval(i):
    with trace.interval("piece", i):
        pass
def watched(i):
    with watch.log_event("piece"):
        pass
trace.init(sys.argv[1])
loop = spent(nothing)
found = {"python_interval_ns": spent(interval) - loop, "python_point_ns": spent(lambda i: trace.point("p", i)) - loop}
trace.finalize()
try:
    from viztracer import VizTracer
except ImportError:
    pass
else:
    watch = VizTracer(tracer_entries=4 * COUNT, verbose=0, log_sparse=True, output_file=sys.argv[1] + "/viz.json")
    watch.start()
    found["viztracer_interval_ns"] = spent(watched) - loop
    watch.stop()
print(json.dumps(found))
"""


def peers(place: Path, root: Path, rounds: int) -> Iterator[dict[str, float]]:
    """Median nanoseconds of an event, after each round; the reason why a tracer is left out is printed once."""
    ways: list[tuple[str, Callable[[], dict[str, float]]]] = []
    for name, make in (("LTTng-UST", lttng), ("uftrace", uftrace), ("Python", python)):
        try:
            ways.append((name, make(place, root)))
        except (OSError, subprocess.SubprocessError) as fault:
            print(f"{name} is left out: {fault}", file=sys.stderr)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, way in ways:
            try:
                reported = way()
            except (OSError, subprocess.SubprocessError) as fault:
                print(f"{name} is left out: {fault}", file=sys.stderr)
                continue
            for key, ns in reported.items():
                found.setdefault(key, []).append(ns)
        yield {name: statistics.median(values) for name, values in found.items()}


def output(command: list[object], env: Mapping[str, str] | None = None) -> str:
    """What a command prints; uftrace waits for ever for a program that could not start."""
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return done.stdout


def lttng(place: Path, root: Path) -> Callable[[], dict[str, float]]:
    """The loop of trace_cost.c around LTTng's tracepoint: a ring of the newest events, and off: nobody listens."""
    include, libs = root / "usr/include/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu"
    flags = [
        f"-I{include}",
        f"-I{root / 'usr/include'}",
        f"-I{HERE / 'traces'}",
        f"-L{libs}",
        f"-Wl,-rpath-link,{libs}",
    ]
    program = place / "lttng_cost"
    output(["cc", "-O2", "-pthread", HERE / "traces" / "trace_lttng.c", *flags, "-llttng-ust", "-ldl", "-o", program])
    env = os.environ | {"LD_LIBRARY_PATH": str(libs), "PATH": f"{root / 'usr/bin'}:{os.environ['PATH']}"}
    env["LTTNG_SESSION_CONFIG_XSD_PATH"] = f"{root / 'usr/share/xml/lttng'}/"

    def run() -> dict[str, float]:
        off = json.loads(output([program], env))
        with lttng_session(place, libs, env):
            on = json.loads(output([program], env))
        reported = {"lttng_on_ns": on["one_thread_ns"], "lttng_on_two_threads_ns": on["two_threads_ns"]}
        return reported | {"lttng_off_ns": off["one_thread_ns"]}

    return run


@contextmanager
def lttng_session(place: Path, libs: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Its daemon, and a session that keeps the newest events of this bench in 16 MiB a core, as our rings do."""
    consumer = [f"--consumerd64-path={libs}/lttng/libexec/lttng-consumerd", f"--consumerd64-libdir={libs}"]
    command = ["lttng-sessiond", "--no-kernel", *consumer]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            time.sleep(1)
            for words in (
                ("create", "dovetail", "--snapshot", f"--output={place / 'lttng'}"),
                ("enable-channel", "--userspace", "--subbuf-size=4M", "--num-subbuf=4", "ring"),
                ("enable-event", "--userspace", "--channel=ring", "dovetail_bench:point"),
                ("start",),
            ):
                output(["lttng", *words], env)
            yield
            output(["lttng", "destroy", "dovetail"], env)
        finally:
            daemon.terminate()


def uftrace(place: Path, root: Path) -> Callable[[], dict[str, float]]:
    """A function's entry and exit, instrumented by gcc: half of the additional time of a call."""
    (place / "called.c").write_text(CALLED)
    program, tool = place / "called", root / "usr/bin/uftrace"
    output(["cc", "-O2", place / "called.c", "-o", place / "plain"])
    output(["cc", "-O2", "-pg", place / "called.c", "-o", program])
    libs = root / "usr/lib/x86_64-linux-gnu"
    record = [tool, "record", "--no-libcall", "-b", "64m", "-d", place / "uftrace", "-L", libs / "uftrace", program]
    env = os.environ | {"LD_LIBRARY_PATH": f"{libs}/uftrace:{libs}"}

    def run() -> dict[str, float]:
        plain, traced = float(output([place / "plain"])), float(output(record, env).splitlines()[-1])
        return {"uftrace_on_ns": (traced - plain) / 2}

    return run


def python(place: Path, root: Path) -> Callable[[], dict[str, float]]:
    """An interval and a point of dovetail.trace from Python; of viztracer, where it is installed."""
    del root
    if importlib.util.find_spec("viztracer") is None:
        print("viztracer is left out: not installed", file=sys.stderr)
    folder = place / "python"
    folder.mkdir(exist_ok=True)
    return lambda: dict(json.loads(output([sys.executable, "-c", PYTHON, folder])))
