"""Scripts: Programs through memory that processes of one host share, without MPI."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import needs
import numpy as np
import pytest

from dovetail import _native
from dovetail.collective import build
from dovetail.core import OperatorError
from dovetail.ir import parse, uneven
from dovetail.run.engine import bind_script

RANK = needs.RANKS / "script_ranks.py"


@contextmanager
def ranks(size, algorithm, elements, calls, most_bytes=1 << 24):
    """Processes that are ready to run, and end with the test."""
    memory = _native.Segment.make(_native.neighbours_bytes(size, most_bytes))
    about = [str(size), algorithm, str(elements), str(calls)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        found = [
            stack.enter_context(subprocess.Popen([sys.executable, RANK, memory.name, str(r), *about], **pipes))
            for r in range(size)
        ]
        for each in found:
            stack.callback(each.kill)
        said = [each.stdout.readline() for each in found]
        memory.hide()
        assert said == ["ready\n"] * size, said
        yield found


def begin(some):
    for each in some:
        print(file=each.stdin, flush=True)


@pytest.mark.parametrize(("size", "elements"), [(2, 1), (2, 300_000), (3, 20_000)])
def test_sums(size, elements):
    """Short messages, and some tiles of long ones; more ranks than cores too."""
    with ranks(size, "ring_all_reduce", elements, 20) as found:
        begin(found)
        assert [each.stdout.readline() for each in found] == ["right\n"] * size


def test_little_memory():
    """Shorter slots and fewer channels: more tiles."""
    with ranks(2, "recursive_doubling_all_reduce", 50_000, 5, most_bytes=1 << 19) as found:
        begin(found)
        assert [each.stdout.readline() for each in found] == ["right\n"] * 2


def test_a_killed_rank_is_named():
    """By every other rank: also by one that waits for a rank which failed for that reason."""
    with ranks(3, "ring_all_reduce", 1000, 1) as found:
        begin(found[:2])
        found[2].send_signal(signal.SIGKILL)
        for rank in (0, 1):
            assert found[rank].stdout.readline() == f"rank {rank} stalled: rank 2 has ended\n"
            said = found[rank].stdout.readline()
            assert "waits at its op" in said or "in an earlier call" in said  # it began after the other had failed


def test_a_rank_may_end_once_it_has_done_its_part():
    """Rank 2 waits for rank 1 alone, for longer than it takes to look at others."""
    with ranks(3, "direct_all_to_next", 1000, 1) as found:
        begin([found[0], found[2]])
        found[0].wait(timeout=60)
        time.sleep(0.3)
        begin([found[1]])
        assert [each.stdout.readline() for each in found] == ["right\n"] * 3


def single(program, elements, fifo_bytes=1 << 24):
    """Rank 0's script in memory of this process alone."""
    memory = _native.Segment.make(_native.neighbours_bytes(program.num_ranks, fifo_bytes))
    return script_of(memory, program, elements)[0]


def script_of(memory, program, elements, rank=0):
    """A rank's script, and its arrays."""
    neighbours = _native.Neighbours(memory, rank, program.num_ranks)
    slots = range(program.num_ranks)
    known = {b.name: tuple(np.full(b.slots[r], elements) for r in slots) for b in program.buffers}
    work = uneven(program, known, "float32")
    arrays = {name: np.zeros(int(sizes[rank].sum()), "float32") for name, sizes in work.sizes.items()}
    return bind_script(neighbours, program, rank, arrays, work), arrays


def test_a_rank_that_never_comes_is_waited_for_in_vain():
    failure = single(build("ring_all_reduce", 2), 4).run(0.1, 0)
    assert failure.startswith("rank 0 stalled: no op moved for 1 s")
    assert "waits at its op 1 'recv_reduce_copy_send'" in failure
    assert "for a message from rank 1" in failure


@pytest.mark.parametrize("elements", [2, 200_000])
@pytest.mark.parametrize("algorithm", ["ring_all_reduce", "direct_all_to_all"])
def test_calls_work_again_after_one_that_failed_on_all_ranks(algorithm, elements):
    """Messages of the failed call, which no rank has taken, are never taken for later ones."""
    program = build(algorithm, 2)
    memory = _native.Segment.make(_native.neighbours_bytes(2, 1 << 24))
    ranks = [script_of(memory, program, elements, rank) for rank in range(2)]

    def all_run():
        for rank, (_, arrays) in enumerate(ranks):
            arrays["input"][...] = rank + 1.0
        with ThreadPoolExecutor(2) as threads:
            failures = list(threads.map(lambda each: each[0].run(20.0, 0), ranks))
        assert failures == ["", ""]
        results = [arrays.get("output", arrays["input"]) for _, arrays in ranks]
        sums = [3.0 * elements * 2] * 2 if algorithm == "ring_all_reduce" else [elements * 3.0] * 2
        assert [result.sum() for result in results] == sums

    for late in (0, 1, 0):
        all_run()
        for _, arrays in ranks:
            arrays["input"][...] = 9.0  # of the call that fails
        assert "stalled" in ranks[1 - late][0].run(0.05, 0)
        assert ranks[late][0].run(20.0, 0).startswith(f"rank {1 - late} has failed")
    all_run()


def test_a_rank_that_failed_waits_for_the_others_to():
    """They may not have called since. The error says what is missing; once they have come, calls work."""
    program = build("ring_all_reduce", 2)
    memory = _native.Segment.make(_native.neighbours_bytes(2, 1 << 24))
    (one, _), (other, _) = (script_of(memory, program, 4, rank) for rank in range(2))
    assert "stalled" in one.run(0.05, 0)
    assert one.run(0.05, 0) == "rank 1 makes no call since one failed"
    assert other.run(20.0, 0).startswith("rank 0 has failed in an earlier call")
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda each: each.run(20.0, 0), (one, other))) == ["", ""]


def test_what_a_script_cannot_do_is_said():
    many = "\n".join(f"channel 0->1 {i} depth 1" for i in range(9))
    sends = "\n".join(f"  send x[{i}:{i + 1}] to 1:{i}" for i in range(9))
    takes = "\n".join(f"  recv from 0:{i} -> x[{i}:{i + 1}]" for i in range(9))
    text = f"program nine ranks 2\nbuffer x input 9\nlane net net\n{many}\nrank 0 lane net\n{sends}\n"
    program = parse(f"{text}rank 1 lane net\n{takes}\n")
    with pytest.raises(OperatorError, match="more than 8 channels between two ranks"):
        single(program, 1)
