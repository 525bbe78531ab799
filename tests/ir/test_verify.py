"""verify: planted faults for each check, and their messages. Every case runs in C++ and in the Python reference."""

from __future__ import annotations

from dataclasses import replace

import needs
import pytest

from dovetail.core import ProgramError
from dovetail.ir import (
    Buffer,
    Builder,
    Certificate,
    Kind,
    Program,
    Region,
    judge_limits,
    parse,
    verify,
    verify_reference,
)
from dovetail.ir.shapes import ring_all_reduce

GOLDEN = needs.GOLDEN
HEAD = """program p ranks 2
buffer x input 4
buffer y output 4
buffer t scratch 4
lane a net
lane b net
channel 0->1 0 depth 8
channel 1->0 0 depth 8
channel 0->1 1 depth 8
kernel f each
kernel g each all
kernel add each accumulate
kernel fill
collective all_reduce 0 1
collective all_gather 0 1
collective reduce_scatter 0 1
collective all_to_all 0 1
collective broadcast 0 1
"""


def program(body: str, *posts: str) -> Program:
    """Return a program of HEAD, post-conditions, and ops: those after `0a:` are on rank 0, lane a, and so on."""
    lines = [HEAD, *(f"post {post}" for post in posts)]
    for line in body.strip().splitlines():
        queue, _, op = line.strip().partition(": ")
        lines += [f"rank {queue[0]} lane {queue[1]}", f"  {op}"]
    return parse("\n".join(lines))


def certificate(checked: Program, target: str | None = None) -> Certificate:
    """Return the certificate of C++, which must equal that of the Python reference word for word."""
    found = verify(checked, target)
    assert found.to_json() == verify_reference(checked, target).to_json()
    if target is not None:
        assert judge_limits(verify(checked), checked, target) == found
    return found


def failing(checked: Program) -> dict[str, str]:
    """Return the failed checks with their messages."""
    checks = certificate(checked).checks.items()
    return {name: c.message for name, c in checks if not c.ok and not c.message.startswith("not reached")}


COPIES = "0a: send x[0:4] to 1\n1a: recv from 0 -> y[0:4]"


def test_a_valid_program_passes_every_check() -> None:
    found = certificate(program(COPIES, "1 y[0:4] = x@0[0:4]"))
    assert found.ok
    assert found.min_fifo_depth == 1
    assert found.checks["result"].message == "every post-condition holds; 4 output slots were not checked"
    found.raise_if_bad()
    assert Certificate.from_json(found.to_json()) == found


def test_the_keys_of_the_json_document() -> None:
    document = certificate(program(COPIES)).to_json()
    assert list(document["checks"]) == ["bounds", "deadlock", "races", "result", "limits"]
    assert {"schema", "ok", "min_fifo_depth", "collective_found"} <= document.keys()
    assert document["checks"]["result"]["message"] == "the program has no post-condition: nothing was checked"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("0a: copy x[0:4] -> y[1:5]", "it writes y[1:5], but buffer y has 4 slots on rank 0"),
        ("0a: copy x[-1:3] -> y[0:4]", "it reads x[-1:3]: offset, count, stride and blocks are not negative"),
        ("0a: copy x[0:2; 2 x 3] -> y[0:4]", "it reads x[0:2; 2 x 3], but buffer x has 4 slots on rank 0"),
        ("0a: copy x[0:4] -> y[0:3]", "it reads x[0:4], writes y[0:3]: sizes differ"),
        ("0a: copy x[0:4]", "it needs 1 to read and 1 to write, and has 1 to read and 0 to write"),
        ("0a: nop to 1", "no nop sends on one"),
        ("0a: send x[0:4]", "a send sends on a channel, and none is named"),
        ("0a: send x[0:4] to 1->0", "it sends on channel 1->0, which is not its own"),
        ("0a: recv from 0->1 -> y[0:4]", "it receives on channel 0->1, which is not its own"),
        ("0a: put x[0:4] -> y[1:5] to 1", "it writes y[1:5], but buffer y has 4 slots on rank 1"),
        ("0a: get from 1 x[2:6] -> y[0:4]", "it reads x[2:6], but buffer x has 4 slots on rank 1"),
        ("0a: get from 0->1 x[0:4] -> y[0:4]", "it receives on channel 0->1, which is not its own"),
        ("0a: compute f x[0:4] x[0:4] -> y[0:4]", "it needs 1 regions to read, and has 2 to read and 1 to write"),
        ("0a: compute g x[0:3] x[0:4] -> y[0:4]", "it reads x[0:3] and x[0:4], writes y[0:4]: sizes differ"),
        (
            "0a: nop\n1a: nop after 0/a.0",
            "it waits for op 0, which is on another rank",
        ),
        (
            "0a: send x[0:4] to 1\n1a: recv from 0 -> y[0:3]",
            "it takes 3 slots, but the message that reaches it has 4",
        ),
        (
            "0a: collective all_reduce x[0:4] -> y[0:4] group 0 1\n"
            "1a: collective all_reduce x[0:3] -> y[0:3] group 0 1",
            "the members of this all_reduce disagree on sizes",
        ),
        (
            "0a: collective all_to_all x[0:3] -> y[0:3] group 0 1\n"
            "1a: collective all_to_all x[0:3] -> y[0:3] group 0 1",
            "the members of this all_to_all disagree on sizes",
        ),
        (
            "0a: collective broadcast -> y[0:4] group 0 1\n1a: collective broadcast -> y[0:4] group 0 1",
            "it needs 1 region to read and at most 1 to write, as the root, and has 0 to read and 1 to write",
        ),
    ],
)
def test_bounds(body: str, message: str) -> None:
    found = failing(program(body))
    assert list(found) == ["bounds"]
    assert message in found["bounds"]


