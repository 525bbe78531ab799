"""scan: read one line of the text form, word by word, from left to right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NoReturn

from dovetail.core import ProgramError
from dovetail.ir.types import Region

_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME = rf"(?:{_STRING}|[A-Za-z_][A-Za-z0-9_.]*(?:-[A-Za-z0-9_.]+)*)"
_INT, _NAT = r"(-?\d{1,18})", r"(\d{1,9})"
_WORDS = {
    "a name": re.compile(_NAME),
    "a number": re.compile(rf"{_INT}(?!\d)"),
    "numbers": re.compile(r"\d{1,12}(?:,\d{1,12})*"),
    "a channel (source->destination)": re.compile(rf"{_NAT}->{_NAT}"),
    "a peer": re.compile(rf"(?:{_NAT}->)?{_NAT}(?::{_INT})?"),
    "a region": re.compile(rf"({_NAME})(?:@{_NAT})?\[{_INT}:{_INT}(?:; *{_INT} *x *{_INT})?\]"),
    "a kernel": re.compile(rf"({_NAME})(?:#{_NAT})?"),
    "an op (lane.index)": re.compile(rf"(?:{_NAT}/)?({_STRING}|[^\s\"#/]+)\.{_NAT}"),
    "a source line": re.compile(rf"{_STRING}|[^\s#\"]+"),
}
_BLANK = re.compile(r"\s*(?:#.*)?")


class Line:
    """A line, and the position up to which it has been read. `where` names the line in errors."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.at = text, where, 0
        self._skip(0)

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.text)

    def fail(self, expected: str) -> NoReturn:
        rest = self.text[self.at :].strip()
        raise ProgramError(
            f"expected {expected}", where=self.where, found=repr(rest) if rest else "the end of the line"
        )

    def sees(self, what: str) -> bool:
        return _WORDS[what].match(self.text, self.at) is not None

    def word(self, what: str) -> re.Match[str]:
        match = _WORDS[what].match(self.text, self.at)
        if not match:
            self.fail(what)
        self._skip(match.end())
        return match

    def has(self, literal: str) -> bool:
        """Return whether a literal word or sign comes next; if so, step over it."""
        end = self.at + len(literal)
        rest = self.text[end : end + 1]
        if not self.text.startswith(literal, self.at) or (
            literal[-1].isalnum() and (rest.isalnum() or rest in ("_", "."))
        ):
            return False
        self._skip(end)
        return True

    def must(self, literal: str) -> None:
        if not self.has(literal):
            self.fail(f"'{literal}'")

    def one_of(self, words: Iterable[str]) -> str:
        found = next((word for word in words if self.has(word)), None)
        return found if found is not None else self.fail(f"one of {', '.join(words)}")

    def name(self) -> str:
        return unquote(self.word("a name")[0])

    def number(self) -> int:
        return int(self.word("a number")[0])

    def numbers(self) -> list[int]:
        found = [self.number()]
        while self.sees("a number"):
            found.append(self.number())
        return found

    def region(self, with_rank: bool = False) -> tuple[int, Region]:
        """Read `A[0:4]`, or `A@2[0:4]` with its rank; return (rank or 0, region)."""
        start = self.at
        m = self.word("a region")
        if (m[2] is not None) != with_rank:
            self.at = start
            self.fail("a region with its rank, as A@0[0:4]" if with_rank else "a region of this rank, without '@'")
        first, last = int(m[3]), int(m[4])
        blocks, stride = (int(m[5]), int(m[6])) if m[5] is not None else (1, 0)
        return int(m[2] or 0), Region(unquote(m[1]), first, last - first, stride, blocks)

    def regions(self) -> list[Region]:
        found = []
        while self.sees("a region"):
            found.append(self.region()[1])
        return found

    def _skip(self, at: int) -> None:
        match = _BLANK.match(self.text, at)
        self.at = match.end() if match else at


def unquote(word: str) -> str:
    try:
        return str(json.loads(word)) if word.startswith('"') else word
    except json.JSONDecodeError as error:
        raise ProgramError(f"{word} is not a quoted name", found=str(error)) from None
