"""Symbols: exact values for symbolic execution, canonical multisets of contributions, each kept once.

A value is a number that names a multiset; equal values have equal numbers. Its members are atoms:

- ("input", buffer, rank, slot): what an input held at the start
- ("undefined", buffer, rank, slot): what a slot held that nobody had written: no post-condition asks for it
- ("kernel", name, result, place, operands): one slot of a kernel's result, or one of the terms that it sums. Each
  operand is the value of one slot (modes `each`, `sum`, `each_sum`) or the values of all slots in order (`all`). Where
  nothing is taken slot by slot of the result, `place` is the slot's place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from dovetail.ir.types import Kernel

Atom = tuple[object, ...]
Operand = int | tuple[int, ...]
MOST = 1 << 100  # times that an atom is counted: a loop of doublings makes numbers that fill the memory
SHOWN_DEPTH, SHOWN_TERMS = 3, 4  # kernels within kernels, and terms of a sum within one, that are put in words


class TooManyError(Exception):
    """More atoms were added than Symbols may add."""


class Symbols:
    """Makes symbolic values, each only once. Limits the number of atoms that it adds up in all."""

    def __init__(self, most_atoms: float = math.inf) -> None:
        self._left = most_atoms
        self._atoms: dict[Atom, int] = {}
        self._atom_list: list[Atom] = []
        self._values: dict[tuple[tuple[int, int], ...], int] = {}
        self._value_list: list[tuple[tuple[int, int], ...]] = []
        self._sums: dict[tuple[int, ...], int] = {}
        self._texts: dict[tuple[int, int], str] = {}

    def atom(self, atom: Atom) -> int:
        """The value that holds `atom` once and nothing else."""
        number = self._atoms.setdefault(atom, len(self._atom_list))
        if number == len(self._atom_list):
            self._atom_list.append(atom)
        return self._value(((number, 1),))

    def start(self, defined: bool, buffer: str, rank: int, slot: int) -> int:
        return self.atom(("input" if defined else "undefined", buffer, rank, slot))

    def total(self, values: Iterable[int]) -> int:
        """The sum of values: contributions are counted as often as they come."""
        key = tuple(sorted(values))
        if key not in self._sums:
            self._left -= sum(len(self._value_list[value]) for value in key)
            if self._left < 0:
                raise TooManyError
            counts: Counter[int] = Counter()
            for value in key:
                for atom, times in self._value_list[value]:
                    counts[atom] += times
            self._sums[key] = self._value(tuple(sorted((atom, min(n, MOST)) for atom, n in counts.items())))
        return self._sums[key]

    def apply(self, kernel: Kernel, result: int, place: int, operands: Sequence[Operand]) -> int:
        """Slot `place` of the `result`-th region that a kernel writes."""
        return self.atom(("kernel", kernel.name, result, -1 if _by_slot(kernel) else place, tuple(operands)))

    def step(self, row: int, values: list[int]) -> list[int]:
        """Values that op `row` stores or sends: here they stay what they are."""
        return values

    def members(self, value: int) -> Counter[Atom]:
        """The atoms of a value, and how often it holds each."""
        return Counter({self._atom_list[atom]: times for atom, times in self._value_list[value]})

    def size(self, value: int) -> int:
        """How many different atoms a value has."""
        return len(self._value_list[value])

    def text(self, value: int, depth: int = SHOWN_DEPTH) -> str:
        """`A@0[3] + 2 x A@1[3] + matmul(A@0[3], B@0[0])`; kernels within kernels so deep only."""
        if (value, depth) not in self._texts:
            most = None if depth == SHOWN_DEPTH else SHOWN_TERMS
            self._texts[value, depth] = self.sum_text(self.members(value), most, depth) or "nothing"
        return self._texts[value, depth]

    def sum_text(self, members: Counter[Atom], most: int | None = None, depth: int = SHOWN_DEPTH) -> str:
        """Atoms as a sum in words, with at most `most` atoms written out."""
        texts = sorted(self.atom_text(atom, times, depth) for atom, times in members.items())
        more = f" and {len(texts) - most} more" if most is not None and len(texts) > most else ""
        return f"{' + '.join(texts[:most])}{more}"

    def atom_text(self, atom: Atom, times: int = 1, depth: int = SHOWN_DEPTH) -> str:
        if atom[0] == "kernel":
            _, name, result, place, operands = atom
            assert isinstance(operands, tuple)
            tail = f".{result}" * (result != 0) + f"#{place}" * (place != -1)
            shown = [self._operand_text(operand, depth - 1) for operand in operands] if depth else ["…"]
            text = f"{name}{tail}({', '.join(shown)})"
        else:
            word, buffer, rank, slot = atom
            text = f"{'unwritten ' if word == 'undefined' else ''}{buffer}@{rank}[{slot}]"
        return text if times == 1 else f"{'2^100 or more' if times == MOST else times} x {text}"

    def _operand_text(self, operand: Operand, depth: int) -> str:
        if isinstance(operand, int):
            return self.text(operand, depth)
        shown = [self.text(value, depth) for value in operand[:3]]
        return f"[{', '.join(shown)}{f', and {len(operand) - 3} more' if len(operand) > 3 else ''}]"

    def _value(self, members: tuple[tuple[int, int], ...]) -> int:
        number = self._values.setdefault(members, len(self._value_list))
        if number == len(self._value_list):
            self._value_list.append(members)
        return number


def _by_slot(kernel: Kernel) -> bool:
    """Whether a kernel takes an operand slot by slot of its result."""
    return "each" in kernel.modes or "each_sum" in kernel.modes