def test_bounds_of_post_conditions() -> None:
    for post, message in (
        ("0 y[0:5] = x@0[0:5]", "y[0:5], but buffer y has 4 slots on rank 0"),
        ("0 y[0:4] = x@0[0:3]", "x[0:3] and y[0:4] differ in size"),
        ("0 y[0:4] = t@0[0:4]", "'t' is not an input"),
        ("0 y[0:4] = nothing(x@0[0:4])", "no kernel 'nothing'"),
        ("0 y[0:4] = g(x@0[0:4])", "a term of g has 2 operands, not 1"),
    ):
        assert message in failing(program("0a: nop", post))["bounds"]


def test_a_malformed_program_is_a_certificate_not_an_exception() -> None:
    builder = Builder("p", 1)
    builder.buffer("x", "input", 4)
    builder.add(Kind.nop, 5, builder.lane("net", "net"))
    found = certificate(builder.build())
    assert not found.ok
    assert found.checks["bounds"].message == "malformed program: column 'rank' has values outside its table"


def test_regions_whose_ends_overflow_are_out_of_bounds() -> None:
    huge = (1 << 62) - 1
    for region in (Region("x", huge, huge, huge, huge), Region("x", 0, 1 << 40, 0, 1 << 40), Region("x", 1, huge)):
        builder = Builder("p", 1)
        builder.buffer("x", "input", 4)
        builder.buffer("y", "output", 4)
        builder.add(Kind.copy, 0, builder.lane("net", "net"), reads=[region], writes=[Region("y", 0, 4)])
        assert list(failing(builder.build())) == ["bounds"]


def test_memory_is_used_for_touched_slots_only() -> None:
    """Two huge buffers are stored as one cell each; if they must be split into slots, they are refused first."""
    size = 1 << 40
    lines = f"program p ranks 1\nbuffer x input 1\nbuffer y output 1\nlane a net\npost 0 y[0:{size}] = x@0[0:{size}]"
    for copy, fits in ((f"copy x[0:{size}] -> y[0:{size}]", True), ("copy x[1:2] -> y[1:2]", False)):
        small = parse(f"{lines}\nrank 0 lane a\n  {copy}")
        idle = Buffer("idle", "scratch", (size,))
        huge = replace(small, buffers=(*(b._replace(slots=(size,)) for b in small.buffers), idle))
        if fits:
            assert verify(huge).ok
        else:
            with pytest.raises(ProgramError, match=f"too large for this machine's memory\n.*has {size} slots"):
                verify(huge)


def test_empty_regions_of_many_blocks_cost_nothing() -> None:
    builder = Builder("p", 1)
    builder.buffer("x", "input", 4)
    empty = Region("x", 4, 0, 0, 1 << 60)
    builder.add(Kind.copy, 0, builder.lane("net", "net"), reads=[empty], writes=[empty])
    assert certificate(builder.build()).ok


