"""MSCCL++ plans written: from plans, from the Programs read from them, and from any algorithm of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mscclpp_machine
import pytest
from mscclpp_plans import NOP, all_gather, all_reduce, barrier, here, move, plan, semaphore, sync_op, there
from needs import SHARED

from dovetail.collective import build
from dovetail.collective.mscclpp import certify, read, write
from dovetail.core import ProgramError
from dovetail.ir import Builder, Kind, Program, Region, Term, verify

CORPUS = SHARED / "corpus" / "msccl" / "mscclpp-json"


def synced() -> dict[str, Any]:
    """An all_gather out of place with a barrier, a semaphore, gets and a relaxed greeting."""
    greet = [sync_op("rlxsignal", 0), sync_op("rlxwait", 0), NOP]
    blocks = []
    for rank in (0, 1):
        own = move("copy", here("i", 0), here("o", rank), "none")
        first = [*greet, barrier(0, 2), semaphore("sem_acquire", 0), NOP, sync_op("signal", 0), sync_op("wait", 0), NOP]
        get = move("get", there(0, 0), here("s", 0), channel_ids=[0])
        out = move("copy", here("s", 0), here("o", 1 - rank), "none")
        blocks.append([first, [barrier(0, 2), own, get, NOP, out, NOP, semaphore("sem_release", 0)]])
    return plan("allgather", (1, 2, 1), blocks, in_place=False, semaphores=(0,))


PLANS = {"all_reduce": all_reduce(3), "all_gather": all_gather(3), "synced": synced()}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back_as_it_was(name: str) -> None:
    found = read(PLANS[name], name="p")
    assert certify(found).ok, certify(found)
    assert mscclpp_machine.verdicts(PLANS[name], 20) == {"right": 20}
    for source in (found, found.program):
        again = write(source)
        assert read(json.dumps(again), name="p").program == found.program
        assert mscclpp_machine.verdicts(again, 20) == {"right": 20}
    header = {key: value for key, value in PLANS[name].items() if key != "gpus"}
    assert {key: write(found)[key] for key in header} == header


@pytest.mark.needs("shared")
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_upstream_plans_come_back(path: Path) -> None:
    found = read(path, name="p")
    again = read(write(found), name="p")
    assert again.program == found.program
    assert (again.notes, again.limits) == (found.notes, found.limits)
    assert again.document._replace(gpus=()) == found.document._replace(gpus=())
    if "nvls" in path.stem:
        with pytest.raises(ProgramError, match="'glres' cannot be written back from a Program"):
            write(found.program)
    else:
        assert read(write(found.program), name="p").program == found.program


ALGORITHMS: list[tuple[str, int, dict[str, Any]]] = [
    ("ring_all_reduce", 2, {}),
    ("ring_all_reduce", 5, {}),
    ("ring_all_reduce", 8, {}),  # longer than a threadblock may be
    ("ring_all_reduce", 4, {"channels": 2, "instances": 2}),
    ("all_pairs_all_reduce", 4, {}),
    ("recursive_doubling_all_reduce", 4, {}),
    ("hierarchical_all_reduce", 4, {"nodes": 2}),
    ("ring_all_gather", 4, {"in_place": True}),
    ("ring_reduce_scatter", 3, {"in_place": True}),
    ("ring_reduce_scatter", 3, {"in_place": False}),
    ("two_step_all_to_all", 4, {"nodes": 2}),
]


@pytest.mark.parametrize(("name", "ranks", "options"), ALGORITHMS)
def test_algorithms_of_ours(name: str, ranks: int, options: dict[str, Any]) -> None:
    program = build(name, ranks, **options)
    document = write(program)
    found = read(document, name="p")
    verdict = certify(found)
    assert verdict.ok, verdict
    assert verdict.collective_found == verify(program).collective_found
    assert max(len(block["ops"]) for gpu in document["gpus"] for block in gpu["threadblocks"]) <= 64
    assert mscclpp_machine.verdicts(document, 3) == {"right": 3}
    assert read(write(found.program), name="p").program == found.program


def one_sided(late: bool = False) -> Program:
    """Rank 1 gets rank 0's slot once it is there, and puts its own back; `late`: no word of that."""
    b = Builder("one_sided", 2)
    b.buffer("x", "input", 2), b.buffer("mine", "scratch", 1)
    net, there_, back = b.lane("net", "net"), b.channel(0, 1), b.channel(1, 0)
    b.post((0, 1), Region("x", 0, 1), [Term(None, ((0, Region("x", 0, 1)),))])
    b.post((0, 1), Region("x", 1, 1), [Term(None, ((1, Region("x", 1, 1)),))])
    b.add(Kind.signal, 0, net, chan_out=there_)
    b.add(Kind.wait, 1, net, chan_in=there_)
    b.add(Kind.get, 1, net, reads=[Region("x", 0, 1)], writes=[Region("mine", 0, 1)], chan_in=there_)
    b.add(Kind.copy, 1, net, reads=[Region("mine", 0, 1)], writes=[Region("x", 0, 1)])
    b.add(Kind.put, 1, net, reads=[Region("x", 1, 1)], writes=[Region("x", 1, 1)], chan_out=back)
    if not late:
        b.add(Kind.signal, 1, net, chan_out=back)
        b.add(Kind.wait, 0, net, chan_in=back)
    return b.build()


def test_puts_and_gets_are_written_as_they_are() -> None:
    document = write(one_sided())
    assert [op["name"] for op in document["gpus"][1]["threadblocks"][0]["ops"]] == [
        *("wait", "nop", "get", "nop", "copy", "put", "nop", "signal"),
    ]
    assert mscclpp_machine.verdicts(document, 20) == {"right": 20}
    with pytest.raises(ProgramError, match="fails the races check"):
        write(one_sided(late=True))


def refused(change: Any, match: str) -> None:
    b = Builder("p", 2)
    b.buffer("x", "input", 2)
    lane = b.lane("net", "net")
    change(b, lane)
    with pytest.raises(ProgramError, match=match):
        write(b.build(), "all_reduce")


def test_what_has_no_form() -> None:
    x = Region("x", 0, 1)
    call = {"reads": [x], "writes": [x]}
    refused(lambda b, lane: b.add(Kind.compute, 0, lane, call=b.kernel("f", ["each"]), **call), "no op for a compute")
    strided = {"reads": [Region("x", 0, 1, 1, 2)], "writes": [Region("t", 0, 2)]}
    refused(lambda b, lane: (b.buffer("t", "scratch", 2), b.add(Kind.copy, 0, lane, **strided)), "no strided places")
    refused(lambda b, lane: b.buffer("z", "input", 2), "one input buffer")
    refused(lambda b, lane: b.add(Kind.wait, 0, lane, chan_in=b.channel(1, 0)), "never signals it")
    with pytest.raises(ProgramError, match="no name for what 'all_to_next' computes"):
        write(build("all_to_next", 4, nodes=2))
    with pytest.raises(ProgramError, match="fails the result check"):
        write(build("ring_all_gather", 2, in_place=True), "all_reduce")


def test_what_is_wrong_is_not_written() -> None:
    broken = all_reduce(2)
    broken["gpus"][0]["threadblocks"][0]["ops"].pop(4)
    with pytest.raises(ProgramError, match="fails the races check"):
        write(read(broken))
