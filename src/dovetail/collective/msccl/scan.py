"""scan: read the elements of an MSCCL XML file as rows of numbers with lines; refuse hostile files early."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from dovetail.collective.msccl.parts import BUFFERS, KINDS
from dovetail.core import ProgramError

MAX_BYTES = 1 << 27
MAX_ELEMENTS = 1 << 19  # gpus, threadblocks and steps: an all_to_all of 512 gpus without relays
MAX_GPUS = MAX_BLOCKS = 1024  # children of one element that the runtimes' readers can store
MAX_STEPS = 4096  # of one threadblock; no runtime runs more than 256
MAX_GPU_STEPS = 1 << 15  # of one gpu; no runtime stores more than 4095
MAX_CHUNKS = (1 << 15) - 1  # of a buffer on one GPU: the runtimes store offsets in 16 bits
MAX_CELLS = 1 << 22  # of all buffers on all GPUs
_MAX_DEPTH = 16
_MAX_TOKEN = 1 << 22
_PIECE = 1 << 20
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_PARENTS = {"algo": None, "gpu": "algo", "tb": "gpu", "step": "tb"}
_STEP = ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep")
_TYPES = {word: number for number, word in enumerate(KINDS)}
_PLACES = {word: number for number, word in enumerate(BUFFERS)}
COLUMNS = ("line", "tb", "s", "type", "src", "srcoff", "dst", "dstoff", "cnt", "depid", "deps", "hasdep")


class Gpu(NamedTuple):
    line: int
    id: int
    i_chunks: int
    o_chunks: int
    s_chunks: int


class Block(NamedTuple):
    """A threadblock of the `gpu`-th <gpu> element."""

    line: int
    gpu: int
    id: int
    send: int
    recv: int
    chan: int


@dataclass
class Elements:
    """All elements of a file in its order. A step is a row of COLUMNS; `tb` is the index of its <tb> element."""

    place: str
    algo: dict[str, str] = field(default_factory=dict)
    algo_line: int = 0
    gpus: list[Gpu] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    steps: Sequence[tuple[int, ...]] | NDArray[np.int32] = field(default_factory=list)


def scan(source: str | bytes | Path, place: str) -> Elements:
    """Return the elements of a file (a Path) or of a text. Raises ProgramError for the first part that is no MSCCL XML.

    Document types, and with them entities, are refused; sizes are bounded; reading stops at the first fault.
    """
    reader = _Reader(place)
    parser = reader.parser
    try:
        text = _bytes_of(source, place)
        _check_elements(text, place)
        for start in range(0, len(text), _PIECE):
            parser.Parse(text[start : start + _PIECE], False)
            if min(start + _PIECE, len(text)) - parser.CurrentByteIndex > _MAX_TOKEN:
                raise reader.bad(f"an element or comment of more than {_MAX_TOKEN >> 20} MiB")
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        what = "the file is empty" if "no element found" in str(error) and error.lineno == 1 else "it is not XML"
        hint = "is it whole? an MSCCL algorithm is one <algo> element"
        raise ProgramError(what, where=f"{place}:{error.lineno}", found=str(error), hint=hint) from None
    except (ValueError, LookupError) as error:
        if isinstance(error, ProgramError):
            raise
        raise ProgramError("it is not XML", where=place, found=str(error), hint="write it in UTF-8") from None
    reader.found.steps = reader.steps
    return reader.found


def check_sizes(elements: Elements) -> None:
    """Raise ProgramError for more gpus, chunks or steps than `scan` reads."""
    count = 1 + len(elements.gpus) + len(elements.blocks) + len(elements.steps)
    over = next((gpu for gpu in elements.gpus if max(gpu[2:]) > MAX_CHUNKS), None)
    if len(elements.gpus) > MAX_GPUS:
        what = f"{len(elements.gpus)} gpus; runtimes read at most {MAX_GPUS}"
    elif over is not None:
        what = f"{max(over[2:])} chunks on gpu {over.id}; runtimes store offsets in 16 bits: at most {MAX_CHUNKS}"
    elif count > MAX_ELEMENTS:
        what = f"{count} gpus, threadblocks and steps; at most {MAX_ELEMENTS} are read"
    else:
        return
    raise ProgramError(what, where=elements.place)


def whole(text: str) -> int:
    """Parse an integer in plain decimals, which all runtimes read alike. Raises ValueError for other text.

    >>> whole("-12"), whole("0")
    (-12, 0)
    """
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text[:24]!r} is not a whole number in plain decimals")
    return int(text)


class _Numbers(dict[str, int]):
    """A cache of parsed integers by text."""

    def __missing__(self, text: str) -> int:
        number = whole(text)
        if abs(number) >= 1 << 31:
            raise ValueError(f"{text} is out of range")
        self[text] = number
        return number


class _Reader:
    def __init__(self, place: str) -> None:
        self.place, self.found = place, Elements(place)
        self.steps: list[tuple[int, ...]] = []
        self.open: list[str] = []
        self.numbers = _Numbers()
        self.first = [0, 0, 0]  # the open gpu's first block, the open block's and the open gpu's first step
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._doctype

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self.open[-1] if self.open else None
        self.open.append(name)
        if name == "step" and parent == "tb":
            self._step(attributes)
        elif name not in _PARENTS:
            if parent is None:
                raise self.bad(f"its root is <{name[:40]}>", hint="an MSCCL algorithm is one <algo> element")
            if len(self.open) > _MAX_DEPTH:
                raise self.bad(f"elements are nested more than {_MAX_DEPTH} deep")
        elif _PARENTS[name] != parent:
            outer = f"outside a <{_PARENTS[name]}>" if _PARENTS[name] else "inside another element"
            raise self.bad(f"a <{name}> {outer}", hint="an <algo> holds <gpu>s, these <tb>s, these <step>s")
        else:
            getattr(self, f"_{name}")(attributes)

    def _end(self, name: str) -> None:
        self.open.pop()

    def _doctype(self, *_: object) -> None:
        raise self.bad("it declares a document type", hint="drop the <!DOCTYPE …>: entities are not read")

    def _algo(self, attributes: dict[str, str]) -> None:
        self.found.algo, self.found.algo_line = attributes, self.parser.CurrentLineNumber

    def _gpu(self, attributes: dict[str, str]) -> None:
        if len(self.found.gpus) == MAX_GPUS:
            raise self.bad(f"more than {MAX_GPUS} <gpu> elements", hint="no runtime reads more")
        values = self._whole_numbers("gpu", attributes, ("id", "i_chunks", "o_chunks", "s_chunks"))
        for word, value in zip(("i_chunks", "o_chunks", "s_chunks"), values[1:], strict=True):
            if not 0 <= value <= MAX_CHUNKS:
                raise self.bad(f"{word}={value}", hint=f"0 to {MAX_CHUNKS}: the runtimes store offsets in 16 bits")
        self.found.gpus.append(Gpu(self.parser.CurrentLineNumber, *values))
        self.first[0], self.first[2] = len(self.found.blocks), len(self.steps)

    def _tb(self, attributes: dict[str, str]) -> None:
        if len(self.found.blocks) - self.first[0] == MAX_BLOCKS:
            raise self.bad(f"more than {MAX_BLOCKS} threadblocks on one gpu", hint="no runtime has more")
        values = self._whole_numbers("tb", attributes, ("id", "send", "recv", "chan"))
        self.found.blocks.append(Block(self.parser.CurrentLineNumber, len(self.found.gpus) - 1, *values))
        self.first[1] = len(self.steps)

    def _step(self, a: dict[str, str]) -> None:
        number, steps = self.numbers, self.steps
        if len(steps) - self.first[1] == MAX_STEPS:
            raise self.bad(f"more than {MAX_STEPS} steps in one threadblock", hint="no runtime runs more than 256")
        if len(steps) - self.first[2] == MAX_GPU_STEPS:
            raise self.bad(f"more than {MAX_GPU_STEPS} steps on one gpu", hint="no runtime stores more than 4095")
        try:
            steps.append(
                (
                    self.parser.CurrentLineNumber,
                    len(self.found.blocks) - 1,
                    number[a["s"]],
                    _TYPES[a["type"]],
                    _PLACES[a["srcbuf"]],
                    number[a["srcoff"]],
                    _PLACES[a["dstbuf"]],
                    number[a["dstoff"]],
                    number[a["cnt"]],
                    number[a["depid"]],
                    number[a["deps"]],
                    number[a["hasdep"]],
                )
            )
        except (KeyError, ValueError):
            raise self._bad_step(a) from None

    def _bad_step(self, attributes: dict[str, str]) -> ProgramError:
        """The error of a step that could not be read."""
        numbers = tuple(word for word in _STEP if word not in ("type", "srcbuf", "dstbuf"))
        self._need("step", attributes, _STEP)
        if attributes["type"] not in _TYPES:
            hint = f"one of {', '.join(_TYPES)}" + ("; `ra` ends the kernel of msccl" * (attributes["type"] == "ra"))
            return self.bad(f"no op '{attributes['type'][:24]}'", hint=hint)
        for word in ("srcbuf", "dstbuf"):
            if attributes[word] not in _PLACES:
                return self.bad(f"no buffer {word}='{attributes[word][:24]}'", hint="i, o or s")
        self._whole_numbers("step", attributes, numbers)
        raise AssertionError("this step has no error")

    def _whole_numbers(self, element: str, attributes: dict[str, str], words: Sequence[str]) -> list[int]:
        self._need(element, attributes, words)
        try:
            return [self.numbers[attributes[word]] for word in words]
        except ValueError as error:
            word = next(w for w in words if attributes[w] not in self.numbers)
            raise self.bad(f"{word} of this {element}: {error}") from None

    def _need(self, element: str, attributes: dict[str, str], words: Sequence[str]) -> None:
        absent = [word for word in words if word not in attributes]
        if absent:
            raise self.bad(f"this {element} has no {' and no '.join(absent)}", hint=f"it needs {', '.join(words)}")

    def bad(self, what: str, hint: str | None = None) -> ProgramError:
        return ProgramError(what, where=f"{self.place}:{self.parser.CurrentLineNumber}", hint=hint)


def _bytes_of(source: str | bytes | Path, place: str) -> bytes:
    if isinstance(source, Path):
        with source.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    else:
        text = source.encode("utf-8", "surrogateescape") if isinstance(source, str) else source
    if len(text) > MAX_BYTES:
        raise ProgramError(f"more than {MAX_BYTES >> 20} MiB", where=place, hint="no runtime reads a file of this size")
    return text


def _check_elements(text: bytes, place: str) -> None:
    """Refuse a file of too many elements before parsing it."""
    if text.count(b"<") - text.count(b"</") <= MAX_ELEMENTS:
        return
    start = next(islice(re.finditer(b"<(?!/)", text), MAX_ELEMENTS, None)).start()
    line = text.count(b"\n", 0, start) + 1
    what, hint = f"more than {MAX_ELEMENTS} gpus, threadblocks and steps", "no runtime stores more than 4095 for a gpu"
    raise ProgramError(what, where=f"{place}:{line}", hint=hint)
