"""Commands for streams of one real rank: messages come one after the other, and leave meanwhile. No device needed."""

from itertools import count

import numpy as np
import pytest

from dovetail.ir import Builder, Kind, Region, Slot, Workload
from dovetail.matmul import AllGatherMatmul, MatmulAllReduce
from dovetail.run.cuda.stream_commands import Homes
from dovetail.run.cuda.streams import Lowering

HOST = 1 << 40  # addresses from here on are those of host memory


def commands_of(program, workload):
    """What rank 0 alone does, each command with the stream it is on and those before it that it comes after."""
    device, host = count(1 << 20, 1 << 20), count(HOST, 1 << 20)
    places = {(rank, buffer.name): next(device) for rank in range(program.num_ranks) for buffer in program.buffers}
    homes = Homes(
        address=lambda rank, name: places[rank, name],
        starts=lambda rank, name: 0,
        allocate=lambda rank, size: next(device),
        allocate_on_host=lambda size: next(host),
        make_up=lambda size, dtype: next(host),
        sink=lambda size: next(host),
    )
    commands, _ = Lowering(program, workload, homes, real=0)()
    before: list[set[int]] = []
    last: dict[int, int] = {}
    for number, each in enumerate(commands):
        direct = {*each.waits} | ({last[each.stream]} if each.stream in last else set())
        before.append(direct.union(*(before[other] for other in direct)))
        last[each.stream] = number
    copies = [number for number, each in enumerate(commands) if each.what == "copy"]
    came = [number for number in copies if commands[number].action[1] >= HOST]
    left = [number for number in copies if commands[number].action[0] >= HOST]
    return commands, before, came, left


def serially(operator):
    """The commands of an operator's serial schedule on four ranks."""
    serial = operator.serial(4)
    program = operator.program(serial, 4)
    return commands_of(program, operator.workload(program, serial))


def test_a_collective_sends_while_it_receives():
    commands, before, came, left = serially(AllGatherMatmul(16, 8, 8))
    assert (len(came), len(left)) == (3, 3)
    assert not any(before[one] & {*came} for one in left)
    assert not any(before[one] & {*left} for one in came)
    products = [number for number, each in enumerate(commands) if each.what == "product"]
    assert products
    assert all({*came, *left} <= before[number] for number in products)


def test_both_halves_of_an_all_reduce_send_while_they_receive():
    _, before, came, left = serially(MatmulAllReduce(16, 8, 8))
    assert (len(came), len(left)) == (6, 6)
    for half in (slice(3), slice(3, 6)):
        assert not any(before[one] & {*came[half]} for one in left[half])
        assert not any(before[one] & {*left[half]} for one in came[half])
    assert all({*came[:3]} <= before[one] for one in left[3:]), "the sum is sent once it was made"


def received(lanes):
    """Rank 0 receives from ranks 1 and 2, two messages on each of two lanes, and copies each."""
    b = Builder("received", 3)
    b.buffer("x", "input", 2), b.buffer("y", "output", 4), b.buffer("z", "output", 4)
    for peer in (1, 2):
        channel = b.channel(peer, 0, depth=2)
        for turn in range(2):
            slot = 2 * (peer - 1) + turn
            b.add(Kind.send, peer, b.lane("net", "net"), reads=[Region("x", turn, 1)], chan_out=channel)
            lane = b.lane(f"net {peer % lanes}", "net")
            row = b.add(Kind.recv, 0, lane, writes=[Region("y", slot, 1)], chan_in=channel)
            reads, writes = [Region("y", slot, 1)], [Region("z", slot, 1)]
            b.add(Kind.copy, 0, b.lane("copy", "copy"), reads=reads, writes=writes, after=[row])
    return b.build()


@pytest.mark.parametrize("lanes", [1, 2])
def test_messages_arrive_one_after_the_other(lanes):
    program = received(lanes)
    workload = Workload({buffer.name: (Slot((5,), "float32"),) * 3 for buffer in program.buffers})
    commands, before, came, _ = commands_of(program, workload)
    assert len(came) == 4
    assert len({commands[number].stream for number in came}) == 1
    rows = np.array([commands[number].row for number in came])
    for row, number in zip(rows, came, strict=True):  # who waits for an op waits for its message
        (reader,) = (k for k, op in enumerate(program.ops()) if op.kind == Kind.copy and int(row) in op.after)
        assert all(number in before[k] for k, each in enumerate(commands) if each.row == reader)
