"""document: read the JSON of an MSCCL++ execution plan: check all numbers, resolve channels and remote buffers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dovetail.collective.mscclpp.parts import (
    BUFFERS,
    MOST_BYTES,
    MOST_CHUNKS,
    MOST_GPUS,
    MOST_OPS_READ,
    OPS,
    PAIRED,
    PORT_ONLY,
    PROTOCOLS,
    UNJUDGED,
    Document,
    Gpu,
    Link,
    Loop,
    Place,
    Step,
    is_raw,
    letters,
)
from dovetail.core import ProgramError

_FORMS = {"type": "l", "buffer_id": "r", "switch_channel_id": "g"}
_PLAIN = str.maketrans("pqh", "lrg")  # from a letter for packets to that for plain chunks


def load(source: str | bytes | Path | Mapping[str, Any], name: str | None = None) -> Document:
    """Return the Document of a file (a path), a JSON text or object. Raises ProgramError if it is no plan."""
    if isinstance(source, Mapping):
        return _document(Item(source, name or "<plan>"), name or "<plan>")
    is_text = isinstance(source, bytes) or (isinstance(source, str) and source.lstrip().startswith("{"))
    place = name or ("<text>" if is_text else str(source))
    try:
        if not is_text and Path(source).stat().st_size > MOST_BYTES:  # type: ignore[arg-type]
            raise ProgramError(f"{place} is larger than {MOST_BYTES >> 20} MiB", where=place)
        content = json.loads(source if is_text else Path(source).read_bytes())  # type: ignore[arg-type]
    except OSError as error:
        raise ProgramError(f"cannot read {place}", found=error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{place} is not JSON", where=place, found=str(error)) from error
    return _document(Item(content, place), place)


class Item:
    """A JSON object, and its place in the document."""

    def __init__(self, content: Any, where: str) -> None:
        self.where = where
        if not isinstance(content, Mapping):
            self.fail("expected an object", type(content).__name__)
        self.content = content

    def fail(self, what: str, found: object = None, hint: str | None = None) -> NoReturn:
        raise ProgramError(what, where=self.where, found=None if found is None else f"{found!s:.120}", hint=hint)

    def has(self, key: str) -> bool:
        return key in self.content

    def number(self, key: str, most: int = MOST_CHUNKS, default: int | None = None) -> int:
        return self._whole(key, self.content.get(key, default), most)

    def numbers(self, key: str, most: int = MOST_CHUNKS) -> tuple[int, ...]:
        return tuple(self._whole(key, value, most) for value in self.entries(key))

    def entries(self, key: str, default: Sequence[Any] | None = None) -> Sequence[Any]:
        value = self.content.get(key, default)
        if not isinstance(value, list | tuple):
            self.fail(f"expected a list as `{key}`", "nothing" if value is None else type(value).__name__)
        return value

    def word(self, key: str, known: Sequence[str] = (), default: str | None = None) -> str:
        value = self.content.get(key, default)
        if not isinstance(value, str) or (known and value not in known):
            wanted = f"one of {', '.join(known)}" if known else "a word"
            self.fail(f"expected {wanted} as `{key}`", repr(value))
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.content.get(key, default)
        if not isinstance(value, bool):
            self.fail(f"expected true or false as `{key}`", repr(value))
        return value

    def items(self, key: str, title: str, most: int = 1 << 20) -> list[Item]:
        entries = self.entries(key, ())
        if len(entries) > most:
            self.fail(f"more than {most} entries in `{key}`", len(entries))
        return [Item(entry, f"{self.where}, {title} {number}") for number, entry in enumerate(entries)]

    def _whole(self, key: str, value: Any, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            self.fail(f"expected a whole number up to {most} as `{key}`", repr(value))
        return value


class _Ends(NamedTuple):
    """What ops of one gpu can refer to: channels by kind, groups of switch channels, remote buffers."""

    rank: int
    num_gpus: int
    links: dict[str, list[tuple[int, int]]]  # kind -> (peer, number) of each
    groups: list[tuple[str, tuple[int, ...]]]  # buffer, ranks
    remotes: list[tuple[int, str, tuple[str, ...]]]  # rank, buffer, kinds of channels


class _Block(NamedTuple):
    """What ops of one threadblock can refer to, in the order of the threadblock's lists."""

    ends: _Ends
    links: dict[str, list[Link]]
    groups: list[tuple[str, tuple[int, ...]]]
    remotes: dict[str, list[tuple[int, str]]]


