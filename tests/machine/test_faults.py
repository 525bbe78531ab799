"""Machines without a rank or a cable."""

import pytest

from dovetail.core import MachineError
from dovetail.machine import Fault, Rails, load, without


def test_a_rank_leaves_with_its_node() -> None:
    left = load("torus-3x3 without rank:4")
    assert (left.ranks, left.num_nodes) == (8, 8)
    assert all(4 not in link[:2] for link in left.links)
    assert left.route(3, 4)[1]  # ranks are numbered anew: from node 3 to node 5


def test_a_node_stays_while_it_has_ranks() -> None:
    left = load("h100-8x2 without rank:0, rank:9")
    assert (left.ranks, left.nodes.count(0), left.nodes.count(1)) == (14, 7, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank:16", "ranks 0 to 15"),
        ("link:0-5", "node 0 is linked to"),
        ("cable 3", "names no rank or link"),
        ("link:", "names no rank or link"),
    ],
)
def test_unknown_parts_are_refused(text: str, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        load(f"torus-4x4 without {text}")


def test_the_port_of_every_rank_is_no_cable() -> None:
    with pytest.raises(MachineError, match="every rank of the node has its own"):
        without(load("h100-8x2"), Fault.parse("link:0--1"))


def test_what_falls_apart_is_refused() -> None:
    with pytest.raises(MachineError, match="no links lead from node"):
        load("two-hosts-1gbit without link:0-1")


@pytest.mark.parametrize("name", ["torus-4x4", "h100-8", "h100-8x2 without rank:3", "fat-tree-4x4", "mi300x-8"])
def test_machines_that_are_no_rails(name: str) -> None:
    assert Rails.of(load(name)) is None


def test_rails_of_a_preset() -> None:
    rails = Rails.of(load("ndv4-a100-8x16"))
    assert rails is not None
    assert (rails.servers, rails.devices, rails.inside, rails.outside) == (16, 8, "nvlink", "ib")


def test_a_large_machine_is_loaded_at_once() -> None:
    rails = Rails.of(load("h100-8x2048"))
    assert rails is not None
    assert rails.ranks == 16384
