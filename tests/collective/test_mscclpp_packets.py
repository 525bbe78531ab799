"""MSCCL++ packets: the thread that does each element, flags, and what port channels make of them."""

from __future__ import annotations

import copy
import cProfile
import csv
import gc
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import mscclpp_faults
import mscclpp_machine
import pytest
from mscclpp_plans import (
    NOP,
    all_gather,
    all_reduce,
    barrier,
    here,
    move,
    ops_of,
    plan,
    semaphore,
    shared_sum,
    sync_op,
    there,
)
from needs import SHARED
from thorough import some

from dovetail.collective.mscclpp import certify, launched, read
from dovetail.collective.mscclpp.certify import taken_whole
from dovetail.core import ProgramError
from dovetail.core.collector import paused
from dovetail.ir import Certificate, verify
from dovetail.ir.proof.verify import verify_order

REPROS = SHARED / "corpus" / "repros"
LL: dict[str, Any] = {"protocol": "LL", "use_double_scratch_buffer": True, "in_place": False}


def proved(document: dict[str, Any]) -> Certificate:
    return certify(read(document, name="p.json"))


def refuted(document: dict[str, Any], check: str, *words: str) -> None:
    """It fails `check`, in these words, and goes wrong in some run."""
    found = proved(document)
    assert found.failed == check, found
    reported = found.checks[check]
    text = "\n".join([reported.message, reported.found or "", reported.where or "", reported.hint or ""])
    assert all(word in text for word in words), text
    assert mscclpp_machine.verdicts(document, 200)["right"] < 200


def holds(document: dict[str, Any]) -> None:
    found = proved(document)
    assert found.ok, found.checks
    assert mscclpp_machine.verdicts(document, 40) == {"right": 40}


@pytest.mark.needs("shared")
class TestRepros:
    def test_verdicts(self) -> None:
        """Of the collected plans, as their index gives them."""
        with (REPROS / "INDEX.tsv").open() as file:
            rows = [row for row in csv.DictReader(file, delimiter="\t") if row["file"].endswith(".json")]
        assert len(rows) >= 9
        wanted = {row["file"]: row["right verdict"] for row in rows}
        checks = {name: certify(read(REPROS / name)).failed for name in wanted}
        failed = {"valid": None, "race": "races", "invalid": "deadlock"}
        assert checks == {name: failed[verdict] for name, verdict in wanted.items()}


def pair(*ops: Any, chunks: tuple[int, int, int] = (1, 1, 4), remote: str = "s") -> dict[str, Any]:
    """An allreduce of two gpus that do the same."""
    return plan("allreduce", chunks, [[list(ops)]] * 2, remote=remote, **LL)


PUT = move("ppkt", here("i", 0), there(0, 0))
PACK = move("cpkt", here("i", 0), here("s", 1), "none")
UNPACK = move("upkt", here("s", 1), here("o", 0), "none")
ADD = move("repkt", [here("o", 0), here("s", 0)], here("o", 0), "none")


