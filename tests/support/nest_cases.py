"""Describe loop nests as data, print them as Python functions of `dovetail.loops`, and evaluate them by plain loops."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Affine = tuple[tuple[tuple[str, int], ...], int]  # Σ factor · name + number
Tree = tuple[Any, ...]  # ("read", array, subscripts), ("number", value, dtype), ("temporary", name), (operator, trees…)


@dataclass(frozen=True)
class Spec:
    """An array: the names of its sizes, its dtype (None: the case's), the levels that are given (0: no time axis)."""

    name: str
    axes: tuple[str, ...]
    dtype: str | None = None
    given: int = 0
    boundary: str | None = None

    def declared(self) -> str:
        words = [repr(axis) for axis in self.axes]
        words += [f"dtype={self.dtype!r}"] if self.dtype else []
        words += ["time=True"] if self.given else []
        words += [f"boundary={self.boundary!r}"] if self.boundary else []
        return f"{self.name}=array({', '.join(words)})"


@dataclass(frozen=True)
class Loop:
    """`for index in loop(low, high)`; `back`: the same range from its last index to its first."""

    index: str
    low: Affine
    high: Affine
    body: tuple[Any, ...]
    back: bool = False


@dataclass(frozen=True)
class Write:
    array: str
    at: tuple[Affine, ...]
    value: Tree


@dataclass(frozen=True)
class Let:
    """A local variable of the function."""

    name: str
    value: Tree


@dataclass(frozen=True)
class Case:
    """A nest and what it is called with. `kind`: the generator that drew it. `plain`: no NaN, infinity or the like."""

    kind: str
    arrays: tuple[Spec, ...]
    body: tuple[Any, ...]
    sizes: tuple[tuple[str, int], ...]
    steps: int | None
    dtype: str
    seed: int
    plain: bool = False

    def spec(self, name: str) -> Spec:
        return next(each for each in self.arrays if each.name == name)

    def shape(self, spec: Spec) -> tuple[int, ...]:
        sizes = dict(self.sizes)
        shape = tuple(sizes[axis] for axis in spec.axes)
        return (spec.given, *shape) if spec.given > 1 else shape

    @property
    def parameters(self) -> dict[str, int]:
        return {} if self.steps is None else {"steps": self.steps}

    @property
    def written(self) -> list[str]:
        names = {node.array for node in nodes(self.body, empty=False) if isinstance(node, Write)}
        return [spec.name for spec in self.arrays if spec.name in names]


def nodes(body: tuple[Any, ...], empty: bool = True) -> Iterator[Any]:
    """Every loop, write and local variable; without `empty`, none of a loop whose plain numbers leave it no index."""
    for node in body:
        yield node
        if isinstance(node, Loop) and (empty or node.low[0] or node.high[0] or node.low[1] < node.high[1]):
            yield from nodes(node.body, empty)


def trees(value: Tree) -> Iterator[Tree]:
    """A tree and all trees in it."""
    yield value
    for each in value[1:]:
        if value[0] not in LEAVES and isinstance(each, tuple):
            yield from trees(each)


LEAVES = ("read", "number", "temporary")
PREFIX = {"neg": "-", "not": "~"}


# ---- as text


def affine_text(of: Affine) -> str:
    words = [name if factor == 1 else f"{factor} * {name}" for name, factor in of[0] if factor]
    words += [str(of[1])] if of[1] or not words else []
    return " + ".join(words).replace("+ -", "- ")


def tree_text(value: Tree) -> str:
    name, *rest = value
    if name == "read":
        return f"{rest[0]}[{', '.join(map(affine_text, rest[1]))}]"
    if name == "number":
        return repr(rest[0]) if rest[0] >= 0 else f"({rest[0]!r})"
    if name == "temporary":
        return str(rest[0])
    of = [tree_text(each) for each in rest]
    if name.isalpha() and name not in PREFIX:
        return f"{name}({', '.join(of)})"
    return f"({PREFIX[name]}{of[0]})" if name in PREFIX else f"({of[0]} {name} {of[1]})"


def body_text(body: tuple[Any, ...], indent: str) -> list[str]:
    lines = []
    for node in body:
        if isinstance(node, Loop):
            low, high = affine_text(node.low), affine_text(node.high)
            bounds = f"{high} - 1, {low} - 1, -1" if node.back else f"{low}, {high}" if low != "0" else high
            lines += [f"{indent}for {node.index} in loop({bounds}):", *body_text(node.body, indent + "    ")]
        elif isinstance(node, Write):
            lines.append(f"{indent}{tree_text(('read', node.array, node.at))} = {tree_text(node.value)}")
        else:
            lines.append(f"{indent}{node.name} = {tree_text(node.value)}")
    return lines or [f"{indent}pass"]


def function_text(case: Case, name: str) -> str:
    """The nest as a user writes it."""
    words = [spec.name for spec in case.arrays] + list(case.parameters)
    seen: dict[str, str] = {}
    for spec in case.arrays:
        for axis, size in enumerate(spec.axes):
            seen.setdefault(size, f"    {size} = {spec.name}.shape[{axis}]")
    head = f"@nest({', '.join(spec.declared() for spec in case.arrays)})\ndef {name}({', '.join(words)}):"
    return "\n".join([head, *seen.values(), *body_text(case.body, "    ")]) + "\n"


HEAD = "from dovetail.loops import array, loop, maximum, minimum, nest, sqrt, where\n\n\n"
COUNT = itertools.count()


def made(case: Case, folder: Path, name: str | None = None) -> Any:
    """The nest, from a file of its own, so that errors can name lines."""
    name = name or f"case_{next(COUNT)}"
    path = folder / f"{name}.py"
    path.write_text(HEAD + function_text(case, name))
    return loaded(path, name)


def loaded(path: Path, name: str) -> Any:
    """An object of a Python file."""
    found = importlib.util.spec_from_file_location(name, path)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, name)


