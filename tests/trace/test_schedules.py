"""GOAL schedules and Chakra traces: what they say is what the simulator does, and what is wrong in them is named."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from chakra_files import METADATA, chakra, content, node

from dovetail.core import FileError
from dovetail.machine import Link, Machine
from dovetail.sim import simulate
from dovetail.trace.formats import replayed

LATENCY_S, BYTE_S = 2e-6, 1e-9


def line(base_s: float, byte_s: float) -> dict[str, object]:
    segments = [[0, base_s, byte_s, 0.0]]
    return {"schema": "dovetail.curve/1", "x_unit": "bytes", "segments": segments, "low": 0.0, "high": None}


def star(ranks: int, **costs: dict[str, object]) -> Machine:
    links = [Link(*ends, "net") for rank in range(ranks) for ends in ((rank, -1), (-1, rank))]
    known = {"p2p:net": line(LATENCY_S, BYTE_S), **costs}
    return Machine("star", ranks, tuple(range(ranks)), tuple(links), known)


def seconds(path: Path, machine: Machine, **how: object) -> float:
    replay = replayed(path)
    assert replay is not None
    return simulate(replay.program, replay.priced(machine, **how)).makespan_s  # type: ignore[arg-type]


def goal(folder: Path, text: str) -> Path:
    path = folder / "s.goal"
    path.write_text(text)
    return path


PING_PONG = """
num_ranks 2

rank 0 {  // the first
l1: calc 5000 cpu 0
l2: send 1000b to 1 tag 7 cpu 0 nic 0
l3: recv 1000b from 1 tag 8
l2 requires l1
l3 requires l2
}
rank 1 {
a: recv 1000b from 0 tag 7
b: calc 3000
c: send 1000b to 0 tag 8
b requires a
c requires b
}
"""


def test_a_ping_pong_of_goal(tmp_path: Path) -> None:
    message = LATENCY_S + 1000 * BYTE_S
    assert seconds(goal(tmp_path, PING_PONG), star(2)) == pytest.approx(5e-6 + message + 3e-6 + message, rel=1e-12)


def test_computations_of_one_cpu_take_turns(tmp_path: Path) -> None:
    text = "num_ranks 1\nrank 0 {\ncalc 100\ncalc 50\ncalc 70 cpu 1\n}\n"
    assert seconds(goal(tmp_path, text), star(1)) == pytest.approx(150e-9)


def test_irequires_waits_for_the_start(tmp_path: Path) -> None:
    text = "num_ranks 1\nrank 0 {\na: calc 100\nb: calc 1000 cpu 1\nc: calc 10 cpu 2\nb requires a\nc HOW b\n}\n"
    assert seconds(goal(tmp_path, text.replace("HOW", "requires")), star(1)) == pytest.approx(1110e-9)
    assert seconds(goal(tmp_path, text.replace("HOW", "irequires")), star(1)) == pytest.approx(1100e-9)


def test_order_in_the_file_is_no_order_in_time(tmp_path: Path) -> None:
    text = """num_ranks 2
