"""limits: limits and deviations of MSCCL++'s executor 0.9, compared with what a plan may ask."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.collective.mscclpp.memory import Cut
from dovetail.collective.mscclpp.parts import KIND_OF_WORD, Document, Gpu, Remark, Step, steps_of

MOST_OPS, MOST_CHANNELS, MOST_PEERS, MOST_SYNCS = 64, 16, 8, 16


def limits_of(document: Document) -> tuple[Remark, ...]:
    """Remarks on ops that the executor would refuse, or execute otherwise than the plan asks, with their places."""
    found = [remark for rank, gpu in enumerate(document.gpus) for remark in _gpu(gpu, f"{document.place}, gpu {rank}")]
    return (*found, *(Remark(step.where, text) for step in steps_of(document.gpus) for text in _step(step)))


def notes_of(document: Document, how: Cut) -> tuple[str, ...]:
    """Remarks on how the plan was interpreted."""
    notes = []
    if document.collective not in KIND_OF_WORD:
        notes.append(f"'{document.collective}' is no collective whose result is known: nothing is asked of it")
    if any(step.loop for step in steps_of(document.gpus)):
        notes.append(f"pipelines are judged for {how.turns} turns")
    if any(step.name == "flush" for step in steps_of(document.gpus)):
        notes.append("executor 0.9 does nothing for a flush of its own, only for that of a pwsf")
    if any(not gpu.chunks[letter] for gpu in document.gpus for letter in "io"):
        notes.append("executor 0.9 divides messages by the number of chunks, and would not take a gpu that has 0")
    return tuple(notes)


def _gpu(gpu: Gpu, where: str) -> Iterator[Remark]:
    for number, (block, channels) in enumerate(zip(gpu.blocks, gpu.channels, strict=True)):
        place = f"{where}, threadblock {number}"
        ops = sum(1 + len(step.loop.steps) if step.loop else 1 for step in block)
        if ops > MOST_OPS:
            yield Remark(place, f"{ops} ops; the executor takes {MOST_OPS} a threadblock")
        for kind, count in channels.items():
            if count > MOST_CHANNELS:
                yield Remark(place, f"{count} {kind} channels; the executor takes {MOST_CHANNELS} a threadblock")


def _step(step: Step) -> Iterator[str]:
    if len(step.links) > MOST_PEERS:
        yield f"{len(step.links)} channels; the executor takes {MOST_PEERS} an op"
    if max(len(step.reads), len(step.writes)) > MOST_PEERS + 2:
        yield f"{max(len(step.reads), len(step.writes))} places; the executor takes {MOST_PEERS + 2} an op"
    if len(step.semaphores) > MOST_SYNCS or step.barrier[0] >= MOST_SYNCS:
        yield f"the executor has {MOST_SYNCS} barriers, and takes {MOST_SYNCS} semaphores an op"
    if step.name == "get" and any(r.start != w.start for r, w in zip(step.reads, step.writes, strict=True)):
        yield "the executor takes a get's two offsets for one another: read and write the same index"
    if step.name == "put" and step.by == "memory" and len({place.buffer for place in step.reads}) > 1:
        yield "the executor reads all of a put's places from the buffer of the first"
    if step.reduce != "sum":
        yield f"the executor does not know reduce_op '{step.reduce}', and sums"
