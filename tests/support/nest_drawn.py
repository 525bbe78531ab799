"""Draw random loop nests: stencils, pipelines, others that read new levels, and any other shape of the language."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
from nest_cases import Affine, Case, Let, Loop, Spec, Tree, Write

AXES, INDICES, NAMES = ("n", "m", "p"), ("i", "j", "k"), ("u", "v", "w")
FLOATS = [0.25, 0.1, 3, -1.5, 1e-3, 2, 0, 7.0]
Leaf = Callable[[str], Tree]  # draws a read of a dtype
KINDS = ("stencil", "stencil", "pipeline", "free")


def plus(name: str, number: int = 0) -> Affine:
    return ((name, 1),), number


def number(value: int) -> Affine:
    return (), value


class Range:
    """The range of an index: from `low` on, `high` from the end, or plain numbers; reads may reach as far."""

    def __init__(self, rng: Random, size: str, whole: bool) -> None:
        self.low, self.left = (0, 0) if whole else (rng.randint(0, 2), rng.randint(0, 2))
        self.bounds = number(self.low), plus(size, -self.left)
        drawn = 1.0 if whole else rng.random()
        if drawn < 0.06:  # plain numbers; every size is 5 or more
            self.bounds, self.left = (number(self.low), number(self.low + rng.randint(0, 2))), 1
        elif drawn < 0.1:  # one index, counted from the end
            self.low, self.bounds, self.left = 2, (plus(size, -2), plus(size, -1)), 1
        elif drawn < 0.12:  # empty for small sizes
            self.low, self.left, self.bounds = 4, 4, (number(4), plus(size, -4))


class Drawer:
    """Draws one case; a `wild` one reads outside its arrays now and then, which must be refused."""

    def __init__(self, rng: Random, kind: str) -> None:
        self.rng, self.kind = rng, kind
        self.dims = rng.choice((1, 2, 2, 2, 3))
        self.dtype = rng.choice(("float32", "float64", "float64", "float32", "int32", "int64", "uint8", "int16"))
        self.wild = rng.random() < 0.08
        self.arrays: list[Spec] = []
        self.done: set[str] = set()  # the time arrays whose new level has been written
        self.temporaries: list[tuple[str, str]] = []
        self.names = 0
        self.start = rng.choice((0, 0, 0, 1, 2))

    def fresh(self, name: str) -> str:
        """A local variable's name that no other group has."""
        self.names += 1
        return f"{name}{self.names}"

    # ---- values

    def dtype_of(self, spec: Spec) -> str:
        return spec.dtype or self.dtype

    def tree(self, dtype: str, leaf: Leaf, depth: int) -> Tree:
        if depth == 0 or self.rng.random() < 0.15:
            return self.leaf(dtype, leaf)
        floats = np.dtype(dtype).kind == "f"
        names = ["+"] * 4 + ["-"] * 3 + ["*"] * 3 + ["minimum", "maximum", "neg", "abs", "where"]
        name = self.rng.choice(names + (["/", "/", "sqrt"] if floats else []))
        if name in ("neg", "abs", "sqrt"):
            return name, self.solid(dtype, leaf, depth - 1)
        if name == "where":
            condition = self.condition(leaf, min(depth, 2))
            return name, condition, self.solid(dtype, leaf, depth - 1), self.tree(dtype, leaf, depth - 1)
        sides = [self.solid(dtype, leaf, depth - 1), self.tree(dtype, leaf, depth - 1)]
        self.rng.shuffle(sides)
        return name, *sides

    def solid(self, dtype: str, leaf: Leaf, depth: int) -> Tree:
        """No mere number: Python computes those by itself."""
        found = self.tree(dtype, leaf, depth)
        return leaf(dtype) if found[0] == "number" else found

    def leaf(self, dtype: str, leaf: Leaf) -> Tree:
        drawn = self.rng.random()
        mine = [name for name, its in self.temporaries if its == dtype]
        if mine and drawn < 0.4:
            return "temporary", self.rng.choice(mine)
        return self.number(dtype) if drawn > 0.8 else leaf(dtype)

    def number(self, dtype: str) -> Tree:
        if np.dtype(dtype).kind == "f":
            return "number", self.rng.choice(FLOATS), dtype
        about = np.iinfo(dtype)
        odd = [about.max, -1 if about.min else 1, about.min if about.min > -(2**63) else 0]
        return "number", int(self.rng.choice([0, 1, 2, 3, 7, self.rng.choice(odd)])), dtype

    def condition(self, leaf: Leaf, depth: int) -> Tree:
        drawn = self.rng.random()
        if depth and drawn < 0.25:
            return self.rng.choice("&|"), self.condition(leaf, depth - 1), self.condition(leaf, depth - 1)
        if depth and drawn < 0.35:
            return "not", self.condition(leaf, depth - 1)
        dtype = self.rng.choice([self.dtype_of(spec) for spec in self.arrays])
        name = self.rng.choice(("<", "<=", ">", "==", "!="))
        return name, self.solid(dtype, leaf, 1), self.tree(dtype, leaf, 1)

    # ---- stencils and pipelines

    def spec(self, name: str, timed: bool) -> Spec:
        axes = AXES[: self.dims]
        if not timed:
            return Spec(name, axes, self.own_dtype())
        boundary = self.rng.choice(("fixed", "fixed", "periodic", "reflecting"))
        return Spec(name, axes, self.own_dtype(), 2 if self.rng.random() < 0.2 else 1, boundary)

    def own_dtype(self) -> str | None:
        return self.dtype if self.rng.random() < 0.2 else None

    def reads(self, ranges: list[Range], target: Spec, must: list[Tree]) -> Leaf:
        """What draws a read for a statement that writes `target`; `must`: reads that come first."""

        def leaf(dtype: str) -> Tree:
            if must and self.dtype == dtype:
                return must.pop()
            fitting = [spec for spec in self.arrays if self.dtype_of(spec) == dtype]
            if not fitting:
                return self.number(dtype)
            return self.read(self.rng.choice(fitting), ranges, target)

        return leaf

    def read(self, spec: Spec, ranges: list[Range], target: Spec, level: int | None = None) -> Tree:
        if spec.given and level is None:
            level = self.rng.randrange(spec.given)
            if spec.name in self.done or self.rng.random() < 0.03 or (self.kind == "pipeline" and spec == target):
                level = self.rng.randint(0, spec.given)
        own = spec.name == target.name and not spec.given and self.kind == "stencil"
        at = [plus(INDICES[a], 0 if own else self.offset(spec, each)) for a, each in enumerate(ranges)]
        if len(spec.axes) < self.dims:
            at = [at[AXES.index(axis)] for axis in spec.axes]
        return "read", spec.name, tuple(self.level(spec, level) + at)

    def level(self, spec: Spec, level: int | None) -> list[Affine]:
        return [plus("t", level - self.start)] if spec.given and level is not None else []

    def offset(self, spec: Spec, around: Range) -> int:
        found = self.rng.choice((0, 0, -1, 1, -1, 1, -2, 2))
        if spec.boundary in ("periodic", "reflecting") or (self.wild and self.rng.random() < 0.1):
            return found
        return max(-around.low, min(around.left, found))

    def group(self, target: Spec, back: tuple[bool, ...]) -> tuple[Loop, ...]:
        """One nest of loops over the grid, which writes `target` and now and then a second array."""
        whole = target.boundary in ("periodic", "reflecting") and self.rng.random() < 0.97
        ranges = [Range(self.rng, size, whole or self.rng.random() < 0.15) for size in AXES[: self.dims]]
        body = self.statements(target, ranges)
        for a in reversed(range(self.dims)):
            body = (Loop(INDICES[a], *ranges[a].bounds, body, back[a]),)
        self.temporaries.clear()
        return body

    def statements(self, target: Spec, ranges: list[Range]) -> tuple[object, ...]:
        must = [self.read(target, ranges, target, 0)] if target.given > 1 else []
        leaf, found = self.reads(ranges, target, must), []
        drawn = self.rng.random()
        if drawn < 0.3:  # a value that is taken before the write
            name = self.fresh("old")
            found.append(Let(name, self.solid(self.dtype, leaf, self.rng.choice((0, 0, 1)))))
            self.temporaries.append((name, self.dtype))
        value = self.solid(self.dtype, leaf, self.rng.choice((1, 2, 2, 3)))
        if must:
            value = "+", must.pop(), value
        found.append(self.write(target, value))
        others = [spec for spec in self.arrays if not spec.given and spec != target and spec.axes == target.axes]
        if others and drawn < 0.25:  # what was read before the write is used after it
            other = self.rng.choice(others)
            found.append(self.write(other, self.solid(self.dtype_of(other), leaf, 1)))
        return tuple(found)

    def write(self, target: Spec, value: Tree) -> Write:
        at = [plus(INDICES[a]) for a in range(self.dims)]
        if target.given:
            self.done.add(target.name)
        return Write(target.name, tuple(self.level(target, target.given) + at), value)

    def grid(self) -> Case:
        """A nest whose statements write the point of their loops."""
        pipeline = self.kind == "pipeline"
        count = self.rng.choice((1, 1, 2, 3))
        timed = [self.rng.random() < (0.15 if pipeline else 0.6) for _ in range(count)]
        self.arrays = [self.spec(name, its) for name, its in zip(NAMES, timed, strict=False)]
        targets = [spec for spec in self.arrays if spec.given or self.rng.random() < 0.8] or self.arrays[:1]
        targets += [spec for spec in self.arrays if not spec.given and self.rng.random() < 0.2]
        if self.rng.random() < 0.25:
            axes = AXES[: self.dims] if self.rng.random() < 0.5 else (self.rng.choice(AXES[: self.dims]),)
            self.arrays.append(Spec("c", axes, self.rng.choice(("int32", "uint8", None, None))))
        self.rng.shuffle(targets)
        back = tuple(pipeline and self.rng.random() < 0.25 for _ in range(self.dims))
        groups = [self.group(target, back) for target in targets]
        body = tuple(loop for group in groups for loop in group)
        steps = None if pipeline and not any(timed) and self.rng.random() < 0.3 else self.rng.randint(0, 5)
        if steps is not None:
            body = (Loop("t", number(self.start), plus("steps", self.start), body),)
        return self.case(body, steps)

    def case(self, body: tuple[object, ...], steps: int | None) -> Case:
        largest = {1: 40, 2: 11, 3: 7}[self.dims]
        sizes = [(size, self.rng.randint(5, largest)) for size in AXES[: self.dims]]
        if self.dims > 1 and self.rng.random() < 0.2:  # long rows
            sizes[-1] = (sizes[-1][0], self.rng.randint(16, 37))
        if self.rng.random() < 0.05:
            sizes[0] = (sizes[0][0], self.rng.randint(1, 4))
        seed, plain = self.rng.randrange(2**31), self.rng.random() < 0.3
        return Case(self.kind, tuple(self.arrays), body, tuple(sizes), steps, self.dtype, seed, plain)

    # ---- any other nest

    def free(self) -> Case:
        """Arrays of several ranks in place; offset, transposed, constant subscripts; triangles, sums, swaps."""
        self.arrays = [Spec(name, AXES[: self.dims], self.own_dtype()) for name in NAMES[: self.rng.randint(1, 3)]]
        self.arrays.append(Spec("s", (AXES[0],), None))
        if self.rng.random() < 0.4:
            self.arrays.append(Spec("c", (AXES[0],), self.rng.choice(("int32", "uint8", "float32"))))
        body = tuple(node for _ in range(self.rng.randint(1, 3)) for node in self.free_group())
        steps = self.rng.choice((None, 0, 1, 2, 3))
        if steps is not None:
            body = (Loop("t", number(0), plus("steps"), body),)
        return self.case(body, steps)

    def free_group(self) -> tuple[object, ...]:
        ranges = [Range(self.rng, size, self.rng.random() < 0.3) for size in AXES[: self.dims]]
        leaf = self.free_reads(ranges)
        before: list[object] = []
        drawn = self.rng.random()
        if drawn < 0.12:  # a running sum: no nest can say that
            name = self.fresh("sum")
            before = [Let(name, ("number", 0, self.dtype))]
            self.temporaries.append((name, self.dtype))
        body = self.free_statements(ranges, leaf, name if before else None)
        for a in reversed(range(self.dims)):
            low, high = ranges[a].bounds
            if a and self.rng.random() < 0.15 and low == ((), 0):  # a triangle
                low = plus(INDICES[a - 1]) if self.rng.random() < 0.5 else low
            body = (Loop(INDICES[a], low, high, body, self.rng.random() < 0.2),)
        after: list[object] = []
        if drawn > 0.94 and self.temporaries:  # the last value of a local variable
            after = [Write("s", (number(0),), ("temporary", self.temporaries[0][0]))]
        if drawn > 0.85:  # a single element
            after.append(Write("s", (number(self.rng.randint(0, 4)),), self.single()))
        self.temporaries.clear()
        return (*before, *body, *after)

    def single(self) -> Tree:
        last = ("read", "s", (plus("n", -1),))
        return "-", last, ("read", "s", (number(1),))

    def free_reads(self, ranges: list[Range]) -> Leaf:
        def leaf(dtype: str) -> Tree:
            fitting = [spec for spec in self.arrays if self.dtype_of(spec) == dtype]
            return self.free_read(self.rng.choice(fitting), ranges) if fitting else self.number(dtype)

        return leaf

    def free_read(self, spec: Spec, ranges: list[Range]) -> Tree:
        return "read", spec.name, tuple(self.free_subscript(spec, axis, ranges) for axis in range(len(spec.axes)))

    def free_subscript(self, spec: Spec, axis: int, ranges: list[Range]) -> Affine:
        drawn, around = self.rng.random(), ranges[axis]
        if drawn < 0.08:
            return number(self.rng.randint(0, 4))
        if drawn < 0.14:
            return plus(AXES[axis], -self.rng.randint(1, 4))
        if drawn < 0.2 and around.bounds[1][0]:  # turned round
            return ((AXES[axis], 1), (INDICES[axis], -1)), -1
        return plus(INDICES[axis], self.offset(spec, around))

    def free_statements(self, ranges: list[Range], leaf: Leaf, running: str | None) -> tuple[object, ...]:
        found: list[object] = []
        if running:
            found.append(Let(running, ("+", ("temporary", running), leaf(self.dtype))))
        if self.rng.random() < 0.4:
            name = self.fresh("a")
            found.append(Let(name, self.solid(self.dtype, leaf, self.rng.choice((0, 1)))))
            self.temporaries.append((name, self.dtype))
        grid = [spec for spec in self.arrays if spec.axes == AXES[: self.dims]]
        if len(grid) > 1 and self.rng.random() < 0.15:  # a swap
            at = tuple(plus(INDICES[a]) for a in range(self.dims))
            one, other = grid[:2]
            old = Let(self.fresh("old"), ("read", one.name, at))
            back = Write(other.name, at, ("temporary", old.name))
            return (*found, old, Write(one.name, at, ("read", other.name, at)), back)
        for _ in range(self.rng.choice((1, 1, 2))):
            spec = self.rng.choice([*grid, self.arrays[0], self.spec_s()])
            at = tuple(self.free_subscript(spec, axis, ranges) for axis in range(len(spec.axes)))
            value = self.solid(self.dtype_of(spec), leaf, self.rng.choice((1, 2, 2)))
            if spec.name == "s" and self.rng.random() < 0.5:  # a sum
                at = (number(0),)
                value = "+", ("read", "s", at), value
            found.append(Write(spec.name, at, value))
        return tuple(found)

    def spec_s(self) -> Spec:
        return next(spec for spec in self.arrays if spec.name == "s")