rank 0 {
late: calc 1000
get: recv 8b from 1
early: calc 500
give: send 8b to 1
late requires get
give requires early
}
rank 1 {
back: send 8b to 0
take: recv 8b from 0
back requires take
}"""
    message = LATENCY_S + 8 * BYTE_S
    assert seconds(goal(tmp_path, text), star(2)) == pytest.approx(1.5e-6 + 2 * message, rel=1e-12)


def test_comments_keep_line_numbers(tmp_path: Path) -> None:
    text = "/* one\ntwo */ num_ranks 1 // three\nrank 0 {\ncalc x\n}\n"
    with pytest.raises(FileError, match=r"s\.goal:4"):
        replayed(goal(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tag 8\nl2", "tag 9\nl2", "has no partner"),
        ("recv 1000b from 0", "recv 999b from 0", "of 999 bytes"),
        ("from 0 tag 7", "from -1 tag 7", "any source"),
        ("to 1 tag 7", "to 2 tag 7", "needs a rank of the schedule"),
        ("l3 requires l2", "l3 requires l9", "the label 'l9'"),
        ("l2 requires l1", "l2 requires l3", "waits for itself"),
        ("rank 1 {", "rank 2 {", "not among num_ranks"),
        ("rank 1 {", "rank 0 {", "given twice"),
        ("num_ranks 2\n", "\n", "num_ranks"),
        ("calc 3000", "calc -3000", "no GOAL statement"),
        ("b: calc", "a: calc", r"rank 1 has the label 'a' twice\n.*s\.goal:13\n.*s\.goal:12"),
    ],
)
def test_faulty_goal_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in PING_PONG
    with pytest.raises(FileError, match=message):
        replayed(goal(tmp_path, PING_PONG.replace(old, new)))


def test_goal_cut_off_or_binary(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="ends within a rank"):
        replayed(goal(tmp_path, PING_PONG.rstrip()[:-1]))
    (tmp_path / "s.goal").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(FileError, match="not text"):
        replayed(tmp_path / "s.goal")


# Chakra

META, CALC, SEND, RECV, COLL = 1, 4, 5, 6, 7


def test_a_message_of_chakra(tmp_path: Path) -> None:
    path = chakra(
        tmp_path,
        [node(3, CALC, micros=10), node(9, SEND, after=(3,), comm_size=1000, comm_src=0, comm_dst=1, comm_tag=4)],
        [
            node(1, RECV, comm_size=1000, comm_src=0, comm_dst=1, comm_tag=4),
            node(2, CALC, after=(1,), micros=5, packed=False),
        ],
    )
    assert seconds(path, star(2)) == pytest.approx(15e-6 + LATENCY_S + 1000 * BYTE_S, rel=1e-12)


def test_cpu_and_accelerator_run_beside_each_other(tmp_path: Path) -> None:
    nodes = [node(1, CALC, micros=7, is_cpu_op=True), node(2, CALC, micros=9, is_cpu_op=False), node(3, 2, micros=8)]
    assert seconds(chakra(tmp_path, nodes), star(1)) == pytest.approx(9e-6)


def test_collectives_cost_what_the_machine_or_the_caller_says(tmp_path: Path) -> None:
    ranks = [[node(1, CALC, micros=rank), node(2, COLL, after=(1,), comm_type=0, comm_size=4000)] for rank in range(3)]
    path = chakra(tmp_path, *ranks)
    known = star(3, **{"all_reduce:3": line(1e-6, 1e-9)})
    assert seconds(path, known) == pytest.approx(2e-6 + 1e-6 + 4000e-9)
    asked: list[tuple[str, tuple[int, ...], int]] = []

    def call_seconds(*call: object) -> float:
        asked.append(call)  # type: ignore[arg-type]
        return 0.5

    assert seconds(path, star(3), call_seconds=call_seconds) == pytest.approx(0.5 + 2e-6)
    assert set(asked) == {("all_reduce", (0, 1, 2), 4000)}


def test_process_groups(tmp_path: Path) -> None:
    groups = {"even": [0, 2], "odd": [1, 3]}
    (tmp_path / "comm_group.json").write_text(json.dumps(groups))
    ranks = [[node(1, COLL, comm_type=2, comm_size=64, pg_name=("even", "odd")[rank % 2])] for rank in range(4)]
    replay = replayed(chakra(tmp_path, *ranks))
    assert replay is not None
    assert {each.group for each in replay.program.collectives} == {(0, 2), (1, 3)}
    (tmp_path / "comm_group.json").unlink()
    with pytest.raises(FileError, match=r"comm_group\.json"):
        replayed(tmp_path / "run.0.et")


def test_faulty_chakra_is_refused(tmp_path: Path) -> None:
    good = node(1, CALC, micros=1)
    with pytest.raises(FileError, match="waits for node 5"):
        replayed(chakra(tmp_path, [node(1, CALC, micros=1, after=(5,))]))
    with pytest.raises(FileError, match="has no partner"):
        replayed(chakra(tmp_path, [node(1, SEND, comm_size=1, comm_dst=1)], [good]))
    with pytest.raises(FileError, match="comm_type 4"):
        replayed(chakra(tmp_path, [node(1, COLL, comm_type=4, comm_size=1)], [good]))
    with pytest.raises(FileError, match="no duration_micros"):
        replayed(chakra(tmp_path, [node(1, CALC, num_ops=5)], [good]))
    path = chakra(tmp_path, [good], [good])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match="cut off"):
        replayed(path)
    (tmp_path / "run.0.et").unlink()
    with pytest.raises(FileError, match="no trace of rank 0"):
        replayed(tmp_path / "run.1.et")


def test_random_bytes_are_refused_in_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    whole = chakra(tmp_path, [node(i, CALC, micros=i, after=(i - 1,) if i else ()) for i in range(6)]).read_bytes()
    for _ in range(300):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(0, 256)
        (tmp_path / "run.0.et").write_bytes(bytes(data))
        with suppress(FileError):  # any other error fails
            replayed(tmp_path / "run.0.et")


SURPLUS = """num_ranks 2
rank 0 {
z: calc 10
a: send 8b to 1 tag 3
b: send 8b to 1 tag 3
a requires z
b requires z
}
rank 1 {
c: recv 8b from 0 tag 3
}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [(SURPLUS, "no partner"), (f"num_ranks {10**20}\nrank 0 {{\na: calc 1\n}}\n", "more than")],
)
def test_surplus_sends_and_impossible_ranks_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(FileError, match=words):
        replayed(goal(tmp_path, text))