class TestOneThread:
    """Ops on packets give element i, from where they start, to thread i modulo the number of threads."""

    @pytest.mark.parametrize("sync", [(), (NOP,)])
    def test_does_both(self, sync: tuple[Any, ...]) -> None:
        holds(pair(PUT, PACK, UNPACK, *sync, ADD))

    def test_other_ops_have_other_threads(self) -> None:
        """A copy goes by 16 bytes, a packet holds 4 or 8: neither copy-then-repkt nor upkt-then-copy is in order."""
        plain = move("copy", here("i", 0), here("o", 0), "none")
        refuted(pair(PUT, plain, ADD), "races", "add a nop between the two", "op 1 (copy)", "op 2 (repkt)")
        holds(pair(PUT, plain, NOP, ADD))
        more = move("copy", here("o", 0), here("o", 1), "none")
        text = plan("test", (1, 2, 4), [[[PACK, UNPACK, more]]], **LL)
        assert proved(text).failed == "races"
        ops_of(text).insert(2, NOP)
        assert proved(text).ok

    def test_starts_where_the_op_does(self) -> None:
        """Chunk 1 of two, unpacked together, belongs to other threads than chunk 1 alone."""
        put, pack = (move(op["name"], here("i", 0, 2), to, op["channel_type"]) for op, to in
                     ((PUT, there(0, 0, 2)), (PACK, here("s", 2, 2))))  # fmt: skip
        both = move("upkt", here("s", 2, 2), here("o", 0, 2), "none")
        adds = [move("repkt", [here("o", c), here("s", c)], here("o", c), "none") for c in (0, 1)]
        refuted(pair(put, pack, both, *adds, chunks=(2, 2, 4)), "races", "output[1] of gpu", "op 4 (repkt)")
        holds(pair(put, pack, both, NOP, *adds, chunks=(2, 2, 4)))
        alone = [move("upkt", here("s", 2 + c), here("o", c), "none") for c in (0, 1)]
        holds(pair(put, pack, *alone, *adds, chunks=(2, 2, 4)))
        whole = move("repkt", [here("o", 0, 2), here("s", 0, 2)], here("o", 0, 2), "none")
        holds(pair(put, pack, both, whole, chunks=(2, 2, 4)))
        first = [both, adds[0], NOP, adds[1]]  # the first chunk starts where both do
        holds(pair(put, pack, *first, chunks=(2, 2, 4)))

    def test_of_parts_of_a_group(self) -> None:
        """Each threadblock unpacks and adds its own third; another third is another threadblock's."""
        parts = [{"tb_id": t, "tbg_size": 3} for t in range(3)]
        blocks = [[UNPACK | {"tbg_info": part}, ADD | {"tbg_info": part}] for part in parts]
        document = plan("allreduce", (1, 1, 4), [[[PUT, PACK], *blocks]] * 2, remote="s", **LL)
        holds(document)
        for gpu in (0, 1):
            ops_of(document, gpu, 1)[1]["tbg_info"], ops_of(document, gpu, 2)[1]["tbg_info"] = parts[1], parts[0]
        refuted(document, "races", "(part", "add a barrier of the two threadblocks")

    def test_tells_by_flags_only_of_what_it_did(self) -> None:
        """A reader of the first chunk's packets knows of the first chunk, not of the second that the op did too."""
        pack = move("recpkt", [here("i", 0, 2), here("s", 0, 2)], [here("o", 0, 2), here("s", 2, 2)], "none")
        put = move("ppkt", here("i", 0, 2), there(0, 0, 2))
        for chunk, ok in ((0, True), (1, False)):
            over = move("copy", here("o", 2), here("i", chunk), "none")
            after = [move("upkt", here("s", 2), here("o", 2), "none"), NOP, over]
            document = plan("test", (2, 4, 4), [[[put, pack], after]] * 2, remote="s", **LL)
            assert proved(document).ok == ok
            assert ok or proved(document).failed == "races"


class TestPorts:
    """A port channel copies the bytes of its source: packets with their flags, anything else without."""

    def plan(self, *before: Any, source: Any = None) -> dict[str, Any]:
        blocks = []
        for rank in (0, 1):
            put = move("ppkt", source or here("s", 2), there(0, rank), "port", channel_ids=[0])
            out = move("upkt", here("s", 1 - rank), here("o", 1 - rank), "none")
            blocks.append([[*before, put, out, move("copy", here("i", 0), here("o", rank), "none")]])
        return plan("allgather", (1, 2, 3), blocks, remote="s", by="port", **LL)

    def flushed(self, document: dict[str, Any]) -> dict[str, Any]:
        """Each gpu ends when the other has had its packets."""
        for gpu in (0, 1):
            document["gpus"][gpu]["threadblocks"][0]["ops"] += [
                NOP, sync_op("signal", 0, by="port"), sync_op("wait", 0, by="port"), NOP]  # fmt: skip
        return document

    def test_packets_arrive_as_packets(self) -> None:
        pack = move("cpkt", here("i", 0), here("s", 2), "none")
        holds(self.flushed(self.plan(pack, NOP)))
        refuted(self.plan(pack), "races", "op 0 (cpkt)", "op 1 (ppkt)")

    @pytest.mark.parametrize("source", [here("i", 0), here("s", 2)])
    def test_other_bytes_hang_their_reader(self, source: Any) -> None:
        document = self.flushed(self.plan(source=source))
        refuted(document, "deadlock", "gpu 1, threadblock 0, op 0 (ppkt)", "gpu 0, threadblock 0, op 1 (upkt)", "cpkt")
        assert mscclpp_machine.verdicts(document, 10) == {"hang": 10}

    def test_packets_made_too_late(self) -> None:
        document = self.flushed(self.plan())
        for gpu in (0, 1):
            ops_of(document, gpu).insert(1, NOP)
            ops_of(document, gpu).insert(2, move("cpkt", here("i", 0), here("s", 2), "none"))
        refuted(document, "races", "op 2 (cpkt)", "op 0 (ppkt)", "add a pwsf")

    def test_packets_of_packets(self) -> None:
        """From gpu to gpu by rppkt, which waits for flags, on either kind of channel."""
        document = self.plan(move("cpkt", here("i", 0), here("s", 2), "none"))
        for gpu in (0, 1):
            ops_of(document, gpu)[1]["name"] = "rppkt"
        holds(self.flushed(document))


