"""write: Program → MSCCL XML of one dialect, if its certificate holds for that runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dovetail.collective.msccl.certify import certify
from dovetail.collective.msccl.layout import Places, elements_of, to_xml
from dovetail.collective.msccl.lower import lower
from dovetail.collective.msccl.parts import FIFO_DEPTHS, WORDS, Header, MscclFile, check_dialect
from dovetail.collective.msccl.read import of_elements
from dovetail.collective.msccl.scan import Elements, check_sizes
from dovetail.collective.spec import spec_of
from dovetail.core import ProgramError
from dovetail.ir import TARGETS, Certificate, Program, canonical, judge_limits, verify
from dovetail.ir.collectives import traits_of

_MOST_NAME = 63


class Written(NamedTuple):
    """The file as `read` would return it; if it has one use, that is the written Program itself."""

    file: MscclFile
    elements: Elements

    @property
    def text(self) -> str:
        return to_xml(self.elements)


def write(program: Program, dialect: str, **options: Any) -> str:
    """Return only the text that `write_file` makes with these `options`."""
    return write_file(program, dialect, **options).text


def write_file(
    program: Program,
    dialect: str,
    *,
    protocol: str | None = None,
    name: str | None = None,
    collective: str | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
    header: Header | None = None,
    certificate: Certificate | None = None,
) -> Written:
    """Write `program` as XML for a runtime: "msccl", "azure" (msccl-executor-nccl) or "rccl".

    Its buffers are "input" and, unless it is in place, "output"; all others become scratch. `protocol` is Simple, LL
    or LL128; `min_bytes` and `max_bytes` limit the sizes for which it is selected. `collective` is the header's, and
    must be proved of the program; default: the standard collective that it is. `header`, of a file that was read, has
    defaults of options; if it is for both uses, both are proved. Raises ProgramError if the certificate
    does not hold on that runtime, with the protocol's FIFO depth and the runtime's limits and words. `certificate`: of
    `program`, if known; a program that is written unchanged is then not proved again.
    """
    check_dialect(dialect)
    protocol = protocol or (header.proto if header else "Simple")
    if protocol not in FIFO_DEPTHS:
        raise ProgramError(f"no protocol '{protocol}'", hint=f"one of {', '.join(FIFO_DEPTHS)}")
    steps = lower(program, TARGETS[dialect].slots).with_depth(FIFO_DEPTHS[protocol])
    known = certificate if certificate and steps is program and certificate.program == program.name else None
    kind = _proved_kind(steps, known, dialect, collective or (header.kind if header else None))
    places = _places(canonical(steps), kind, keep_lanes=header is not None)
    stated = _header(header, places, kind, dialect, steps, protocol)
    given = {"name": name and name[:_MOST_NAME], "min_bytes": min_bytes, "max_bytes": max_bytes}
    stated = replace(stated, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    elements = elements_of(places, stated, dialect)
    return Written(_checked_file(elements, dialect, steps), elements)


def _checked_file(elements: Elements, dialect: str, program: Program) -> MscclFile:
    """The file. Raises ProgramError if the runtime would refuse it, or if one of several uses is wrong."""
    check_sizes(elements)
    file = of_elements(elements, dialect, program)
    if len(file.uses) > 1:
        certify(file, dialect).raise_if_bad()
    return file


def _proved_kind(program: Program, known: Certificate | None, dialect: str, wanted: str | None) -> str:
    """The collective for the header. Raises ProgramError if it is not proved, or if the runtime has no word for it."""
    certificate = judge_limits(known, program, dialect) if known else verify(program, dialect)
    certificate.raise_if_bad()
    found = certificate.collective_found
    kind = wanted or found or "custom"
    if kind not in ("custom", found) and not _does(program, kind):
        what = f"program '{program.name}' is not proved to be {_article(kind)}"
        raise ProgramError(what, found=f"it does {_article(found)}" if found else "no standard collective")
    if kind in WORDS[dialect]:
        return kind
    if "custom" in WORDS[dialect]:
        return "custom"
    raise ProgramError(f"{dialect} has no word for {_article(kind)}", hint=f"it knows {', '.join(WORDS[dialect])}")


def _article(kind: str) -> str:
    return "a custom collective" if kind == "custom" else f"{'an' if kind[0] in 'aeio' else 'a'} {kind}"


def _does(program: Program, kind: str) -> bool:
    """Whether the program meets the post-conditions of collective `kind` in its buffers."""
    n = program.num_ranks
    slots = max((max(b.slots) for b in program.buffers if b.role != "scratch"), default=0)
    chunks = slots // n if traits_of(kind).in_parts else slots
    if chunks < 1:
        return False
    spec = spec_of(kind, n, chunks=chunks, in_place=program.in_place)
    if any(buffer not in program.buffers for buffer in spec.buffers):
        return False
    return program.posts == spec.posts or verify(replace(program, posts=spec.posts)).checks["result"].ok


def _header(header: Header | None, places: Places, kind: str, dialect: str, program: Program, protocol: str) -> Header:
    """The header for a dialect: `header`, if given, with what the program changes."""
    stated = header or Header(program.name, protocol, "", 1, 1, program.num_ranks, places.in_place)
    both = stated.inplace and stated.outofplace is True and not places.in_place
    away = stated.outofplace if stated.outofplace is None else not places.in_place or both
    return replace(
        stated,
        name=stated.name[:_MOST_NAME],
        proto=protocol,
        coll=WORDS[dialect][kind],
        nchannels=max([stated.nchannels if header else 1, *(channel.id + 1 for channel in program.channels)]),
        nchunksperloop=places.whole,
        ngpus=program.num_ranks,
        inplace=places.in_place or both,
        outofplace=away,
    )


def _places(program: Program, kind: str, keep_lanes: bool) -> Places:
    n = program.num_ranks
    roles = {buffer.role for buffer in program.buffers}
    in_place = "output" not in roles
    letter = "o" if in_place and traits_of(kind).input_is_part else "i"  # the letter of the only buffer in place
    names = {"input": letter, "output": "o", "scratch": "s"}
    letters = tuple(names[buffer.role] for buffer in program.buffers)
    if letters.count("i") > 1 or letters.count("o") > 1:
        raise ProgramError("a file has one input and one output", found=", ".join(b.name for b in program.buffers))
    chunks, bases = np.zeros((n, 3), dtype=np.int64), np.zeros((len(letters), n), dtype=np.int64)
    for row, (letter, buffer) in enumerate(zip(letters, program.buffers, strict=True)):
        bases[row] = chunks[:, "ios".index(letter)]
        chunks[:, "ios".index(letter)] += np.array(buffer.slots)
    whole = int(chunks[:, :2].max(initial=0))
    lanes = len(program.lanes)
    used = np.zeros((n, lanes), dtype=bool)
    used[program.columns["rank"], program.columns["lane"]] = True
    if keep_lanes:  # gaps become threadblocks without steps
        used = np.maximum.accumulate(used[:, ::-1], axis=1)[:, ::-1]
    blocks = np.where(used, np.cumsum(used, axis=1) - 1, -1)
    return Places(program, letters, bases, chunks, whole, blocks, in_place)
