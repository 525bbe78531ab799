"""Collectives on a user's communicators: on real ranks under each MPI, with planted faults; selection rules."""

from contextlib import nullcontext
from types import SimpleNamespace

import needs
import numpy as np
import pytest

from dovetail.call.build_engine import program_of
from dovetail.call.collective_arguments import even_sides, part_of, uneven_sides, whole_counts
from dovetail.call.selection_rules import rules_of
from dovetail.call.validate import _asked as asked
from dovetail.core import OperatorError
from dovetail.store.selection import Choice, Row, Selection

RANKS = needs.RANKS / "comm_ranks.py"


def run(mpi, ranks, *words, place, timeout_s=280):
    """Run `comm_ranks.py`; return its output and exit code."""
    environment = mpi.env | {"DOVETAIL_SELECTION": str(place / "selection.json")}
    python = [str(mpi.python), "-m", "mpi4py", *(["-rc", "thread_level=funneled"] if "one_thread" in words else [])]
    command = [*mpi.mpiexec(ranks), *python, str(RANKS), *words]
    return needs.subprocess.run(
        command, env=environment, text=True, capture_output=True, timeout=timeout_s, check=False
    )


@pytest.mark.mpi
class TestRanks:
    def test_all_calls(self, mpi, tmp_path):
        done = run(mpi, 4 if mpi.name == "mpich" else 2, place=tmp_path)
        assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]

    def test_sizes_that_differ_between_ranks(self, mpi, tmp_path):
        done = run(mpi, 2, "mismatch", place=tmp_path)
        assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]

    def test_a_rank_that_stopped_waiting_keeps_its_memory(self, mpi, tmp_path):
        done = run(mpi, 2, "late", place=tmp_path)
        assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]

    def test_another_thread(self, mpi, tmp_path):
        done = run(mpi, 1, "one_thread", place=tmp_path)
        assert "all the same" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]

    @pytest.mark.parametrize(
        ("fault", "seen_by"),
        [
            ("result", "test_algorithms"),
            ("threshold", "test_sizes_switch"),
            ("root", "test_algorithms"),
            ("sizes", "test_dtypes"),
        ],
    )
    def test_planted_faults(self, fault, seen_by, tmp_path):
        done = run(needs.mpi("mpich"), 2, fault, seen_by, place=tmp_path)
        assert done.returncode != 0
        assert "all the same" not in done.stdout
        assert f"in {seen_by}" in done.stderr, done.stderr[-2000:]


class TestRules:
    def rows(self, *spans, collective="all_reduce", nodes=1):
        return tuple(Row(collective, 4, nodes, a, b, name) for a, b, name in spans)

    def steps(self, rows, kind="all_reduce"):
        return [(least, choice and choice.algorithm) for least, choice in rules_of(Selection({}, rows), 4, 1)[kind]]

    def test_neighbours_and_gaps(self):
        rows = self.rows((8, 64, "library"), (64, 128, "a"), (128, 256, "b"), (512, 1024, "a"))
        assert self.steps(rows) == [(8, None), (64, "a"), (128, "b"), (256, None), (512, "a"), (1024, None)]

    def test_rows_for_other_ranks_and_nodes_are_ignored(self):
        assert self.steps(self.rows((8, 64, "a"), nodes=2)) == []
        assert rules_of(Selection({}, self.rows((8, 64, "a"))), 3, 1)["all_reduce"] == []
        assert all(not steps for steps in rules_of(None, 4, 1).values())

    def test_v_variants_prefer_their_own_rows(self):
        even = self.rows((0, 8, "ring_all_gather"), collective="all_gather")
        own = self.rows((0, 9, "b"), collective="all_gather_v")
        assert self.steps(even, "all_gather_v") == [(0, "ring_all_gather"), (8, None)]
        assert self.steps(even + own, "all_gather_v") == [(0, "b"), (9, None)]

    def test_v_variants_of_even_only_algorithms_use_the_library(self):
        rows = self.rows((0, 8, "bruck_all_to_all"), (8, 9, "direct_all_to_all"), collective="all_to_all")
        assert self.steps(rows, "all_to_all_v") == [(0, None), (8, "direct_all_to_all"), (9, None)]


class TestPrograms:
    def test_v_variants_are_found(self):
        assert program_of("all_gather_v", Choice("ring_all_gather"), 3, 1).num_ranks == 3

    def test_in_place_where_the_output_is_the_whole(self):
        for kind, name in (("all_gather", "ring_all_gather"), ("broadcast", "binomial_tree_broadcast")):
            assert [b.role for b in program_of(kind, Choice(name), 3, 1).buffers if b.role != "scratch"] == ["input"]

    def test_root(self):
        one, other = (program_of("gather", Choice("binomial_tree_gather"), 3, 1, root) for root in (0, 2))
        assert one.buffer("output").slots == (3, 0, 0)
        assert other.buffer("output").slots == (0, 0, 3)

    @pytest.mark.parametrize("name", ["ring_all_gather", "none", "library"])
    def test_not_an_algorithm_for_it(self, name):
        with pytest.raises(OperatorError, match="no algorithm for all_reduce"):
            program_of("all_reduce", Choice(name), 3, 1)


class TestSides:
    def test_shapes_of_results(self):
        a = np.ones((6, 2))
        assert even_sides("all_gather", 0, 3, a, None, 0)[1].shape == (18, 2)
        assert even_sides("reduce_scatter", 0, 3, a, None, 0)[1].shape == (2, 2)
        assert even_sides("all_to_all", 0, 3, a, None, 0)[1].shape == (6, 2)
        assert even_sides("gather", 1, 3, a, None, 0)[1] is None
        assert even_sides("scatter", 1, 3, a, a, 0)[0] is None
        assert even_sides("all_to_next", 0, 3, a, None, 0)[1] is None
        assert uneven_sides("all_gather_v", 1, a, None, np.array([1, 6, 2]))[1].shape == (9, 2)

    def test_part_and_whole(self):
        a, b = np.ones(2), np.ones(6)
        assert part_of("all_reduce", 3, b, b) == (6, 6)
        assert part_of("all_gather", 3, a, b) == part_of("reduce_scatter", 3, b, a) == (2, 6)
        assert part_of("all_to_all", 3, b, b) == (2, 6)
        assert part_of("gather", 3, a, None) == part_of("scatter", 3, None, a) == (2, 6)
        for kind in ("all_reduce", "reduce_scatter", "all_to_all"):
            with pytest.raises(OperatorError, match="from 2 elements to 6"):
                part_of(kind, 3, a, b)

    @pytest.mark.parametrize("counts", [[1.0, 2.0], [1, -1], [1], [[1, 2]], "ab", [True, False]])
    def test_counts(self, counts):
        with pytest.raises(OperatorError, match="counts of shape"):
            whole_counts("all_gather_v", counts, (2,))

    @pytest.mark.parametrize(("each", "fits"), [(3 << 27, True), (1 << 29, False)])
    def test_the_limit_counts_elements_of_one_rank_not_of_all(self, each, fits):
        made, counts = SimpleNamespace(rank=0, size=4), np.full((4, 4), each)
        with nullcontext() if fits else pytest.raises(OperatorError, match=f"of {4 * each} elements a rank"):
            asked("all_to_all_v", made, np.empty(4 * each, np.uint8), None, "sum", 0, counts)
