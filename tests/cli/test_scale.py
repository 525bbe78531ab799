"""Collectives of many ranks on the command line: planned by size, proved and simulated folded, failing, replayed."""

import shlex

import pytest


def test_a_collective_is_planned_by_size(document):
    found = document("plan", "all_reduce", "--machine", "h100-8x16", "--min", "1K", "--max", "16M", "--factor", "16384")
    assert (found["ranks"], found["folded"], found["collective"]) == (128, True, "all_reduce")
    small, large = found["sizes"]
    assert (small["num_bytes"], large["num_bytes"]) == (1 << 10, 1 << 24)
    assert small["algorithm"] != large["algorithm"]
    for row in found["sizes"]:
        assert row["checks"]["result"]["message"].startswith("every output of all 128 ranks")
        assert all(rival["predicted_s"] >= row["predicted_s"] for rival in row["rivals"])
        assert len(row["rivals"]) == 3


def test_few_ranks_are_planned_one_by_one(document):
    found = document("plan", "all_gather", "--machine", "torus-2x2", "--min", "64K", "--max", "64K")
    assert (found["ranks"], found["folded"]) == (4, False)
    (row,) = found["sizes"]
    assert row["rivals"][0]["predicted_s"] >= row["predicted_s"]


def test_the_table_of_a_plan_by_size(call):
    code, out, err = call("plan", "all_reduce", "--machine", "h100-8x16", "--min", "1M", "--max", "1M")
    assert (code, err) == (0, "")
    assert "128 ranks, of which rank 0 stands for all" in out
    assert "proved" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("all_reduce", "--machine", "torus-8x16x16"), "all_reduce has no folded algorithm on a torus of 3 axes"),
        (("all_reduce", "--machine", "h100-8x128", "--factor", "1.0001"), "more than 1000 sizes"),
        (("all_to_all", "--machine", "h100-8x2048"), "all_to_all has no folded algorithm"),
        (("all_reduce", "--machine", "h100-8x2048", "--ranks", "1000"), "1000 of the 16384 ranks"),
        (("all_reduce", "--machine", "h100-8", "--out", "folder"), "--json"),
    ],
)
def test_what_cannot_be_planned_says_why(call, words, why):
    code, out, err = call("plan", *words)
    assert (code, out) == (2, "")
    assert why in err


def test_an_algorithm_is_proved_folded(document, call):
    found = document("verify", "hierarchical_all_reduce", "--ranks", "1024", "--nodes", "128")
    assert found["ok"]
    assert found["checks"]["result"]["message"] == "every output of all 1024 ranks holds what all_reduce requires"
    assert "all_reduce" in call("verify", "ring_all_gather", "--ranks", "4")[1].replace("all_gather", "all_reduce")
    assert document("verify", "ring_all_gather", "--ranks", "4")["collective_found"] == "all_gather"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("verify", "ring_all_reduce"), "--ranks"),
        (("verify", "hierarchical_all_reduce", "--ranks", "1000"), "nodes"),
        (("verify", "hierarchical_all_reduce", "--ranks", "1024", "--nodes", "1024"), "at most 512"),
        (("verify", "ring_all_reduce", "--ranks", "99999999999"), "at most 65536 ranks"),
        (("verify", "ring_all_reduce", "--ranks", "2048", "--fifo-depth", "4"), "without --fail"),
        (("verify", "double_tree_all_reduce", "--ranks", "5000"), "folded"),
        (("simulate", "ring_all_reduce"), "--bytes"),
        (("simulate", "ring_all_reduce", "--machine", "h100-8", "--bytes", "1M", "--slot", "4"), "--bytes"),
    ],
)
def test_what_is_missing_is_asked_for(call, words, hint):
    code, _, err = call(*words)
    assert code == 2
    assert hint in err


