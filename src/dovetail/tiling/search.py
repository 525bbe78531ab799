"""search: find the best tile of a volume: rows of H from the tiling cone, sides as integer multiples of its edges.

A tile has the form P = Q·diag(c): Q has the primitive edges that belong to n directions of the cone, and the product
of the integers c is V/|det Q|. Sets of directions are tried in the order of a lower bound of their V_comm
(inequality of arithmetic and geometric means), until no bound is below the best tile found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import ceil, comb, prod

import numpy as np
from numpy.typing import NDArray

from dovetail.core import OperatorError, PlanError, parse_count
from dovetail.loops.matrices import Matrix, Vector, adjugate, determinant, dot, transposed
from dovetail.tiling.cone import cone_rays, determinants, edges_of, generators, vectors_in_cone
from dovetail.tiling.exact_search import cheaper_tiles
from dovetail.tiling.hyperplanes import check_dimension, num_processors
from dovetail.tiling.spaces import Space, check_loops
from dovetail.tiling.tile_points import traffic
from dovetail.tiling.tiling import Tiling, check_deps

CRITERIA = ("formula", "pairs", "values")
_MOST_VOLUME = 1 << 36
_MOST_SETS = 1 << 20  # sets of directions whose bound is computed
_MOST_FIRST = 2000  # sets of rays, skewed axes and free directions that are tried first
_MOST_NEAR, _MOST_MIDDLES = 1 << 15, 32  # integer matrices tried near each optimum, and number of optima
_MOST_COUNTED, _MOST_WORK = 200, 1 << 27  # tiles whose points are counted, and (point, dependence) pairs in all of them


@dataclass(frozen=True)
class BestTile:
    """The result of a search: the tile, its cost, a lower bound for all tiles, and whether no tile is better.

    `is_free`: a dimension was mapped without a number of ranks, so that a tile may be arbitrarily thin along it.
    """

    tiling: Tiling
    cost: int
    by: str
    bound: int
    is_proved: bool
    is_free: bool


@dataclass(frozen=True)
class Limits:
    """Constraints of a tile: its volume, and in `space` at least `ranks` chains of tiles along `mapped`."""

    volume: int
    mapped: int | None = None
    space: Space | None = None
    ranks: int | None = None

    def allow(self, tiling: Tiling) -> bool:
        """Return whether every rank has work."""
        if self.space is None or self.mapped is None or self.ranks is None:
            return True
        return num_processors(tiling, self.space, self.mapped) >= self.ranks


def best_tile(
    deps: Matrix,
    volume: int,
    *,
    by: str = "formula",
    mapped: int | None = None,
    space: Space | None = None,
    ranks: int | None = None,
) -> BestTile:
    """Return the legal tile of `volume` points that communicates least.

    `by`: the cost: V_comm by the "formula" of seed 003, (point, dependence) "pairs" that leave the tile, or
    distinct "values", each once per destination. Faces along the dimension `mapped` cost nothing; because a tile can
    then be thin along it and wide across, `ranks` with `space` demands as many chains of tiles.
    Raises PlanError if no such tile is found.

    >>> found = best_tile(((3, 1), (1, 2)), 20)
    >>> found.tiling.sides, found.cost, found.bound, found.is_proved
    (((6, 2), (2, 4)), 20, 20, True)
    """
    check_deps(deps)
    if parse_count(volume, "volume", least=1) > _MOST_VOLUME:
        raise OperatorError(
            "this volume is too large for a search", found=f"{volume} points, of at most {_MOST_VOLUME}"
        )
    _check(deps, by, mapped, space, ranks)
    search = _Search(deps, by, Limits(volume, mapped, space, ranks))
    search.run()
    if search.best is None:
        hint = "a smaller volume or fewer ranks" if ranks else "another volume"
        raise PlanError(f"no legal tile of {volume} points was found", found=f"{search.num_tried} tried", hint=hint)
    bound = continuous_bound(deps, volume) if by == "formula" and mapped is None else 0
    proved, is_free = search.is_complete or search.best[0] == bound, mapped is not None and ranks is None
    cost, bound = search.best[0], search.best[0] if proved else bound
    return BestTile(Tiling(deps, search.best[-1]), cost, by, bound, proved, is_free)


def continuous_bound(deps: Matrix, volume: int) -> int:
    """Return a lower bound on V_comm by the formula of all tiles of that volume, also fractional ones; 0 if unknown.

    >>> continuous_bound(((3, 1), (1, 2)), 20), continuous_bound(((1, 0), (0, 1)), 20)
    (20, 9)
    """
    sets = (rows for rows in combinations(cone_rays(deps), len(deps)) if determinant(rows))
    return min((least_formula(rows, deps, volume) for rows in sets), default=0)


def least_formula(rows: Matrix, deps: Matrix, volume: int) -> int:
    """Return a lower bound (AM–GM) on V_comm by the formula of tiles whose faces are normal to these rows.

    >>> least_formula(((1, 0), (0, 1)), ((3, 1), (1, 2)), 20)
    31
    """
    total, n = tuple(map(sum, deps)), len(deps)
    return _root(n**n * volume ** (n - 1) * prod(dot(row, total) for row in rows), abs(determinant(rows)), n)


def _root(power: int, size: int, n: int) -> int:
    """The least integer x with x^n ≥ power / size."""
    x: int = ceil((power / size) ** (1 / n))
    while x > 0 and (x - 1) ** n * size >= power:
        x -= 1
    while x**n * size < power:
        x += 1
    return x


class _Search:
    """One search. `best`: the best tile so far as (cost, formula, sum of absolute entries, sides)."""

    def __init__(self, deps: Matrix, by: str, limits: Limits) -> None:
        self.deps, self.by, self.limits = deps, by, limits
        self.total = tuple(map(sum, deps))
        self.n = len(deps)
        # Most times that the formula counts one pair or value: for each face that it leaves by, and each dependence.
        self.factor = {"formula": 1, "pairs": self.n, "values": self.n * len(deps[0])}[by]
        self.may_count = min(_MOST_COUNTED, _MOST_WORK // (limits.volume * len(deps[0])) + 1)
        self.best: tuple[int, int, int, Matrix] | None = None
        self.num_tried = 0
        self.is_complete = False

    def run(self) -> None:
        """Try extreme rays, then integer sides near their optima; at last, if they are few, all tiles."""
        for least, rows in self._by_bound(generators(self.deps))[:_MOST_FIRST]:
            if self.limits.mapped is not None or self.best is None or least <= self.most():
                self.try_directions(rows)
        assert self.best is not None or self.limits.ranks  # a skewed box has any volume
        if self.limits.mapped is not None or self._is_at_bound():
            return
        for _, rows in self._by_bound(cone_rays(self.deps))[:3]:
            for sides in whole_sides_near(rows, self.deps, self.limits.volume):
                formula = Tiling(self.deps, sides).formula()
                self._try(sides, formula, formula)
        self._try_all()
        if self.by == "formula" and not self.is_complete and not self._is_at_bound():
            self._try_cheaper()

    def _is_at_bound(self) -> bool:
        return self.by == "formula" and self.most() == continuous_bound(self.deps, self.limits.volume)

    def _by_bound(self, directions: list[Vector]) -> list[tuple[int, Matrix]]:
        """The sets of n directions with lower bounds of their V_comm, the lowest first."""
        sets = (rows for rows in combinations(directions, self.n) if determinant(rows))
        return sorted((least_formula(rows, self.deps, self.limits.volume), rows) for rows in sets)

    def _try_all(self) -> None:
        """Try every set of directions that may have a better tile, if there are few enough."""
        assert self.best is not None
        limit = next(k for k in range(self.n, _MOST_SETS) if comb(k + 1, self.n) > _MOST_SETS)
        directions, whole = vectors_in_cone(self.deps, self.most(), limit)
        if whole:
            self._try_sets(directions)
        thin = self.by != "formula" and self.best[0] >= self.limits.volume
        self.is_complete = whole and self.may_count > 0 and not thin

    def _try_cheaper(self) -> None:
        """Try every better tile, if few enough rows are cheap enough for one."""
        found = cheaper_tiles(self.deps, self.limits.volume, self.most())
        for cost, sides in found or ():
            self._try(in_natural_order(sides), cost, cost)
        self.is_complete = found is not None

    def most(self) -> int:
        """Return the largest value of the formula that a better tile may have."""
        assert self.best is not None
        return self.best[0] * self.factor

    def _try_sets(self, directions: list[Vector]) -> None:
        """Try all sets of n directions whose bound allows a better tile, by rising bound."""
        count = comb(len(directions), self.n)
        which = np.fromiter((k for some in combinations(range(len(directions)), self.n) for k in some), np.int64)
        which = which.reshape(count, self.n)
        rows = np.array(directions, dtype=np.int64)
        sizes = np.abs(determinants(rows[which]))
        costs = (rows @ np.array(self.total)).astype(float)[which].prod(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            least = self.n * (self.limits.volume ** (self.n - 1) * costs / sizes) ** (1 / self.n)
        known = np.flatnonzero((sizes > 0) & (least <= self.most() + 0.5))
        for k in known[np.argsort(least[known], kind="stable")].tolist():
            if least[k] > self.most() + 0.5:
                return
            self.try_directions(tuple(directions[i] for i in which[k].tolist()))

    def try_directions(self, rows: Matrix) -> None:
        """Try all tiles of the volume whose sides are integer multiples of the edges for these normals."""
        edges = edges_of(rows)
        size = abs(determinant(edges))
        if self.limits.volume % size:
            return
        edges = in_natural_order(edges)
        sign = 1 if determinant(edges) > 0 else -1
        flows = [sign * dot(normal, self.total) for normal in adjugate(edges)]
        times = self.limits.volume // size
        for multiples in factorizations(times, self.n):
            shares = [times // by * flow for by, flow in zip(multiples, flows, strict=True)]
            formula = sum(share for i, share in enumerate(shares) if i != self.limits.mapped)
            if self.best is None or formula <= self.most():
                sides = tuple(tuple(e * by for e, by in zip(row, multiples, strict=True)) for row in edges)
                self._try(sides, formula, sum(shares))

    def _try(self, sides: Matrix, formula: int, whole: int) -> None:
        """Keep the tile if it is better: by cost, then by the formula over all faces, then by shorter sides."""
        self.num_tried += 1
        size = sum(abs(entry) for row in sides for entry in row)
        cost = formula if self.by == "formula" else self._count(sides)
        if cost is None or not (self.best is None or (cost, whole, size, sides) < self.best):
            return
        if self.limits.allow(Tiling(self.deps, sides)):
            self.best = (cost, whole, size, sides)

    def _count(self, sides: Matrix) -> int | None:
        """The counted cost of a tile; None after `may_count` tiles have been counted."""
        if not self.may_count:
            return None
        self.may_count -= 1
        counted = traffic(Tiling(self.deps, sides), self.limits.mapped)
        return counted.pairs if self.by == "pairs" else counted.values


def whole_sides_near(rows: Matrix, deps: Matrix, volume: int) -> list[Matrix]:
    """Return the ten cheapest legal tiles of the volume with sides near the fractional optimum for these normals.

    >>> whole_sides_near(((2, -1), (-1, 3)), ((3, 1), (1, 2)), 21)[0]
    ((4, 3), (1, 6))
    """
    total, n = tuple(map(sum, deps)), len(deps)
    edges = in_natural_order(edges_of(rows))
    size, sign = abs(determinant(edges)), 1 if determinant(edges) > 0 else -1
    flows = np.array([max(1, sign * dot(normal, total)) for normal in adjugate(edges)], dtype=float)
    best = np.rint(flows * (volume / size / flows.prod()) ** (1 / n)).astype(int)
    multiples = sorted(
        product(*(range(max(1, by - 2), by + 3) for by in best.tolist())),
        key=lambda by: (abs(prod(by) * size - volume), by),
    )
    shifts = _shifts(n)
    found: dict[Matrix, int] = {}
    for by in multiples[:_MOST_MIDDLES]:
        near = _completed(np.array(edges, dtype=np.int64) * np.array(by) + shifts, sign * volume)
        flow = np.linalg.inv(near) @ np.array(deps, dtype=float)
        cost = flow.sum(axis=(1, 2))
        legal = np.flatnonzero(np.all(flow > -0.5 / volume, axis=(1, 2)))
        for k in legal[np.argsort(cost[legal], kind="stable")][:10].tolist():
            tiling = Tiling(deps, in_natural_order(tuple(map(tuple, near[k].tolist()))))
            if tiling.is_legal:
                found[tiling.sides] = tiling.formula()
    return sorted(found, key=lambda sides: (found[sides], sides))[:10]


def _shifts(n: int) -> NDArray[np.int64]:
    """All small matrices with last entry 0; if these are too many, only those with at most two nonzero columns."""
    columns = n if 3 ** (n * n - 1) <= _MOST_NEAR else 2
    found = []
    for where in combinations(range(n), columns):
        places = [(i, k) for i in range(n) for k in where if (i, k) != (n - 1, n - 1)]
        reach = int((_MOST_NEAR ** (1 / max(1, len(places))) - 1) / 2)
        axes = np.meshgrid(*[np.arange(-reach, reach + 1)] * len(places), indexing="ij")
        shifts = np.zeros((axes[0].size if axes else 1, n, n), dtype=np.int64)
        for (i, k), axis in zip(places, axes, strict=True):
            shifts[:, i, k] = axis.ravel()
        found.append(shifts)
    return np.concatenate(found)


def _completed(near: NDArray[np.int64], volume: int) -> NDArray[np.int64]:
    """The matrices with the last entry replaced by the integer that makes the determinant `volume`, if there is one."""
    near[:, -1, -1] = 0
    rest = volume - determinants(near)
    minor = determinants(near[:, :-1, :-1]) if near.shape[1] > 1 else np.ones(len(near), dtype=np.int64)
    whole = (minor != 0) & (rest % np.where(minor == 0, 1, minor) == 0)
    near = near[whole]
    near[:, -1, -1] = rest[whole] // minor[whole]
    return near


def in_natural_order(edges: Matrix) -> Matrix:
    """Return the columns in the order with the largest diagonal: the first side along the first loop, and so on.

    >>> in_natural_order(((1, 3), (2, 1)))
    ((3, 1), (1, 2))
    """
    columns = transposed(edges)
    orders: Iterator[tuple[int, ...]] = permutations(range(len(columns)))
    weight: Callable[[tuple[int, ...]], int] = lambda order: sum(columns[k][i] for i, k in enumerate(order))  # noqa: E731
    best = max(orders, key=weight)
    return transposed(tuple(columns[k] for k in best))


def factorizations(number: int, parts: int) -> Iterator[Vector]:
    """Yield all ways to write a number as an ordered product of `parts` positive integers.

    >>> list(factorizations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        yield (number,)
        return
    for first in _divisors(number):
        for rest in factorizations(number // first, parts - 1):
            yield (first, *rest)


def _divisors(number: int) -> list[int]:
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return small + [number // k for k in reversed(small) if k * k != number]


def _check(deps: Matrix, by: str, mapped: int | None, space: Space | None, ranks: int | None) -> None:
    """Raise OperatorError if the arguments contradict one another."""
    if by not in CRITERIA:
        raise OperatorError(f"no criterion '{by}'", found=f"criteria {', '.join(CRITERIA)}")
    if mapped is not None:
        check_dimension(mapped, len(deps))
    if space is not None and space.num_loops != len(deps):
        check_loops(Tiling(deps, tuple(tuple(int(i == k) for i in range(len(deps))) for k in range(len(deps)))), space)
    if ranks is not None:
        parse_count(ranks, "ranks", least=1)
        if space is None or mapped is None:
            raise OperatorError(
                "chains of tiles for ranks need a space and a mapped dimension", hint="--space … --map …"
            )