def test_deadlock_of_two_receives_names_the_cycle() -> None:
    body = "0a: recv from 1 -> y[0:1]\n0a: send x[0:1] to 1\n1a: recv from 0 -> y[0:1]\n1a: send x[0:1] to 0"
    found = certificate(program(body))
    check = found.checks["deadlock"]
    assert check.ops == (0, 2)
    assert "op 0 'recv' on rank 0 (lane a, index 0) waits for a message on channel 1->0" in check.message
    assert check.found == "op 0 waits for a message on channel 1->0; op 2 waits for a message on channel 0->1"
    assert found.min_fifo_depth is None
    assert found.checks["races"].message == "not reached: the deadlock check failed"


@pytest.mark.parametrize(
    ("body", "ops", "message"),
    [
        ("0a: wait from 1", (0,), "rank 1 never signals it on channel 1->0"),
        ("0a: recv from 1 -> y[0:1]", (0,), "rank 1 never sends its message on channel 1->0"),
        ("0a: nop after b.0\n0b: nop after a.0", (0, 1), "waits for op 1, and so on in a circle of 2"),
        ("0a: nop after a.0", (0,), "waits for op 0"),
        ("0a: collective all_reduce x[0:1] -> y[0:1] group 0 1", (0,), "rank 1 never calls this all_reduce"),
        (
            "0a: collective all_reduce x[0:1] -> y[0:1] group 0 1\n0a: send x[0:1] to 1\n"
            "1a: recv from 0 -> y[0:1]\n1a: collective all_reduce x[0:1] -> y[1:2] group 0 1",
            (0, 2),
            "waits for rank 1 to call all_reduce",
        ),
        ("0a: send x[0:1] to 1", (0,), "no op receives what it sends"),
        ("0a: signal to 1\n0a: signal to 1\n1a: wait from 0", (1,), "no op receives what it sends"),
    ],
)
def test_deadlock(body: str, ops: tuple[int, ...], message: str) -> None:
    checked = program(body)
    assert message in failing(checked)["deadlock"]
    assert certificate(checked).checks["deadlock"].ops == ops


def test_counts_of_signals_and_waits_are_reported() -> None:
    checked = program("0a: signal to 1\n1a: wait from 0\n1a: wait from 0")
    with pytest.raises(ProgramError) as caught:
        certificate(checked).raise_if_bad()
    assert "op 2 'wait' on rank 1 (lane a, index 1): rank 0 never signals it" in caught.value.what
    assert "1 signals, 2 waits on channel 0->1" in str(caught.value.found)


def crossing(messages: int, depth: int) -> Program:
    """Each rank sends all its messages before it receives any."""
    builder = Builder("crossing", 2)
    builder.buffer("x", "input", messages)
    builder.buffer("y", "output", messages)
    lane = builder.lane("net", "net")
    for rank in (0, 1):
        for slot in range(messages):
            out = builder.channel(rank, 1 - rank, 0, depth)
            builder.add(Kind.send, rank, lane, reads=[Region("x", slot, 1)], chan_out=out, line=f"c.py:{slot}")
        for slot in range(messages):
            source = builder.channel(1 - rank, rank, 0, depth)
            builder.add(Kind.recv, rank, lane, writes=[Region("y", slot, 1)], chan_in=source)
    return builder.build()


@pytest.mark.parametrize("messages", [1, 2, 5, 100])
def test_the_least_depth_is_found_and_the_declared_one_must_suffice(messages: int) -> None:
    assert certificate(crossing(messages, messages)).ok
    for depth in range(1, min(messages, 7)):
        found = certificate(crossing(messages, depth))
        assert found.min_fifo_depth == messages
        check = found.checks["deadlock"]
        assert not check.ok
        assert f"finds channel 0->1 full, of depth {depth}" in check.message
        assert check.where == f"c.py:{depth}"
        assert check.hint == f"declare depth {messages}, the least that completes on every channel"
        assert found.checks["races"].ok
        assert found.checks["result"].ok


