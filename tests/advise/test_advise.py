"""Advice: planted faults are found first, with the savings of the repaired program; none in a repaired program."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from replay_models import DELAYS, US, ModelBuilder
from trace_calls import call, collective, sent, taken, trace_of
from trace_files import NAMES, event, pair, write_process

from dovetail.advise.advise import Advice, advise, advise_model, together
from dovetail.advise.finding import Finding
from dovetail.advise.remedy import dropped
from dovetail.report.advice import advice_text
from dovetail.trace.analysis.eager_limits import EagerLimit, EagerLimits
from dovetail.trace.analysis.model_of_trace import model_of
from dovetail.trace.analysis.replay_model import FROM_ROOT, CollectiveCall, ReplayModel, Step

ROUNDS = 20


def merge(builder: ModelBuilder, repaired: bool) -> None:
    for rank in (0, 1):
        builder.work(rank, 2000 * US)
    for _ in range(1 if repaired else 8):
        builder.all_reduce("sum", 64 if repaired else 8)


def block(builder: ModelBuilder, repaired: bool) -> None:
    for rank in (0, 1):
        builder.work(rank, 1000 * US)
    for _ in range(1 if repaired else 20):
        number = builder.message(0, 1, 1280 if repaired else 64)
        builder.call(0, "send", ("send", number))
        builder.within[0] = 2 * US
        builder.call(1, "recv", ("recv", number), ("received", number))
        builder.within[1] = 30 * US


def temporal_block(builder: ModelBuilder, repaired: bool) -> None:
    for step in range(8):
        if not repaired or step == 0:
            numbers = [builder.message(rank, 1 - rank, 2048 if repaired else 256) for rank in (0, 1)]
            for rank in (0, 1):
                mine, theirs = numbers[rank], numbers[1 - rank]
                builder.call(rank, "exchange", ("send", mine), ("recv", theirs), ("received", theirs))
        for rank in (0, 1):
            builder.work(rank, 15 * US)


def post_earlier(builder: ModelBuilder, repaired: bool) -> None:
    round_ = len(builder.messages) // 2
    busy, taker, waits = ((round_ + i) % 3 for i in range(3))
    late, held = builder.message(busy, taker, 64), builder.message(waits, taker, 64, rendezvous=True, synchronous=True)
    builder.work(busy, 3000 * US)
    builder.call(busy, "late", ("send", late))
    builder.call(waits, "held", ("send", held), ("sent", held))
    builder.work(waits, 3000 * US)
    if repaired:
        builder.call(taker, "recv", ("recv", late))
        builder.call(taker, "recv held", ("recv", held))
        builder.call(taker, "wait", ("received", late), ("received", held))
    else:
        builder.call(taker, "recv", ("recv", late), ("received", late))
        builder.call(taker, "recv held", ("recv", held), ("received", held))
    builder.all_reduce("barrier")
    builder.collectives[-1] = replace(builder.collectives[-1], name="MPI_Barrier")


def overlap(builder: ModelBuilder, repaired: bool) -> None:
    round_ = len(builder.messages) // 2
    numbers = [builder.message(rank, 1 - rank, 100000) for rank in (0, 1)]
    for rank in (0, 1):
        builder.call(rank, "irecv", ("recv", numbers[1 - rank]))
        builder.call(rank, "isend", ("send", numbers[rank]))
        if not repaired:
            builder.call(rank, "wait", ("received", numbers[1 - rank]))
        builder.work(rank, (1500 if (round_ + rank) % 2 else 1000) * US)
        if repaired:
            builder.call(rank, "wait", ("received", numbers[1 - rank]))


def nonblocking(builder: ModelBuilder, repaired: bool) -> None:
    round_ = len(builder.collectives)
    spent = [(3000 if (round_ + rank) % 2 else 1000) * US for rank in (0, 1)]
    builder.all_reduce("sum", blocking=not repaired, before=spent)
    if not repaired:
        for rank in (0, 1):
            builder.work(rank, spent[rank])


def rendezvous(builder: ModelBuilder, repaired: bool, num_bytes: int = 1 << 20, freed: bool = False) -> None:
    number = builder.message(0, 1, num_bytes, rendezvous=not freed)
    if repaired:
        builder.call(0, "isend", ("send", number))
        builder.work(0, 3000 * US)
        builder.call(0, "wait", ("sent", number))
    else:
        builder.call(0, "send", ("send", number), *([("sent", number)] if not freed else []))
        builder.work(0, 3000 * US)
    builder.work(1, 3000 * US)
    builder.call(1, "recv", ("recv", number), ("received", number))
    builder.all_reduce("barrier")
    builder.collectives[-1] = replace(builder.collectives[-1], name="MPI_Barrier")


def eager(builder: ModelBuilder, repaired: bool) -> None:
    rendezvous(builder, False, 20000, freed=repaired)


def progress(builder: ModelBuilder, repaired: bool) -> None:
    numbers = [builder.message(rank, 1 - rank, 1 << 20, rendezvous=True, stalls=not repaired) for rank in (0, 1)]
    for rank in (0, 1):
        builder.call(rank, "isend", ("send", numbers[rank]))
        builder.call(rank, "irecv", ("recv", numbers[1 - rank]))
        builder.work(rank, 20000 * US)
        builder.call(rank, "wait", ("received", numbers[1 - rank]), ("sent", numbers[rank]))


def imbalance(builder: ModelBuilder, repaired: bool) -> None:
    for rank in (0, 1):
        builder.work(rank, (3000 if repaired else 2000 + 2000 * rank) * US)
    builder.all_reduce("sum")


def slow_rank(builder: ModelBuilder, repaired: bool) -> None:
    for rank in range(4):
        builder.work(rank, (5000 if rank == 2 and not repaired else 2500) * US)
    builder.all_reduce("sum")


def slow_link(builder: ModelBuilder, repaired: bool) -> None:
    slow = {} if repaired else {"delay_s": 10 * float(DELAYS(16384))}
    numbers = [builder.message(r, (r + 1) % 4, 16384, **(slow if r == 1 else {})) for r in range(4)]
    for rank in range(4):
        builder.work(rank, 5000 * US)
        came = numbers[(rank + 3) % 4]
        builder.call(rank, "ring", ("send", numbers[rank]), ("recv", came), ("received", came))


FAULTS = {
    f.__name__: (f, ranks)
    for f, ranks in ((merge, 2), (block, 2), (temporal_block, 2), (post_earlier, 3), (overlap, 2), (nonblocking, 2),
                     (rendezvous, 2), (eager, 2), (progress, 2), (imbalance, 2), (slow_rank, 4), (slow_link, 4))
}  # fmt: skip


def modelled(name: str, repaired: bool) -> tuple[ModelBuilder, ReplayModel]:
    fault, num_ranks = FAULTS[name]
    builder = ModelBuilder(num_ranks)
    for _ in range(ROUNDS):
        fault(builder, repaired)
    return builder, builder.model()


def advised(name: str, repaired: bool, eager_bytes: int | None = None):
    builder, model = modelled(name, repaired)
    limits = EagerLimits(of_way={True: EagerLimit(eager_bytes)})
    model = replace(model, delays=replace(model.delays, limits=limits))
    return advise_model(
        model, lambda row: builder.sites.get(row, ""), lambda rows: builder.sites.get(rows[0], "") if rows else ""
    )


@pytest.mark.parametrize("name", FAULTS)
def test_the_planted_fault_is_the_first_finding_and_saves_what_the_repair_saves(name):
    advice = advised(name, repaired=False)
    gain = advice.traced_s - modelled(name, repaired=True)[1].makespan_s
    assert advice.findings[0].kind == name
    assert advice.findings[0].saves_s == pytest.approx(gain, rel=0.25)


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"temporal_block"}))
def test_nothing_serious_is_found_in_the_repaired(name):
    """One repaired program is left out: it could still overlap its exchange with work."""
    advice = advised(name, repaired=True)
    assert [f for f in advice.findings if f.saves_s > 0.05 * advice.replayed_s] == []


def test_a_larger_eager_limit_does_not_empty_full_buffers():
    """If other messages of that size did not wait, full buffers, not the limit, made a few wait."""
    for eager_bytes, kinds in ((None, {"eager", "rendezvous"}), (1 << 20, {"rendezvous"})):
        found = {finding.kind: finding for finding in advised("eager", False, eager_bytes).findings}
        assert {kind for kind in found if kind in ("eager", "rendezvous")} == kinds
        assert ("buffers were full" in found["rendezvous"].evidence) == (eager_bytes is not None)


def findings_of(builder: ModelBuilder) -> dict[str, float]:
    advice = advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: "")
    return {finding.kind: finding.saves_s for finding in advice.findings}


def test_broadcasts_one_after_another_are_merged():
    """Each call costs its root 30 us."""
    builder = ModelBuilder(2)
    for number in range(20):
        builder.collectives.append(CollectiveCall(number, "MPI_Bcast", (0, 1), FROM_ROOT, 0, 8, 40 * US))
        for rank in (0, 1):
            builder.call(rank, "bcast", ("join", number), ("joined", number))
        builder.within[0] = 30 * US
    assert findings_of(builder)["merge"] == pytest.approx(19 * 30 * US, rel=0.1)


@pytest.mark.parametrize("work_us", [0, 100])
def test_sends_with_receives_posted_between_them_are_blocked(work_us):
    """As in an exchange in small parts with one wait at its end; but not if there is work between the parts."""
    builder = ModelBuilder(2)
    numbers = [[builder.message(rank, 1 - rank, 64) for _ in range(20)] for rank in (0, 1)]
    for rank in (0, 1):
        for mine, theirs in zip(numbers[rank], numbers[1 - rank], strict=True):
            builder.work(rank, work_us * US)
            builder.call(rank, "irecv", ("recv", theirs))
            builder.call(rank, "isend", ("send", mine))
            builder.within[rank] = 30 * US
        builder.call(rank, "wait", *(("received", theirs) for theirs in numbers[1 - rank]))
    found = findings_of(builder)
    assert found.get("block", 0.0) == pytest.approx(0.0 if work_us else 19 * 30 * US, rel=0.1)


def test_a_halo_whose_first_messages_were_delayed_is_still_a_halo():
    builder, _ = modelled("temporal_block", repaired=False)
    builder.messages[:2] = [replace(message, rendezvous=True) for message in builder.messages[:2]]
    assert "temporal_block" in findings_of(builder)


def test_calls_after_a_removed_collective_stay(tmp_path):
    """Two allreduces of 1 ms, then a call of 50 ms without data: merging the allreduces saves 1 ms."""
    for rank in range(2):
        pairs = [call(11, t, t + 1, *collective()) + call(11, t + 1, t + 2, *collective()) for t in (0, 60, 120)]
        events = [one for t, both in zip((0, 60, 120), pairs, strict=True) for one in (*both, *call(8, t + 2, t + 52))]
        write_process(tmp_path, rank, {1: [*events, *call(12, 180, 181, *collective(root=0))]})
    (merging,) = (f for f in advise(trace_of(tmp_path)).findings if f.kind == "merge")
    assert merging.saves_s == pytest.approx(3e-3, rel=0.2)


def test_receives_of_one_sender_keep_their_order():
    """The second receive is posted late. It must not move before the first, which would then receive its message."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        early, late = builder.message(0, 1, 64), builder.message(0, 1, 64, rendezvous=True, synchronous=True)
        builder.call(0, "early", ("send", early))
        builder.call(0, "late", ("send", late), ("sent", late))
        builder.work(1, 1000 * US)
        for number in (early, late):
            builder.call(1, "recv", ("recv", number), ("received", number))
    assert "post_earlier" not in findings_of(builder)


