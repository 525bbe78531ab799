"""MSCCL++ plans read and proved: upstream's and our own are valid, planted faults are rejected with the op named."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import mscclpp_faults
import mscclpp_machine
import numpy as np
import pytest
from effort import assert_quick
from mscclpp_plans import (
    NOP,
    all_gather,
    all_reduce,
    barrier,
    block,
    here,
    move,
    ops_of,
    plan,
    semaphore,
    sync_op,
    there,
)
from needs import SHARED
from thorough import some

from dovetail.cli import main
from dovetail.collective.mscclpp import certify, launched, read
from dovetail.core import ProgramError
from dovetail.ir import Certificate, Check, Kind, Slot, Workload
from dovetail.run import execute

CORPUS = SHARED / "corpus" / "msccl" / "mscclpp-json"
COPY = move("copy", here("i", 0), here("o", 0), "none")


def proved(document: dict[str, Any]) -> Certificate:
    return certify(read(document, name="p.json"))


def fails(document: dict[str, Any], check: str, *words: str) -> str:
    """The plan fails `check` first; its message, counterexample and place hold all `words`."""
    found = proved(document)
    first = next((name for name, each in found.checks.items() if not each.ok), None)
    assert first == check, found
    reported = found.checks[check]
    text = "\n".join(
        [reported.message, reported.found or "", reported.where or "", reported.hint or "", *reported.schedule]
    )
    for word in words:
        assert word in text, text
    return text


def lent(document: dict[str, Any]) -> Check:
    """The warning of a valid plan whose port channels may still read when its kernels have ended."""
    found = proved(document)
    assert found.ok, found.checks
    assert found.warning is not None
    assert "may still read input[0] of gpu" in found.warning.message
    assert "replace pws by pwsf" in (found.warning.hint or "")
    return found.warning


def with_ops(change: Any, n: int = 2, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """A valid plan after `change` of the ops of gpu 0's first threadblock."""
    document = all_reduce(n) if document is None else document
    change(ops_of(document))
    return document


class TestValid:
    @pytest.mark.needs("shared")
    @pytest.mark.parametrize("name", ["reduce", "reduce_nvls", "reduce_nvls_pipeline", "transfer_pack"])
    def test_upstream_plans(self, name: str) -> None:
        found = read(CORPUS / f"{name}.json")
        verdict = certify(found)
        assert verdict.ok, verdict
        assert verdict.min_fifo_depth is None
        assert verdict.collective_found == {"allreduce": "all_reduce", "allgather": "all_gather"}[found.collective]
        document = json.loads((CORPUS / f"{name}.json").read_text())
        assert mscclpp_machine.verdicts(document, 40) == {"right": 40}

    @pytest.mark.parametrize("n", [2, 3, 5])
    def test_our_own(self, n: int) -> None:
        for document in (all_reduce(n), all_gather(n)):
            assert proved(document).ok
            assert mscclpp_machine.verdicts(document, 25) == {"right": 25}

    def test_what_is_read(self) -> None:
        found = read(all_reduce(3), name="p.json")
        assert (found.name, found.collective, found.protocol, found.in_place) == ("small", "allreduce", "Simple", True)
        assert {lane.name for lane in found.program.lanes} == {"tb0"}
        assert found.program.op(3).line == "p.json, gpu 0, threadblock 0, op 1 (rlxwait)"
        kinds = [op.kind for op in found.program.ops() if op.rank == 0]
        sums = [Kind.get, Kind.get, Kind.reduce, Kind.reduce, Kind.put, Kind.put]
        waits = [Kind.signal] * 2 + [Kind.wait] * 2 + [Kind.nop]
        assert kinds == [*waits, *sums, Kind.nop, *waits]
        assert launched(found).num_ops == found.program.num_ops + 2 * 3

    def test_data_on_the_reference_executor(self) -> None:
        inputs = [np.random.default_rng(rank).integers(0, 99, (1, 4)) for rank in range(3)]
        program = read(all_gather(3)).program
        workload = Workload({b.name: (Slot((4,), "int64"),) * 3 for b in program.buffers})
        for seed in (None, 1, 2):
            outputs = execute(program, {"input": inputs}, seed=seed, workload=workload).outputs["output"]
            assert all(np.array_equal(each, np.concatenate(inputs)) for each in outputs)

    def test_text_file_and_object_are_one(self, tmp_path) -> None:
        document = all_gather(2)
        (tmp_path / "p.json").write_text(json.dumps(document))
        sources = (tmp_path / "p.json", str(tmp_path / "p.json"), json.dumps(document), json.dumps(document).encode())
        for source in sources:
            assert read(source, name="p").program == read(document, name="p").program