def _document(top: Item, place: str) -> Document:
    gpus = top.items("gpus", "gpu", MOST_GPUS)
    if not gpus:
        top.fail("a plan of no gpus", hint="is this an MSCCL++ execution plan?")
    _refuse_older(top, gpus[0])
    if (count := _count(content["ops"] for gpu in gpus for content in _tables(gpu, "threadblocks"))) > MOST_OPS_READ:
        top.fail(f"{UNJUDGED}: it has more than {MOST_OPS_READ} ops", count)
    most = (1 << 64) - 1
    return Document(
        place,
        top.word("name"),
        top.word("collective"),
        top.word("protocol", PROTOCOLS),
        top.flag("inplace"),
        tuple(_gpu(gpu, rank, len(gpus)) for rank, gpu in enumerate(gpus)),
        top.flag("reuse_resources", False),
        top.flag("use_double_scratch_buffer", False),
        top.number("num_threads_per_block", 1024, 1024),
        max(top.number("buffer_alignment", 1 << 20, 16), 1),
        top.number("min_message_size", most, 0),
        top.number("max_message_size", most, most),
    )


def _refuse_older(top: Item, gpu: Item) -> None:
    """Refuse the plan format before the DSL of MSCCL++ 0.8, which has other keys and offsets in ops."""
    older = [key for key in ("inputChunks", "outputChunks", "scratchChunks", "chunkGroups") if gpu.has(key)]
    if older or top.has("colletive"):  # the old format's misspelling
        found = f"`{older[0]}` of gpu 0" if older else "`colletive`"
        what = "a plan in the format of MSCCL++ before 0.8; dovetail, like executor 0.9, reads that of 0.8 and 0.9"
        top.fail(what, found, "generate the plan with the DSL of MSCCL++ 0.8 or later")


def _tables(item: Item, key: str) -> list[Mapping[str, Any]]:
    return [each for each in item.entries(key, ()) if isinstance(each, Mapping) and "ops" in each]


def _count(lists: Iterable[Any]) -> int:
    """The number of entries in some lists, including those of the lists called `ops` in them."""
    total = 0
    for entries in lists:
        for entry in entries if isinstance(entries, list | tuple) else ():
            inner = entry.get("ops") if isinstance(entry, Mapping) else None
            total += 1 + (len(inner) if isinstance(inner, list | tuple) else 0)
    return total


def _gpu(item: Item, rank: int, num_gpus: int) -> Gpu:
    if item.number("id") != rank:
        item.fail(f"gpus are numbered in order: expected {rank} as `id`", item.number("id"))
    ends = _ends(item, rank, num_gpus)
    chunks = {letter: item.number(f"{name}_chunks") for letter, name in BUFFERS.items()}
    semaphores = tuple(one.number("init_value", 1 << 20) for one in item.items("semaphores", "semaphore"))
    blocks, counts = [], []
    for number, block in enumerate(item.items("threadblocks", "threadblock", 1 << 16)):
        if block.number("id") != number:
            block.fail(f"threadblocks are numbered in order: expected {number} as `id`", block.number("id"))
        names = _block(block, ends)
        blocks.append(tuple(_step(step, names) for step in block.items("ops", "op")))
        counts.append({kind: len(links) for kind, links in names.links.items()} | {"switch": len(names.groups)})
    return Gpu(chunks, semaphores, tuple(blocks), tuple(counts))


def _ends(item: Item, rank: int, num_gpus: int) -> _Ends:
    ends = _Ends(rank, num_gpus, {"memory": [], "port": []}, [], [])
    seen: Counter[tuple[str, int]] = Counter()
    for channel in item.items("channels", "channel"):
        kind = channel.word("channel_type", ("memory", "port", "switch"))
        if kind == "switch":
            buffer = channel.word("buffer_type", tuple(BUFFERS))
            for group in channel.items("rank_groups", "group"):
                ends.groups.append((buffer, _ranks(group, ends)))
            continue
        for peer in channel.numbers("connected_to", num_gpus - 1):
            if peer == rank:
                hint = "channels connect two gpus; order a gpu's threadblocks by barriers or semaphores"
                channel.fail(f"{UNJUDGED}: gpu {rank} has a channel to itself", hint=hint)
            ends.links[kind].append((peer, seen[kind, peer]))
            seen[kind, peer] += 1
    for remote in item.items("remote_buffers", "remote buffer"):
        kinds = tuple(str(kind) for kind in remote.entries("access_channel_types"))
        ends.remotes.append((remote.number("rank", num_gpus - 1), remote.word("type", tuple(BUFFERS)), kinds))
        if ends.remotes[-1][0] == rank:
            remote.fail(f"gpu {rank} has a remote buffer on itself")
    return ends