def test_a_trace_begins_with_its_metadata(tmp_path: Path) -> None:
    good = node(1, CALC, micros=7)
    for first in ((), (node(5, CALC, micros=1),)):
        with pytest.raises(FileError, match=r"does not begin with GlobalMetadata\n.*fields of a node"):
            replayed(chakra(tmp_path, [good], first=first))
    with pytest.raises(FileError, match=r"does not begin with GlobalMetadata\n.*an empty file"):
        replayed(chakra(tmp_path, [], first=()))
    only_attributes = content(2, content(1, b"schema") + content(29, b"1.0.2-chakra.0.0.4"))
    for metadata in (METADATA + only_attributes, only_attributes, b""):
        assert seconds(chakra(tmp_path, [good], first=(metadata,)), star(1)) == pytest.approx(7e-6)


def test_an_id_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"the id 1 is given twice\n.*run\.0\.et: node 1 'n1'"):
        replayed(chakra(tmp_path, [node(1, CALC, micros=1), node(2, CALC), node(1, CALC, micros=1)]))


@pytest.mark.parametrize("kind", [0, 8, 77])
def test_a_type_beyond_the_schema_is_refused(tmp_path: Path, kind: int) -> None:
    with pytest.raises(FileError, match=rf"(?s)not replayed.*run\.0\.et: node 4.*type {kind}\n"):
        replayed(chakra(tmp_path, [node(1, CALC, micros=1), node(4, kind, micros=1)]))


def test_metadata_nodes_take_no_time_and_hold_nothing_up(tmp_path: Path) -> None:
    nodes = [
        node(1, CALC, micros=10, is_cpu_op=False),
        node(2, META, after=(1,), micros=50),
        node(3, META, after=(2,)),
        node(4, CALC, after=(3,), micros=5, is_cpu_op=True),
        node(5, META),
        node(6, CALC, after=(5,), micros=8, is_cpu_op=True),
    ]
    assert seconds(chakra(tmp_path, nodes), star(1)) == pytest.approx(15e-6)
    with pytest.raises(FileError, match="waits for itself"):
        replayed(chakra(tmp_path, [node(1, META, after=(2,)), node(2, META, after=(1,))]))


def test_ranks_that_give_a_collective_different_sizes_are_refused(tmp_path: Path) -> None:
    def calls(*sizes: int) -> list[bytes]:
        return [node(i, COLL, comm_type=0, comm_size=size) for i, size in enumerate(sizes, 1)]

    message = r"all_reduce of rank 1 is of 24 bytes\n.*run\.1\.et: node 2 'n2'\n.* 16 bytes at .*run\.0\.et: node 2"
    with pytest.raises(FileError, match=message):
        replayed(chakra(tmp_path, calls(8, 16), calls(8, 24)))


def test_sizes_of_different_groups_and_kinds_differ_freely(tmp_path: Path) -> None:
    (tmp_path / "comm_group.json").write_text('{"0": [0, 1], "1": [0, 1]}')
    nodes = [
        [
            node(1, COLL, comm_type=0, comm_size=8, pg_name="0"),
            node(2, COLL, after=(1,), comm_type=2, comm_size=16, pg_name="0"),
            node(3, COLL, after=(2,), comm_type=0, comm_size=32, pg_name="1"),
        ]
    ] * 2
    known = star(2, **{"all_reduce:2": line(0, 1e-9), "all_gather:2": line(0, 1e-9)})
    assert seconds(chakra(tmp_path, *nodes), known) == pytest.approx(56e-9)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 5], r"group 'g'\n.*rank 5, where the trace has ranks 0 to 1"),
        ([0, -1], r"group 'g'\n.*rank -1"),
        ([0, "1"], r"group 'g'\n.*rank '1'"),
        ([0, 0.5], r"group 'g'\n.*rank 0\.5"),
        ([1, 0, 1], r"a rank twice\n.*comm_group\.json: process group 'g'\n.*rank 1"),
        ([0], r"rank 1 calls a collective of process group 'g', but is not in it\n.*run\.1\.et: node 1"),
        ([], r"rank 0 calls a collective of process group 'g', but is not in it\n.*run\.0\.et: node 1"),
        (3, "no table of process groups"),
    ],
)
def test_faulty_process_groups_are_refused(tmp_path: Path, ranks: object, message: str) -> None:
    (tmp_path / "comm_group.json").write_text(json.dumps({"g": ranks}))
    trace = chakra(tmp_path, *[[node(1, COLL, comm_type=0, comm_size=8, pg_name="g")]] * 2)
    with pytest.raises(FileError, match=message) as error:
        replayed(trace)
    assert "comm_group.json" in str(error.value)