def test_different_depths_may_suffice_if_a_common_one_does_not() -> None:
    checked = program(
        "0a: send x[0:1] to 1\n0a: send x[1:2] to 1\n0a: send x[2:3] to 1:1\n"
        "1a: recv from 0:1 -> y[2:3]\n1a: recv from 0 -> y[0:1]\n1a: recv from 0 -> y[1:2]"
    )
    channels = tuple(c._replace(depth=2 if (c.src, c.id) == (0, 0) else 1) for c in checked.channels)
    found = certificate(Program(**{**vars(checked), "channels": channels}))
    assert found.ok
    assert found.min_fifo_depth == 2


def test_fused_ops_receive_and_send_in_one_step() -> None:
    """A ring of recv_copy_send needs two places in each channel, as in the interpreters."""
    builder = Builder("ring", 3)
    builder.buffer("y", "input", 2)
    lane = builder.lane("net", "net")
    for rank in range(3):
        ends = {"chan_in": builder.channel((rank - 1) % 3, rank), "chan_out": builder.channel(rank, (rank + 1) % 3)}
        builder.add(Kind.send, rank, lane, reads=[Region("y", 0, 1)], chan_out=ends["chan_out"])
        builder.add(Kind.recv_copy_send, rank, lane, writes=[Region("y", 1, 1)], **ends)
        builder.add(Kind.recv, rank, lane, writes=[Region("y", 0, 1)], chan_in=ends["chan_in"])
    assert certificate(builder.build()).min_fifo_depth == 2


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("0a: copy x[0:2] -> t[0:2]\n0b: copy x[0:2] -> t[1:3]", (0, 1)),  # two writes
        ("0a: copy x[0:2] -> t[0:2]\n0b: copy t[1:3] -> y[1:3]", (0, 1)),  # write, read
        ("0a: copy t[0:2] -> y[0:2]\n0b: copy x[1:3] -> t[1:3]", (0, 1)),  # read, write
        ("0a: compute add x[0:1] -> t[0:1]\n0b: compute add x[1:2] -> t[0:1]", (0, 1)),  # two sums
        ("0a: put x[0:1] -> t[0:1] to 1\n1a: copy t[0:1] -> y[0:1]", (0, 1)),  # unsynchronised put
        ("0a: put x[0:1] -> t[0:1] to 1\n0b: signal to 1\n1a: wait from 0\n1a: copy t[0:1] -> y[0:1]", (0, 3)),
        ("0a: get from 1 t[0:1] -> y[0:1]\n1a: copy x[0:1] -> t[0:1]", (0, 1)),  # unsynchronised get
        ("0a: get from 1 x[0:1] -> t[0:1]\n0b: copy t[0:1] -> y[0:1]", (0, 1)),
        ("0a: send t[0:1] to 1\n0b: copy x[0:1] -> t[0:1]\n1a: recv from 0 -> y[0:1]", (0, 1)),
        # a full channel orders nothing: op 2 comes after op 0 at depth 1 only
        ("0a: send t[0:1] to 1\n0a: send x[0:1] to 1\n0b: copy x[0:1] -> t[0:1]\n1a: recv from 0 -> y[0:1]\n"
         "1a: recv from 0 -> y[1:2]", (0, 2)),
        # it is not determined which of two lanes gets which message, signal or call
        ("0a: send x[0:1] to 1\n0b: send x[1:2] to 1\n1a: recv from 0 -> y[0:1]\n1a: recv from 0 -> y[1:2]", (0, 1)),
        ("0a: send x[0:1] to 1\n0a: send x[1:2] to 1\n1a: recv from 0 -> y[0:1]\n1b: recv from 0 -> y[1:2]", (2, 3)),
        ("0a: signal to 1\n0b: signal to 1\n1a: wait from 0\n1a: wait from 0", (0, 1)),
        # a peer may still access its regions in the call when this rank's call has ended
        ("0a: collective all_reduce x[0:1] -> y[0:1] group 0 1\n0a: put x[0:1] -> y[0:1] to 1\n"
         "1a: collective all_reduce x[0:1] -> y[0:1] group 0 1", (2, 1)),
        # the root of a broadcast waits for nobody
        ("0a: collective broadcast x[0:1] group 0 1\n0a: put x[0:1] -> t[0:1] to 1\n"
         "1a: copy t[0:1] -> t[1:2]\n1a: collective broadcast -> y[0:1] group 0 1", (2, 1)),
        # a message that one lane waits for may go to the other lane that receives from the channel
        ("0a: send x[0:1] to 1\n0a: wait from 1\n0a: send x[1:2] to 1\n"
         "1a: recv from 0 -> y[0:1]\n1a: signal to 0\n1b: recv from 0 -> y[1:2]", (3, 5)),
        # messages travel in parts: t[1] is the second part of what leaves, and the first of what comes back
        ("0a: send t[0:2] to 1\n1a: recv_copy_send from 0 -> y[0:2] to 0\n0b: recv from 1 -> t[1:3]", (0, 2)),
        # a member may read before its peers have done what precedes their calls
        ("0a: collective all_reduce t[0:1] -> y[0:1] group 0 1\n1a: put x[0:1] -> t[0:1] to 0\n"
         "1a: collective all_reduce x[0:1] -> y[0:1] group 0 1", (0, 1)),
        # a collective of nothing orders nothing
        ("0a: collective all_reduce x[0:0] -> y[0:0] group 0 1\n0a: put x[0:1] -> t[0:1] to 1\n"
         "1a: copy t[0:1] -> t[1:2]\n1a: collective all_reduce x[0:0] -> y[0:0] group 0 1", (2, 1)),
    ],
)  # fmt: skip
def test_races(body: str, ops: tuple[int, int]) -> None:
    checked = program(body)
    assert "nothing orders" in failing(checked)["races"]
    found = certificate(checked).checks["races"].ops
    assert sorted(found) == sorted(ops)