def test_consecutive_sends_are_waited_for_together():
    """Three sends, while the receiver works: the sender continues after its own work, not after the receiver's."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        numbers = [builder.message(0, 1, 64, rendezvous=True) for _ in range(3)]
        builder.work(1, 3000 * US)
        for number in numbers:
            builder.work(0, 700 * US)
            builder.call(0, "send", ("send", number), ("sent", number))
            builder.call(1, "recv", ("recv", number), ("received", number))
        builder.all_reduce("sum")
    assert findings_of(builder)["rendezvous"] == pytest.approx(ROUNDS * 1400 * US, rel=0.1)


def test_work_of_a_root_while_all_others_wait_should_be_shared():
    """The root works 1200 us before a broadcast, then both work 1000 us: half of the 1200 us could be saved."""
    builder = ModelBuilder(2)
    for _ in range(ROUNDS):
        builder.work(0, 1200 * US)
        number = len(builder.collectives)
        builder.collectives.append(CollectiveCall(number, "MPI_Bcast", (0, 1), FROM_ROOT, 0, 8, 10 * US))
        for rank in (0, 1):
            builder.call(rank, "bcast", ("join", number), ("joined", number))
            builder.work(rank, 1000 * US)
        builder.all_reduce("sum")
    assert findings_of(builder)["imbalance"] == pytest.approx(ROUNDS * 600 * US, rel=0.05)


def test_periodic_and_slowly_growing_times_are_no_noise_but_a_pause_is(tmp_path):
    """Estimated noise of one rank with 40 calls: every 10 ms; alternately after 5 and 15 ms; ever later."""

    def spread_s(name: str, gaps_ms: list[float]) -> float:
        ends = np.cumsum(gaps_ms)
        events = [each for end in ends.tolist() for each in call(11, end, end, *collective())]
        write_process(tmp_path / name, 0, {1: events}, num_ranks=1)
        return advise(trace_of(tmp_path / name)).spread_s

    assert spread_s("even", [10] * 40) == pytest.approx(0, abs=1e-6)
    assert spread_s("by_turns", [5, 15] * 20) == pytest.approx(0, abs=1e-6)
    assert spread_s("along", [10 + i / 10 for i in range(40)]) < 2e-3
    pause_s = spread_s("pause", [10] * 20 + [60] + [10] * 19)
    assert 0.05 < pause_s < 0.2, "another run may have no pause, or two"


def test_savings_below_the_difference_of_runs_are_doubtful():
    advice = replace(advised("merge", repaired=False), spread_s=1e-3)
    saved = advice.findings[0].saves_s
    alike, apart = together([advice, advice, advice]), together([advice, replace(advice, traced_s=1.0)])
    assert (alike.findings, alike.doubtful, alike.spread_s) == (advice.findings, (), 0.0)
    assert (apart.findings, apart.doubtful) == ((), advice.findings)
    for words in ("differ by more than any change would save", "2 runs differ by", "1. merge"):
        assert words in advice_text(apart)
    alone = together([replace(advice, spread_s=2 * saved)])
    assert (alone.findings, alone.doubtful) == (advice.findings, ()), "one run hides no finding"
    assert "a second run may differ by" in advice_text(alone)
    nothing = replace(advice, findings=())
    assert together([advice, nothing, nothing]).findings == (), "one run of three shows it"


@pytest.mark.parametrize(("most", "first"), [(1.5, "block"), (3.0, "overlap")])
def test_what_may_be_impossible_counts_by_half_of_its_bound(most, first):
    """Of what the trace does not show, each share from none to all is as likely."""
    sure, unsure = Finding("block", "here", "", "", 1.0), Finding("overlap", "there", "", "", most, is_sure=False)
    assert together([Advice((unsure, sure), 10.0, 10.0)]).findings[0].kind == first
    assert ["at most" in advice_text(Advice((it,), 10.0, 10.0)) for it in (unsure, sure)] == [True, False]


def test_what_a_replay_that_is_too_long_shows_is_doubtful():
    """It lets ranks wait that did not: a saving below that may be of such waits."""
    small, large = (
        Finding(kind, "here", "", "", saved, bound_s=saved) for kind, saved in (("imbalance", 4.0), ("merge", 7.0))
    )
    run = Advice((large, small), 10.0, 15.0, excess_s=5.0)
    apart = together([run, run])
    assert [[it.kind for it in those] for those in (apart.findings, apart.doubtful)] == [["merge"], ["imbalance"]]
    for advice in (apart, run):
        below = advice_text(advice).partition("lets ranks wait that did not")[2]
        assert ("2. imbalance" in below, "1. merge" in below) == (True, False)
    assert len(together([replace(run, excess_s=0.0)] * 2).findings) == 2


def test_ranks_that_did_not_wait_for_one_another(tmp_path):
    """Each is late in every other step, and none waits, as in a collective of neighbours: 40 ms; replayed, 60."""
    for rank in range(2):
        events, now = list[tuple[int, int]](), 0.0
        for i in range(20):
            now += 3.0 if (i + rank) % 2 else 1.0
            events += call(11, now - 0.01, now, *collective())
        write_process(tmp_path, rank, {1: events})
    advice = advise(trace_of(tmp_path))
    assert advice.excess_s == pytest.approx(0.02, rel=0.2)
    assert advice.findings == (), advice_text(advice)


def test_tracing_overhead_of_removed_calls_does_not_count_as_saved(tmp_path):
    """100 consecutive sums of 10 us, 5 us of each for tracing: two clock readings and one more event."""
    for rank in range(2):
        events = [each for i in range(100) for each in call(11, i * 0.01, (i + 1) * 0.01, *collective())]
        write_process(tmp_path, rank, {1: events}, notes=[{"event_ticks": [2000, 1000]}])
    (merging,) = (f for f in advise(trace_of(tmp_path)).findings if f.kind == "merge")
    assert merging.saves_s == pytest.approx(99 * 5e-6, rel=0.1)


def test_advice_in_words_and_json():
    advice = advised("merge", repaired=False)
    text = advice_text(advice)
    for words in ("1. merge: saves", "one MPI_Allreduce of all elements", "Replayed unchanged"):
        assert words in text
    told = {"kind", "where", "evidence", "action", "saves_s"}
    why = {"cause", "root", "confidence", "bound_s", "instead_of", "disturbed_s", "calls"}
    assert set(advice.to_json()["findings"][0]) == told | why


def test_a_collective_from_a_root_delays_only_ranks_that_come_before_the_root():
    builder = ModelBuilder(3)
    builder.collectives.append(CollectiveCall(0, "MPI_Bcast", (0, 1, 2), FROM_ROOT, 0, 8, 10 * US))
    for rank, spent in enumerate((100, 50, 400)):
        builder.work(rank, spent * US)
        builder.call(rank, "bcast", ("join", 0), ("joined", 0))
        builder.work(rank, 1 * US)
    from dovetail.sim import simulate
    from dovetail.trace.to_program import to_program

    timeline = simulate(*to_program(builder.model()))
    ends = [timeline.columns["end_s"][timeline.columns["rank"] == rank].max() for rank in range(3)]
    assert ends == pytest.approx([101 * US, 111 * US, 401 * US], abs=2 * US)


def test_a_stalled_message_progresses_while_its_rank_waits_for_something_else():
    """Otherwise its sender would never reach the collective that the receiver waits for first."""
    builder = ModelBuilder(2)
    number = builder.message(0, 1, 1 << 20, rendezvous=True, stalls=True)
    builder.call(1, "irecv", ("recv", number))
    builder.call(0, "send", ("send", number), ("sent", number))
    builder.work(1, 1000 * US)
    builder.all_reduce("sum")
    builder.call(1, "wait", ("received", number))
    assert builder.model().makespan_s == pytest.approx(1000 * US + float(DELAYS(1 << 20)) + 60 * US)


def test_a_call_delayed_by_a_slow_link_does_not_make_its_other_message_look_slow(tmp_path):
    """In a ring of three ranks the link from 1 to 2 is slow, so rank 1 is late for the message of rank 0."""
    ring: list[list] = [[], [], []]
    for start in (10 + 5.3 * i for i in range(12)):
        ring[0] += call(14, start - 4.4, start + 0.35, sent(1, 65536), *taken(2, 65536))
        ring[1] += call(14, start, start + 4.78, sent(2, 65536), *taken(0, 65536))
        ring[2] += call(14, start - 0.01, start + 4.77, sent(0, 65536), *taken(1, 65536))
    for rank, events in enumerate(ring):
        write_process(tmp_path, rank, {1: events}, num_ranks=3)
    advice = advise(trace_of(tmp_path))
    assert advice.findings[0].kind == "slow_link"
    assert "from rank 1 to rank 2" in advice.findings[0].evidence
    assert advice.findings[0].saves_s > 0.7 * advice.replayed_s
    assert advice.replayed_s == pytest.approx(advice.traced_s, rel=0.02)


def test_removing_a_part_of_a_call_removes_its_share_of_the_calls_time():
    """A wait for four messages takes 4 us: removing three of them removes 3 us."""
    steps = [Step(0.0, "received", i, 7) for i in range(4)] + [Step(14 * US, "end", -1, -1, 4 * US, 4 * US)]
    (kept, last) = dropped(steps, {0, 1, 3})
    assert kept.number == 2
    assert last.seconds == pytest.approx(11 * US)
    assert last.within_s == last.after_s == pytest.approx(1 * US)
    assert [step.seconds for step in dropped(steps, {0, 1, 2, 3})] == pytest.approx([10 * US]), "all of it"


def test_a_trace_is_explained_in_a_time_that_grows_with_its_length(tmp_path, monkeypatch):
    """Eight times as many messages by one persistent request, which is restarted."""
    monkeypatch.setitem(NAMES, 15, "MPI_Send_init")
    monkeypatch.setitem(NAMES, 16, "MPI_Start")
    monkeypatch.setitem(NAMES, 17, "MPI_Wait")
    spent, made, over = {}, event("request", 70, 0), event("done", pair(-1, -1))
    for count in (500, 4000):
        sender, taker = call(15, 0, 0.5, sent(1), made=70), []
        for i in range(1, count):
            sender += [*call(16, i, i + 0.1, made), *call(17, i + 0.2, i + 0.3, made, over)]
            taker += call(2, i - 0.5, i + 0.4, *taken(0))
        for rank, events in enumerate((sender, taker)):
            write_process(tmp_path / str(count), rank, {1: events}, num_ranks=2)
        trace, tries = trace_of(tmp_path / str(count)), []
        for _ in range(3):  # one of which the garbage collector may delay
            begun = time.process_time()
            model = model_of(trace)
            tries.append(time.process_time() - begun)
        spent[count] = min(tries)
        assert [sum(step.kind == kind for step in model.steps[1]) for kind in ("recv", "received")] == [count - 1] * 2
        assert sum(step.kind == "sent" for step in model.steps[0]) == count - 1
    assert spent[4000] < 24 * spent[500]


def summed(tmp_path, looks: bool, hosts: tuple[str, str] = ("a", "b")):
    """Advice for ranks that begin a sum, work 10 ms and wait 4 ms, or with `looks` test meanwhile and do not wait."""
    ranks: list[list] = [[], []]
    for i in range(ROUNDS):
        for rank, events in enumerate(ranks):
            begun, work = i * (10.5 if looks else 14.5) + rank * 0.01, 10 if looks else 10 + rank * 0.2
            done = event("done", pair(-1, -1), 0, 0)
            events += call(18, begun, begun + 0.1, event("collective", 1 << 20, 0, 1 << 20), made=70 + i)
            end = begun + work + 0.1 if looks else i * 14.5 + 10.2 + 4.01
            events += call(17, begun + work, end, event("request", 70 + i, 0), done)
    for rank, events in enumerate(ranks):
        write_process(tmp_path, rank, {1: events}, num_ranks=2, host=hosts[rank])
    return advise(trace_of(tmp_path))


@pytest.mark.parametrize(("hosts", "share"), [(("a", "b"), 1.0), (("a", "a"), 0.0)])
def test_a_collective_that_progressed_only_in_the_wait_is_found(tmp_path, monkeypatch, hosts, share):
    """On one host the ranks themselves copy: the time moves from the wait into the work."""
    monkeypatch.setitem(NAMES, 17, "MPI_Wait")
    monkeypatch.setitem(NAMES, 18, "MPI_Iallreduce")
    advice = summed(tmp_path / "fault", False, hosts)
    found = {finding.kind: finding for finding in advice.findings}
    saved = ROUNDS * 4e-3 * share
    assert found["progress"].saves_s == pytest.approx(saved, rel=0.1) if share else "progress" not in found
    if share:
        assert advice.findings[0].kind == "progress"
        assert "MPI_Iallreduce: 40 waits at MPI_Wait" in found["progress"].evidence
    assert advice.replayed_s == pytest.approx(advice.traced_s, rel=0.01)
    assert "progress" not in {finding.kind for finding in summed(tmp_path / "twin", True, hosts).findings}


def held_back(tmp_path, looks: bool):
    """Advice for rank 0 that begins a send, works 10 ms and waits; rank 1 receives 1 ms after that, or at once."""
    sender, taker = [], []
    for i in range(ROUNDS):
        begun = 20 * i
        over = event("request", 70 + i, 0), event("done", pair(-1, -1), 0, 0)
        sender += [
            *call(16, begun, begun + 0.1, sent(1, 1 << 20), made=70 + i),
            *call(17, begun + 10, begun + 11, *over),
        ]
        taker += call(2, begun, begun + (1 if looks else 11), *taken(0, 1 << 20))
    for rank, events in enumerate((sender, taker)):
        write_process(tmp_path, rank, {1: events}, num_ranks=2)
    return advise(trace_of(tmp_path))


def test_a_message_whose_sender_works_before_it_calls_mpi_again_is_found(tmp_path, monkeypatch):
    """The receiver waits until the sender calls the library again, and the message leaves."""
    monkeypatch.setitem(NAMES, 16, "MPI_Isend")
    monkeypatch.setitem(NAMES, 17, "MPI_Wait")
    advice = held_back(tmp_path / "fault", False)
    assert advice.replayed_s == pytest.approx(advice.traced_s, rel=0.01)
    found = {finding.kind: finding for finding in advice.findings}
    assert f"{ROUNDS} messages sent" in found["progress"].evidence
    assert "progress" not in {finding.kind for finding in held_back(tmp_path / "twin", True).findings}