FAULTS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "an allreduce that reduces nothing": (
        lambda ops: ops[3].update(move("put", here("i", 0), there(0, 0))),
        "result",
        ("input[0] of gpu 0 does not hold what allreduce asks", "missing input[0] of gpu 1"),
    ),
    "no sync before a signal": (lambda ops: ops.pop(4), "races", ("op 3 (rres)", "nothing orders")),
    "no sync after a wait": (lambda ops: ops.pop(2), "races", ("gpu 0, threadblock 0, op 2 (rres)",)),
    "no greeting": (
        lambda ops: ops.__delitem__(slice(0, 3)),
        "deadlock",
        ("never signals it", "1 signals, 2 waits", "gpu 1, threadblock 0, op 6 (wait)"),
    ),
    "one signal too many": (
        lambda ops: ops.insert(5, sync_op("signal", 0)),
        "deadlock",
        ("nobody takes this signal", "3 signals, 2 waits", "gpu 0, threadblock 0, op 6 (signal)"),
    ),
    "one wait too many": (
        lambda ops: ops.append(sync_op("wait", 0)),
        "deadlock",
        ("never signals it", "2 signals, 3 waits", "gpu 0, threadblock 0, op 8 (wait)"),
    ),
    "a relaxed signal for data": (
        lambda ops: ops[5].update(name="rlxsignal"),
        "races",
        ("nothing orders", "op 3 (rres)", "its kernel ends"),
    ),
    "chunks beyond the buffer": (
        lambda ops: ops[3]["src_buff"][0].update(index=2),
        "bounds",
        ("reads up to input[2] of gpu 0", "the buffer has 2 chunks", "op 3 (rres)"),
    ),
    "the wrong chunk": (lambda ops: ops[3]["src_buff"][0].update(index=1), "races", ("op 3 (rres)",)),
    "too many ops": (lambda ops: ops.extend([NOP] * 57), "limits", ("65 ops; the executor takes 64",)),
    "a product": (lambda ops: ops[3].update(reduce_op="max"), "limits", ("sums", "gpu 0, threadblock 0, op 3")),
}


