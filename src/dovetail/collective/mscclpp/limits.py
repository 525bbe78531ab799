"""limits: compare a plan with the limits and deviations of MSCCL++'s executor 0.9."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.collective.mscclpp.memory import Cut
from dovetail.collective.mscclpp.parts import KIND_OF_WORD, Document, Gpu, Remark, Step, steps_of

MOST_OPS, MOST_CHANNELS, MOST_PEERS, MOST_SYNCS = 64, 16, 8, 16


def limits_of(document: Document) -> tuple[Remark, ...]:
    """Return remarks on ops that the executor would refuse, or execute differently from the plan, with their places."""
    found = [remark for rank, gpu in enumerate(document.gpus) for remark in _gpu(gpu, f"{document.place}, gpu {rank}")]
    return (*found, *(Remark(step.where, text) for step in steps_of(document.gpus) for text in _step(step)))


def notes_of(document: Document, how: Cut) -> tuple[str, ...]:
    """Return remarks on how the plan was interpreted."""
    notes = []
    if document.collective not in KIND_OF_WORD:
        notes.append(f"'{document.collective}' is no known collective: its result is not checked")
    if any(step.loop for step in steps_of(document.gpus)):
        notes.append(f"pipelines are judged for {how.turns} iterations")
    if any(step.name == "flush" for step in steps_of(document.gpus)):
        notes.append("executor 0.9 ignores a separate flush, and flushes only in a pwsf")
    if any(not gpu.chunks[letter] for gpu in document.gpus for letter in "io"):
        notes.append("executor 0.9 divides messages by the number of chunks, and fails for a gpu with 0 chunks")
    return tuple(notes)


def _gpu(gpu: Gpu, where: str) -> Iterator[Remark]:
    for number, (block, channels) in enumerate(zip(gpu.blocks, gpu.channels, strict=True)):
        place = f"{where}, threadblock {number}"
        ops = sum(1 + len(step.loop.steps) if step.loop else 1 for step in block)
        if ops > MOST_OPS:
            yield Remark(place, f"{ops} ops; the executor takes {MOST_OPS} per threadblock")
        for kind, count in channels.items():
            if count > MOST_CHANNELS:
                yield Remark(place, f"{count} {kind} channels; the executor takes {MOST_CHANNELS} per threadblock")


def _step(step: Step) -> Iterator[str]:
    if len(step.links) > MOST_PEERS:
        yield f"{len(step.links)} channels; the executor takes {MOST_PEERS} per op"
    if max(len(step.reads), len(step.writes)) > MOST_PEERS + 2:
        yield f"{max(len(step.reads), len(step.writes))} places; the executor takes {MOST_PEERS + 2} per op"
    if len(step.semaphores) > MOST_SYNCS or step.barrier[0] >= MOST_SYNCS:
        yield f"the executor has {MOST_SYNCS} barriers, and takes {MOST_SYNCS} semaphores per op"
    if step.name == "get" and any(r.start != w.start for r, w in zip(step.reads, step.writes, strict=True)):
        yield "the executor swaps a get's two offsets: read and write the same index"
    if step.name == "put" and step.by == "memory" and len({place.buffer for place in step.reads}) > 1:
        yield "the executor reads all of a put's places from the buffer of the first"
    if step.reduce != "sum":
        yield f"the executor does not know reduce_op '{step.reduce}', and sums"
