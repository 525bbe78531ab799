"""Folded programs: which Programs fold, what the proof of rank 0's ops proves, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from dovetail.collective import build
from dovetail.collective.folded import FOLDED, build_folded
from dovetail.core import ProgramError
from dovetail.ir import Builder, Folded, Kind, Program, Region, Requirement, Symmetry, fold, verify, verify_folded

RANKS = {"hierarchical_all_reduce": ((4, 2), (12, 3), (16, 8), (256, 32)), "recursive": ((4, 1), (8, 1), (64, 1))}
CASES = [
    (name, ranks, nodes)
    for name in FOLDED
    for ranks, nodes in RANKS.get(name, RANKS["recursive"] if "recursive" in name else ((3, 1), (8, 1), (33, 1)))
]


def refold(program: Program, folded: Folded) -> Folded:
    return fold(program, folded.symmetry.axes, folded.symmetry.layouts, *folded.requirement)


def changed(program: Program, column: str, row: int, by: int) -> Program:
    new = program.columns[column].copy()
    new[row] += by
    return program.with_columns({**program.columns, column: new})


@pytest.mark.parametrize(("name", "ranks", "nodes"), CASES)
def test_rules_are_the_compiled_programs(name: str, ranks: int, nodes: int) -> None:
    folded = build_folded(name, ranks, nodes=nodes)
    options = {"nodes": nodes} if name.startswith("hierarchical") else {}
    compiled = refold(build(name, ranks, **options), folded)
    ends = [
        [(each.offsets[c], each.ids[c], each.one.channels[c].depth) if c >= 0 else None for c in each.one.columns[way]]
        for each in (compiled, folded)
        for way in ("chan_in", "chan_out")
    ]
    assert ends[:2] == ends[2:]
    for column in set(folded.one.columns) - {"chan_in", "chan_out", "line"}:
        assert np.array_equal(folded.one.columns[column], compiled.one.columns[column]), column
    assert folded.one.buffers == compiled.one.buffers
    assert folded.one.lanes == compiled.one.lanes


@pytest.mark.parametrize(("name", "ranks", "nodes"), CASES)
def test_proof_agrees_with_that_of_all_ranks(name: str, ranks: int, nodes: int) -> None:
    folded = build_folded(name, ranks, nodes=nodes)
    found, whole = verify_folded(folded), verify(folded.expand())
    assert found.ok, found.checks
    assert whole.ok, whole.checks
    assert found.min_fifo_depth == whole.min_fifo_depth
    assert found.collective_found == folded.requirement.collective


def test_expanded_programs_fold_back() -> None:
    folded = build_folded("hierarchical_all_reduce", 12, nodes=3)
    assert refold(folded.expand(), folded).expand() == folded.expand()


@pytest.mark.parametrize(
    ("column", "by", "text"),
    [
        ("read_offset", 1, "read_offset"),
        ("write_offset", -1, "write_offset"),
        ("kind", 1, "kind"),
        ("chan_out", -1, "end of chan_out"),
        ("dep", -1, "op that it waits for"),
        ("lane", -1, "lane"),
    ],
)
def test_almost_symmetric_programs_are_refused(column: str, by: int, text: str) -> None:
    folded = build_folded("hierarchical_all_reduce", 12, nodes=3)
    program = folded.expand()
    rows = program.columns[column]
    usable = [row for row in range(len(rows) // 2, len(rows)) if rows[row] + by >= (1 if column == "kind" else 0)]
    row = usable[0] if column != "lane" else max(row for row in usable if rows[row] == 1)
    with pytest.raises(ProgramError, match=text):
        refold(changed(program, column, row, by), folded)


def test_one_deeper_channel_is_refused() -> None:
    folded = build_folded("ring_all_reduce", 5)
    program = folded.expand()
    channels = (*program.channels[:-1], program.channels[-1]._replace(depth=3))
    with pytest.raises(ProgramError, match="depth"):
        refold(replace(program, channels=channels), folded)


def test_programs_without_the_symmetry_are_refused() -> None:
    layouts = {"input": ((8, 0),), "output": (), "scratch": ((4, -1),)}
    halving = build("recursive_halving_reduce_scatter", 4)
    with pytest.raises(ProgramError):
        fold(halving, (2, 2), {"input": ((2, 0), (2, 1)), "output": (), "scratch": ((2, 0), (2, 1))}, "reduce_scatter")
    with pytest.raises(ProgramError):
        fold(build("binomial_tree_all_reduce", 8), (8,), layouts, "all_reduce")
    ring = build_folded("ring_all_reduce", 4)
    with pytest.raises(ProgramError, match=r"image of rank 0's"):
        fold(ring.expand(), (2, 2), {"input": ((2, 0), (2, 1))}, "all_reduce", 4)
    with pytest.raises(ProgramError, match="post-conditions"):
        fold(replace(ring.expand(), posts=()), (4,), {"input": ((4, 0),)}, "all_reduce", 4)


def with_op(folded: Folded, column: str, row: int, value: int) -> Folded:
    new = folded.one.columns[column].copy()
    new[row] = value
    return replace(folded, one=folded.one.with_columns({**folded.one.columns, column: new}))


@pytest.mark.parametrize(
    ("name", "column", "row", "value", "check"),
    [
        ("ring_all_reduce", "read_offset", 1, 1, "result"),  # adds another slot
        ("ring_all_gather", "write_offset", 1, 2, "result"),  # stores it in another place
        ("ring_all_reduce", "chan_out", 0, -1, "bounds"),
        ("ring_reduce_scatter", "read_offset", 3, 1, "result"),
    ],
)
def test_wrong_programs_fail(name: str, column: str, row: int, value: int, check: str) -> None:
    assert verify_folded(with_op(build_folded(name, 4), column, row, value)).failed == check


def test_result_that_counts_a_rank_twice_is_refused() -> None:
    """Rank 0 sends its own slot to rank 1 and adds rank 3's, four times: the fourth time it adds its own again."""
    b, whole = Builder("around", 1), Region("input", 0, 1)
    b.buffer("input", "input", 1)
    net, channel = b.lane("net", "net"), b.channel(0, 0, 0, 2)
    b.add(Kind.send, 0, net, reads=[whole], chan_out=channel)
    for _ in range(3):
        ends = {"chan_in": channel, "chan_out": channel}
        b.add(Kind.recv_reduce_copy_send, 0, net, reads=[whole], writes=[whole], **ends)
    b.add(Kind.recv_reduce, 0, net, reads=[whole], writes=[whole], chan_in=channel)
    folded = Folded(Symmetry((4,), {"input": ()}), b.build(), (1,), (0,), Requirement("all_reduce", 1))
    assert "twice" in verify_folded(folded).checks["result"].message
    assert verify(folded.expand()).failed == "result"


