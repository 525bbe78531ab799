"""Post-conditions in bulk: equal to those one by one; those of standard collectives; recognised on many ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.collective import spec_of
from dovetail.collective.spec import Spec
from dovetail.core import ProgramError
from dovetail.ir import Builder, Kind, Post, Program, Region, Term, verify, verify_reference
from dovetail.ir.posts import Posts
from dovetail.ir.proof.against import unasked_slots
from dovetail.ir.standard import standard_posts

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_next")
KINDS += ("broadcast", "reduce", "gather", "scatter")
ODD = (
    Post((0, 3), Region("y", 1, 2, 3, 4), (Term("g", ((1, Region("x", 0, 1)), (2, Region("z", 3, 4, 5, 6)))),)),
    Post((1,), Region("w", 0, 1), ()),
    Post((2,), Region("y", 0, 1), (Term(None, ((0, Region("x", 7, 1)),)), Term(None, ((1, Region("x", 0, 1)),)))),
)


def test_posts_in_columns_equal_those_one_by_one():
    posts = Posts.of(ODD)
    assert (tuple(posts), posts[-1], posts[1:], len(posts)) == (ODD, ODD[-1], ODD[1:], 3)
    assert posts == ODD == posts
    assert hash(posts) == hash(ODD)
    assert posts != ODD[:2]
    assert posts != Posts.of(ODD[::-1])
    assert Posts.of(()) == ()


def test_numbers_beyond_64_bits_are_refused():
    with pytest.raises(ProgramError, match="beyond 64 bits"):
        Posts.of([Post((0,), Region("y", 1 << 70, 1), ())])


def slot(rank: int, at: int) -> Term:
    return Term(None, ((rank, Region("input", at, 1)),))


@pytest.mark.parametrize(
    ("kind", "posts"),
    [
        ("all_reduce", [((0, 1), 0, [slot(0, 0), slot(1, 0)])]),
        ("all_gather", [((0, 1), 0, [slot(0, 0)]), ((0, 1), 1, [slot(1, 0)])]),
        ("reduce_scatter", [((0,), 0, [slot(0, 0), slot(1, 0)]), ((1,), 0, [slot(0, 1), slot(1, 1)])]),
        ("all_to_all", [((r,), s, [slot(s, r)]) for r in (0, 1) for s in (0, 1)]),
        ("all_to_next", [((1,), 0, [slot(0, 0)])]),
        ("broadcast", [((0, 1), 0, [slot(1, 0)])]),
        ("reduce", [((1,), 0, [slot(0, 0), slot(1, 0)])]),
        ("gather", [((1,), 0, [slot(0, 0)]), ((1,), 1, [slot(1, 0)])]),
        ("scatter", [((0,), 0, [slot(1, 0)]), ((1,), 0, [slot(1, 1)])]),
    ],
)
def test_posts_of_a_collective(kind, posts):
    wanted = tuple(Post(ranks, Region("output", at, 1), tuple(terms)) for ranks, at, terms in posts)
    assert tuple(standard_posts(kind, 2, 1, root=1)) == wanted


def test_slots_without_posts_are_counted_once():
    b = Builder("p", 2)
    b.buffer("x", "input", 4)
    b.buffer("y", "output", [1 << 40, 9])
    for ranks, region in (((0, 1), Region("y", 1, 3)), ((1,), Region("y", 2, 2)), ((1,), Region("y", 5, 1, 2, 2))):
        b.post(ranks, region, [])
    b.post([0], Region("x", 0, 1), [])
    assert unasked_slots(b.build()) == (1 << 40) - 3 + 9 - 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_collective_of_many_ranks_is_found(kind):
    spec = spec_of(kind, 160, root=159)
    found = verify(replace(direct(spec), posts=()))
    assert (found.ok, found.collective_found) == (True, kind)


@pytest.mark.parametrize("root", [0, 1, 2])
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_a_collective_other_than_the_required_one_is_found(kind, root):
    """Other roots are asked for first: the same sum on another rank, or another rank's slots."""
    wrong = replace(direct(spec_of(kind, 3, root=root)), posts=spec_of("all_reduce", 3).posts)
    found = verify(wrong)
    assert found.to_json() == verify_reference(wrong).to_json()
    assert (found.failed, found.collective_found) == ("result", kind)


def direct(spec: Spec) -> Program:
    """A program in which every contribution is sent directly to where it is summed."""
    b = Builder("direct", spec.num_ranks)
    for buffer in spec.buffers:
        b.buffer(*buffer)
    out, into = b.lane("out", "net"), b.lane("in", "net")
    for post in spec.posts:
        for rank in post.ranks:
            for number, term in enumerate(sorted(post.terms, key=lambda term: term.args[0][0] != rank)):
                ((source, region),) = term.args
                if source == rank:
                    b.add(Kind.copy, rank, into, reads=[region], writes=[post.region])
                    continue
                channel, held = b.channel(source, rank, depth=1 << 20), [post.region] * (number > 0)
                b.add(Kind.send, source, out, reads=[region], chan_out=channel)
                kind = Kind.recv_reduce if held else Kind.recv
                b.add(kind, rank, into, reads=held, writes=[post.region], chan_in=channel)
    return b.build()
