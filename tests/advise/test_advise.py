"""Advice: planted faults are found first and their savings are those of the repaired story; nothing in the repaired."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from trace_calls import call, collective, sent, taken, trace_of
from trace_files import NAMES, event, pair, write_process
from trace_tale import DELAYS, US, Tale

from dovetail.advise.advise import advise, advise_story, together
from dovetail.advise.remedy import dropped
from dovetail.report.advice import advice_text
from dovetail.trace.analysis.story import FROM_ROOT, Gathering, Step, Story, story_of

ROUNDS = 20


def merge(tale: Tale, repaired: bool) -> None:
    for rank in (0, 1):
        tale.work(rank, 2000 * US)
    for _ in range(1 if repaired else 8):
        tale.all_reduce("sum", 64 if repaired else 8)


def block(tale: Tale, repaired: bool) -> None:
    for rank in (0, 1):
        tale.work(rank, 1000 * US)
    for _ in range(1 if repaired else 20):
        number = tale.message(0, 1, 1280 if repaired else 64)
        tale.call(0, "send", ("send", number))
        tale.within[0] = 2 * US
        tale.call(1, "recv", ("recv", number), ("taken", number))
        tale.within[1] = 30 * US


def temporal_block(tale: Tale, repaired: bool) -> None:
    for step in range(8):
        if not repaired or step == 0:
            numbers = [tale.message(rank, 1 - rank, 2048 if repaired else 256) for rank in (0, 1)]
            for rank in (0, 1):
                mine, theirs = numbers[rank], numbers[1 - rank]
                tale.call(rank, "exchange", ("send", mine), ("recv", theirs), ("taken", theirs))
        for rank in (0, 1):
            tale.work(rank, 15 * US)


def post_earlier(tale: Tale, repaired: bool) -> None:
    round_ = len(tale.messages) // 2
    busy, taker, waits = ((round_ + i) % 3 for i in range(3))
    late, held = tale.message(busy, taker, 64), tale.message(waits, taker, 64, rendezvous=True, synchronous=True)
    tale.work(busy, 3000 * US)
    tale.call(busy, "late", ("send", late))
    tale.call(waits, "held", ("send", held), ("sent", held))
    tale.work(waits, 3000 * US)
    if repaired:
        tale.call(taker, "recv", ("recv", late))
        tale.call(taker, "recv held", ("recv", held))
        tale.call(taker, "wait", ("taken", late), ("taken", held))
    else:
        tale.call(taker, "recv", ("recv", late), ("taken", late))
        tale.call(taker, "recv held", ("recv", held), ("taken", held))
    tale.all_reduce("barrier")
    tale.gatherings[-1] = replace(tale.gatherings[-1], name="MPI_Barrier")


def overlap(tale: Tale, repaired: bool) -> None:
    round_ = len(tale.messages) // 2
    numbers = [tale.message(rank, 1 - rank, 100000) for rank in (0, 1)]
    for rank in (0, 1):
        tale.call(rank, "irecv", ("recv", numbers[1 - rank]))
        tale.call(rank, "isend", ("send", numbers[rank]))
        if not repaired:
            tale.call(rank, "wait", ("taken", numbers[1 - rank]))
        tale.work(rank, (1500 if (round_ + rank) % 2 else 1000) * US)
        if repaired:
            tale.call(rank, "wait", ("taken", numbers[1 - rank]))


def nonblocking(tale: Tale, repaired: bool) -> None:
    round_ = len(tale.gatherings)
    spent = [(3000 if (round_ + rank) % 2 else 1000) * US for rank in (0, 1)]
    tale.all_reduce("sum", blocking=not repaired, before=spent)
    if not repaired:
        for rank in (0, 1):
            tale.work(rank, spent[rank])


def rendezvous(tale: Tale, repaired: bool, num_bytes: int = 1 << 20, freed: bool = False) -> None:
    number = tale.message(0, 1, num_bytes, rendezvous=not freed)
    if repaired:
        tale.call(0, "isend", ("send", number))
        tale.work(0, 3000 * US)
        tale.call(0, "wait", ("sent", number))
    else:
        tale.call(0, "send", ("send", number), *([("sent", number)] if not freed else []))
        tale.work(0, 3000 * US)
    tale.work(1, 3000 * US)
    tale.call(1, "recv", ("recv", number), ("taken", number))
    tale.all_reduce("barrier")
    tale.gatherings[-1] = replace(tale.gatherings[-1], name="MPI_Barrier")


def eager(tale: Tale, repaired: bool) -> None:
    rendezvous(tale, False, 20000, freed=repaired)


def progress(tale: Tale, repaired: bool) -> None:
    numbers = [tale.message(rank, 1 - rank, 1 << 20, rendezvous=True, stalls=not repaired) for rank in (0, 1)]
    for rank in (0, 1):
        tale.call(rank, "isend", ("send", numbers[rank]))
        tale.call(rank, "irecv", ("recv", numbers[1 - rank]))
        tale.work(rank, 20000 * US)
        tale.call(rank, "wait", ("taken", numbers[1 - rank]), ("sent", numbers[rank]))


def imbalance(tale: Tale, repaired: bool) -> None:
    for rank in (0, 1):
        tale.work(rank, (3000 if repaired else 2000 + 2000 * rank) * US)
    tale.all_reduce("sum")


def slow_rank(tale: Tale, repaired: bool) -> None:
    for rank in range(4):
        tale.work(rank, (5000 if rank == 2 and not repaired else 2500) * US)
    tale.all_reduce("sum")


def slow_link(tale: Tale, repaired: bool) -> None:
    slow = {} if repaired else {"delay_s": 10 * float(DELAYS(16384))}
    numbers = [tale.message(r, (r + 1) % 4, 16384, **(slow if r == 1 else {})) for r in range(4)]
    for rank in range(4):
        tale.work(rank, 5000 * US)
        came = numbers[(rank + 3) % 4]
        tale.call(rank, "ring", ("send", numbers[rank]), ("recv", came), ("taken", came))


FAULTS = {
    f.__name__: (f, ranks)
    for f, ranks in ((merge, 2), (block, 2), (temporal_block, 2), (post_earlier, 3), (overlap, 2), (nonblocking, 2),
                     (rendezvous, 2), (eager, 2), (progress, 2), (imbalance, 2), (slow_rank, 4), (slow_link, 4))
}  # fmt: skip


def reported(name: str, repaired: bool) -> tuple[Tale, Story]:
    fault, num_ranks = FAULTS[name]
    tale = Tale(num_ranks)
    for _ in range(ROUNDS):
        fault(tale, repaired)
    return tale, tale.story()


def advised(name: str, repaired: bool, eager_bytes: int | None = None):
    tale, story = reported(name, repaired)
    story = replace(story, delays=replace(story.delays, eager_bytes=eager_bytes))
    return advise_story(
        story, lambda row: tale.sites.get(row, ""), lambda rows: tale.sites.get(rows[0], "") if rows else ""
    )


@pytest.mark.parametrize("name", FAULTS)
def test_the_planted_fault_is_the_first_finding_and_its_saving_is_the_twins(name):
    advice = advised(name, repaired=False)
    gain = advice.traced_s - reported(name, repaired=True)[1].makespan_s
    assert advice.findings[0].kind == name
    assert advice.findings[0].saves_s == pytest.approx(gain, rel=0.25)


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"temporal_block"}))
def test_nothing_serious_is_found_in_the_repaired(name):
    """The one left out could still exchange beside its work."""
    advice = advised(name, repaired=True)
    assert [f for f in advice.findings if f.saves_s > 0.05 * advice.replayed_s] == []


def test_a_larger_eager_limit_does_not_empty_full_buffers():
    """Where a message of that size was seen not to wait, the limit is not what holds a few."""
    for eager_bytes, kinds in ((None, {"eager", "rendezvous"}), (1 << 20, {"rendezvous"})):
        found = {finding.kind: finding for finding in advised("eager", False, eager_bytes).findings}
        assert {kind for kind in found if kind in ("eager", "rendezvous")} == kinds
        assert ("buffers were full" in found["rendezvous"].evidence) == (eager_bytes is not None)


def findings_of(tale: Tale) -> dict[str, float]:
    advice = advise_story(tale.story(), lambda row: tale.sites.get(row, ""), lambda rows: "")
    return {finding.kind: finding.saves_s for finding in advice.findings}


def test_broadcasts_one_after_another_are_merged():
    """Each call takes its root 30 us."""
    tale = Tale(2)
    for number in range(20):
        tale.gatherings.append(Gathering(number, "MPI_Bcast", (0, 1), FROM_ROOT, 0, 8, 40 * US))
        for rank in (0, 1):
            tale.call(rank, "bcast", ("join", number), ("joined", number))
        tale.within[0] = 30 * US
    assert findings_of(tale)["merge"] == pytest.approx(19 * 30 * US, rel=0.1)


@pytest.mark.parametrize("work_us", [0, 100])
def test_sends_with_receives_posted_between_them_are_blocked(work_us):
    """As of an exchange in small parts that are all waited for at its end; not where there is work between."""
    tale = Tale(2)
    numbers = [[tale.message(rank, 1 - rank, 64) for _ in range(20)] for rank in (0, 1)]
    for rank in (0, 1):
        for mine, theirs in zip(numbers[rank], numbers[1 - rank], strict=True):
            tale.work(rank, work_us * US)
            tale.call(rank, "irecv", ("recv", theirs))
            tale.call(rank, "isend", ("send", mine))
            tale.within[rank] = 30 * US
        tale.call(rank, "wait", *(("taken", theirs) for theirs in numbers[1 - rank]))
    found = findings_of(tale)
    assert found.get("block", 0.0) == pytest.approx(0.0 if work_us else 19 * 30 * US, rel=0.1)


def test_a_border_whose_first_messages_were_held_up_is_one_still():
    tale, _ = reported("temporal_block", repaired=False)
    tale.messages[:2] = [replace(message, rendezvous=True) for message in tale.messages[:2]]
    assert "temporal_block" in findings_of(tale)


def test_other_calls_after_a_collective_that_goes_stay(tmp_path):
    """Two allreduces of 1 ms, then a call of 50 ms that says nothing of what it does: merging saves one of the two."""
    for rank in range(2):
        pairs = [call(11, t, t + 1, *collective()) + call(11, t + 1, t + 2, *collective()) for t in (0, 60, 120)]
        events = [one for t, both in zip((0, 60, 120), pairs, strict=True) for one in (*both, *call(8, t + 2, t + 52))]
        write_process(tmp_path, rank, {1: [*events, *call(12, 180, 181, *collective(root=0))]})
    (merging,) = (f for f in advise(trace_of(tmp_path)).findings if f.kind == "merge")
    assert merging.saves_s == pytest.approx(3e-3, rel=0.2)


def test_receives_of_one_sender_keep_their_order():
    """The second is posted late, but not before the first, which would take its message."""
    tale = Tale(2)
    for _ in range(ROUNDS):
        early, late = tale.message(0, 1, 64), tale.message(0, 1, 64, rendezvous=True, synchronous=True)
        tale.call(0, "early", ("send", early))
        tale.call(0, "late", ("send", late), ("sent", late))
        tale.work(1, 1000 * US)
        for number in (early, late):
            tale.call(1, "recv", ("recv", number), ("taken", number))
    assert "post_earlier" not in findings_of(tale)


def test_sends_one_after_another_are_waited_for_together():
    """Three, while their receiver has work of its own: the sender is through after its own, not after the other's."""
    tale = Tale(2)
    for _ in range(ROUNDS):
        numbers = [tale.message(0, 1, 64, rendezvous=True) for _ in range(3)]
        tale.work(1, 3000 * US)
        for number in numbers:
            tale.work(0, 700 * US)
            tale.call(0, "send", ("send", number), ("sent", number))
            tale.call(1, "recv", ("recv", number), ("taken", number))
        tale.all_reduce("sum")
    assert findings_of(tale)["rendezvous"] == pytest.approx(ROUNDS * 1400 * US, rel=0.1)


