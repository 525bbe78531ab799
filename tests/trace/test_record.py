"""The recorder: all recorded events are read again, however the program ends; the sanitizers report nothing."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from needs import ROOT
from sanitizers import ADDRESS, THREAD
from trace_files import swapped

from dovetail.core import DovetailError
from dovetail.trace import merge
from dovetail.trace.partial import partial_words
from dovetail.trace.process_file import read_process

SOURCES = [*ROOT.glob("native/trace/*.c"), ROOT / "native/test/trace.c"]
PLAIN = ["-O2"]
RECORD = """
import os, signal, sys, threading
import dovetail.trace as trace
trace.init(sys.argv[1])

@trace.traced
def work(count):
    for i in range(count):
        with trace.interval("step", i):
            trace.point("mid", -i)

threads = [threading.Thread(target=work, args=(500,)) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A function that compiles the test program with given flags, once for each set."""
    compiler, made = shutil.which("gcc") or shutil.which("cc"), {}

    def program(flags):
        if tuple(flags) not in made:
            if compiler is None:
                pytest.skip("needs compiler: no C compiler")
            target = tmp_path_factory.mktemp("trace") / "trace"
            command = [compiler, "-std=gnu11", "-pthread", *flags, f"-I{ROOT / 'native'}", *SOURCES, "-o", target]
            built = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
            if "cannot find -l" in built.stderr:
                pytest.skip(f"needs compiler: no {flags[-2]}")
            assert built.returncode == 0, built.stderr[-3000:]
            made[tuple(flags)] = target
        return made[tuple(flags)]

    return program


def ran(*command, **settings):
    environment = (
        os.environ | {"TSAN_OPTIONS": "halt_on_error=1 die_after_fork=0"} | {k: str(v) for k, v in settings.items()}
    )
    done = subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("needs compiler: the kernel's address layout is not one that the sanitizer knows")
    return done


def counts(trace):
    """The number of events of each name."""
    col = trace.columns
    first = col["part"] == 0
    found = np.bincount(col["name"][first], 1 + col["repeats"][first], len(trace.names)).astype(int)
    return {name: count for name, count in zip(trace.names, found.tolist(), strict=True) if count}


def recorded(folder, code="", **settings):
    """Run the Python program above followed by `code`."""
    return ran(sys.executable, "-c", RECORD + code, folder, **settings)


def test_events_recorded_from_python_are_read(tmp_path):
    done = recorded(tmp_path, "trace.off(); trace.point('mid'); trace.on(); trace.finalize()")
    assert done.returncode == 0, done.stderr
    trace = merge(tmp_path).read()
    assert counts(trace) == {"work": 3, "step": 1500, "mid": 1500}
    col = trace.columns
    steps = col["name"] == trace.names.index("step")
    assert [sorted(col["arg"][steps & (col["thread"] == t)].tolist()) for t in range(3)] == [[*range(500)]] * 3
    assert np.all(np.diff(col["end_s"]) >= 0)
    assert np.all(col["start_s"] <= col["end_s"])
    assert not col["is_open"].any()
    assert trace.meta["ranks"][0]["finalized"]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)", "os.abort()", "pass"])
def test_a_program_that_never_finalizes_leaves_a_trace(tmp_path, end):
    recorded(tmp_path, f"trace.interval('never', 7).__enter__(); {end}")
    trace = merge(tmp_path).read()
    assert counts(trace) == {"work": 3, "step": 1500, "mid": 1500, "never": 1}
    last = trace.columns["is_open"]
    assert np.count_nonzero(last) == 1
    assert trace.columns["arg"][last].tolist() == [7]
    assert trace.meta["ranks"][0]["finalized"] == (end == "pass")


@pytest.mark.slow
def test_threads_signals_and_forks(build, tmp_path):
    done = ran(build(PLAIN), tmp_path, 4, 20000)
    assert done.returncode == 0, done.stderr
    dropped, _, signals, _ = done.stdout.split()
    files = sorted(tmp_path.glob("*.dvt"))
    assert len(files) == 2
    found = [counts(merge_one(path, tmp_path)) for path in files]
    parent, child = sorted(found, key=len, reverse=True)
    assert child == {"child": 1}
    recorded_events = 2 * parent["step"] + parent["mid"] + parent["alarm"]
    assert recorded_events + int(dropped) == 2 * 4 * 3 * 20000 + int(signals)


@pytest.mark.slow
def test_all_polls_are_counted_whatever_comes_between(build, tmp_path):
    done = ran(build(PLAIN), tmp_path, 4, 2000, "look")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 dropped ")
    trace = max((merge_one(path, tmp_path) for path in tmp_path.glob("*.dvt")), key=lambda found: found.num_rows)
    assert counts(trace)["look"] == 2 * 4 * 3 * 2000
    assert np.count_nonzero(trace.columns["repeats"] == 2) > 4 * 2000
    assert trace.meta["ends_without_begin"] == 0


def merge_one(path, folder):
    """The trace of the one process in a folder."""
    alone = folder / path.stem
    alone.mkdir()
    for file in (path, path.with_suffix(".jsonl")):
        shutil.copy(file, alone)
    return merge(alone).read()


def test_a_ring_keeps_the_newest_of_each_thread(build, tmp_path):
    """Five threads run, then five more reuse their ring buffers: each ring ends with the events of its last thread."""
    settings = {"DOVETAIL_TRACE_KEEP": "newest", "DOVETAIL_TRACE_BUFFER": 4096}
    done = ran(build(PLAIN), tmp_path, 5, 5000, "calm", **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 dropped")
    process = max(map(read_process, tmp_path.glob("*.dvt")), key=lambda p: p.lost)
    room = 256  # events of 16 bytes
    held = sum(piece.num_events for piece in process.pieces)
    assert process.lost + held == 2 * 5 * (3 * 5000 + 1)  # the begin of a thread is an event too
    trace = merge_one(process.path, tmp_path)
    steps = trace.rows(trace.columns["name"] == trace.names.index("step")).columns
    newest = np.unique(steps["thread"][steps["arg"] == 4999]).tolist()
    assert len(newest) == 5
    for thread in newest:
        kept = steps["arg"][steps["thread"] == thread].tolist()
        assert kept == [*range(5000 - len(kept), 5000)]
        assert room // 3 - 2 <= len(kept) <= room // 3


@pytest.mark.parametrize("keep", ["all", "newest"])
@pytest.mark.parametrize("threads", [8, 40])
def test_threads_that_begin_together_lose_nothing(build, tmp_path, keep, threads):
    """More threads than prepared segments: some wait until the helper thread has created theirs."""
    done = ran(build(PLAIN), tmp_path, threads, 300, "calm", DOVETAIL_TRACE_KEEP=keep, DOVETAIL_TRACE_BUFFER=32768)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 dropped")
    trace = max((merge_one(path, tmp_path) for path in tmp_path.glob("*.dvt")), key=lambda found: found.num_rows)
    if keep == "all":
        assert trace.meta["lost"] == 0
        assert counts(trace) == {"step": 2 * threads * 300, "mid": 2 * threads * 300}


IN_MEMORY = """
import sys, threading, time
import dovetail.trace as trace
trace.init(sys.argv[1])
end, over = time.monotonic() + 60, threading.Event()
most = {}  # the most MiB of each ring seen in memory; the kernel may take pages back

def in_memory():
    lines = open("/proc/self/smaps").read().splitlines()
    for i, line in enumerate(lines):
        if line.endswith(".dvt") and " 00000000 " not in line:
            size = int(next(line for line in lines[i:] if line.startswith("Rss:")).split()[1]) >> 10
            most[line.split("-")[0]] = max(size, most.get(line.split("-")[0], 0))
    return most.values()

def wait_for(count, least):
    while sum(size >= least for size in in_memory()) < count and time.monotonic() < end:
        time.sleep(0.01)

for begun in range(4):
    wait_for(begun + 2, 1)  # two spares are kept ready; one of them is never used
    threading.Thread(target=lambda: (trace.point("one"), over.wait())).start()  # runs on, so that it keeps its ring
wait_for(5, 4)
print(*sorted(in_memory()))
over.set()
"""


def test_the_pages_of_a_ring_in_use_are_touched_in_advance(tmp_path):
    """Otherwise page faults would delay its thread in the first lap. The pages of unused rings stay untouched."""
    version = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if version < (5, 14):
        pytest.skip("needs kernel: Linux 5.14, which can do so")
    done = ran(sys.executable, "-c", IN_MEMORY, tmp_path, DOVETAIL_TRACE_KEEP="newest", DOVETAIL_TRACE_BUFFER=4 << 20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", *["4"] * 5]


def test_short_threads_leave_no_segment_that_is_still_scanned(build, tmp_path):
    """Each returns a segment larger than the prepared ones, while the helper thread creates another in its place."""
    done = ran(build(PLAIN), tmp_path, 12, 20, "again", DOVETAIL_TRACE_BUFFER=3 << 20)
    assert done.returncode == 0, done.stderr
    assert merge(tmp_path).meta["lost"] == 0


COME_AND_GO = """
import os, sys, threading, dovetail.trace as trace
trace.init(sys.argv[1])

def work(number):
    for i in range(int(sys.argv[2])):
        trace.point(f"thread {number}", i)

for number in range(60):
    thread = threading.Thread(target=work, args=(number,))
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(("keep", "count"), [("all", 20), ("newest", 20), ("newest", 70), ("newest", 300)])
def test_short_threads_reuse_segments(tmp_path, keep, count):
    """Sixty consecutive threads need no more memory than a few; events in a shared ring keep their thread."""
    done = ran(sys.executable, "-c", COME_AND_GO, tmp_path, count, DOVETAIL_TRACE_KEEP=keep, DOVETAIL_TRACE_BUFFER=4096)
    assert done.returncode == 0, done.stderr
    (process,) = map(read_process, tmp_path.glob("*.dvt"))
    assert process.path.stat().st_size < 20 * (4096 + 4096)
    col = (trace := merge(tmp_path).read()).columns
    names = np.array(trace.names)[col["name"]]
    assert (names == np.char.add("thread ", col["thread"].astype(str))).all()
    assert 60 * count <= process.lost + len(names) <= 60 * (count + 1)  # the begin of a thread is an event too
    newest = col["arg"][names == "thread 59"].tolist()
    assert newest == [*range(count - len(newest), count)]
    assert len(newest) >= min(count, 200)


def test_events_lost_for_lack_of_space_are_counted(build, tmp_path):
    """Planted: a disk that is soon full. The program continues."""
    command = f"ulimit -f 8000; exec {build(PLAIN)} {tmp_path} 2 200000"
    done = ran("bash", "-c", command)
    assert done.returncode == 0, done.stderr
    dropped = int(done.stdout.split()[0])
    assert dropped > 100000
    assert merge(tmp_path).meta["lost"] >= dropped


def test_a_trace_that_reaches_its_limit_ends_there_and_says_so(build, tmp_path):
    done = ran(build(PLAIN), tmp_path, 2, 200000, DOVETAIL_TRACE_LIMIT="4000000")
    assert done.returncode == 0, done.stderr
    assert next(tmp_path.glob("*.dvt")).stat().st_size <= 4000000
    trace = merge(tmp_path)
    partial, columns = trace.meta["partial"], trace.read().columns
    assert (partial["limit_bytes"], trace.meta["lost"] > 100000) == (4000000, True)
    assert len(columns["end_s"]) > 1000
    assert columns["end_s"].max() <= partial["until_s"]
    assert "reached its limit of 4000000 bytes" in next(partial_words(trace.meta))


def test_a_trace_below_its_limit_is_whole(build, tmp_path):
    assert ran(build(PLAIN), tmp_path, 2, 1000).returncode == 0
    assert "partial" not in merge(tmp_path).meta


def test_a_program_continues_if_no_trace_can_be_created(build, tmp_path):
    (tmp_path / "file").touch()
    done = ran(build(PLAIN), tmp_path / "file", 2, 100)
    assert (done.returncode, done.stdout) == (3, "no trace: Not a directory\n")


@pytest.mark.parametrize("cut", [0, 5, 100, 4096, 5000, 20000])
def test_a_truncated_file_is_read_up_to_its_end(tmp_path, cut):
    recorded(tmp_path, "trace.finalize()")
    file = next(tmp_path.glob("*.dvt"))
    os.truncate(file, cut)
    if cut < 4096:
        with pytest.raises(DovetailError, match="can be read"):
            merge(tmp_path)
    else:
        trace = merge(tmp_path)
        assert any("is truncated" in fault for fault in trace.meta["faults"])
        assert trace.num_rows < 3003


def test_a_file_of_the_other_byte_order_is_read(tmp_path):
    recorded(tmp_path, "trace.finalize()")
    expected = counts(merge(tmp_path).read())
    file = next(tmp_path.glob("*.dvt"))
    file.write_bytes(swapped(file.read_bytes()))
    assert counts(merge(tmp_path).read()) == expected


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "a.dvt").write_bytes(b"\x7fELF" * 2000)
    with pytest.raises(DovetailError, match="no trace of a process"):
        merge(tmp_path)
    with pytest.raises(DovetailError, match="there is no folder"):
        merge(tmp_path / "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [pytest.param(THREAD, id="thread"), pytest.param(ADDRESS, id="address", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("keep", ["all", "newest"])
def test_sanitizers_report_nothing(build, tmp_path, flags, keep):
    for more in ([], ["look"], ["calm"]):
        done = ran(build(flags), tmp_path, 4, 5000, *more, DOVETAIL_TRACE_KEEP=keep, DOVETAIL_TRACE_BUFFER=16384)
        assert done.returncode == 0, done.stderr[-4000:]