class TestOtherData:
    """Packets are stores without a fence (packet_device.hpp): what else was written before may come later."""

    UNPACK = move("upkt", here("s", 1), here("s", 8), "none")

    def handed_on(self, given: list[Any], taken: list[Any]) -> dict[str, Any]:
        """One threadblock copies its input to the output, another one adds what the other gpu sends."""
        first, second = [PUT, move("copy", here("i", 0), here("o", 0), "none"), NOP, *given], [*taken, ADD]
        return plan("allreduce", (1, 1, 9), [[first, second]] * 2, remote="s", semaphores=(0,), **LL)

    def test_of_another_threadblock(self) -> None:
        refuted(self.handed_on([PACK], [self.UNPACK, NOP]), "races", "op 2 (repkt)", "output[0]",
                "only packets order the two", "op 1 (copy)", "semaphore")  # fmt: skip
        holds(self.handed_on([PACK, semaphore("sem_release", 0)], [self.UNPACK, semaphore("sem_acquire", 0), NOP]))

    def test_of_another_gpu(self) -> None:
        """A put, then packets; where a signal comes with them, it is right."""
        put, sources = move("put", here("i", 0), there(0, 8)), [here("i", 0), here("s", 8)]
        add = move("re", sources, here("o", 0), "none")
        go, take = move("ppkt", here("i", 0), there(0, 1)), self.UNPACK | {"dst_buff": [here("s", 9)]}
        document = pair(put, NOP, go, take, NOP, add, chunks=(1, 1, 10))
        refuted(document, "races", "op 5 (re) reads scratch[8]", "op 0 (put)", "let gpu 0 signal gpu 1 in between")
        holds(pair(put, NOP, go, sync_op("signal", 0), take, sync_op("wait", 0), NOP, add, chunks=(1, 1, 10)))

    def test_what_was_read_may_be_overwritten(self) -> None:
        """By who has the packets that were made of it."""
        over = move("copy", here("s", 8), here("i", 0), "none")
        document = self.handed_on([PACK], [self.UNPACK, NOP, over, NOP])
        for gpu in (0, 1):
            ops_of(document, gpu, 1).pop()
        document["collective"] = "test"
        assert proved(document).checks["races"].message == "conflicting accesses are ordered in every timing"
        ops_of(document, 0, 1)[:2] = []
        assert proved(document).failed == "races"

    def test_what_was_written_is_overwritten_in_order(self) -> None:
        """As upstream's plans expect; it is said."""
        document = self.handed_on([PACK], [UNPACK])
        holds(document)
        reported = proved(document).checks["races"].message
        assert "if writes come in the order of packets" in reported
        assert "op 0 (upkt) writes output[0] of gpu 0, which gpu 0, threadblock 0, op 1 (copy) writes" in reported