@pytest.mark.parametrize(
    "body",
    [
        "0a: copy x[0:2] -> t[0:2]\n0b: copy t[1:3] -> y[1:3] after a.0",
        "0a: copy x[0:2] -> t[0:2]\n0b: copy x[2:4] -> t[2:4]",
        "0a: copy x[0:1; 2 x 2] -> t[0:1; 2 x 2]\n0b: copy x[1:2; 2 x 2] -> t[1:2; 2 x 2]",
        "0a: copy t[0:2] -> y[0:2]\n0b: copy t[0:2] -> y[2:4]",
        "0a: put x[0:1] -> t[0:1] to 1\n0a: signal to 1\n1a: wait from 0\n1a: copy t[0:1] -> y[0:1]",
        "0a: copy x[0:1] -> t[0:1]\n0a: signal to 1\n1a: wait from 0\n1a: get from 0 t[0:1] -> t[0:1]",
        "0a: get from 1 x[0:1] -> y[0:1]\n0b: get from 1 x[0:1] -> y[1:2]\n0b: put x[0:1] -> t[0:1] to 1",
        "0a: put x[0:1] -> t[0:1] to 1\n0b: signal to 1 after a.0\n1a: wait from 0\n"
        "1b: copy t[0:1] -> y[0:1] after a.0",
        # order that goes through another rank and back
        "0a: copy x[0:1] -> t[0:1]\n0a: send x[0:1] to 1\n1a: recv from 0 -> y[0:1]\n1a: send x[0:1] to 0\n"
        "0b: recv from 1 -> y[0:1]\n0b: copy x[1:2] -> t[0:1]",
        # a message in parts that comes back to where it left, or to places that were left before
        "0a: send t[0:2] to 1\n1a: recv_copy_send from 0 -> y[0:2] to 0\n0b: recv from 1 -> t[0:2]",
        "0a: send t[1:3] to 1\n1a: recv_copy_send from 0 -> y[0:2] to 0\n0b: recv from 1 -> t[0:2]",
        "0a: send t[0:2] to 1\n1a: recv from 0 -> y[0:2]\n1a: send y[0:2] to 0\n0b: recv from 1 -> t[1:3]",
        # a collective orders what came before it
        "0a: collective all_reduce x[0:1] -> y[0:1] group 0 1\n0a: put x[0:1] -> t[0:1] to 1\n"
        "1a: copy t[0:1] -> t[1:2]\n1a: collective all_reduce x[0:1] -> y[0:1] group 0 1",
    ],
)
def test_order_is_recognised(body: str) -> None:
    assert certificate(program(body)).checks["races"].ok


