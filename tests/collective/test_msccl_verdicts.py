"""Verdicts on MSCCL XML that others reported, and small files of each kind: hangs, sizes, limits, and what is said."""

from __future__ import annotations

import csv
import json

import pytest
from msccl_files import xml
from needs import SHARED

from dovetail.cli import main
from dovetail.collective.msccl import certify, read, write
from dovetail.collective.msccl.lower import in_pieces
from dovetail.core import ProgramError
from dovetail.ir import TARGETS, Certificate, parse, verify, verify_reference
from dovetail.ir.op_lists import OpLists
from dovetail.ir.proof.greedy import Greedy
from dovetail.ir.proof.verify import least_depth
from dovetail.report.counterexample import counterexample

REPROS = SHARED / "corpus" / "repros"
SWAP = {(r, 0): (f"{1 - r} {1 - r} 0", "s i0 - 1", "r - s0 1", "re s0 i0 1") for r in (0, 1)}
BOTH = 'inplace="1" outofplace="0" minBytes="{}" maxBytes="{}"'


def judged(text: str, target: str | None = None) -> Certificate:
    return certify(read(text, name="t.xml"), target)


def bursts(count: int, steps: int = 1, **changes: object) -> str:
    """Both ranks send all that they have before they take any, `count` chunks a step."""
    own = [f"s i{k * count} - {count}" for k in range(steps)]
    took = [f"r - s{k * count} {count}" for k in range(steps)]
    added = [f"re s{k * count} i{k * count} {count}" for k in range(steps)]
    both = {(r, 0): (f"{1 - r} {1 - r} 0", *own, *took, *added) for r in (0, 1)}
    return xml(both, chunks=count * steps, scratch=count * steps, **changes)  # type: ignore[arg-type]


# What others reported


@pytest.mark.needs("shared")
def test_each_reported_file_gets_its_verdict():
    with (REPROS / "INDEX.tsv").open() as file:
        rows = {row["file"]: row["right verdict"] for row in csv.DictReader(file, delimiter="\t")}
    for name in ("d1_depth_and_hang.xml", "d1b_undelivered_and_hang.xml"):
        assert rows[name].startswith("deadlock at every depth")
        found = certify(read(REPROS / name))
        assert (found.failed, found.min_fifo_depth) == ("deadlock", None)
        assert not certify(read(REPROS / name), fifo_depth=1000).ok
    assert rows["rccl_chan40.xml"] == "valid for rccl"
    assert [certify(read(REPROS / "rccl_chan40.xml"), target).ok for target in TARGETS] == [False, False, True]
    assert rows["step_number_over_limit.xml"].startswith(
        "invalid for rccl and azure (s >= 64), valid for msccl up to 255"
    )
    found = certify(read(REPROS / "step_number_over_limit.xml"), "rccl").checks["limits"]
    assert (found.ok, "s=100" in found.message) == (False, True)


# Hangs


def hanging(depth: int) -> str:
    """`depth` messages each way before any is taken, and a threadblock that waits for a step that never publishes."""
    steps = {(r, 0): (f"{1 - r} {1 - r} 0", *["s i0 - 1"] * depth, *["r - s0 1"] * depth) for r in (0, 1)} | {
        (0, 1): ("-1 -1 0", f"cpy i0 s1 1 0.{2 * depth - 1}")
    }
    return xml(steps, "custom", scratch=2)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_a_wait_that_nothing_ends_hangs_at_every_depth(depth, capsys, tmp_path):
    found = judged(hanging(depth))
    check = found.checks["deadlock"]
    assert (check.ok, found.min_fifo_depth, found.collective_found) == (False, None, None)
    assert "waits for step" in check.message
    publisher = hanging(depth).splitlines()[2 + 2 * depth]
    assert 'type="r"' in publisher
    assert check.hint == f"give step {2 * depth - 1} of threadblock 0 (line {3 + 2 * depth}) hasdep=1"
    assert any(line.endswith(f"(t.xml:{3 + 2 * depth})") for line in check.schedule)
    for deeper in (1, 10, 10_000):
        assert not certify(read(hanging(depth)), fifo_depth=deeper).ok
    program = read(hanging(depth)).program
    assert verify(program).min_fifo_depth is verify_reference(program).min_fifo_depth is None
    (tmp_path / "t.xml").write_text(hanging(depth))
    assert main(["verify", str(tmp_path / "t.xml")]) == 1
    printed = capsys.readouterr().out
    assert printed.endswith("NOT valid; no FIFO depth helps\n")
    assert "declare depth" not in printed


def test_a_wait_beyond_the_last_step_says_where_that_is():
    text = hanging(1).replace('deps="1"', 'deps="9"')
    check = judged(text).checks["deadlock"]
    assert check.found == "threadblock 0 ends before: its last step is 1"


