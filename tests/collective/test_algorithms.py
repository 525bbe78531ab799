"""The built-in algorithms: proved on any number of ranks, run on real data, and as many steps as documented."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable

import needs
import numpy as np
import pytest
from collective_data import check
from effort import ratio

from dovetail.collective import ALGORITHMS, KINDS, Algorithm, algorithms_for, build, custom, make_algorithm, spec_of
from dovetail.collective.algorithms.double_tree import _edges_up
from dovetail.collective.algorithms.sccl import DGX1_LINKS
from dovetail.core import OperatorError, ProgramError
from dovetail.ir import Kind, Program, to_text

GOLDEN = needs.GOLDEN
RANKS = (1, 2, 3, 5, 6, 7, 8, 12, 16)


def shown(program: Program) -> str:
    """Return a program's text without source lines, which change."""
    return re.sub(r" at \S+$", "", to_text(program), flags=re.MULTILINE)


# The built-in algorithms


def cases(ranks: tuple[int, ...]) -> list[tuple[str, int, dict]]:
    """Yield every algorithm on every number of ranks and nodes, in place and out of place."""
    found = []
    for name, make in ALGORITHMS.items():
        words = inspect.signature(make).parameters
        for n in ranks:
            nodes = [k for k in (1, 2, 3, 4, n) if n % k == 0] if "nodes" in words else [1]
            places = [True, False] if "in_place" in words and name != "direct_all_to_all_v" else [None]
            options = [{"nodes": k} if "nodes" in words else {} for k in sorted(set(nodes))]
            options = [o | ({} if place is None else {"in_place": place}) for o in options for place in places]
            found += [(name, n, o) for o in options if name != "sccl_122_all_gather" or n == 8]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_proved_on_any_number_of_ranks(name: str) -> None:
    mine = [case for case in cases(RANKS) if case[0] == name]
    assert mine
    for _, n, options in mine:
        p = make_algorithm(name, n, **options)
        assert p.spec.kind in KINDS
        assert (p.name, name in algorithms_for(p.spec.kind)) == (name, True)
        p.compile()