class TestSumsReadPacketsFirst:
    """Then what they add to them (execution_kernel.hpp, handleReduceSendPackets)."""

    def test_what_they_add(self) -> None:
        """A port channel writes it, then the packets, in order. There is no fence, so it is a race all the same."""
        blocks = []
        for _ in (0, 1):
            pack, port = move("cpkt", here("i", 0), here("s", 1), "none"), {"by": "port", "channel_ids": [0]}
            puts = [move("ppkt", here("s", 1), there(0, 3), **port), move("put", here("i", 0), there(0, 0), **port)]
            back = move("rppkt", here("s", 3), there(0, 2), **port)
            blocks.append([[pack, NOP, *puts, back, move("repkt", [here("s", 0), here("s", 2)], here("o", 0), "none")]])
        document = TestPorts().flushed(plan("allreduce", (1, 1, 8), blocks, remote="s", by="port", **LL))
        assert mscclpp_machine.verdicts(document, 100) == {"right": 100}
        reported = proved(document).checks["races"].message
        assert "op 5 (repkt) reads scratch[0] of gpu" in reported
        assert "only packets order the two" in reported

    def test_all_of_them(self) -> None:
        """The last packets that a sum waits for are made, by another threadblock, of what it is to overwrite."""
        keep = move("upkt", here("s", 2), here("o", 0), "none")
        first = [PUT, move("cpkt", here("i", 0), here("s", 2), "none"), keep, semaphore("sem_release", 0)]
        first.insert(3, NOP)
        add = [move("repkt", [here("o", 0), here("s", 0), here("s", 1)], here("o", 0), "none")]
        second = [semaphore("sem_acquire", 0), NOP, move("cpkt", here("o", 0), here("s", 1), "none")]
        document = plan("test", (1, 1, 4), [[first + add, second]] * 2, remote="s", semaphores=(0,), **LL)
        assert proved(document).ok, proved(document)
        ops_of(document)[5]["src_buff"].pop()
        assert proved(document).failed == "races"


def test_a_switch_stores_packets_that_its_own_threads_made() -> None:
    """cpkt then gstorepkt, of one place on all gpus: the store leaves the gpu's own packets as they are."""
    document = all_gather(2)
    for rank, gpu in enumerate(document["gpus"]):
        first, second = gpu["threadblocks"]
        pack = move("cpkt", here("i", 0), here("s", rank), "none")
        store = move("gstorepkt", here("s", rank), {"switch_channel_id": 0, "index": rank, "size": 1}, "switch")
        first["ops"] = [pack, store]
        first["channels"] = [{"channel_type": "switch", "channel_ids": [0]}]
        second.update(channels=[], remote_buffer_refs=[])
        second["ops"] = [move("upkt", here("s", c), here("o", c), "none") for c in (0, 1)]
        group = {"size": 2, "ranks": [0, 1]}
        gpu["channels"] = [{"channel_type": "switch", "buffer_type": "s", "rank_groups": [group]}]
    holds(document)


def test_work_grows_as_ops_do() -> None:
    """Calls of functions in reading and proving a plan: four times the ops, about four times the calls."""
    few, many = (_calls(proved, all_gather(n)) for n in (8, 16))
    assert many < 5 * few


def test_work_grows_as_ops_do_where_chunks_are_cut() -> None:
    """The more threadblocks share an op, the finer chunks are cut; what they share is judged whole all the same."""
    few, many = (_calls(proved, shared_sum(4, group)) for group in (8, 32))
    assert many < 1.25 * few * (3 + 32) / (3 + 8)  # puts and sums of each gpu
    document = shared_sum(4, 32)
    assert _calls(proved, document) < _calls(_part_by_part, document)


def _part_by_part(document: dict[str, Any]) -> Certificate:
    return verify_order(launched(read(document, name="p.json"), loose=True))


def _calls(function: Callable[[dict[str, Any]], object], document: dict[str, Any]) -> int:
    profile = cProfile.Profile()
    profile.runcall(function, document)
    return sum(entry.callcount for entry in profile.getstats())


def test_nothing_is_left_for_the_collector() -> None:
    """Rows go when nobody names them any more; a search for cycles among so many would take as long as the proof."""
    document = all_gather(8)
    proved(document)
    gc.collect()
    with paused():
        proved(document)
        assert gc.collect() < 100