def test_a_message_that_nobody_takes_is_reported_with_the_depth():
    """Depth 2 would do for what is taken; the third message is left over at any depth."""
    steps = {
        (0, 0): ("1 1 0", *["s i0 - 1"] * 4, *["r - s0 1"] * 3),
        (1, 0): ("0 0 0", *["s i0 - 1"] * 3, *["r - s0 1"] * 3),
    }
    check = judged(xml(steps, "custom", scratch=1)).checks["deadlock"]
    assert "declare depth" in check.hint
    assert "nobody takes what op 3 sends (t.xml:7)" in check.hint


# Sizes


@pytest.mark.parametrize(
    ("count", "steps", "proto", "limit"),
    [
        (3, 1, "Simple", 3 << 20),  # two of three chunks a message: two messages
        (4, 1, "Simple", 4 << 20),
        (7, 1, "Simple", 7 * ((2 << 20) // 4)),
        (2, 2, "Simple", 4 << 20),  # a message for each step, or two steps need four places
        (2, 1, "Simple", None),
        (1, 2, "Simple", None),
        (8, 1, "LL", None),
        (9, 1, "LL", 9 * ((32 << 10) // 2)),
        (9, 1, "LL128", 9 * (576_000 // 2)),
    ],
)
def test_the_largest_safe_buffer(count, steps, proto, limit):
    found = judged(bursts(count, steps, proto=proto), "msccl")
    assert (found.ok, found.safe_up_to_bytes) == (True, limit)
    assert ("safe up to" in found.checks["deadlock"].message) == (limit is not None)
    assert Certificate.from_json(found.to_json()) == found


def test_the_limit_is_where_the_runtime_needs_more_places():
    """By the runtime's own rule (chunks a message = message // chunk) the depth suffices there, and not beyond."""
    text = bursts(7)
    limit, program = judged(text).safe_up_to_bytes, read(text).program

    def places(num_bytes: int) -> int:
        chunks = max(1, (2 << 20) // -(-num_bytes // 7))
        return verify_reference(in_pieces(program, chunks)).min_fifo_depth

    assert places(limit) == 2
    assert places(limit + 7) == 3
    assert places(7 << 30) == 7


@pytest.mark.parametrize(
    ("least", "most", "ok", "limit"),
    [
        (0, 0, True, 3 << 20),  # azure, rccl: no end
        (0, 3 << 20, True, None),
        (0, (3 << 20) + 1, True, 3 << 20),
        (3 << 20, 4 << 20, True, 3 << 20),
        ((3 << 20) + 1, 4 << 20, False, None),
    ],
)
def test_sizes_that_the_file_is_for(least, most, ok, limit):
    for target in ("azure", "rccl", None):
        found = judged(bursts(3, head=BOTH.format(least, most)), target)
        assert (found.ok, found.safe_up_to_bytes) == (ok, limit), target
    if not ok:
        assert (found.failed, found.min_fifo_depth) == ("deadlock", 3)
        assert f"it completes at no size from minBytes={least} on" in found.checks["deadlock"].message


def test_a_size_that_msccl_never_reaches():
    """There a buffer must be smaller than maxBytes."""
    for most, limit in (((3 << 20) + 1, None), ((3 << 20) + 2, 3 << 20)):
        assert judged(bursts(3, head=f'inplace="1" maxBytes="{most}"'), "msccl").safe_up_to_bytes == limit


def test_rccl_has_smaller_messages():
    text = bursts(9, proto="LL", head=BOTH.format(0, 0))
    assert [judged(text, name).safe_up_to_bytes for name in ("azure", "rccl", None)] == [147456, 73728, 73728]


def test_broadcast_has_messages_of_one_step():
    """A relay that sends three chunks before its peer, which first hears from the root, takes them."""
    steps = {(0, 0): ("1 1 0", "s i0 - 3", "r - s0 3"), (1, 0): ("0 0 0", "s i0 - 3", "r - i0 3")}
    found = judged(xml(steps, "broadcast", chunks=3, scratch=3, head='inplace="1"'))
    assert found.checks["deadlock"].ok
    assert found.safe_up_to_bytes in (None, 3 * ((512 << 10) // 2))


def test_least_depth_is_the_references():
    program = read(bursts(5, 2)).program
    for most in (1, 2, 3, 5):
        pieces = in_pieces(program, most)
        assert least_depth(pieces) == Greedy(OpLists(pieces))().depth


def test_sizes_on_the_command_line(capsys, tmp_path):
    (tmp_path / "t.xml").write_text(bursts(3))
    assert main(["verify", str(tmp_path / "t.xml")]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == "t: valid up to 3145728 bytes (3 MiB), not beyond; it computes all_reduce; least FIFO depth 1"
    assert main(["verify", str(tmp_path / "t.xml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["safe_up_to_bytes"] == 3 << 20
    (tmp_path / "t.xml").write_text(xml(SWAP, scratch=1))
    assert main(["verify", str(tmp_path / "t.xml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["safe_up_to_bytes"] is None


# Limits


@pytest.mark.parametrize(("number", "takers"), [(63, TARGETS), (64, ("msccl",)), (255, ("msccl",)), (256, ())])
def test_the_number_of_a_step_is_limited(number, takers):
    text = xml(SWAP, scratch=1).replace(' s="2"', f' s="{number}"')
    for target, head in (("msccl", 'inplace="1"'), ("azure", BOTH.format(0, 0)), ("rccl", BOTH.format(0, 0))):
        limits = judged(text.replace('inplace="1"', head), target).checks["limits"]
        assert limits.ok == (target in takers)
        if not limits.ok:
            assert f"step s={number} of a threadblock; the steps of {target} are 0 to" in limits.message
            assert limits.where == "t.xml:6"


@pytest.mark.parametrize(("channel", "takers"), [(31, TARGETS), (32, ("rccl",)), (127, ("rccl",)), (128, ())])
def test_channels_of_each_runtime(channel, takers):
    steps = {key: (f"{lines[0][:-1]}{channel}", *lines[1:]) for key, lines in SWAP.items()}
    for target, head in (("msccl", 'inplace="1"'), ("azure", BOTH.format(0, 0)), ("rccl", BOTH.format(0, 0))):
        limits = judged(xml(steps, scratch=1, channels=channel + 1, head=head), target).checks["limits"]
        assert limits.ok == (target in takers)
        if not limits.ok:
            most = TARGETS[target].channels
            printed = f"lane tb0 of rank 0 uses channel {channel}; {target} has {most} channels, 0 to {most - 1}"
            assert limits.message == printed
    program = read(xml(steps, scratch=1, channels=channel + 1)).program
    if "rccl" in takers:
        assert f'chan="{channel}"' in write(program, "rccl", collective="all_reduce")


def test_a_broken_limit_says_which_and_how_much():
    blocks = {(r, t): ("-1 -1 0", f"cpy i0 s{t} 1") for r in (0, 1) for t in range(65)}
    found = judged(xml(blocks, "custom", scratch=65), "rccl").checks["limits"]
    assert found.message == "rank 0 has 65 threadblocks; rccl allows 64 on a rank"
    assert found.where is not None
    steps = {(r, 0): ("-1 -1 0", *["cpy i0 s0 1"] * 257) for r in (0, 1)}
    found = judged(xml(steps, "custom", scratch=1), "msccl").checks["limits"]
    assert found.message == "lane tb0 of rank 0 has 257 steps; msccl allows 256 in a threadblock"
    found = judged(bursts(72), "msccl").checks["limits"]
    assert "input[0:72]: 72 slots; a step of msccl is one run of at most 71 slots" in found.message


# Chains of waits


def test_a_wait_before_a_joined_reduction_is_handed_on():
    """The second `re` joins the first, so that the nop's wait holds up the copy: the chain goes on."""
    steps = {
        (0, 0): ("-1 -1 0", "cpy i0 s0 1 !", "cpy i0 s2 1 !"),
        (0, 1): ("-1 -1 0", "re s0 i0 1 0.0", "nop - - 0 0.1", "re s1 i0 1", "cpy s2 i0 1 0.0"),
        (1, 0): ("-1 -1 0", "cpy i0 s0 1"),
    }
    program = read(xml(steps, "custom", scratch=3)).program
    assert [op.after for op in program.ops()] == [(), (), (0,), (), (1, 0), ()]
    steps[0, 1] = (*steps[0, 1][:-1], "cpy s2 i0 1")
    with pytest.raises(ProgramError, match="passes to the step on line 11, which has depid=-1") as raised:
        read(xml(steps, "custom", scratch=3), name="t.xml")
    assert raised.value.where == "t.xml:9"
    steps[0, 1] = steps[0, 1][:-1]  # nothing follows, so nothing waits
    assert [op.after for op in read(xml(steps, "custom", scratch=3)).program.ops()] == [(), (), (0,), (), ()]


# What is said


def test_a_slot_that_no_op_writes_has_a_place():
    """The second chunk of rank 1 is never received; the receive of the first is the nearest."""
    steps = {(r, 0): (f"{1 - r} {1 - r} 0", "s i0 - 1", "r - o0 1") for r in (0, 1)}
    check = judged(xml(steps, "alltoall", chunks=2, io=(2, 2), head='inplace="0"')).checks["result"]
    assert check.message.startswith(
        "output[0] of rank 0 should hold input@0[0] (post-condition 0), but holds input@1[0]"
    )
    steps = {(0, 0): ("1 -1 0", "s i0 - 1"), (1, 0): ("-1 0 0", "r - o0 1")}
    check = judged(xml(steps, "allgather", chunks=2, io=(1, 2), head='inplace="0"')).checks["result"]
    assert check.message == "output[0] of rank 0 should hold input@0[0] (post-condition 0), but no op writes it"
    assert (check.where, check.found) == ("t.xml:4", "op 0 reads what is missing, input[0] of rank 0")


def ring(wrong: int, num_ranks: int = 16) -> str:
    """A chain of sums through all ranks, in which rank `wrong` passes on what it got without adding."""
    ops = []
    for rank in range(num_ranks):
        last = rank == num_ranks - 1
        if rank == 0:
            ops.append("send x[0:1] to 1")
        elif last:
            ops.append(f"recv_reduce from {rank - 1} x[0:1] -> y[0:1]")
        elif rank == wrong:
            ops.append(f"recv_copy_send from {rank - 1} -> y[0:1] to {rank + 1}")
        else:
            ops.append(f"recv_reduce_send from {rank - 1} x[0:1] to {rank + 1}")
    terms = " + ".join(f"x@{rank}[0:1]" for rank in range(num_ranks))
    head = [f"program chain ranks {num_ranks}", "buffer x input 1", "buffer y output 1", "lane a net"]
    head += [f"channel {rank}->{rank + 1} 0 depth 1" for rank in range(num_ranks - 1)]
    body = [line for rank, op in enumerate(ops) for line in (f"rank {rank} lane a", f"  {op}")]
    return "\n".join([*head, f"post {num_ranks - 1} y[0:1] = {terms}", *body, ""])


@pytest.mark.parametrize("wrong", [1, 5, 9, 20, 38])
def test_the_guilty_op_is_shown_however_long_the_trail(wrong):
    checked = parse(ring(wrong, 40), "ring.txt")
    found = verify(checked)
    assert found.to_json() == verify_reference(checked).to_json()
    check = found.checks["result"]
    assert check.found == f"missing x@{wrong}[0]"
    assert check.where == f"ring.txt:{46 + 2 * wrong}"
    assert any(line.startswith(f"op {wrong} ") for line in check.schedule)
    assert any(line.startswith("op 39 ") for line in check.schedule)
    assert sum(int(line.split()[1]) for line in check.schedule if line.startswith("...")) == 40 - 12


def test_a_race_is_written_at_its_headline():
    text = (
        "program p ranks 1\nbuffer x input 1\nbuffer y output 1\nlane a net\nlane b net\n"
        "rank 0 lane a\n  copy x[0:1] -> y[0:1]\nrank 0 lane b\n  nop\n  copy x[0:1] -> y[0:1]\n"
    )
    checked = parse(text, "p.txt")
    check = verify(checked).checks["races"]
    first = int(check.message.split()[1])
    assert check.where == checked.op(first).line
    assert check.found == ", ".join(f"op {row} at {checked.op(row).line}" for row in (first, ({0, 2} - {first}).pop()))


def test_a_collective_of_unknown_meaning_is_no_fault_of_the_file():
    check = judged(xml(SWAP, "custom", scratch=1)).checks["result"]
    assert check.ok
    assert (
        "not judged: the result of coll=custom is not specified here, so the file may be right or wrong"
        in check.message
    )


def test_the_op_that_writes_over_a_contribution_is_reported_first():
    text = xml(SWAP, scratch=1).replace('type="re"', 'type="cpy"', 1)
    check = judged(text).checks["result"]
    assert (check.where, check.found) == ("t.xml:6", "missing input@0[0]")
    assert check.hint == "look at op 2 first: there it goes wrong"


def test_scratch_that_is_too_small_says_how_much_is_needed():
    check = judged(xml(SWAP, scratch=0)).checks["bounds"]
    assert "it touches chunk 0 of buffer s, which has 0 chunks on gpu 0" in check.message
    assert (check.hint, check.where) == ("make s_chunks at least 1", "t.xml:5")


@pytest.mark.parametrize("target", ["azure", "rccl"])
def test_a_file_for_no_size_is_never_picked(target):
    for least, most, ok in ((9, 4, False), (9, 9, True), (9, 0, True)):
        assert judged(xml(SWAP, scratch=1, head=BOTH.format(least, most)), target).ok is ok


def test_the_page_of_a_hang_draws_the_publisher_as_it_ran():
    """Only the op that waits is blocked."""
    program = read(hanging(1)).program
    timeline = counterexample(program, certify(read(hanging(1))).checks["deadlock"].ops, stuck=True)
    assert timeline.columns["op"].tolist().count(-1) == 1