class TestFaults:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", FAULTS)
    def test_of_an_all_reduce(self, name: str) -> None:
        change, check, words = FAULTS[name]
        document = with_ops(change)
        fails(document, check, *words)
        if check in ("result", "deadlock") and "signal too many" not in name:
            assert mscclpp_machine.verdicts(document, 10)["right"] == 0
        elif check == "races" and "relaxed" not in name:
            assert mscclpp_machine.verdicts(document, 300)["right"] < 300

    @pytest.mark.parametrize(
        "name", [name for name, (_, check, _) in FAULTS.items() if check not in ("bounds", "limits")]
    )
    def test_its_page_shows_the_ops(self, name: str, tmp_path, capsys) -> None:
        """Those that the verdict names, be it on threads in step or each at its own pace."""
        change, check, _ = FAULTS[name]
        document = with_ops(change)
        (tmp_path / "p.json").write_text(json.dumps(document))
        assert main(["verify", str(tmp_path / "p.json"), "--json", "--out", str(tmp_path)]) == 1
        reported = json.loads(capsys.readouterr().out)
        assert reported["page"] == str(tmp_path / "p.html")
        assert "One tick of the timeline" in (tmp_path / "p.html").read_text()
        program, found = launched(read(document, name="p"), loose=check == "races"), reported["checks"][check]
        shown = [program.op(row).line.removeprefix("p, ") for row in found["ops"][:12]]
        assert len(shown) == min(len(found["schedule"]), 12)
        assert all(line.startswith(place) for line, place in zip(found["schedule"], shown, strict=False))

    def test_an_empty_plan(self) -> None:
        fails(plan("allreduce", (2, 2, 0), [[], []]), "result", "input[0] of gpu 0", "missing input[0] of gpu 1")

    def test_both_wait_before_they_signal(self) -> None:
        ops = [sync_op("wait", 0), sync_op("signal", 0), NOP]
        text = fails(plan("allreduce", (2, 2, 0), [[ops], [ops]]), "deadlock", "circle of 2")
        assert all(f"gpu {gpu}, threadblock 0, op 0 (wait)" in text for gpu in (0, 1))

    def test_a_put_that_nobody_waits_for(self) -> None:
        ops = [
            [[sync_op("signal", 0), sync_op("wait", 0), NOP, move("put", here("i", 0), there(0, g))]] for g in (0, 1)
        ]
        document = plan("allgather", (1, 2, 0), ops, remote="o", in_place=False)
        for gpu in (0, 1):
            ops_of(document, gpu).append(move("copy", here("i", 0), here("o", gpu), "none"))
        fails(document, "races", "op 3 (put)", "its kernel ends", "nothing orders the two")
        assert mscclpp_machine.verdicts(document, 200)["wrong"] > 0

    def test_a_put_before_the_other_kernel_started(self) -> None:
        ops = [
            [[move("put", here("i", 0), there(0, g)), NOP, sync_op("signal", 0), sync_op("wait", 0)]] for g in (0, 1)
        ]
        fails(plan("test", (1, 2, 0), ops, remote="o", in_place=False), "races", "op 0 (put)", "its kernel starts")

    def test_two_threadblocks_write_one_chunk(self) -> None:
        blocks = [[COPY, COPY, barrier(0, 2)], [barrier(0, 2), move("copy", here("i", 1), here("o", 0), "none")]]
        document = plan("test", (2, 2, 0), [blocks], in_place=False)
        assert proved(with_ops(lambda ops: ops.pop(1), document=copy.deepcopy(document))).ok
        swapped = with_ops(lambda ops: ops.append(ops.pop(1)), document=document)
        fails(swapped, "races", "threadblock 0, op 2 (copy)", "threadblock 1, op 1 (copy)")

    @pytest.mark.parametrize(("size", "blocks"), [(3, 2), (2, 1)])
    def test_a_barrier_that_stays_closed(self, size: int, blocks: int) -> None:
        document = plan("test", (1, 1, 0), [[[barrier(0, size)] for _ in range(blocks)]], in_place=False)
        fails(document, "deadlock", "(barrier)", f"{blocks} of {size} threadblocks come")

    def test_a_barrier_for_fewer_than_come(self) -> None:
        document = plan("test", (1, 1, 0), [[[barrier(0, 2)]] * 3])
        with pytest.raises(ProgramError, match="3 threadblocks come to barrier 0 of gpu 0 for 2"):
            read(document)

    def test_a_missing_sync_between_two_ops(self) -> None:
        again = move("copy", here("o", 0), here("o", 1), "none")
        document = plan("test", (1, 2, 0), [[[COPY, NOP, again]]], in_place=False)
        assert proved(document).ok
        ops_of(document).remove(NOP)
        fails(document, "races", "op 0 (copy)", "op 1 (copy)", "reads output[0]")

    def test_places_of_one_op_that_overlap(self) -> None:
        pair = move("copy", here("i", 0, 2), here("i", 1, 2), "none")
        fails(plan("test", (3, 1, 0), [[[pair]]], in_place=False), "races", "op 0 (copy)")
        summed = move("re", [here("i", 0, 2), here("i", 2, 2)], here("i", 2, 2), "none")
        assert proved(plan("test", (4, 1, 0), [[[summed]]], in_place=False)).ok
        for index in (1, 3):
            summed["dst_buff"][0]["index"] = index
            fails(plan("test", (5, 1, 0), [[[summed]]], in_place=False), "races", "op 0 (re)")