# ---- what it is called with


def arguments(case: Case) -> list[np.ndarray]:
    """Random arrays, extreme values planted."""
    rng = np.random.default_rng(case.seed)
    return [values(rng, case.shape(spec), np.dtype(spec.dtype or case.dtype), case.plain) for spec in case.arrays]


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, plain: bool) -> np.ndarray:
    if dtype.kind == "f":
        found = (rng.random(shape) * 4 - 2).astype(dtype)
        about = np.finfo(dtype)
        odd = [np.nan, 0.0, -0.0, np.inf, -np.inf, about.tiny / 8, -about.tiny / 8, about.max, 1.0]
    else:
        odd = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1, np.iinfo(dtype).max // 2]
        found = rng.integers(0, 9, shape).astype(dtype)
    if not plain and rng.random() < 0.6 and found.size:
        for place in rng.integers(0, found.size, rng.integers(1, 2 + found.size // 6)):
            found.flat[place] = odd[rng.integers(len(odd))]
    return found


# ---- evaluated: in the order of the text, each value rounded to its dtype, each read made where it stands


class OutOfBoundsError(Exception):
    """A subscript outside an array that has no boundary to derive it from."""


class EarlyReadError(Exception):
    """A read of a level's element that a later statement of this step writes."""


def wrapped(index: int, size: int, boundary: str | None) -> int:
    if 0 <= index < size:
        return index
    if boundary == "periodic" and -size <= index < 2 * size:
        return index % size
    mirrored = -index if index < 0 else 2 * (size - 1) - index
    if boundary == "reflecting" and 0 <= mirrored < size:
        return mirrored
    raise OutOfBoundsError(f"{index} of {size}")


def minimum(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


def maximum(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


OPERATORS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "sqrt": np.sqrt,
    "minimum": minimum,
    "maximum": maximum,
    "where": lambda condition, a, b: a if condition else b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&": lambda a, b: a and b,
    "|": lambda a, b: a or b,
    "not": lambda a: not a,
}


class Evaluation:
    """One call of a case, by Python's loops over NumPy's scalars."""

    def __init__(self, case: Case, given: list[np.ndarray]) -> None:
        self.case, self.specs = case, {spec.name: spec for spec in case.arrays}
        self.held: dict[str, Any] = {}
        for spec, array in zip(case.arrays, given, strict=True):
            levels = list(array.copy()) if spec.given > 1 else [array.copy()]
            self.held[spec.name] = levels if spec.given else levels[0]
        self.names: dict[str, Any] = dict(case.sizes) | case.parameters
        self.locals: dict[str, Any] = {}
        self.early: set[tuple[Any, ...]] = set()
        self.has_early_reads = False

    def results(self) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            self.run(self.case.body)
        found = []
        for name in self.case.written:
            given = self.specs[name].given
            levels = self.held[name][-given:] if given else [self.held[name]]
            found.append(np.stack(levels) if given > 1 else levels[0])
        return found

    def run(self, body: tuple[Any, ...]) -> None:
        for node in body:
            if isinstance(node, Loop):
                self.loop(node)
            elif isinstance(node, Let):
                self.locals[node.name] = self.value(node.value)
            else:
                value = self.value(node.value)
                array, at = self.place(node.array, node.at, writes=True)
                array[at] = value

    def loop(self, node: Loop) -> None:
        around = range(self.affine(node.low), self.affine(node.high))
        for index in reversed(around) if node.back else around:
            self.names[node.index] = index
            if node.index == "t":
                self.begin_step()
            self.run(node.body)

    def begin_step(self) -> None:
        """A new level begins as a copy of the last one."""
        self.early.clear()
        for name, spec in self.specs.items():
            if spec.given:
                self.held[name].append(self.held[name][-1].copy())

    def affine(self, of: Affine) -> int:
        return sum(factor * self.names[name] for name, factor in of[0]) + of[1]

    def place(self, name: str, at: tuple[Affine, ...], writes: bool = False) -> tuple[np.ndarray, tuple[int, ...]]:
        spec, array, where = self.specs[name], self.held[name], [self.affine(each) for each in at]
        newest = False
        if spec.given:
            level = where.pop(0)
            newest = level == len(array) - 1
            array = array[level]
        boundary = None if writes else spec.boundary
        point = tuple(wrapped(index, size, boundary) for index, size in zip(where, array.shape, strict=True))
        if newest and not writes:
            self.early.add((name, point))
        self.has_early_reads |= newest and writes and (name, point) in self.early
        return array, point

    def value(self, tree: Tree) -> Any:
        name, *rest = tree
        if name == "read":
            array, at = self.place(rest[0], rest[1])
            return array[at]
        if name == "number":
            return np.dtype(rest[1]).type(rest[0])
        if name == "temporary":
            return self.locals[rest[0]]
        return OPERATORS[name](*(self.value(each) for each in rest))


def wrong(have: Any, want: np.ndarray, signs: bool = True) -> str | None:
    """How two arrays differ, bit for bit but for which NaN it is; `signs`: -0.0 is not 0.0."""
    have = np.asarray(have)
    if have.dtype != want.dtype or have.shape != want.shape:
        return f"{have.dtype} {have.shape} is not {want.dtype} {want.shape}"
    same = (have == want) | ((have != have) & (want != want))
    if signs and want.dtype.kind == "f":
        same &= (np.signbit(have) == np.signbit(want)) | (want != 0)
    if same.all():
        return None
    at = tuple(int(x) for x in np.argwhere(~same)[0])
    return f"{(~same).sum()} of {same.size} differ, first at {at}: {have[at]!r}, not {want[at]!r}"


def kind_of(message: str) -> str:
    """A message without its names and numbers."""
    line = re.sub(r"case_\w+", "NEST", message.splitlines()[0])
    line = re.sub(r"\b[a-z]\d?\[[^\]]*\]", "ELEMENT", line)
    line = re.sub(r"\b[a-z]\d?\b(?! )", "X", line)
    return re.sub(r"\b[b-z]\d?\b", "X", re.sub(r"-?\d+", "N", line))


if __name__ == "__main__":
    sys.exit("run nest_fuzz.py")
