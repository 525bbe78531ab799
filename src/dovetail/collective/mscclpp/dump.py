"""dump: write a Document as the JSON that MSCCL++'s executor reads: the inverse of `document.load`."""

from __future__ import annotations

from typing import Any

from dovetail.collective.mscclpp.parts import OPS, REDUCES, Document, Gpu, Link, Place, Step, letters, steps_of

_FIRST = ("memory", "port")


def dump(document: Document) -> dict[str, Any]:
    """Return the JSON object of a plan. Channels are sorted by kind, peer and number; buffers by first use."""
    counts = _channels(document)
    return {
        "name": document.name,
        "collective": document.collective,
        "protocol": document.protocol,
        "inplace": document.in_place,
        "reuse_resources": document.reuse_resources,
        "gpus": [_gpu(document, rank, counts) for rank in range(len(document.gpus))],
        "num_threads_per_block": document.num_threads,
        "use_double_scratch_buffer": document.double_scratch,
        "buffer_alignment": document.alignment,
        "min_message_size": document.min_bytes,
        "max_message_size": document.max_bytes,
    }


def _channels(document: Document) -> dict[tuple[str, int, int], int]:
    """The number of channels of a kind between two gpus, equal at both ends."""
    counts: dict[tuple[str, int, int], int] = {}
    for rank, gpu in enumerate(document.gpus):
        for step in steps_of([gpu]):
            for link in step.links:
                for pair in ((rank, link.peer), (link.peer, rank)):
                    key = (link.kind, *pair)
                    counts[key] = max(counts.get(key, 0), link.number + 1)
    return counts


class _Tables:
    """What the ops of a gpu refer to: channels, groups and remote buffers, in order."""

    def __init__(self, gpu: Gpu, rank: int, counts: dict[tuple[str, int, int], int]) -> None:
        self.links: dict[str, list[tuple[int, int]]] = {kind: [] for kind in _FIRST}
        for (kind, end, peer), count in sorted(counts.items()):
            self.links[kind] += [(peer, number) for number in range(count)] if end == rank else []
        self.groups: list[tuple[str, tuple[int, ...]]] = []
        self.remotes: dict[tuple[int, str], list[str]] = {}
        for step in steps_of([gpu]):
            for form, place in places(step):
                if form == "g" and (place.buffer, place.ranks) not in self.groups:
                    self.groups.append((place.buffer, place.ranks))
                if form == "r":
                    kinds = self.remotes.setdefault((place.ranks[0], place.buffer), [])
                    kinds += [] if step.by in kinds else [step.by]


def places(step: Step) -> list[tuple[str, Place]]:
    """Return the places of an op with their forms: l here, r on another gpu, g on a group."""
    found = []
    for pattern, side in zip(OPS[step.name][:2], (step.reads, step.writes), strict=True):
        forms = (letters(pattern, len(side)) or "").translate(str.maketrans("pqh", "lrg"))
        found += list(zip(forms, side, strict=True))
    return found


def _gpu(document: Document, rank: int, counts: dict[tuple[str, int, int], int]) -> dict[str, Any]:
    gpu = document.gpus[rank]
    tables = _Tables(gpu, rank, counts)
    channels: list[dict[str, Any]] = [
        {"channel_type": kind, "connected_to": [peer for peer, _ in tables.links[kind]]}
        for kind in _FIRST
        if tables.links[kind]
    ]
    for buffer, ranks in tables.groups:
        group = {"size": len(ranks), "ranks": list(ranks)}
        channels.append({"channel_type": "switch", "buffer_type": buffer, "rank_groups": [group]})
    return {
        "id": rank,
        "input_chunks": gpu.chunks["i"],
        "output_chunks": gpu.chunks["o"],
        "scratch_chunks": gpu.chunks["s"],
        "threadblocks": [_Block(tables, block).to_json(number) for number, block in enumerate(gpu.blocks)],
        "channels": channels,
        "remote_buffers": [
            {"rank": peer, "type": buffer, "access_channel_types": kinds}
            for (peer, buffer), kinds in tables.remotes.items()
        ],
        "semaphores": [{"init_value": value} for value in gpu.semaphores],
    }


class _Block:
    """One threadblock: its ops, and those entries of the gpu's tables that it uses."""

    def __init__(self, tables: _Tables, steps: tuple[Step, ...]) -> None:
        self.tables = tables
        self.channels: dict[str, list[int]] = {kind: [] for kind in (*_FIRST, "switch")}
        self.remotes: dict[str, list[int]] = {kind: [] for kind in _FIRST}
        self.ops = [self._op(step) for step in steps]

    def to_json(self, number: int) -> dict[str, Any]:
        channels = [{"channel_type": kind, "channel_ids": ids} for kind, ids in self.channels.items() if ids]
        remotes = [{"access_channel_type": kind, "remote_buffer_ids": ids} for kind, ids in self.remotes.items() if ids]
        return {"id": number, "ops": self.ops, "channels": channels, "remote_buffer_refs": remotes}

    def _op(self, step: Step) -> dict[str, Any]:
        op: dict[str, Any] = {"name": step.name}
        if step.loop:
            op["iter_context"] = {"unit_size": step.loop.unit, "num_chunks": step.loop.chunks}
            return op | {"ops": [self._op(inner) for inner in step.loop.steps]}
        found = [self._place(form, place, step.by) for form, place in places(step)]
        if found:
            op |= {"src_buff": found[: len(step.reads)], "dst_buff": found[len(step.reads) :]}
        if step.links:
            op["channel_ids"] = [self._link(link) for link in step.links]
        op |= {"channel_type": step.by} if step.by != "none" else {}
        op |= {"semaphore_ids": list(step.semaphores)} if step.semaphores else {}
        if step.name == "barrier":
            op |= {"barrier_id": step.barrier[0], "num_threadblocks": step.barrier[1]}
        op |= {"tbg_info": {"tb_id": step.part[0], "tbg_size": step.part[1]}} if step.part != (0, 1) else {}
        return op | ({"reduce_op": step.reduce} if step.name in REDUCES else {})

    def _place(self, form: str, place: Place, by: str) -> dict[str, Any]:
        chunks = {"index": place.start, "size": place.size}
        if form == "l":
            return {"type": place.buffer, **chunks}
        if form == "g":
            number = self.tables.groups.index((place.buffer, place.ranks))
            return {"switch_channel_id": _local(self.channels["switch"], number), **chunks}
        number = list(self.tables.remotes).index((place.ranks[0], place.buffer))
        return {"buffer_id": _local(self.remotes[by], number), **chunks}

    def _link(self, link: Link) -> int:
        return _local(self.channels[link.kind], self.tables.links[link.kind].index((link.peer, link.number)))


def _local(known: list[int], number: int) -> int:
    """The index of a number in a list; appends it if it is new."""
    if number not in known:
        known.append(number)
    return known.index(number)