class TestSemaphores:
    def plan(self, first: list[Any], second: list[Any], value: int = 0) -> dict[str, Any]:
        again = move("copy", here("o", 0), here("o", 1), "none")
        blocks = [[COPY, NOP, *first], [*second, NOP, again]]
        return plan("test", (1, 2, 0), [blocks], in_place=False, semaphores=(value,))

    def test_one_that_orders(self) -> None:
        document = self.plan([semaphore("sem_release", 0)], [semaphore("sem_acquire", 0)])
        assert proved(document).ok
        fails(self.plan([], []), "races", "threadblock 0, op 0 (copy)", "threadblock 1, op 1 (copy)")

    def test_one_that_is_never_released(self) -> None:
        fails(
            self.plan([], [semaphore("sem_acquire", 0)]), "deadlock", "threadblock 1, op 0 (sem_acquire)", "0 releases"
        )

    def test_one_that_starts_open(self) -> None:
        give, take = semaphore("sem_release", 0), semaphore("sem_acquire", 0)
        fails(self.plan([give], [take], value=1), "races", "reads output[0]")  # the first goes ahead at once
        assert proved(self.plan([give, give], [take, take], value=1)).ok
        fails(self.plan([], [take], value=1), "deadlock", "0 releases, 1 acquires of a semaphore that starts at 1")

    def test_one_that_is_left_over(self) -> None:
        document = self.plan([semaphore("sem_release", 0)] * 2, [semaphore("sem_acquire", 0)])
        fails(document, "deadlock", "2 releases, 1 acquires of semaphore 0 of gpu 0", "op 3 (sem_release)")

    def test_one_for_several_releases(self) -> None:
        blocks = [[move("copy", here("i", b), here("o", b), "none"), NOP, semaphore("sem_release", 0)] for b in (0, 1)]
        last = [semaphore("sem_acquire", 0)] * 2 + [NOP, move("copy", here("o", 0), here("o", 2), "none")]
        assert proved(plan("test", (2, 3, 0), [[*blocks, last]], in_place=False, semaphores=(0,))).ok
        del last[1]
        del blocks[1][2]
        assert proved(plan("test", (2, 3, 0), [[*blocks, last]], in_place=False, semaphores=(0,))).ok
        blocks[1].append(semaphore("sem_release", 0))  # now either may let the reader go
        text = fails(plan("test", (2, 3, 0), [[*blocks, last]], in_place=False, semaphores=(0,)), "deadlock")
        assert "2 releases, 1 acquires" in text

    def test_several_acquirers_are_not_judged(self) -> None:
        take = semaphore("sem_acquire", 0)
        with pytest.raises(ProgramError, match="several threadblocks acquire semaphore 0 of gpu 0") as error:
            read(plan("test", (1, 1, 0), [[[take], [take]]], semaphores=(2,)), name="p")
        assert error.value.where == "p, gpu 0, threadblock 0, op 0 (sem_acquire)"