@pytest.mark.slow
@pytest.mark.parametrize("most", [24, pytest.param(64, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_proved_on_many_ranks(name: str, most: int) -> None:
    """For each number of ranks one of the variants, in rotation; for the largest number all variants."""
    for n in range(2, most + 1):
        mine = [options for case, _, options in cases((n,)) if case == name]
        for options in mine if n == most else mine[n // 2 % max(len(mine), 1) :][:1]:
            make_algorithm(name, n, **options).compile()


@pytest.mark.parametrize(
    ("num_ranks", "options", "what"),
    [
        (0, {}, "num_ranks must be at least 1"),
        (3.0, {}, "num_ranks must be a whole number"),
        (3, {"channels": 2.5}, "channels must be a whole number"),
        (3, {"instances": "2"}, "instances must be a whole number"),
    ],
)
def test_counts_are_whole_numbers(num_ranks, options: dict, what: str) -> None:
    with pytest.raises(OperatorError, match=what):
        make_algorithm("ring_all_reduce", num_ranks, **options)


def test_instances_are_interleaved_or_batched() -> None:
    with pytest.raises(OperatorError, match="no way to replicate called 'striped'"):
        make_algorithm("ring_all_reduce", 3).compile(2, replicate="striped")


@pytest.mark.parametrize("root", [0, 1, 3])
@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather", "scatter"])
def test_trees_from_any_root(kind: str, root: int) -> None:
    for n in (4, 5, 6, 7, 9):
        build(f"binomial_tree_{kind}", n, root=root)


@pytest.mark.parametrize("channels", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_rings_on_any_number_of_channels(kind: str, channels: int) -> None:
    for n in (2, 3, 5):
        program = make_algorithm(f"ring_{kind}", n, channels=channels).trace()[0]
        assert len({c.id for c in program.channels}) == channels
        build(f"ring_{kind}", n, channels=channels)


@pytest.mark.parametrize(
    "make", dict.fromkeys(getattr(m, "func", m) for m in ALGORITHMS.values()), ids=lambda m: m.__name__
)
def test_programs_are_short(make: Callable[..., Algorithm]) -> None:
    assert len(inspect.getsource(make).splitlines()) < 30


@pytest.mark.parametrize(
    ("name", "options"),
    [("ring_all_reduce", {}), ("two_step_all_to_all", {"nodes": 2}), ("double_tree_all_reduce", {})],
)
@pytest.mark.parametrize("stage", ["traced", "compiled"])
def test_texts_are_golden(name: str, options: dict, stage: str) -> None:
    p = make_algorithm(name, 4 if options else 3, **options)
    program = p.trace()[0] if stage == "traced" else p.compile()
    assert shown(program) == (GOLDEN / f"collective_{name}_{stage}.txt").read_text()


def steps(p: Algorithm) -> int:
    """Return the messages on the longest path if a rank can send and receive any number of messages at once."""
    program = p.trace()[0]
    held: dict[tuple[int, str, int], int] = {}
    on_way: dict[int, list[int]] = {}
    for op in program.ops():
        regions = op.reads + op.writes * (op.kind == Kind.reduce)
        before = max((held.get((op.rank, r.buffer, s), 0) for r in regions for s in r.slots().tolist()), default=0)
        if op.kind == Kind.send:
            on_way.setdefault(op.chan_out, []).append(before + 1)
        if op.chan_in >= 0:
            before = max(before, on_way[op.chan_in].pop(0))
        for region in op.writes:
            held |= dict.fromkeys(((op.rank, region.buffer, slot) for slot in region.slots().tolist()), before)
    return max(held.values(), default=0)


@pytest.mark.parametrize(
    ("name", "n", "options", "wanted"),
    [
        ("ring_all_reduce", 8, {}, 14),
        ("all_pairs_all_reduce", 8, {}, 2),
        ("recursive_halving_doubling_all_reduce", 8, {}, 6),
        ("recursive_halving_doubling_all_reduce", 7, {}, 6),
        ("recursive_doubling_all_reduce", 8, {}, 3),
        ("recursive_doubling_all_reduce", 9, {}, 4),
        ("recursive_doubling_all_gather", 8, {}, 3),
        ("recursive_doubling_all_gather", 15, {}, 4),
        ("recursive_halving_reduce_scatter", 15, {}, 4),
        ("binomial_tree_all_reduce", 16, {}, 8),
        ("binomial_tree_gather", 16, {}, 4),
        ("binomial_tree_scatter", 16, {}, 4),
        ("hierarchical_all_reduce", 16, {"nodes": 2}, 16),
        ("direct_all_to_all", 9, {}, 1),
        ("bruck_all_to_all", 16, {}, 4),
        ("two_step_all_to_all", 16, {"nodes": 4}, 2),
        ("three_step_all_to_all", 16, {"nodes": 4}, 3),
        ("all_to_next", 12, {"nodes": 3}, 3),
        ("sccl_122_all_gather", 8, {}, 2),
    ],
)
def test_steps_are_as_many_as_documented(name: str, n: int, options: dict, wanted: int) -> None:
    assert steps(make_algorithm(name, n, **options)) == wanted


def crossing(p: Algorithm, size: int) -> list[tuple[int, int, int]]:
    """Return (source, destination, slots) of the messages between nodes of `size` ranks."""
    program = p.trace()[0]
    sends = [op for op in program.ops() if op.kind == Kind.send]
    ends = [(program.channels[op.chan_out], op.reads[0].num_slots) for op in sends]
    return [(c.src, c.dst, count) for c, count in ends if c.src // size != c.dst // size]


def test_few_and_long_messages_travel_between_nodes() -> None:
    assert len(crossing(make_algorithm("direct_all_to_all", 16), 4)) == 16 * 12
    two = crossing(make_algorithm("two_step_all_to_all", 16, nodes=4), 4)
    assert (len(two), {count for *_, count in two}) == (16 * 3, {4})
    three = crossing(make_algorithm("three_step_all_to_all", 16, nodes=4), 4)
    assert (len(three), {count for *_, count in three}) == (4 * 3, {16})
    together = crossing(make_algorithm("all_to_next", 12, nodes=3), 4)
    assert together == [(4 + i, 8 + i, 1) for i in range(4)] + [(i, 4 + i, 1) for i in range(4)], (
        "all NICs carry equal shares"
    )
    flat, nested = (
        crossing(make_algorithm(f"{k}_all_reduce", 16, **o), 4)
        for k, o in (("ring", {}), ("hierarchical", {"nodes": 4}))
    )
    assert sum(count for *_, count in nested) == sum(count for *_, count in flat) * 4 / 5


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 16, 33, 64])
def test_no_rank_is_an_inner_node_of_both_trees(n: int) -> None:
    trees = [_edges_up(n, tree) for tree in (0, 1)]
    for edges in trees:
        assert sorted([child for child, _ in edges] + [edges[-1][1]]) == list(range(n)), (
            "one root, and all other ranks below it"
        )
        assert max(Counter(parent for _, parent in edges).values()) <= 2
    roots = [edges[-1][1] for edges in trees]
    inside = [{parent for _, parent in edges} for edges in trees]
    assert inside[0] & inside[1] <= set(roots)


def test_sccl_uses_only_the_links_of_its_machine() -> None:
    """Two steps; in each, no link carries more chunks in one direction than it has NVLinks."""
    assert {sum(n for ends, n in DGX1_LINKS.items() if rank in ends) for rank in range(8)} == {6}
    program = make_algorithm("sccl_122_all_gather", 8).trace()[0]
    sends = [program.channels[op.chan_out] for op in program.ops() if op.kind == Kind.send]
    for step in (sends[:32], sends[32:]):
        for (src, dst), count in Counter((c.src, c.dst) for c in step).items():
            assert count <= DGX1_LINKS[min(src, dst), max(src, dst)]
    assert steps(make_algorithm("sccl_122_all_gather", 8)) == 2


def test_time_of_tracing_grows_with_the_number_of_ops() -> None:
    small, large = (make_algorithm("ring_all_reduce", n).trace for n in (32, 128))
    most = 3 * (128 / 32) ** 2
    assert ratio(large, small, most) < most


# On real data


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("instances", [1, 3])
def test_real_data_gives_the_defined_result(name: str, instances: int) -> None:
    rng = np.random.default_rng(instances)
    for case, n, options in cases((1, 2, 4, 5, 8)):
        if case == name:
            p = make_algorithm(name, n, **options)
            check(p.spec, p.compile(instances), rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_batched_instances_and_unfused_programs_give_the_defined_result(name: str) -> None:
    rng = np.random.default_rng(0)
    for case, n, options in cases((3, 8)):
        if case == name:
            p = make_algorithm(name, n, **options)
            check(p.spec, p.compile(fuse=False), rng)
            runs = p.compile(2, strided=False)
            assert (runs.columns["read_blocks"] == 1).all()
            assert (runs.columns["write_blocks"] == 1).all()
            check(p.spec, runs, rng)
            try:
                check(p.spec, p.compile(2, replicate="batched"), rng)
            except ProgramError as error:  # batched instances would change the result
                if "batched" not in str(error):
                    raise


def test_a_wrong_program_is_noticed_on_data() -> None:
    p = Algorithm("wrong", custom(2, 1, 1, lambda rank, slot: []))
    for rank in (0, 1):
        p.chunk(rank, "input", 0).copy(rank, "output", 0)
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        check(spec_of("all_reduce", 2), p.compile(), np.random.default_rng(1))