@pytest.mark.parametrize(
    ("op", "good"),
    [
        ("copy x[0:2] -> x[0:2]", True),
        ("copy x[0:2] -> x[1:3]", False),
        ("copy x[0:2] -> y[0:2; 1 x 7]", True),
        ("copy x[0:4] -> y[0:2; 2 x 1]", False),
        ("copy x[0:2; 2 x 0] -> y[0:4]", True),
        ("compute f x[0:2] -> x[1:3]", False),
        ("compute g x[0:2] x[0:4] -> x[0:2]", True),
        ("compute f x[0:2] -> y[0:2] y[1:3]", False),
        ("compute f x[0:2] -> y[0:2] y[2:4]", True),
    ],
)
def test_an_op_against_itself(op: str, good: bool) -> None:
    assert certificate(program(f"0a: {op}")).checks["races"].ok == good


@pytest.mark.parametrize(
    ("kind", "reads", "writes", "good"),
    [
        ("all_gather", ("x[0:2]", "x[2:4]"), "x[0:4]", True),
        ("all_gather", ("x[2:4]", "x[0:2]"), "x[0:4]", False),
        ("all_reduce", ("x[0:4]", "x[0:4]"), "x[0:4]", True),
        ("all_reduce", ("x[0:3]", "x[0:3]"), "x[1:4]", False),
    ],
)
def test_a_collective_in_place(kind: str, reads: tuple[str, str], writes: str, good: bool) -> None:
    body = "\n".join(f"{rank}a: collective {kind} {reads[rank]} -> {writes} group 0 1" for rank in (0, 1))
    assert certificate(program(body)).checks["races"].ok == good


def test_reduce_scatter_in_place_and_uneven() -> None:
    lines = (f"{r}a: collective reduce_scatter x[0:4] -> x[{w}] group 0 1" for r, w in ((0, "0:1"), (1, "1:4")))
    posts = ("0 x[0:1] = x@0[0:1] + x@1[0:1]", "1 x[1:4] = x@0[1:4] + x@1[1:4]")
    assert certificate(program("\n".join(lines), *posts)).ok


@pytest.mark.parametrize(
    ("body", "post", "found"),
    [
        (COPIES, "1 y[0:4] = x@1[0:4]", "missing x@1[0]; surplus x@0[0]"),
        (COPIES, "1 y[0:4] = x@0[0:4] + x@0[0:4]", "missing x@0[0]"),
        (COPIES, "0 y[0:4] = x@0[0:4]", "op 0 reads what is missing, x[0] of rank 0"),
        (COPIES, "1 y[0:2] = x@0[2:4]", "missing x@0[2]; surplus x@0[0]"),
        (COPIES, "1 y[0:4] = 0", "surplus x@0[0]"),
        ("0a: copy x[0:4] -> y[0:4]\n0a: reduce x[0:4] -> y[0:4]", "0 y[0:4] = x@0[0:4]", "surplus x@0[0]"),
        ("0a: reduce x[0:4] -> y[0:4]", "0 y[0:4] = x@0[0:4]", "surplus unwritten y@0[0]"),
        ("0a: compute add x[0:4] -> y[0:4]", "0 y[0:4] = add(x@0[0:4])", "surplus unwritten y@0[0]"),
        ("0a: compute f x[0:4] -> y[0:4]", "0 y[0:4] = x@0[0:4]", "missing x@0[0]; surplus f(x@0[0])"),
        (
            "0a: compute g x[0:2] x[0:3] -> y[0:2]",
            "0 y[0:2] = g(x@0[0:2], x@0[0:4])",
            "missing g(x@0[0], [x@0[0], x@0[1], x@0[2], and 1 more]); surplus g(x@0[0], [x@0[0], x@0[1], x@0[2]])",
        ),
        ("0a: compute fill -> y[0:2]", "0 y[1:2] = fill()", "missing fill#0(); surplus fill#1()"),
    ],
)
def test_result(body: str, post: str, found: str) -> None:
    checked = program(body, post)
    assert list(failing(checked)) == ["result"]
    assert certificate(checked).checks["result"].found == found