class TestPackets:
    def test_shared_scratch_does_not_hide_another_fault(self) -> None:
        """A sum of packets that nobody writes waits for ever, whatever its other chunks overlap."""
        sums = move("repkt", [here("s", 0), here("s", 1)], here("s", 2), "none", reduce_op="sum")
        document = plan("test", (1, 1, 3), [[[sums]]], protocol="LL", in_place=False)
        fails(document, "deadlock", "op 0 (repkt) waits for ever: nobody writes the packets")
        ops_of(document).insert(0, move("cpkt", here("i", 0), here("s", 1), "none"))  # now somebody does
        with pytest.raises(ProgramError, match="packets and plain chunks share scratch of gpu 0"):
            proved(document)
        ops_of(document)[1]["dst_buff"] = [here("s", 5)]
        document["gpus"][0]["scratch_chunks"] = 6
        assert proved(document).ok

    def test_double_scratch_is_for_the_next_run(self) -> None:
        text = fails(all_gather(2, use_double_scratch_buffer=False), "races", "when it is called again", "(upkt)")
        assert "run 0" not in text.split("\n")[0]

    def test_packets_that_nobody_writes(self) -> None:
        document = with_ops(lambda ops: ops.pop(1), document=all_gather(2))
        fails(document, "deadlock", "gpu 1, threadblock 1, op 0 (upkt) waits for ever: nobody writes the packets")
        assert mscclpp_machine.verdicts(document, 5) == {"hang": 5}

    def test_packets_of_ones_own(self) -> None:
        pack, unpack = (
            move("cpkt", here("i", 0), here("s", 1), "none"),
            move("upkt", here("s", 1), here("o", 0), "none"),
        )
        header = {"in_place": False, "protocol": "LL", "use_double_scratch_buffer": True}
        assert proved(plan("test", (1, 1, 2), [[[pack], [unpack]]], **header)).ok  # no sync is needed
        assert proved(plan("test", (1, 1, 2), [[[pack, unpack]]], **header)).ok
        fails(plan("test", (1, 1, 2), [[[unpack, pack]]], **header), "deadlock", "op 0 (upkt)")

    def test_packets_take_twice_the_room(self) -> None:
        mixed = [move("cpkt", here("i", 0), here("s", 0), "none"), move("copy", here("i", 0), here("s", 1), "none")]
        with pytest.raises(ProgramError, match="share scratch of gpu 0") as error:
            certify(read(plan("test", (1, 1, 4), [[mixed]], protocol="LL", in_place=False), name="p"))
        assert error.value.where == "p, gpu 0, threadblock 0, op 1 (copy)"
        assert "cannot judge the plan, which may be right" in error.value.what
        mixed[1]["dst_buff"][0]["index"] = 2
        assert proved(plan("test", (1, 1, 4), [[mixed]], protocol="LL", in_place=False)).ok
        one = [[mixed[:1]]]
        assert not proved(plan("test", (1, 1, 1), one, in_place=False)).checks["bounds"].ok  # not an LL plan's scratch


