"""Messages on MSCCL++ plans: in the plan's own terms, with a place, and with a fix that MSCCL++ supports."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from mscclpp_plans import NOP, all_gather, all_reduce, barrier, here, move, ops_of, plan, semaphore, sync_op

from dovetail.cli import main
from dovetail.collective.mscclpp import certify, read
from dovetail.core import ProgramError
from dovetail.ir import Check

COPY = move("copy", here("i", 0), here("o", 0), "none")


def failed_check(document: dict[str, Any], check: str) -> Check:
    found = certify(read(document, name="p.json"))
    assert found.failed == check, found
    return found.checks[check]


def grouped(ops: list[Any], size: int) -> list[list[Any]]:
    return [[op | {"tbg_info": {"tb_id": t, "tbg_size": size}} for op in ops] for t in range(size)]


def broken() -> dict[str, tuple[dict[str, Any], str]]:
    """Plans that fail each check, cut finely by a group of three."""
    late = all_reduce(3)
    ops_of(late, 1).pop(4)
    wait, signal, short = all_reduce(2), all_reduce(2), all_reduce(2)
    ops_of(wait).append(sync_op("wait", 0))
    ops_of(signal).insert(5, sync_op("signal", 0))
    ops_of(short)[3]["src_buff"][0]["index"] = 2
    around = [sync_op("wait", 0), sync_op("signal", 0), NOP]
    packets = all_gather(2)
    ops_of(packets).pop(1)
    parts = plan("test", (2, 2, 1), [[*grouped([COPY], 3), [move("copy", here("o", 0), here("o", 1), "none")]]],
                 in_place=False)  # fmt: skip
    wrong = plan("allreduce", (2, 2, 1), [grouped([COPY], 3)] * 2, in_place=False)
    return {
        "late": (late, "races"),
        "parts": (parts, "races"),
        "wait": (wait, "deadlock"),
        "signal": (signal, "deadlock"),
        "circle": (plan("allreduce", (2, 2, 0), [[around], [around]]), "deadlock"),
        "packets": (packets, "deadlock"),
        "barrier": (plan("test", (1, 1, 0), [[[barrier(0, 2)]]], in_place=False), "deadlock"),
        "semaphore": (plan("test", (1, 1, 0), [[[semaphore("sem_acquire", 0)]]], semaphores=(0,)), "deadlock"),
        "short": (short, "bounds"),
        "wrong": (wrong, "result"),
        "again": (all_gather(2, use_double_scratch_buffer=False), "races"),
    }


@pytest.mark.parametrize("name", broken())
def test_speaks_of_the_plan(name: str) -> None:
    """Messages contain no row, lane or slot of ours; every message names an op, and its place."""
    document, check = broken()[name]
    found = failed_check(document, check)
    text = "\n".join([found.message, found.found or "", found.hint or "", *found.schedule])
    assert not re.search(r"\brank \d|\blane |\bslot|\btb\d|op \d+ '|post-condition|packets\[|@", text), text
    assert all(int(chunk) < 4 for chunk in re.findall(r"(?:input|output|scratch)\[(\d+)\]", text)), text
    if name != "wrong":  # nothing that is there is wrong
        assert re.search(r"gpu \d, threadblock \d, op \d \(\w+\)", found.where or ""), found
    assert (found.where or "").startswith("p.json")
    assert name == "wrong" or found.hint


HINTS = {
    "late": "let gpu",
    "parts": "add a barrier of the two threadblocks",
    "wait": "let gpu 1 signal it, or drop this op",
    "signal": "let gpu 1 wait for it, or drop this op",
    "short": "correct the index",
    "again": "use_double_scratch_buffer",
}


@pytest.mark.parametrize("name", HINTS)
def test_suggests_what_can_be_written(name: str) -> None:
    document, check = broken()[name]
    assert HINTS[name] in (failed_check(document, check).hint or "")


def test_parts_of_chunks_are_named() -> None:
    assert "output[0] (part 1 of 3) of gpu 0" in failed_check(*broken()["parts"]).message
    assert (
        failed_check(*broken()["wrong"]).message == "output[0] (part 1 of 3) of gpu 0 does not hold what allreduce asks"
    )


def test_channels_are_counted_as_in_the_plan() -> None:
    """A port channel is another than a memory channel, and the second to a gpu another than the first."""
    document = plan("test", (1, 1, 0), [[[sync_op("wait", 1, by="port")]], [[]]], by="port")
    for gpu in document["gpus"]:
        gpu["channels"][0]["connected_to"] *= 2
        gpu["threadblocks"][0]["channels"] = [{"channel_type": "port", "channel_ids": [0, 1]}]
    assert "port channel 1 from gpu 1 to gpu 0" in failed_check(document, "deadlock").message


OLDER = {
    "camel case": lambda d: d["gpus"][0].update(inputChunks=d["gpus"][0].pop("input_chunks")),
    "misspelt": lambda d: d.update(colletive=d.pop("collective")),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_formats_are_named(name: str) -> None:
    document = all_reduce(2)
    OLDER[name](document)
    with pytest.raises(ProgramError, match=r"the format of MSCCL\+\+ before 0.8") as error:
        read(document, name="p.json")
    assert error.value.where == "p.json"
    assert "generate the plan with the DSL" in (error.value.hint or "")


def test_what_cannot_be_judged_may_be_right(tmp_path, capsys) -> None:
    take = semaphore("sem_acquire", 0)
    (tmp_path / "p.json").write_text(json.dumps(plan("test", (1, 1, 0), [[[take], [take]]], semaphores=(2,))))
    assert main(["verify", str(tmp_path / "p.json")]) == 2  # 1 would say that it is wrong
    text = capsys.readouterr().err
    assert "this verifier cannot judge the plan, which may be right" in text
    assert "gpu 0, threadblock 0, op 0 (sem_acquire)" in text