def test_ranks_are_not_for_files(call, tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("x")
    code, _, err = call("verify", path, "--ranks", "3")
    assert code == 2
    assert "--ranks is for algorithms" in err


def test_an_algorithm_is_simulated_folded_as_with_every_rank(document):
    words = ("simulate", "hierarchical_all_reduce", "--machine", "h100-8x16", "--bytes", "1M")
    folded = document(*words)
    every = document(*words, "--contention", "1")
    assert (folded["num_ranks"], every["num_ranks"]) == (8, 128)
    assert folded["meta"]["stands_for_ranks"] == 128
    assert max(folded["columns"]["end_s"]) == max(every["columns"]["end_s"])


def test_a_failure_is_shown_and_planned_around(call, document):
    words = ("simulate", "ring_all_reduce", "--machine", "torus-2x4", "--bytes", "1M")
    found = document(*words, "--fail", "rank:5@10us", code=1)
    assert (found["survives"], found["ranks"], found["left"]) == (False, list(range(8)), "torus-2x4 without rank:5")
    code, out, _ = call(*words, "--fail", "link:0-1@10us")
    assert code == 1
    assert "dovetail plan all_reduce --min 1M --max 1M --machine 'torus-2x4 without link:0-1'" in out
    code, out, _ = call(*words, "--fail", "rank:5@10")
    assert code == 0
    assert "fails at 10.000 s: that is after the end of ring_all_reduce, at " in out
    around = document("plan", "all_reduce", "--machine", "torus-2x4 without rank:5", "--min", "1M", "--max", "1M")
    assert around["ranks"] == 7


@pytest.mark.parametrize("fail", ["rank:1@1us", "link:0-1@1us"])
def test_what_has_no_plan_is_simulated_around_a_failure(call, fail):
    """The command that is printed works as it is."""
    out = call("simulate", "ring_all_gather_v", "--machine", "torus-2x2", "--bytes", "1M", "--fail", fail)[1]
    command = shlex.split(out.partition("around it: dovetail ")[2])
    assert command[:4] == ["simulate", "ring_all_gather_v", "--bytes", "1M"]
    assert call(*command)[0] == 0


def test_what_is_left_of_many_ranks_is_not_planned(call):
    words = ("simulate", "ring_all_reduce", "--machine", "h100-8x33", "--bytes", "264K")
    code, out, _ = call(*words, "--fail", "rank:5@10us")
    assert code == 1
    assert "263 ranks are left on 'h100-8x33 without rank:5'; a plan around a failure is made for at most 256." in out


def test_algorithms_of_two_levels_take_a_torus_s_rows_as_nodes(call, document):
    words = ("all_reduce", "--machine", "torus-4x4", "--min", "1M", "--max", "1M")
    found, asked = document("plan", *words), document("plan", *words, "--nodes", "4")
    assert found["sizes"] == asked["sizes"]
    assert found["sizes"][0]["algorithm"].startswith("hierarchical_all_reduce")
    assert "the 4 rows of the torus" in call("plan", *words)[1]
    levels = document("simulate", "hierarchical_all_reduce", "--machine", "torus-4x4", "--bytes", "1M")
    flat = document("simulate", "ring_all_reduce", "--machine", "torus-4x4", "--bytes", "1M")
    assert max(levels["columns"]["end_s"]) < max(flat["columns"]["end_s"])


@pytest.mark.parametrize("name", ["ring_all_reduce", "double_tree_all_reduce"])
def test_large_messages_wait_for_no_receive_as_ranks_post_it_ahead(document, name):
    """As `plan` predicts: the machine's messages of this size wait for their receive otherwise."""
    size, machine = ("--min", "16M", "--max", "16M"), ("--machine", "two-hosts-1gbit")
    alone = document("simulate", name, *machine, "--bytes", "16M")
    planned = document("plan", "all_reduce", *machine, *size)["sizes"][0]
    assert max(alone["columns"]["end_s"]) == pytest.approx(planned["predicted_s"], rel=0.1)


@pytest.mark.parametrize("fail", ["rank:5", "rank:99@1s", "link:0-6@1s", "fan:3@1s"])
def test_unknown_failures_are_refused(call, fail):
    code, _, err = call("simulate", "ring_all_reduce", "--machine", "torus-2x4", "--bytes", "1M", "--fail", fail)
    assert code == 2
    assert "torus-2x4" in err or "rank:5" in err


def test_a_schedule_of_another_tool(call, document, tmp_path):
    path = tmp_path / "swap.goal"
    path.write_text(
        "num_ranks 2\nrank 0 {\na: send 8b to 1\nb: calc 1000\nb requires a\n}\nrank 1 {\nrecv 8b from 0\n}\n"
    )
    for words in (("--ranks", "5"), ("--bytes", "1M"), ("--slot", "1M")):
        code, _, err = call("simulate", path, "--machine", "two-hosts-1gbit", *words)
        assert (code, words[0] in err) == (2, True)
    found = document("simulate", path, "--machine", "two-hosts-1gbit")
    assert found["num_ranks"] == 2
    assert len(found["columns"]["op"]) == 3
    code, _, err = call("simulate", path)
    assert code == 2
    assert "names no machine" in err