def _ranks(group: Item, ends: _Ends) -> tuple[int, ...]:
    ranks = group.numbers("ranks", ends.num_gpus - 1)
    if len(set(ranks)) < len(ranks) or ends.rank not in ranks:
        group.fail(f"a switch channel joins gpu {ends.rank} and others, each once", ranks)
    return ranks


def _block(item: Item, ends: _Ends) -> _Block:
    block = _Block(ends, {"memory": [], "port": []}, [], {"memory": [], "port": []})
    for channel in item.items("channels", "channel"):
        kind = channel.word("channel_type", ("memory", "port", "switch"))
        for number in channel.numbers("channel_ids"):
            table: Sequence[Any] = ends.groups if kind == "switch" else ends.links[kind]
            if number >= len(table):
                channel.fail(f"gpu {ends.rank} has no {kind} channel {number}", f"{len(table)} of them")
            if kind == "switch":
                block.groups.append(table[number])
            else:
                peer, nth = table[number]
                block.links[kind].append(Link(kind, peer, nth, len(block.links[kind])))
    for reference in item.items("remote_buffer_refs", "remote buffer"):
        kind = reference.word("access_channel_type", ("memory", "port"))
        for number in reference.numbers("remote_buffer_ids"):
            if number >= len(ends.remotes):
                reference.fail(f"gpu {ends.rank} has no remote buffer {number}", f"{len(ends.remotes)} of them")
            rank, buffer, kinds = ends.remotes[number]
            if kind not in kinds:
                reference.fail(f"remote buffer {number} is not reached by {kind} channels", ", ".join(kinds))
            block.remotes[kind].append((rank, buffer))
    return block


def _step(item: Item, block: _Block, inner: bool = False) -> Step:
    name = item.word("name")
    form = OPS.get(name)
    if form is None:
        item.fail(f"the executor has no op '{name}'", hint=f"it has {', '.join(OPS)}")
    if form.uses == "loop":
        if inner:
            item.fail("a pipeline within a pipeline")
        return Step(name, item.where, loop=_loop(item, block))
    by = item.word("channel_type", ("memory", "port", "switch", "none"), "none")
    step = Step(name, item.where, by=by, reduce=item.word("reduce_op", (), "sum"))
    if form.uses == "semaphores":
        return step._replace(semaphores=_named(item, "semaphore_ids"))
    if form.uses == "barrier":
        return step._replace(barrier=(item.number("barrier_id", 1 << 16), item.number("num_threadblocks", 1 << 16)))
    if form.uses == "channels":
        return step._replace(links=_links(item, block, by))
    reads, writes = _places(item, "src_buff", block, by), _places(item, "dst_buff", block, by)
    step = step._replace(reads=_formed(item, reads, form.reads), writes=_formed(item, writes, form.writes))
    if is_raw(step):
        step = step._replace(reads=tuple(place._replace(packets=place.buffer == "s") for place in step.reads))
    if name in PAIRED and len(reads) != len(writes):
        item.fail(f"'{name}' moves place i to place i", f"{len(reads)} to read, {len(writes)} to write")
    if by == "port":
        step = step._replace(links=_ports(item, step, block))
    elif name in PORT_ONLY:
        item.fail(f"'{name}' signals on port channels only", f"channel_type {by}")
    elif name == "get" and item.has("channel_ids"):
        step = step._replace(links=_links(item, block, by))
    return step._replace(part=_part(item)) if item.has("tbg_info") else step