def test_what_threadblocks_share() -> None:
    """Whole, or part by part if an op among the parts is at fault, or if more than flags order them."""
    holds(shared_sum(3, 4))
    document = shared_sum(3, 4)
    ops_of(document, 0, 1).append(move("copy", here("o", 0), here("o", 0), "none"))
    assert "gpu 0, threadblock 1, op 2 (copy) reads" in (found := proved(document).checks["races"].message), found
    document = shared_sum(2, 2)
    for t in (0, 1):  # a sync between each part and what follows it
        part = {"tb_id": t, "tbg_size": 2}
        ops_of(document, 0, t).extend([NOP, move("copy", here("o", 0), here("o", 0), "none", tbg_info=part)])
    holds(document)


@pytest.mark.slow
def test_taken_whole_no_race_is_missed() -> None:
    """Whatever is free of races where groups are taken whole is so part by part; often they say the same."""
    seen: Counter[tuple[bool, bool]] = Counter()
    plans = [shared_sum(2, 3), shared_sum(3, 2), _with_barriers()]
    for seed in range(some(150)):
        rng = random.Random(seed)
        document = mscclpp_faults.mutated(copy.deepcopy(rng.choice(plans)), rng)
        with suppress(ProgramError):
            plan = read(document, name="p")
            if verify(launched(plan)).failed in (None, "races", "result"):
                whole, parts = taken_whole(plan), verify_order(launched(plan, loose=True))
                seen[whole is not None, parts.checks["races"].ok] += 1
    assert not seen[True, False]
    assert min(seen[True, True], seen[False, False]) > some(150) / 15


def _with_barriers() -> dict[str, Any]:
    """A second sum of the same threadblocks after a barrier of them all."""
    document = shared_sum(2, 2)
    for rank in (0, 1):
        for ops in (ops_of(document, rank, t) for t in (0, 1)):
            ops.extend([barrier(0, 2), copy.deepcopy(ops[-1])])
    return document


def test_zero_chunks() -> None:
    """Places of no chunks touch nothing and wait for nothing; a collective of no chunks is refused by name."""
    pack, unpack = (("cpkt", "i", "s"), ("upkt", "s", "o"))
    nothing = [move(name, here(a, 0, 0), here(b, 0, 0), "none") for name, a, b in (pack, unpack)]
    assert proved(plan("test", (1, 1, 1), [[nothing[::-1]]], **LL)).ok
    for chunks, name in (((0, 0, 0), "input"), ((2, 0, 0), "output")):
        with pytest.raises(ProgramError, match=f"gpu 0 has 0 chunks of {name}, and an allreduce moves some") as error:
            read(plan("allreduce", chunks, [[[NOP]]] * 2), name="p")
        assert error.value.where == "p, gpu 0"
    found = proved(plan("test", (0, 0, 0), [[[NOP]]] * 2))
    assert found.ok
    assert "fails for a gpu with 0 chunks" in found.checks["limits"].message


@pytest.mark.slow
def test_random_faults_of_packets() -> None:
    """What is accepted is right in every random run."""
    seen: Counter[str] = Counter()
    plans = [pair(PUT, PACK, UNPACK, ADD), all_gather(3), all_reduce(2)]
    plans.append(TestPorts().flushed(TestPorts().plan(move("cpkt", here("i", 0), here("s", 2), "none"), NOP)))
    for seed in range(some(60)):
        rng = random.Random(seed)
        document = mscclpp_faults.mutated(copy.deepcopy(rng.choice(plans)), rng)
        try:
            verdict = proved(document)
        except ProgramError:
            continue
        seen["accepted" if verdict.ok else "rejected"] += 1
        if verdict.ok:
            assert mscclpp_machine.verdicts(document, 12, seed) == {"right": 12}, seed
    assert seen["accepted"] > some(60) / 8
    assert seen["rejected"] > some(60) / 4


def test_packets_may_be_added_to_where_they_lie() -> None:
    """recpkt from and to one place: its threads read before they write. Another threadblock may read either."""
    put = move("ppkt", here("i", 0), there(0, 0))
    add = move("recpkt", [here("i", 0), here("s", 0)], [here("o", 0), here("s", 0)], "none")
    take = move("upkt", here("s", 0), here("o", 0), "none")
    holds(pair(put, add, take))
    document = plan("allreduce", (1, 1, 4), [[[put, add], [take]]] * 2, remote="s", **LL)
    assert proved(document).failed == "races"