class TestPorts:
    def plan(self, *ops: Any) -> dict[str, Any]:
        greet = [sync_op("signal", 0, by="port"), sync_op("wait", 0, by="port"), NOP]
        put = move("pws", here("i", 0), there(0, 0), "port", channel_ids=[0])
        wait = [sync_op("wait", 0, by="port"), NOP]
        return plan("sendrecv", (1, 1, 0), [[[*greet, put, *ops, *wait]]] * 2, remote="o", in_place=False, by="port")

    def test_a_put_is_over_when_it_is_flushed(self) -> None:
        """By its own flush: the executor does nothing for one that stands alone."""
        for ops in ((), (sync_op("flush", 0, by="port"), NOP)):  # the caller may write its input again
            warning = lent(self.plan(*ops))
            assert ("a separate flush op does nothing" in (warning.hint or "")) == bool(ops)
            assert mscclpp_machine.verdicts(self.plan(*ops), 300)["wrong"] > 0

    def test_the_caller_of_a_valid_plan_is_warned(self, tmp_path, capsys) -> None:
        """Exit code 0: what is not right is what a caller may do next."""
        (tmp_path / "p.json").write_text(json.dumps(self.plan()))
        assert main(["verify", str(tmp_path / "p.json"), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        check = said["checks"]["reuse"]
        assert (said["ok"], check["ok"], "add a flush" in check["hint"]) == (True, False, True)
        assert json.loads(json.dumps(Certificate.from_json(said).to_json())) == said
        assert main(["verify", str(tmp_path / "p.json")]) == 0
        text = capsys.readouterr().out
        assert "WARNS" in text
        assert "its caller must heed the warning on reuse" in text

    def test_a_source_written_again_within_the_plan_is_a_race(self) -> None:
        """By its own threadblock, before or after the wait for the other gpu; the next call's, too."""
        over = move("copy", here("o", 0), here("i", 0), "none")
        for at, n in ((4, 0), (6, 0), (4, 1)):
            document = self.plan()
            for gpu in (0, 1):
                ops_of(document, gpu).insert(at, [over, NOP][n])
                if n:
                    ops_of(document, gpu).insert(at + 1, over)
            fails(document, "races", "op 3 (pws)", "reads", "replace pws by pwsf")
        document = self.plan()
        for gpu in (0, 1):  # before the put, in order with it; in the next call with nothing
            ops_of(document, gpu)[:0] = [over, NOP]
        fails(document, "races", "when it is called again", "op 5 (pws)", "replace pws by pwsf")
        for gpu in (0, 1):
            ops_of(document, gpu)[5]["name"] = "pwsf"
            ops_of(document, gpu).insert(6, NOP)
        assert proved(document).failed == "result"  # it sends output, no race

    def test_scratch_is_the_plans_own(self) -> None:
        """The next call overwrites what a port channel still reads there: no flush is a race, whatever the caller."""
        document = self.plan()
        for gpu in (0, 1):
            ops_of(document, gpu)[3]["src_buff"] = [here("s", 0)]
            ops_of(document, gpu)[3:3] = fill = [move("copy", here("i", 0), here("s", 0), "none"), NOP]
            document["gpus"][gpu]["scratch_chunks"] = 1
        assert proved(document).ok  # the next call's greeting shows that the other gpu had all of this one
        for gpu in (0, 1):
            ops_of(document, gpu)[:5] = [*fill, *ops_of(document, gpu)[:3]]
        fails(document, "races", "when it is called again", "op 5 (pws)", "scratch[0]")
        for gpu in (0, 1):  # a later put of input does not flush the one of scratch
            ops_of(document, gpu).insert(6, move("pws", here("i", 0), there(0, 0), "port", channel_ids=[0]))
            ops_of(document, gpu)[-1:] = [sync_op("wait", 0, by="port"), NOP]
            document["gpus"][gpu]["output_chunks"] = 1
        fails(document, "races", "when it is called again", "op 5 (pws)", "scratch[0]")

    def test_without_the_signal_it_is_a_race(self) -> None:
        """The receiver no longer knows when its output is there."""
        document = self.plan()
        for gpu in (0, 1):
            ops_of(document, gpu)[3]["name"] = "put"
            del ops_of(document, gpu)[4:]
        fails(document, "races", "op 3 (put)", "writes output[0]", "nothing orders the two")

    def test_others_have_nothing_to_reuse(self) -> None:
        assert proved(all_reduce(2)).checks["reuse"].message == "no port channel reads the caller's buffers"
        assert not proved(plan("allreduce", (2, 2, 0), [[[]], [[]]])).checks["reuse"].ok  # not valid: not reached

    def test_with_a_flush_of_its_own(self) -> None:
        document = self.plan()
        for gpu in (0, 1):
            ops_of(document, gpu)[3]["name"] = "pwsf"
        assert proved(document).ok
        assert mscclpp_machine.verdicts(document, 40) == {"right": 40}

    def test_channels_lead_to_the_places(self) -> None:
        document = plan("test", (1, 1, 0), [[[move("put", here("i", 0), there(0, 0), "port", channel_ids=[1])]]] * 3,
                        by="port")  # fmt: skip
        with pytest.raises(ProgramError, match="the channels lead to other gpus"):
            read(document)


class TestPipelines:
    def plan(self, *inner: Any, **header: Any) -> dict[str, Any]:
        contexts = [{"unit_size": 1 << 20, "num_chunks": 1} for _ in inner]
        loops = zip(contexts, inner, strict=True)
        blocks = [[{"name": "pipeline", "iter_context": context, "ops": list(ops)}] for context, ops in loops]
        return plan("test", (1, 1, 1), [blocks], in_place=False, **header)

    def stages(self, value: int | None = None) -> tuple[list[Any], list[Any]]:
        """Into scratch in one threadblock, out of it in another; with a window of `value` chunks."""
        into, out = move("copy", here("i", 0), here("s", 0), "none"), move("copy", here("s", 0), here("o", 0), "none")
        first = [into, NOP, semaphore("sem_release", 0), NOP]
        second = [semaphore("sem_acquire", 0), NOP, out, NOP]
        if value is not None:
            first, second = [semaphore("sem_acquire", 1), NOP, *first], [*second, semaphore("sem_release", 1)]
        return first, second

    def test_stages_follow_each_other(self) -> None:
        assert proved(self.plan(*self.stages(), semaphores=(0,))).ok
        first, second = self.stages()
        fails(self.plan(first[:1], second[2:], semaphores=(0,)), "races", "turn 0 (copy)")

    def test_scratch_that_is_reused_needs_a_window(self) -> None:
        reused = {"reuse_resources": True, "max_message_size": 1 << 40}  # scratch holds 64 chunks of 1 MiB
        text = fails(self.plan(*self.stages(), semaphores=(0,), **reused), "races", "scratch[0]")
        assert "turn 1 (copy)" in text
        assert proved(self.plan(*self.stages(2), semaphores=(0, 2), **reused)).ok
        assert proved(self.plan(*self.stages(64), semaphores=(0, 64), **reused)).ok
        assert proved(self.plan(*self.stages(), semaphores=(0,), reuse_resources=True, max_message_size=1 << 26)).ok
        fails(self.plan(*self.stages(65), semaphores=(0, 65), **reused), "races", "scratch[0]")

    def test_a_place_of_another_length(self) -> None:
        document = self.plan([move("copy", here("i", 0, 2), here("o", 0, 2), "none")])
        for gpu in document["gpus"]:
            gpu.update(input_chunks=2, output_chunks=2)
        loop = read(document).program
        assert sum(op.writes[0].count for op in loop.ops()) == 2  # half of what the place says: its chunks are one

    def test_what_is_not_judged(self) -> None:
        packets = move("cpkt", here("i", 0), here("s", 0), "none")
        with pytest.raises(ProgramError, match="packets in a pipeline"):
            read(self.plan([packets], protocol="LL"))
        document = self.plan([NOP], [NOP])
        ops_of(document, 0, 1)[0]["iter_context"]["unit_size"] = 3 << 19
        with pytest.raises(ProgramError, match="not in a whole ratio"):
            read(document)


def test_threadblock_groups_cut_places_evenly() -> None:
    ops = [
        [move("copy", here("i", 0, 2), here("o", 0, 2), "none", tbg_info={"tb_id": t, "tbg_size": 3})] for t in range(3)
    ]
    found = read(plan("test", (2, 2, 0), [ops], in_place=False))
    assert [(op.reads[0].offset, op.reads[0].count) for op in found.program.ops()] == [(0, 2), (2, 2), (4, 2)]
    other = [[move("copy", here("o", 0), here("o", 1), "none", tbg_info={"tb_id": t, "tbg_size": 2})] for t in range(2)]
    both = [[*a, barrier(0, 3)] for a in ops]
    both[0] += other[0]
    both[1] += other[1]
    assert proved(plan("test", (2, 2, 0), [both], in_place=False)).ok
    both[1][1] = barrier(1, 1)
    fails(plan("test", (2, 2, 0), [[*both[:1], both[1]]], in_place=False), "deadlock")


def test_signals_meet_by_their_number_and_kind() -> None:
    """The second channel to a peer is another one than the first; a port channel another than a memory channel."""
    document = plan("test", (0, 0, 0), [[[sync_op("signal", 0)]], [[sync_op("wait", 1)]]])
    for gpu in document["gpus"]:
        gpu["channels"][0]["connected_to"] *= 2
        gpu["threadblocks"] = [block(0, gpu["threadblocks"][0]["ops"], 2, 0)]
    fails(document, "deadlock", "op 0 (wait)", "never signals")
    ops_of(document, 1)[0]["channel_ids"] = [0]
    assert proved(document).ok


BAD: dict[str, tuple[Any, str, str]] = {
    "no such op": (lambda d: ops_of(d)[0].update(name="glre"), "no op 'glre'", "gpu 0, threadblock 0, op 0"),
    "negative": (
        lambda d: ops_of(d, 1)[3]["src_buff"][0].update(index=-1),
        "whole number",
        "gpu 1, threadblock 0, op 3, src_buff 0",
    ),
    "huge": (lambda d: ops_of(d)[3]["dst_buff"][1].update(size=1 << 70), "whole number", "op 3, dst_buff 1"),
    "a fraction": (lambda d: d["gpus"][0].update(input_chunks=1.5), "input_chunks", "gpu 0"),
    "chunks": (lambda d: d["gpus"][0].update(input_chunks=3), "do not fit an allreduce", "p"),
    "no channel": (lambda d: ops_of(d)[0].update(channel_ids=[1]), "has no memory channel 1", "op 0"),
    "no buffer": (lambda d: ops_of(d)[3]["src_buff"][1].update(buffer_id=9), "no remote buffer 9", "op 3, src_buff 1"),
    "nowhere": (lambda d: d["gpus"][0]["channels"][0].update(connected_to=[2]), "connected_to", "gpu 0, channel 0"),
    "itself": (
        lambda d: d["gpus"][0]["channels"][0].update(connected_to=[0]),
        "may be right.* to itself",
        "gpu 0, channel 0",
    ),
    "places": (lambda d: ops_of(d)[3]["dst_buff"].pop(), "takes places lr+", "op 3"),
    "order": (lambda d: d["gpus"].reverse(), "numbered in order", "gpu 0"),
    "no gpus": (lambda d: d.update(gpus=[]), "a plan of no gpus", "p"),
    "protocol": (lambda d: d.update(protocol="LL128"), "one of Simple, LL", "p"),
    "ops": (lambda d: d["gpus"][0]["threadblocks"][0].update(ops={"a": 1}), "expected a list", "threadblock 0"),
    "an op": (lambda d: ops_of(d).insert(2, "nop"), "expected an object", "op 2"),
    "many": (lambda d: ops_of(d).extend([NOP] * 10**6), "more than", "p"),
    "wide": (lambda d: [g.update(input_chunks=1 << 18, output_chunks=1 << 18) for g in d["gpus"]], "chunks, or", "p"),
}


class TestHostile:
    @pytest.mark.parametrize("name", BAD)
    def test_documents_are_refused_with_their_place(self, name: str) -> None:
        change, what, where = BAD[name]
        document = all_reduce(2)
        change(document)

        def refused() -> None:
            with pytest.raises(ProgramError, match=what.replace("+", r"\+")) as error:
                read(document, name="p")
            assert error.value.where.endswith(where)

        assert_quick(refused, 100)

    @pytest.mark.parametrize(
        "text", ["{", "{}", '{"gpus": 1}', "[" * 10**5, '{"a": ' * 10**5, b"\xff{", '{"gpus": [NaN]}']
    )
    def test_no_json_or_no_plan(self, text: str | bytes, tmp_path) -> None:
        (tmp_path / "p.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ProgramError):
            read(tmp_path / "p.json")
        with pytest.raises(ProgramError, match="cannot read"):
            read(tmp_path / "none.json")

    def test_junk_anywhere_is_refused_or_judged(self) -> None:
        rng = random.Random(5)
        junk = (None, -1, 0, 1, 7, 1 << 20, 1 << 63, 1 << 80, 1.5, float("nan"), True, "", "i", [], {}, [0], "pipeline")
        refused = 0
        for _ in range(400):
            document = rng.choice((all_reduce, all_gather))(2)
            *path, last = rng.choice([p for p in nodes(document) if p])
            parent = document
            for key in path:
                parent = parent[key]
            parent[last] = rng.choice(junk)
            try:
                proved(document)
            except ProgramError:
                refused += 1
        assert 200 < refused < 400


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        yield from nodes(each, (*path, key))


@pytest.mark.slow
def test_what_is_proved_goes_right_on_the_machine() -> None:
    """Random faults: what certify accepts is right in every random run; most of what it rejects goes wrong in some."""
    accepted = rejected = seen = 0
    for seed in range(some(80)):
        rng = random.Random(seed)
        document = mscclpp_faults.mutated(rng.choice((all_reduce(2), all_reduce(3), all_gather(2), all_gather(3))), rng)
        try:
            verdict = proved(document)
        except ProgramError:
            continue
        if verdict.ok:
            accepted += 1
            assert mscclpp_machine.verdicts(document, 15, seed) == {"right": 15}, seed
        elif verdict.checks["bounds"].ok:
            rejected += 1
            seen += mscclpp_machine.verdicts(document, 40, seed)["right"] < 40
    assert accepted > some(80) / 4
    assert rejected > some(80) / 6
    assert seen > rejected / 2