@pytest.mark.parametrize(
    ("body", "post"),
    [
        ("0a: compute g x[0:2] x[0:4] -> y[0:2]", "0 y[0:2] = g(x@0[0:2], x@0[0:4])"),
        ("0a: copy x[0:4] -> t[0:4]\n0a: compute g x[0:2] t[0:4] -> y[0:2]", "0 y[0:2] = g(x@0[0:2], x@0[0:4])"),
        ("0a: compute f x[0:2] -> y[0:2]\n0a: compute add x[2:4] -> y[0:2]", "0 y[0:2] = f(x@0[0:2]) + add(x@0[2:4])"),
        ("0a: compute fill -> y[0:2]", "0 y[0:2] = fill()"),
        ("0a: copy x[0:1; 2 x 2] -> y[0:2]", "0 y[0:2] = x@0[0:1; 2 x 2]"),
        ("0a: put x[0:2] -> y[1:3] to 1", "1 y[1:3] = x@0[0:2]"),
        ("0a: get from 1 x[0:2] -> x[1:3]", "0 x[1:3] = x@1[0:2]"),
        ("0a: copy x[0:2] -> x[2:4]", "0 x[0:4] = x@0[0:2; 2 x 0]"),
    ],
)
def test_results_that_hold(body: str, post: str) -> None:
    assert certificate(program(body, post)).ok


@pytest.mark.parametrize(
    ("kind", "reads", "writes", "posts"),
    [
        ("all_reduce", 4, 4, ["0 1 y[0:4] = x@0[0:4] + x@1[0:4]"]),
        ("all_gather", 2, 4, ["0 1 y[0:2] = x@0[0:2]", "0 1 y[2:4] = x@1[0:2]"]),
        ("reduce_scatter", 4, 2, ["0 y[0:2] = x@0[0:2] + x@1[0:2]", "1 y[0:2] = x@0[2:4] + x@1[2:4]"]),
        ("all_to_all", 4, 4, ["0 y[0:2] = x@0[0:2]", "0 y[2:4] = x@1[0:2]", "1 y[0:2] = x@0[2:4]"]),
        ("broadcast", 4, 4, ["0 1 y[0:4] = x@0[0:4]"]),
    ],
)
def test_collectives_of_the_library(kind: str, reads: int, writes: int, posts: list[str]) -> None:
    lines = (f"{rank}a: collective {kind} x[0:{reads}] -> y[0:{writes}] group 0 1" for rank in (0, 1))
    found = certificate(program("\n".join(lines), *posts))
    assert found.ok
    assert found.collective_found == (kind if reads == writes else None)


def test_the_collective_is_found_whatever_post_conditions_require() -> None:
    checked = parse((GOLDEN / "ir_ring_all_reduce.txt").read_text().replace(" + x@2[0:6]", ""))
    found = certificate(checked)
    assert not found.checks["result"].ok
    assert found.collective_found == "all_reduce"


def test_a_wrong_slot_comes_with_the_ops_that_made_it() -> None:
    """One send of the ring carries a wrong slot: the report lists the ops that this slot passed through, and no
    others."""
    text = (GOLDEN / "ir_ring_all_reduce.txt").read_text()
    wrong = text.replace("  send x[2:3] to 1\n", "  send x[1:2] to 1\n", 1)
    check = certificate(parse(wrong, "ring.txt")).checks["result"]
    assert not check.ok
    assert check.found is not None
    assert all("lane net0" in line for line in check.schedule)
    assert any("send x[1:2] to 1" in line for line in check.schedule)
    assert len(check.ops) < 16
    assert check.where is not None
    assert check.where.startswith("ring.txt:")


@pytest.mark.parametrize(("times", "reported"), [(62, 1 << 62), (64, 1 << 64), (4000, "2^100 or more")])
def test_repeated_doubling_never_counts_as_zero(times: int, reported: object) -> None:
    """Counts saturate instead of wrapping around to zero."""
    doublings = "\n".join("0a: reduce t[0:1] -> t[0:1]" for _ in range(times))
    body = f"0a: copy x[0:1] -> t[0:1]\n{doublings}\n0a: reduce x[1:2] -> t[0:1]"
    check = certificate(program(body, "0 t[0:1] = x@0[1:2]")).checks["result"]
    assert check.found == f"surplus {reported} x x@0[0]"