def test_lost_dependency_is_a_race() -> None:
    folded = build_folded("recursive_halving_doubling_all_reduce", 8)
    col = folded.one.columns
    start = col["dep_start"].copy()
    start[start > 0] -= 1
    one = folded.one.with_columns({**col, "dep": col["dep"][1:], "dep_start": start})
    found = verify_folded(replace(folded, one=one))
    assert found.failed == "races"
    assert verify(replace(folded, one=one).expand()).failed == "races"


def test_ranks_that_all_receive_first_deadlock() -> None:
    b, whole = Builder("patient", 1), Region("input", 0, 1)
    b.buffer("input", "input", 1)
    net, channel = b.lane("net", "net"), b.channel(0, 0, 0, 2)
    b.add(Kind.recv_reduce, 0, net, reads=[whole], writes=[whole], chan_in=channel)
    b.add(Kind.send, 0, net, reads=[whole], chan_out=channel)
    folded = Folded(Symmetry((2,), {"input": ()}), b.build(), (1,), (0,), Requirement("all_reduce", 1))
    assert verify_folded(folded).failed == "deadlock"
    assert verify(folded.expand()).failed == "deadlock"


def test_shallow_channels_deadlock() -> None:
    folded = build_folded("ring_all_reduce", 4)
    shallow = replace(folded, one=folded.one.with_depth(1))
    assert verify_folded(shallow).failed == "deadlock"
    assert verify(shallow.expand()).failed == "deadlock"


def test_requirements_that_differ_among_ranks_are_refused() -> None:
    """The slots of an all_gather's output are numbered by another axis than ranks: rank 1 would need another order."""
    folded = build_folded("ring_all_gather", 4)
    symmetry = Symmetry((4,), {"input": (), "output": ((4, -1),)})
    assert verify_folded(replace(folded, symmetry=symmetry)).failed == "bounds"


def mutant(folded: Folded, rng: np.random.Generator) -> Folded:
    """Return a folded program with one random change to an offset, a kind, a dependency, or the order of two ops."""
    col = dict(folded.one.columns)
    column = rng.choice(["read_offset", "write_offset", "kind", "lane", "chan_out", "dep"])
    new = col[column].copy()
    if not len(new):
        column, new = "read_offset", col["read_offset"].copy()
    row = int(rng.integers(len(new)))
    if column == "dep":
        new[row] = max(0, new[row] - 1)
    elif column in ("kind", "lane", "chan_out"):
        new[row] = rng.choice(new)
    else:
        new[row] = rng.integers(max(buffer.slots[0] for buffer in folded.one.buffers))
    return replace(folded, one=folded.one.with_columns({**col, column: new}))


def test_what_is_proved_folded_is_right_expanded() -> None:
    rng, verdicts = np.random.default_rng(29), {(a, b): 0 for a in (True, False) for b in (True, False)}
    sources = [build_folded(name, 4, nodes=2) for name in FOLDED] + [
        build_folded("hierarchical_all_reduce", 6, nodes=3)
    ]
    for number in range(240):
        try:
            changed_one = mutant(sources[number % len(sources)], rng)
        except ProgramError:
            continue
        found, whole = verify_folded(changed_one), verify(changed_one.expand())
        verdicts[found.ok, whole.ok] += 1
        assert whole.ok or not found.ok, (changed_one, whole.checks)
    assert verdicts[True, True] > 5, verdicts
    assert verdicts[False, False] > 40, verdicts


def test_sixteen_thousand_ranks_are_proved() -> None:
    folded = build_folded("hierarchical_all_reduce", 16384, nodes=2048)
    found = verify_folded(folded)
    assert found.ok
    assert "all 16384 ranks" in found.checks["result"].message
    broken = with_op(folded, "read_offset", 2000, 7)
    assert verify_folded(broken).failed == "result"