def _ports(item: Item, step: Step, block: _Block) -> tuple[Link, ...]:
    """The channels of an op that moves data by port channels: one for each written place, to its gpu."""
    if step.name not in (*PORT_ONLY, "put", "ppkt", "rppkt"):
        item.fail(f"'{step.name}' goes by memory channels only", "channel_type port")
    links = _links(item, block, "port")
    peers, wanted = [link.peer for link in links], [place.ranks[0] for place in step.writes]
    if peers != wanted:
        item.fail("the channels lead to other gpus than the places written", f"to {peers}, places on {wanted}")
    return links


def _loop(item: Item, block: _Block) -> Loop:
    context = Item(item.content.get("iter_context"), f"{item.where}, iter_context")
    unit, chunks = context.number("unit_size", 1 << 40), context.number("num_chunks")
    if unit == 0 or chunks == 0:
        context.fail("an empty pipeline", f"unit_size {unit}, num_chunks {chunks}")
    return Loop(unit, chunks, tuple(_step(step, block, True) for step in item.items("ops", "op")))


def _part(item: Item) -> tuple[int, int]:
    group = Item(item.content["tbg_info"], f"{item.where}, tbg_info")
    number, size = group.number("tb_id", 1 << 16), group.number("tbg_size", 1 << 16)
    if number >= size:
        group.fail(f"part {number} of {size}")
    return number, size


def _named(item: Item, key: str) -> tuple[int, ...]:
    numbers = item.numbers(key)
    if not numbers:
        item.fail(f"`{key}` is empty")
    return numbers


def _links(item: Item, block: _Block, by: str) -> tuple[Link, ...]:
    if by not in block.links:
        item.fail("expected memory or port as `channel_type`", by)
    table = block.links[by]
    for number in _named(item, "channel_ids"):
        if number >= len(table):
            item.fail(f"this threadblock has no {by} channel {number}", f"{len(table)} of them")
    return tuple(table[number] for number in item.numbers("channel_ids"))


def _places(item: Item, key: str, block: _Block, by: str) -> list[tuple[str, Place]]:
    """The places in a list of an op, each with the letter of its form (not yet distinguishing packets)."""
    return [_place(entry, block, by) for entry in item.items(key, key)]


def _place(entry: Item, block: _Block, by: str) -> tuple[str, Place]:
    keys = [key for key in _FORMS if entry.has(key)]
    if len(keys) != 1:
        entry.fail(f"expected one of {', '.join(_FORMS)}", ", ".join(keys) or "none")
    ranks: tuple[int, ...] = (block.ends.rank,)
    if keys[0] == "type":
        buffer = entry.word("type", tuple(BUFFERS))
    elif keys[0] == "buffer_id":
        ranks, buffer = _remote(entry, block, by)
    else:
        number = entry.number("switch_channel_id")
        if number >= len(block.groups):
            entry.fail(f"this threadblock has no switch channel {number}", f"{len(block.groups)} of them")
        buffer, ranks = block.groups[number]
    return _FORMS[keys[0]], Place(ranks, buffer, entry.number("index"), entry.number("size"), False)


def _remote(entry: Item, block: _Block, by: str) -> tuple[tuple[int, ...], str]:
    table, number = block.remotes.get(by), entry.number("buffer_id")
    if table is None:
        entry.fail("a remote buffer is reached by a memory or port channel", f"channel_type {by}")
    if number >= len(table):
        entry.fail(f"this threadblock has no remote buffer {number} by {by} channels", f"{len(table)} of them")
    return (table[number][0],), table[number][1]


def _formed(item: Item, found: list[tuple[str, Place]], pattern: str) -> tuple[Place, ...]:
    """The places of one side, with packets marked. Fails if they have another form than the op takes."""
    wanted, forms = letters(pattern, len(found)), "".join(form for form, _ in found)
    if wanted is None or wanted.translate(_PLAIN) != forms:
        item.fail(f"'{item.word('name')}' takes places {pattern.translate(_PLAIN)}", forms or "none", _LETTERS)
    packets = [letter in "pqh" for letter in wanted]
    if any(packed and place.buffer != "s" for packed, (_, place) in zip(packets, found, strict=True)):
        item.fail("packets must be in scratch")
    return tuple(place._replace(packets=packed) for packed, (_, place) in zip(packets, found, strict=True))


_LETTERS = "l: a buffer of this gpu, r: one of another, g: a switch channel, +: one or more"
