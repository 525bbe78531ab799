"""posts: post-conditions stored as columns, since a program may have a million; they behave as a sequence of Post."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.core import ProgramError
from dovetail.ir.types import MAX_NESTING, Post, Region, Term

Column = NDArray[Any]
_REGION = ("buffer", "offset", "count", "stride", "blocks")
COLUMNS: dict[str, str] = {
    "post_rank_start": "i8",  # post i holds on ranks post_rank[post_rank_start[i]:post_rank_start[i+1]]
    "post_rank": "i4",
    "post_term_start": "i8",
    "term_kernel": "i4",  # row of `kernels`; -1: an input itself, or (as an operand of another term) a sum
    "term_arg_start": "i8",
    "arg_term": "i4",  # 0: the operand is a region; n > 0: it is the term n rows after the term that it belongs to
    "arg_rank": "i4",
    **{f"{side}_{part}": "i4" if part == "buffer" else "i8" for side in ("post", "arg") for part in _REGION},
}


class Posts(Sequence[Post]):
    """Post-conditions in `columns` (see COLUMNS). Their buffer and kernel columns index `buffers` and `kernels`.

    >>> one = Post((0,), Region("y", 0, 1), (Term(None, ((1, Region("x", 0, 1)),)),))
    >>> posts = Posts.of([one])
    >>> posts[0] == one, posts == (one,), posts.columns["arg_rank"].tolist()
    (True, True, [1])
    """

    def __init__(self, buffers: tuple[str, ...], kernels: tuple[str, ...], columns: dict[str, Column]) -> None:
        self.buffers, self.kernels = buffers, kernels
        self.columns = {name: np.asarray(columns[name], dtype) for name, dtype in COLUMNS.items()}
        for column in self.columns.values():
            column.flags.writeable = False

    @classmethod
    def of(cls, posts: Sequence[Post]) -> Posts:
        """Return post-conditions as columns. ProgramError for numbers beyond 64 bits or terms nested too deep."""
        if isinstance(posts, Posts):
            return posts
        terms, links, ends = list[Term](), list[list[int]](), [0]
        for post in posts:
            for term in post.terms:
                _flatten(term, terms, links)
            ends.append(len(terms))
        no_region = (0, Region(posts[0].region.buffer if posts else "", 0, 0))
        args = [no_region if isinstance(arg, Term) else arg for term in terms for arg in term.args]
        names: dict[str, int] = {}
        kernels: dict[str, int] = {}
        try:
            columns = {
                "post_rank_start": _starts(post.ranks for post in posts),
                "post_rank": np.fromiter(chain.from_iterable(post.ranks for post in posts), "i4"),
                "post_term_start": np.array(ends),
                "term_kernel": np.fromiter(
                    (-1 if t.kernel is None else kernels.setdefault(t.kernel, len(kernels)) for t in terms), "i4"
                ),
                "term_arg_start": _starts(term.args for term in terms),
                "arg_term": np.fromiter(chain.from_iterable(links), "i4"),
                "arg_rank": np.fromiter((rank for rank, _ in args), "i4"),
                **_regions("post", [post.region for post in posts], names),
                **_regions("arg", [region for _, region in args], names),
            }
        except OverflowError:
            raise ProgramError("malformed program: a number of a post-condition is beyond 64 bits") from None
        return cls(tuple(names), tuple(kernels), columns)

    @classmethod
    def regular(
        cls, to: ArrayLike, target: tuple[str, ArrayLike], sources: ArrayLike, source: tuple[str, ArrayLike], count: int
    ) -> Posts:
        """Return posts that sum over ranks: on each rank in to[i], target = Σ source of the ranks in sources[i].

        `to`, `sources`: integer arrays with a row for each post. `target`, `source`: (buffer, first slot), the first
        slot for each post or one for all; both are of `count` slots.

        >>> shift = Posts.regular([[1], [0]], ("y", 0), [[0], [1]], ("x", [2, 3]), 1)
        >>> shift[1]
        Post(ranks=(0,), region=Region(buffer='y', offset=0, count=1, stride=0, blocks=1), \
terms=(Term(kernel=None, args=((1, Region(buffer='x', offset=3, count=1, stride=0, blocks=1)),)),))
        """
        ranks, of = np.asarray(to), np.asarray(sources)
        n, terms = len(ranks), of.size
        starts = np.repeat(np.broadcast_to(source[1], n), of.shape[1])
        columns = {
            "post_rank_start": np.arange(n + 1) * ranks.shape[1],
            "post_rank": ranks.ravel(),
            "post_term_start": np.arange(n + 1) * of.shape[1],
            "term_kernel": _constant("term_kernel", -1, terms),
            "term_arg_start": np.arange(terms + 1),
            "arg_term": _constant("arg_term", 0, terms),
            "arg_rank": of.ravel(),
        }
        for side, size, row, offset in (("post", n, 0, np.broadcast_to(target[1], n)), ("arg", terms, 1, starts)):
            same = {"buffer": row, "count": count, "stride": 0, "blocks": 1}
            columns |= {f"{side}_{part}": _constant(f"{side}_{part}", value, size) for part, value in same.items()}
            columns[f"{side}_offset"] = offset
        return cls((target[0], source[0]), (), columns)

    def __len__(self) -> int:
        return len(self.columns["post_offset"])

    @overload
    def __getitem__(self, index: int) -> Post: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Post, ...]: ...
    def __getitem__(self, index: int | slice) -> Post | tuple[Post, ...]:
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return tuple(self[row] for row in range(first, last, step))
        row = range(len(self))[index]
        return next(self._read(row, row + 1))

    def __iter__(self) -> Iterator[Post]:
        return self._read(0, len(self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Posts) and (self.buffers, self.kernels) == (other.buffers, other.kernels):
            return all(np.array_equal(self.columns[name], other.columns[name]) for name in COLUMNS)
        if not isinstance(other, Posts | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _read(self, first: int, last: int) -> Iterator[Post]:
        """Yield posts first to last - 1."""
        ranks, rank_ends = self._part("post_rank_start", first, last)
        names = (*self.kernels, None)
        terms = self.fold(
            lambda args: list(zip(self.columns["arg_rank"][args].tolist(), self._regions("arg", args), strict=True)),
            lambda kernel, args: Term(names[kernel], tuple(args)),
            first,
            last,
        )
        numbers = self.columns["post_rank"][ranks].tolist()
        ends = zip(self._regions("post", slice(first, last)), pairwise(rank_ends), terms, strict=True)
        return (Post(tuple(numbers[a:b]), region, tuple(own)) for region, (a, b), own in ends)

    def fold(
        self,
        leaves: Callable[[slice], list[Any]],
        make: Callable[[int, list[Any]], Any],
        first: int = 0,
        last: int | None = None,
    ) -> list[list[Any]]:
        """Return, for each of the posts first to last - 1, the list of values that `make` computes for its terms.

        `make(kernel, operands)` gets the row of the term's kernel and the values of its operands: for a nested term
        what `make` returned for it, for a region what `leaves(rows)` returned for its row.
        """
        terms, ends = self._part("post_term_start", first, len(self) if last is None else last)
        args, starts = self._part("term_arg_start", terms.start, terms.stop)
        kernels, operands, links = (
            self.columns["term_kernel"][terms].tolist(),
            leaves(args),
            self.columns["arg_term"][args],
        )
        inner = np.zeros(len(kernels), np.bool_)
        made: list[Any] = [None] * len(kernels)
        if links.any():
            rows = np.repeat(np.arange(len(kernels)), np.diff(starts))
            inner[(rows + links)[links > 0]] = True
        within = {arg: links[arg] for arg in np.flatnonzero(links).tolist()}
        for row in range(len(kernels) - 1, -1, -1):
            own = operands[starts[row] : starts[row + 1]]
            for arg in range(starts[row], starts[row + 1]) if within else ():
                if arg in within:
                    own[arg - starts[row]] = made[row + within[arg]]
            made[row] = make(kernels[row], own)
        if not within:
            return [made[a:b] for a, b in pairwise(ends)]
        return [[made[row] for row in range(a, b) if not inner[row]] for a, b in pairwise(ends)]

    def _part(self, name: str, first: int, last: int) -> tuple[slice, list[int]]:
        """Return the rows of all lists first to last - 1, and where each list starts among them; `name`: column of
        starts."""
        ends = self.columns[name][first : last + 1]
        return slice(int(ends[0]), int(ends[-1])), (ends - ends[0]).tolist()

    def _regions(self, side: str, rows: slice) -> Iterator[Region]:
        buffer, *parts = (self.columns[f"{side}_{part}"][rows].tolist() for part in _REGION)
        return map(Region, (self.buffers[row] for row in buffer), *parts)


def _flatten(term: Term, terms: list[Term], links: list[list[int]], depth: int = 0) -> None:
    """Append a term and its nested terms to `terms`, and the `arg_term` of each one's operands to `links`."""
    if depth > MAX_NESTING:
        raise ProgramError(f"malformed program: a post-condition nests terms more than {MAX_NESTING} deep")
    row = len(terms)
    own: list[int] = []
    terms.append(term)
    links.append(own)
    for arg in term.args:
        own.append(len(terms) - row if isinstance(arg, Term) else 0)
        if isinstance(arg, Term):
            _flatten(arg, terms, links, depth + 1)


def _regions(side: str, regions: Sequence[Region], names: dict[str, int]) -> dict[str, Column]:
    numbers = np.fromiter(chain.from_iterable(region[1:] for region in regions), "i8").reshape(-1, 4).T
    buffers = np.fromiter((names.setdefault(region[0], len(names)) for region in regions), "i4")
    return dict(zip((f"{side}_{part}" for part in _REGION), (buffers, *numbers), strict=True))


def _constant(name: str, value: int, size: int) -> Column:
    """Return a column of equal numbers that occupies no memory."""
    return np.ndarray(size, COLUMNS[name], np.array(value, COLUMNS[name]), strides=(0,))


def _starts(lists: Any) -> Column:
    return np.fromiter(accumulate((len(entry) for entry in lists), initial=0), "i8")
