"""Symbols: exact values for symbolic execution: canonical multisets of contributions, each stored once.

A value is a number that stands for a multiset of atoms; equal values have equal numbers. Atoms are:

- ("input", buffer, rank, slot): the initial value of an input's slot
- ("undefined", buffer, rank, slot): the initial value of any other slot; no post-condition contains it
- ("kernel", name, result, place, operands): one slot of a kernel's result, or one of the terms that it sums. Each
  operand is the value of one slot (modes `each`, `sum`, `each_sum`) or the values of all slots in order (`all`).
  `place` is the slot's place in the result if no operand is taken slot by slot, else -1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from dovetail.ir.types import Kernel

Atom = tuple[object, ...]
Operand = int | tuple[int, ...]
MOST = 1 << 100  # limit of an atom's count: repeated doubling would make numbers that fill the memory
SHOWN_DEPTH, SHOWN_TERMS = 3, 4  # in a text: levels of nested kernels, and terms of a nested sum


class TooManyError(Exception):
    """Symbols has added more atoms than its limit."""


class Symbols:
    """Create symbolic values, each only once. `most_atoms` limits how many atoms are added up in all."""

    def __init__(self, most_atoms: float = math.inf) -> None:
        self._left = most_atoms
        self._atoms: dict[Atom, int] = {}
        self._atom_list: list[Atom] = []
        self._values: dict[tuple[tuple[int, int], ...], int] = {}
        self._value_list: list[tuple[tuple[int, int], ...]] = []
        self._sums: dict[tuple[int, ...], int] = {}
        self._texts: dict[tuple[int, int], str] = {}

    def atom(self, atom: Atom) -> int:
        """Return the value that consists of `atom` alone, once."""
        number = self._atoms.setdefault(atom, len(self._atom_list))
        if number == len(self._atom_list):
            self._atom_list.append(atom)
        return self._value(((number, 1),))

    def start(self, defined: bool, buffer: str, rank: int, slot: int) -> int:
        return self.atom(("input" if defined else "undefined", buffer, rank, slot))

    def total(self, values: Iterable[int]) -> int:
        """Return the sum of values: the counts of their atoms are added."""
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
        """Return the value of slot `place` of the `result`-th region that a kernel writes."""
        return self.atom(("kernel", kernel.name, result, -1 if _by_slot(kernel) else place, tuple(operands)))

    def step(self, row: int, values: list[int]) -> list[int]:
        """Return the values that op `row` stores or sends: here unchanged; `Lineage` records the op."""
        return values

    def members(self, value: int) -> Counter[Atom]:
        """Return the atoms of a value with their counts."""
        return Counter({self._atom_list[atom]: times for atom, times in self._value_list[value]})

    def size(self, value: int) -> int:
        """Return the number of different atoms of a value."""
        return len(self._value_list[value])

    def text(self, value: int, depth: int = SHOWN_DEPTH) -> str:
        """Return a value as text, `A@0[3] + 2 x A@1[3] + matmul(A@0[3], B@0[0])`, down to `depth` nested kernels."""
        if (value, depth) not in self._texts:
            most = None if depth == SHOWN_DEPTH else SHOWN_TERMS
            self._texts[value, depth] = self.sum_text(self.members(value), most, depth) or "nothing"
        return self._texts[value, depth]

    def sum_text(self, members: Counter[Atom], most: int | None = None, depth: int = SHOWN_DEPTH) -> str:
        """Return a sum of atoms as text, with at most `most` atoms written out."""
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