class Few(Range):
    """Few indices: the first, the last, two, none, or as many as the step says."""

    def __init__(self, rng: Random, size: str) -> None:
        first = rng.randint(0, 1)
        self.low, self.left, self.bounds = rng.choice(
            (
                (0, 4, (number(0), number(1))),
                (first, 3 - first, (number(first), number(first + 2))),
                (4, 0, (plus(size, -1), plus(size))),
                (2, 0, (plus(size, -3), plus(size, -1))),
                (2, 2, (number(2), number(2))),
                (4, 0, (plus(size), plus(size))),
                (0, 0, (plus("t"), plus(size))),
                (0, 0, (number(0), plus("t"))),
            )
        )


class LevelDrawer(Drawer):
    """Draws nests that read new levels before, between, within and after the loops that write them, at few indices or
    at many, beyond the ends, or as local variables."""

    def levels(self) -> Case:
        self.arrays = [self.spec(name, a == 0 or self.rng.random() < 0.6) for a, name in enumerate(NAMES[:3])]
        self.missing = {spec.name for spec in self.arrays if spec.given}  # those that no loop over all writes yet
        targets = [spec for spec in self.arrays if spec.given or self.rng.random() < 0.6]
        targets += [self.rng.choice(self.arrays) for _ in range(self.rng.choice((0, 0, 1)))]
        self.rng.shuffle(targets)
        body: list[object] = []
        while targets:
            if self.rng.random() < 0.2:
                body.append(self.kept())
            together = 2 if self.dims > 1 and self.rng.random() < 0.25 else 1
            body += self.outer(targets[:together])
            del targets[:together]
        loops = (Loop("t", number(self.start), plus("steps", self.start), tuple(body)),)
        return self.case(loops, self.rng.randint(0, 4))

    def kept(self) -> Let:
        """A local variable: an element at plain numbers, or at the ends."""
        spec = self.rng.choice(self.arrays)
        wraps = spec.boundary in ("periodic", "reflecting")
        at = [self.rng.choice((number(-int(wraps)), number(1), plus(size, int(wraps) - 1))) for size in spec.axes]
        name = self.fresh("kept")
        self.temporaries.append((name, self.dtype_of(spec)))
        return Let(name, ("read", spec.name, (*self.level(spec, self.any_level(spec)), *at)))

    def any_level(self, spec: Spec) -> int | None:
        if not spec.given:
            return None
        newest = self.rng.random() < (0.15 if spec.name in self.missing else 0.6)
        return spec.given if newest else self.rng.randrange(spec.given)

    def outer(self, targets: list[Spec]) -> tuple[object, ...]:
        """One group of loops for each, the outermost of them the same one."""
        whole = any(spec.name in self.missing for spec in targets)
        first = self.range_of("n", whole)
        body = tuple(node for spec in targets for node in self.inner(spec, first))
        return (Loop("i", *first.bounds, body, self.rng.random() < 0.15),)

    def range_of(self, size: str, whole: bool) -> Range:
        return Few(self.rng, size) if not whole and self.rng.random() < 0.6 else Range(self.rng, size, whole)

    def inner(self, target: Spec, first: Range) -> tuple[object, ...]:
        whole = target.name in self.missing
        ranges = [first, *(self.range_of(size, whole) for size in AXES[1 : self.dims])]
        leaf: Leaf = self.reads(ranges, target, [])
        value = self.solid(self.dtype_of(target), leaf, self.rng.choice((0, 1, 1, 2)))
        if target.given > 1:
            value = "+", self.read(target, ranges, target, 0), value
        at = [plus(INDICES[a]) for a in range(self.dims)]
        body: tuple[object, ...] = (Write(target.name, tuple(self.level(target, target.given) + at), value),)
        for a in reversed(range(1, self.dims)):
            body = (Loop(INDICES[a], *ranges[a].bounds, body, self.rng.random() < 0.15),)
        self.missing -= {target.name}
        return body

    def read(self, spec: Spec, ranges: list[Range], target: Spec, level: int | None = None) -> Tree:
        return super().read(spec, ranges, target, self.any_level(spec) if level is None else level)


def drawn(seed: int, index: int, kind: str | None = None) -> Case:
    """Case `index` of the sequence `seed`."""
    rng = Random(f"{seed}/{index}")
    kind = kind or rng.choice(KINDS)
    if kind == "levels":
        return LevelDrawer(rng, kind).levels()
    drawer = Drawer(rng, kind)
    return drawer.free() if kind == "free" else drawer.grid()
