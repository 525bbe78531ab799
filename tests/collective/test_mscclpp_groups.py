"""MSCCL++ threadblock groups: what is taken whole has no order that its parts lack."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import mscclpp_faults
import mscclpp_machine
import pytest
from mscclpp_plans import NOP, Op, barrier, here, move, plan, there

from dovetail.collective.mscclpp import certify, launched, read
from dovetail.collective.mscclpp.certify import taken_whole
from dovetail.core import ProgramError
from dovetail.ir import verify
from dovetail.ir.proof.verify import verify_order

Document = dict[str, Any]
LL: Document = {"protocol": "LL", "use_double_scratch_buffer": True, "in_place": False}


def shared(*ops: Op, size: int = 2) -> list[list[Op]]:
    """The ops of each threadblock of a group that shares them."""
    return [[op | {"tbg_info": {"tb_id": t, "tbg_size": size}} for op in ops] for t in range(size)]


def pack(source: Op, to: int, size: int = 1) -> Op:
    return move("cpkt", source, here("s", to, size), "none")


def unpack(source: int, to: Op, size: int = 1) -> Op:
    return move("upkt", here("s", source, size), to, "none")


def put(source: Op, to: int, size: int = 1) -> Op:
    return move("ppkt", source, there(0, to, size))


def is_raced(document: Document) -> None:
    """It fails for races, and goes wrong in some run."""
    assert certify(read(document, name="p")).failed == "races"
    assert mscclpp_machine.verdicts(document, 100)["wrong"]


def holds(document: Document, *, whole: bool) -> None:
    """It is right, as is seen at once or else part by part."""
    found = read(document, name="p")
    assert (taken_whole(found) is not None) == whole
    assert certify(found).ok
    assert mscclpp_machine.verdicts(document, 40) == {"right": 40}


def in_turn(late: int | None = None) -> Document:
    """A group unpacks a chunk that comes, then packs its own for one that adds to the first; `late` does it after."""
    group = shared(unpack(0, here("o", 0)), pack(here("i", 0), 1))
    if late is not None:
        group[late].reverse()
    add = move("repkt", [here("o", 0), here("s", 0)], here("o", 0), "none")
    last = [unpack(1, here("o", 0)), add]
    return plan("allreduce", (1, 1, 2), [[*group, [put(here("i", 0), 0)], last]] * 2, remote="s", **LL)


def test_members_keep_one_order() -> None:
    """Whole, the ops would be in the order of one member."""
    holds(in_turn(), whole=True)
    for member in (0, 1):
        is_raced(in_turn(member))


def by_port(*, again: bool) -> Document:
    """A group puts two chunks, then two more, by a port channel. Once the peer reports the third, packets
    of the second are made again.
    """
    blocks = []
    for rank in (0, 1):
        mine, theirs, own = 2 * rank, 2 - 2 * rank, here("i", 0)
        puts = [move("ppkt", here("s", 4 + k, 2), there(0, k, 2), "port", channel_ids=[0]) for k in (0, 2)]
        packs = [pack(here("i", 0, 2), at, 2) for at in (4, 6)]
        answer = [unpack(2, here("s", 30)), put(own, 8), unpack(8, here("s", 31)), NOP, *[pack(own, 5)] * again]
        out = [unpack(0, here("o", theirs, 2), 2), unpack(2, here("s", 32, 2), 2), NOP, put(own, 9)]
        out += [unpack(9, here("s", 34)), move("copy", here("i", 0, 2), here("o", mine, 2), "none")]
        members = [[barrier(0, 3), *ops] for ops in shared(*puts)]
        blocks.append([[*packs, NOP, barrier(0, 3)], *members, answer, out])
    document = plan("allgather", (2, 4, 40), blocks, remote="s", by="port", **LL)
    for gpu in document["gpus"]:
        gpu["remote_buffers"][0]["access_channel_types"].append("memory")
        for block in gpu["threadblocks"][3:]:
            refs = [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]
            block.update(channels=[], remote_buffer_refs=refs)
    return document


@pytest.mark.slow
def test_ports_are_in_order_part_by_part() -> None:
    """A port channel may execute one threadblock's earlier request after another threadblock's later one."""
    holds(by_port(again=False), whole=False)
    is_raced(by_port(again=True))


def onward(group: Callable[..., list[list[Op]]]) -> Document:
    """A sum whose first half lies, in packets, where its second half reads, until others come there."""
    add = move("recpkt", [here("i", 0, 2), here("s", 0, 2)], [here("o", 0, 2), here("s", 1, 2)], "none")
    members = group(add, pack(here("o", 0, 2), 4, 2))
    held = here("s", 30)
    over = [put(here("i", 0), 0), put(here("i", 1), 3), unpack(4, held), unpack(3, held), pack(held, 1)]
    return plan("allreduce", (2, 2, 40), [[over, *members]] * 2, remote="s", **LL)


def test_packets_of_another_part() -> None:
    """They bear the flag that lets a part go: it does not surely wait for those that come later."""
    is_raced(onward(shared))
    alone = read(onward(lambda *ops: [list(ops)]), name="p")
    assert not verify_order(launched(alone, loose=True)).checks["races"].ok  # nor do other threads of one threadblock


def looped() -> Document:
    """Barriers of a group in a pipeline, and after it."""
    loop = {"name": "pipeline", "iter_context": {"unit_size": 1 << 20, "num_chunks": 1}, "ops": [barrier(0, 2)]}
    add = move("repkt", [here("i", 0), here("s", 0)], here("o", 0), "none")
    first, second = ([op, loop, barrier(0, 2)] for (op,) in shared(add))
    return plan("allreduce", (1, 1, 1), [[[put(here("i", 0), 0), *first], second]] * 2, remote="s", **LL)


def test_barriers_in_pipelines() -> None:
    holds(looped(), whole=False)


@pytest.mark.parametrize("changes", [1, 2])
def test_no_race_is_missed(changes: int) -> None:
    """Of plans changed at random: whatever is free of races taken whole is so part by part, and no run goes wrong."""
    plans, seen = [in_turn(), in_turn(1), by_port(again=False), onward(shared)], Counter[bool]()
    for seed in range(60):
        rng = random.Random(seed)
        document = rng.choice(plans)
        for _ in range(changes):
            document = mscclpp_faults.mutated(document, rng)
        with suppress(ProgramError):
            found = read(document, name="p")
            if verify(launched(found)).failed in (None, "races", "result") and taken_whole(found):
                assert verify_order(launched(found, loose=True)).checks["races"].ok, seed
                seen[certify(found).ok] += 1
                assert not certify(found).ok or mscclpp_machine.verdicts(document, 5)["right"] == 5, seed
    assert seen.total() > 5