def test_limits_of_targets() -> None:
    ring = ring_all_reduce(4, 2)
    assert certificate(ring, "msccl").ok
    assert certificate(ring, "msccl").checks["limits"].message == "within the limits of msccl"
    long = ring_all_reduce(4, 20)
    assert "has 240 steps; rccl allows 64" in certificate(long, "rccl").checks["limits"].message
    assert certificate(long, "msccl").ok
    wide = certificate(ring_all_reduce(2, 1, 33), "msccl").checks["limits"].message
    assert "msccl has 32 channels" in wide
    for op in ("compute f x[0:1] -> y[0:1]", "get from 1 x[0:1] -> y[0:1]"):
        assert "msccl has no step for a" in certificate(program(f"0a: {op}"), "msccl").checks["limits"].message
    body = "0a: send x[0:1] to 1\n0a: send x[0:1] to 1:1\n1a: recv from 0 -> y[0:1]\n1b: recv from 0:1 -> y[1:2]"
    two = certificate(program(body), "msccl")
    assert "lane a of rank 0 uses channel 0 and 1; a threadblock of msccl has one" in two.checks["limits"].message
    with pytest.raises(ProgramError, match="unknown target 'nccl'"):
        verify(ring, "nccl")


def _star(peers: int) -> Program:
    """Rank 0 exchanges messages with each of its peers, each in its own lane, all on channel 0."""
    b = Builder("star", peers + 1)
    x, y = b.buffer("x", "input", 1), b.buffer("y", "output", peers)
    for peer in range(1, peers + 1):
        for src, dst in ((0, peer), (peer, 0)):
            out, back = b.lane(f"to{peer}", "net"), b.lane(f"from{peer}", "net")
            b.add(Kind.send, src, out, reads=[Region(x, 0, 1)], chan_out=b.channel(src, dst))
            b.add(Kind.recv, dst, back, writes=[Region(y, peer - 1, 1)], chan_in=b.channel(src, dst))
    return b.build()


def test_a_channel_serves_32_threadblocks_each_way() -> None:
    assert certificate(_star(32), "msccl").checks["limits"].ok
    reported = "33 threadblocks of rank 0 send on channel 0; msccl allows 32 on a channel"
    assert certificate(_star(33), "msccl").checks["limits"].message == reported


def test_waits_name_the_first_128_threadblocks() -> None:
    """The runtimes store the number of the threadblock that a step waits for in 8 bits."""
    for lanes, ok in ((128, True), (129, False)):
        b = Builder("wide", 1)
        x, y = b.buffer("x", "input", lanes), b.buffer("y", "output", lanes)
        rows = [
            b.add(Kind.copy, 0, b.lane(f"l{k}", "net"), reads=[Region(x, k, 1)], writes=[Region(y, k, 1)])
            for k in range(lanes)
        ]
        b.add(Kind.copy, 0, 0, reads=[Region(x, 0, 1)], writes=[Region(y, 0, 1)], after=rows[-1:])
        limits = certificate(b.build(), "msccl").checks["limits"]
        assert limits.ok is ok
        reported = (
            "lane l128 of rank 0, its threadblock number 128, is waited for; msccl can wait for threadblocks 0 to 127"
        )
        assert ok or limits.message == reported


def test_raise_if_bad_says_what_where_what_was_found_and_what_to_try() -> None:
    checked = parse(
        HEAD + "rank 0 lane a\n  copy x[0:2] -> t[0:2]\nrank 0 lane b\n  copy x[0:2] -> t[1:3]\n", "prog.txt"
    )
    with pytest.raises(ProgramError) as caught:
        certificate(checked).raise_if_bad()
    assert str(caught.value) == (
        "program 'p' fails the races check: op 1 'copy' on rank 0 (lane b, index 0) writes t[1] of rank 0, which op 0 "
        "'copy' on rank 0 (lane a, index 0) writes; nothing orders the two\n"
        "  written at  prog.txt:22\n"
        "  found       op 1 at prog.txt:22, op 0 at prog.txt:20\n"
        "              op 0 'copy' on rank 0 (lane a, index 0): copy x[0:2] -> t[0:2]  (prog.txt:20)\n"
        "              op 1 'copy' on rank 0 (lane b, index 0): copy x[0:2] -> t[1:3]  (prog.txt:22)\n"
        "  try         let op 1 wait for op 0, by a dependency or a message, or use another buffer"
    )


def test_degenerate_programs() -> None:
    for sizes in ((1, 0), (1, 5), (3, 0)):
        builder = Builder("empty", sizes[0])
        builder.buffer("x", "input", sizes[1])
        assert certificate(builder.build()).ok
    assert certificate(ring_all_reduce(1, 3)).ok