def test_what_a_root_does_while_all_wait_is_to_be_shared():
    """1200 us of the root before a broadcast, then 1000 us of both: half of the 1200 could be saved."""
    tale = Tale(2)
    for _ in range(ROUNDS):
        tale.work(0, 1200 * US)
        number = len(tale.gatherings)
        tale.gatherings.append(Gathering(number, "MPI_Bcast", (0, 1), FROM_ROOT, 0, 8, 10 * US))
        for rank in (0, 1):
            tale.call(rank, "bcast", ("join", number), ("joined", number))
            tale.work(rank, 1000 * US)
        tale.all_reduce("sum")
    assert findings_of(tale)["imbalance"] == pytest.approx(ROUNDS * 600 * US, rel=0.05)


def test_by_turns_and_along_is_not_by_chance_but_a_pause_is(tmp_path):
    """How far runs differ, of one rank that calls 40 times: every 10 ms; after 5 and 15 ms by turns; ever later."""

    def spread_s(name: str, gaps_ms: list[float]) -> float:
        ends = np.cumsum(gaps_ms)
        events = [each for end in ends.tolist() for each in call(11, end, end, *collective())]
        write_process(tmp_path / name, 0, {1: events}, num_ranks=1)
        return advise(trace_of(tmp_path / name)).spread_s

    assert spread_s("even", [10] * 40) == pytest.approx(0, abs=1e-6)
    assert spread_s("by_turns", [5, 15] * 20) == pytest.approx(0, abs=1e-6)
    assert spread_s("along", [10 + i / 10 for i in range(40)]) < 2e-3
    pause_s = spread_s("pause", [10] * 20 + [60] + [10] * 19)
    assert 0.05 < pause_s < 0.2, "there may be none in another run, or two"


