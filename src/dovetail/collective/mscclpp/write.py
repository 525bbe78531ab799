"""write: write a plan or a Program as MSCCL++ JSON, and prove the written plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dovetail.collective.mscclpp.certify import certify
from dovetail.collective.mscclpp.dump import dump
from dovetail.collective.mscclpp.express import Express
from dovetail.collective.mscclpp.parts import KIND_OF_WORD, Document, Gpu
from dovetail.collective.mscclpp.plan import MscclppPlan
from dovetail.collective.mscclpp.read import read
from dovetail.collective.mscclpp.regroup import Regroup, is_of_a_plan
from dovetail.core import ProgramError
from dovetail.ir import Program, verify
from dovetail.ir.collectives import traits_of


def write(
    source: MscclppPlan | Program,
    collective: str | None = None,
    *,
    num_threads: int = 1024,
    min_bytes: int = 0,
    max_bytes: int = (1 << 64) - 1,
) -> dict[str, Any]:
    """Return the JSON object of a plan, or of a Program with one input, at most one output, and scratch.

    `collective`: its name in Dovetail; default: the proved one. A Program that was read from a plan
    is written as that plan, op by op; any other by puts and signals on memory channels, also for messages. The
    written plan is proved. Raises ProgramError if the proof fails, if an op has no form in
    MSCCL++, or if executor 0.9 would refuse it (64 ops per threadblock, 16 channels).
    """
    if isinstance(source, MscclppPlan):
        return _proved(source.document, source.place)
    word = _word(source, collective)
    document = _again(source, word) if is_of_a_plan(source) else _expressed(source, word)
    return _proved(document._replace(num_threads=num_threads, min_bytes=min_bytes, max_bytes=max_bytes), source.name)


def _proved(document: Document, name: str) -> dict[str, Any]:
    content = dump(document)
    certify(read(content, name=name)).raise_if_bad()
    return content


def _word(program: Program, collective: str | None) -> str:
    """MSCCL++'s word for what the program computes."""
    ours = collective or verify(program).collective_found
    word = next((word for word, name in KIND_OF_WORD.items() if ours in (name, word)), None)
    if word is None:
        known = ", ".join(KIND_OF_WORD.values())
        raise ProgramError(
            f"MSCCL++ has no name for what '{program.name}' computes", found=ours, hint=f"it has {known}"
        )
    return word


def _again(program: Program, word: str) -> Document:
    """The plan from which a program was read. Raises ProgramError if reading it gives another program."""
    found = Regroup(program, _letters(program, word))
    blocks = [found.blocks(rank) for rank in range(program.num_ranks)]
    packed = any(place.packets for steps in blocks for block in steps for step in block for place in step.reads)
    sizes = {buffer.name: buffer.slots for buffer in program.buffers}
    scratch = sizes.get("packets" if packed else "scratch", (0,) * program.num_ranks)
    document = _document(program, word, blocks, found.semaphores, scratch)
    document = document._replace(protocol="LL" if packed else "Simple", double_scratch=packed)
    again = read(dump(document), name="again").program
    same = replace(program, name=again.name, lines=again.lines) if len(program.lines) == len(again.lines) else program
    if again != same:
        raise ProgramError(f"program '{program.name}' would be read back from MSCCL++'s ops as another program")
    return document


def _expressed(program: Program, word: str) -> Document:
    verify(program).raise_if_bad()
    to = Express(program, _letters(program, word))
    blocks = [to.blocks(rank) for rank in range(program.num_ranks)]
    return _document(program, word, blocks, [len(known) for known in to.semaphores], to.scratch)


def _letters(program: Program, word: str) -> dict[str, str]:
    """The letters of input and output. In place, the only buffer has the letter of the collective's whole."""
    names = {buffer.role: buffer.name for buffer in program.buffers if buffer.role != "scratch"}
    in_place = "output" not in names
    is_part = traits_of(KIND_OF_WORD[word]).input_is_part
    letters = {names["input"]: "o" if in_place and is_part else "i"} if "input" in names else {}
    return letters if in_place else letters | {names["output"]: "o"}


def _document(program: Program, word: str, blocks: Any, semaphores: Sequence[int], scratch: Sequence[int]) -> Document:
    """The header, from the sizes of the buffers."""
    sizes = {buffer.role: buffer.slots for buffer in program.buffers if buffer.role != "scratch"}
    in_place, n = "output" not in sizes, program.num_ranks
    inputs = sizes["input"]
    outputs = sizes.get("output", inputs)
    traits = traits_of(KIND_OF_WORD[word])
    if in_place and traits.input_is_part:
        inputs = tuple(size // n for size in inputs)
    if in_place and traits.output_is_part:
        outputs = tuple(size // n for size in outputs)
    gpus = tuple(
        Gpu({"i": inputs[rank], "o": outputs[rank], "s": scratch[rank]}, (0,) * semaphores[rank], blocks[rank], ())
        for rank in range(n)
    )
    return Document(program.name, program.name, word, "Simple", in_place, gpus)