def test_what_saves_less_than_runs_differ_by_is_doubtful():
    advice = replace(advised("merge", repaired=False), spread_s=1e-3)
    saved = advice.findings[0].saves_s
    alike, apart = together([advice, advice, advice]), together([advice, replace(advice, traced_s=1.0)])
    assert (alike.findings, alike.doubtful, alike.spread_s) == (advice.findings, (), 0.0)
    assert (apart.findings, apart.doubtful) == ((), advice.findings)
    for words in ("more than runs differ by", "2 runs differ by", "1. merge"):
        assert words in advice_text(apart)
    alone = together([replace(advice, spread_s=2 * saved)])
    assert (alone.findings, alone.doubtful) == (advice.findings, ()), "one run hides no finding"
    assert "Two such runs may differ by" in advice_text(alone)
    nothing = replace(advice, findings=())
    assert together([advice, nothing, nothing]).findings == (), "of three runs one shows it"


def test_what_tracing_took_of_calls_that_go_is_not_saved(tmp_path):
    """Of 100 sums of 10 us, one after another, 5 us each are tracing: looks at the clock and one further event."""
    for rank in range(2):
        events = [each for i in range(100) for each in call(11, i * 0.01, (i + 1) * 0.01, *collective())]
        write_process(tmp_path, rank, {1: events}, notes=[{"event_ticks": [2000, 1000]}])
    (merging,) = (f for f in advise(trace_of(tmp_path)).findings if f.kind == "merge")
    assert merging.saves_s == pytest.approx(99 * 5e-6, rel=0.1)


def test_advice_in_words_and_json():
    advice = advised("merge", repaired=False)
    text = advice_text(advice)
    for words in ("1. merge: saves", "one MPI_Allreduce of all their elements", "Replayed unchanged"):
        assert words in text
    assert set(advice.to_json()["findings"][0]) == {"kind", "where", "evidence", "action", "saves_s"}


def test_a_collective_from_a_root_holds_only_who_comes_early():
    tale = Tale(3)
    tale.gatherings.append(Gathering(0, "MPI_Bcast", (0, 1, 2), FROM_ROOT, 0, 8, 10 * US))
    for rank, spent in enumerate((100, 50, 400)):
        tale.work(rank, spent * US)
        tale.call(rank, "bcast", ("join", 0), ("joined", 0))
        tale.work(rank, 1 * US)
    from dovetail.sim import simulate
    from dovetail.trace.to_program import to_program

    timeline = simulate(*to_program(tale.story()))
    ends = [timeline.columns["end_s"][timeline.columns["rank"] == rank].max() for rank in range(3)]
    assert ends == pytest.approx([101 * US, 111 * US, 401 * US], abs=2 * US)


def test_a_stalled_message_gets_on_while_its_rank_waits_for_something_else():
    """Its sender cannot come to the collective that the receiver waits for first."""
    tale = Tale(2)
    number = tale.message(0, 1, 1 << 20, rendezvous=True, stalls=True)
    tale.call(1, "irecv", ("recv", number))
    tale.call(0, "send", ("send", number), ("sent", number))
    tale.work(1, 1000 * US)
    tale.all_reduce("sum")
    tale.call(1, "wait", ("taken", number))
    assert tale.story().makespan_s == pytest.approx(1000 * US + float(DELAYS(1 << 20)) + 60 * US)


def test_a_call_that_a_slow_link_holds_up_does_not_make_what_it_takes_look_slow(tmp_path):
    """Around a ring of three the link from 1 to 2 is slow, so that rank 1 is late for what rank 0 sent."""
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


def test_of_a_call_that_does_several_things_its_share_is_dropped():
    """A wait for four messages that itself takes 4 us: three of them go, and 3 us with them."""
    steps = [Step(0.0, "taken", i, 7) for i in range(4)] + [Step(14 * US, "end", -1, -1, 4 * US, 4 * US)]
    (kept, last) = dropped(steps, {0, 1, 3})
    assert kept.number == 2
    assert last.seconds == pytest.approx(11 * US)
    assert last.within_s == last.after_s == pytest.approx(1 * US)
    assert [step.seconds for step in dropped(steps, {0, 1, 2, 3})] == pytest.approx([10 * US]), "all of it"


def test_a_trace_is_explained_in_a_time_that_grows_with_its_length(tmp_path, monkeypatch):
    """Eight times as many messages of one persistent request, started again and again."""
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
        for _ in range(3):  # of which one may be held up by the collector of garbage
            begun = time.process_time()
            story = story_of(trace)
            tries.append(time.process_time() - begun)
        spent[count] = min(tries)
        assert [sum(step.does == does for step in story.steps[1]) for does in ("recv", "taken")] == [count - 1] * 2
        assert sum(step.does == "sent" for step in story.steps[0]) == count - 1
    assert spent[4000] < 24 * spent[500]


def summed(tmp_path, looks: bool, hosts: tuple[str, str] = ("a", "b")):
    """Advice where both ranks begin a sum, work 10 ms and wait: 4 ms more, or not where they `looks` meanwhile."""
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
def test_a_collective_that_got_on_only_when_it_was_waited_for_is_found(tmp_path, monkeypatch, hosts, share):
    """On one host it is the ranks that copy: what they no longer take in the wait, they take during the work."""
    monkeypatch.setitem(NAMES, 17, "MPI_Wait")
    monkeypatch.setitem(NAMES, 18, "MPI_Iallreduce")
    advice = summed(tmp_path / "fault", False, hosts)
    found = {finding.kind: finding for finding in advice.findings}
    saved = ROUNDS * 4e-3 * share
    assert found["progress"].saves_s == pytest.approx(saved, rel=0.1) if share else "progress" not in found
    if share:
        assert advice.findings[0].kind == "progress"
        assert "MPI_Iallreduce, waited for 40 times" in found["progress"].evidence
    assert advice.replayed_s == pytest.approx(advice.traced_s, rel=0.01)
    assert "progress" not in {finding.kind for finding in summed(tmp_path / "twin", True, hosts).findings}


def held_back(tmp_path, looks: bool):
    """Advice where rank 0 begins to send, works 10 ms and waits; rank 1 takes it 1 ms after that, or at once."""
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


def test_a_message_whose_sender_works_before_it_looks_is_found(tmp_path, monkeypatch):
    """The receiver waits all the while for what sets out when its sender is back in the library."""
    monkeypatch.setitem(NAMES, 16, "MPI_Isend")
    monkeypatch.setitem(NAMES, 17, "MPI_Wait")
    advice = held_back(tmp_path / "fault", False)
    assert advice.replayed_s == pytest.approx(advice.traced_s, rel=0.01)
    found = {finding.kind: finding for finding in advice.findings}
    assert f"{ROUNDS} messages sent" in found["progress"].evidence
    assert "progress" not in {finding.kind for finding in held_back(tmp_path / "twin", True).findings}
