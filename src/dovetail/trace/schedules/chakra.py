"""chakra: read Chakra execution traces (MLCommons): per rank, a graph of computations, messages and collectives."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dovetail.core import FileError
from dovetail.trace.schedules.dag import CALC, MEET, MERGE, RECV, SEND, Node, Replay, to_replay

MICROSECOND = 1e-6
GROUPS = "comm_group.json"  # beside the traces: process group -> its ranks
# Numbers of the schema et_def.proto, version 0.0.4 (mlcommons/chakra).
METADATA, LOAD, STORE, COMPUTE, SENDS, RECEIVES, COLLECTIVE = TYPES = range(1, 8)
COLLECTIVES = {0: "all_reduce", 2: "all_gather", 5: "broadcast", 6: "all_to_all", 7: "reduce_scatter", 9: "barrier"}
BARRIER_BYTES = 8  # a barrier is replayed as an all_reduce of this size
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NAME = re.compile(r"(?P<head>.*\.)(?P<rank>\d+)\.et")
_DOUBLE, _FLOAT, _BOOL, _STRING = 3, 5, 27, 29  # fields of an attribute's value; other scalars are varints
_ZIGZAG = (15, 17)
_OTHERS = (*range(4, 33, 2), 19, 21, 23, 25, 31)  # lists, fixed widths, bytes: no attribute read here has these
Fields = list[tuple[int, Any]]


def read_chakra(paths: Sequence[Path]) -> Replay:
    """Return the Replay of the traces `NAME.0.et`, `NAME.1.et`, …, of which one or all are given.

    Computations and memory accesses take the duration in the trace. Those of the CPU (`is_cpu_op`), of the accelerator
    and of memory run beside each other. Metadata nodes take no time. `comm_size` is taken as the larger of a rank's
    input and output. The ranks of a process group (`pg_name`) are those in `comm_group.json` beside the traces; without
    a name, all.

    Raises
    ------
    FileError
        If a file is no such trace, a rank's is missing, or a node cannot be replayed; the error names it.
    """
    files = _files(paths[0])
    groups = _groups(paths[0].parent / GROUPS, len(files))
    nodes: list[Node] = []
    for rank, path in enumerate(files):
        nodes += _Rank(rank, path, len(files), groups, len(nodes)).nodes()
    return to_replay(paths[0].name.partition(".")[0], len(files), nodes)


def _files(path: Path) -> list[Path]:
    """Return the traces of all ranks, given one."""
    match = _NAME.fullmatch(path.name)
    if not match:
        raise FileError(f"{path} has no rank in its name", hint="traces are called NAME.0.et, NAME.1.et, …")
    names = (_NAME.fullmatch(each.name) for each in path.parent.iterdir())
    ranks = sorted(int(each["rank"]) for each in names if each and each["head"] == match["head"])
    if ranks != list(range(len(ranks))):
        missing = min(set(range(max(ranks, default=0) + 1)) - set(ranks))
        raise FileError(f"there is no trace of rank {missing}", where=str(path.parent), found=f"ranks {ranks}")
    return [path.parent / f"{match['head']}{rank}.et" for rank in ranks]


def _groups(path: Path, num_ranks: int) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group. The group without a name has all ranks."""
    everyone = {"": tuple(range(num_ranks))}
    if not path.exists():
        return everyone
    try:
        table = {name: tuple(ranks) for name, ranks in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise FileError(f"{path} is no table of process groups", found=str(error), hint='{"0": [0, 1], …}') from error
    for name, ranks in table.items():
        _check_group(ranks, num_ranks, f"{path}: process group '{name}'")
    return table | everyone


def _check_group(ranks: tuple[Any, ...], num_ranks: int, where: str) -> None:
    """Raise FileError if these are not different ranks of the trace."""
    seen = set[int]()
    for rank in ranks:
        if type(rank) is not int or not 0 <= rank < num_ranks:
            found = f"rank {rank!r}, where the trace has ranks 0 to {num_ranks - 1}"
            raise FileError("a process group has a rank without a trace", where=where, found=found)
        if rank in seen:
            raise FileError("a process group has a rank twice", where=where, found=f"rank {rank}")
        seen.add(rank)


class _Rank:
    """Reads the trace of one rank. `first`: the number of its first node among those of all ranks."""

    def __init__(self, rank: int, path: Path, num_ranks: int, groups: dict[str, tuple[int, ...]], first: int) -> None:
        self.rank, self.path, self.num_ranks, self.groups, self.first = rank, path, num_ranks, groups, first
        self.joined = set[str]()  # process groups in which this rank is known to be

    def nodes(self) -> list[Node]:
        read = self._read()
        number: dict[int, int] = {}
        for place, node in enumerate(read):
            if number.setdefault(node["id"], self.first + place) != self.first + place:
                found = f"node '{read[number[node['id']] - self.first]['name']}' has it, too"
                raise FileError(f"the id {node['id']} is given twice", where=self._where(node), found=found)
        return [self._linked(node, number) for node in read]

    def _read(self) -> list[dict[str, Any]]:
        """Return all nodes of the file. Raise FileError if it is no trace of the schema."""
        try:
            records = list(_messages(self.path.read_bytes()))
            is_trace = bool(records) and _is_metadata(_fields(records[0]))
            read = [_node(_fields(record)) for record in records[1:]]
        except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
            what = f"{self.path} is no Chakra trace, or is cut off"
            raise FileError(what, found=str(error), hint="traces of schema 0.0.4, uncompressed") from error
        if not is_trace:
            found = "a record with fields of a node" if records else "an empty file"
            hint = 'the first record of a trace is GlobalMetadata { version: "0.0.4" }; write the trace again'
            raise FileError(f"{self.path} does not begin with GlobalMetadata", found=found, hint=hint)
        return read

    def _where(self, node: dict[str, Any]) -> str:
        return f"{self.path}: node {node['id']} '{node['name']}'"

    def _linked(self, node: dict[str, Any], number: dict[int, int]) -> Node:
        """Return a node with the numbers of the nodes it waits for."""
        made = self._made(node)
        for before in dict.fromkeys(node["after"]):
            if before not in number:
                what = f"node {node['id']} waits for node {before}"
                raise FileError(what, where=made.where, found="no such node")
            made.after.append(number[before])
        return made

    def _made(self, node: dict[str, Any]) -> Node:
        where, about, kind = self._where(node), node["attr"], node["type"]
        if kind not in TYPES:
            hint = f"schema 0.0.4 has types {TYPES[0]} to {TYPES[-1]}, and 0 for invalid nodes"
            raise FileError("a node of this type is not replayed", where=where, found=f"type {kind}", hint=hint)
        if kind == METADATA:
            return Node(MERGE, self.rank, where)
        size = _count(about, "comm_size", where)
        if kind in (SENDS, RECEIVES):
            end = "comm_dst" if kind == SENDS else "comm_src"
            peer = _count(about, end, where) if end in about else -1
            if not 0 <= peer < self.num_ranks:
                raise FileError(f"a message needs {end}", where=where, found=f"rank {peer} of {self.num_ranks}")
            way, tag = (SEND, RECV)[kind == RECEIVES], _count(about, "comm_tag", where)
            return Node(way, self.rank, where, num_bytes=size, peer=peer, tag=tag)
        if kind == COLLECTIVE:
            return self._collective(about, where, size)
        seconds = node["micros"] * MICROSECOND
        if not seconds and "num_ops" in about:
            hint = "traces with durations are replayed; this one has only the number of operations"
            raise FileError("a computation has no duration_micros", where=where, hint=hint)
        unit = "memory" if kind in (LOAD, STORE) else "cpu" if about.get("is_cpu_op", kind != COMPUTE) else "gpu"
        return Node(CALC, self.rank, where, seconds=seconds, unit=unit)

    def _collective(self, about: dict[str, Any], where: str, size: int) -> Node:
        number, name = _count(about, "comm_type", where), str(about.get("pg_name", ""))
        kind = COLLECTIVES.get(number)
        if kind is None:
            known = ", ".join(f"{each} ({n})" for n, each in COLLECTIVES.items())
            raise FileError(f"collectives of comm_type {number} are not replayed", where=where, hint=f"known: {known}")
        group = self._group(name, where)
        if kind == "barrier":
            kind, size = "all_reduce", BARRIER_BYTES
        return Node(MEET, self.rank, where, num_bytes=size, unit=name, call=(kind, group))

    def _group(self, name: str, where: str) -> tuple[int, ...]:
        """Return the ranks of a process group. Raise FileError if it is unknown, or if this rank is not in it."""
        place = self.path.parent / GROUPS
        if name not in self.groups:
            hint = f'{{"{name}": [0, 1, …]}} in {GROUPS} beside the traces'
            raise FileError(f"the ranks of process group '{name}' are unknown", where=where, hint=hint)
        group = self.groups[name]
        if name not in self.joined and self.rank not in group:
            what = f"rank {self.rank} calls a collective of process group '{name}', but is not in it"
            raise FileError(what, where=where, found=f"ranks {_listed(group)} in {place}")
        self.joined.add(name)
        return group


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f", … ({len(ranks)} in all)" if len(ranks) > 8 else "")


def _is_metadata(fields: Fields) -> bool:
    """Return whether these are fields of a GlobalMetadata: a version, and attributes."""
    return all(number in (1, 2) and isinstance(value, bytes) for number, value in fields)


def _count(about: dict[str, Any], name: str, where: str) -> int:
    """Return an attribute that is a number from 0 on; 0 if it is absent."""
    value = about.get(name, 0)
    if not isinstance(value, int) or value < 0:
        raise FileError(f"{name} must be a number of at least 0", where=where, found=repr(value))
    return value


def _node(fields: Fields) -> dict[str, Any]:
    """Return a node: id, name, type, the nodes before it, its duration in microseconds, and its attributes."""
    found: dict[str, Any] = {"id": 0, "name": "", "type": 0, "micros": 0, "after": [], "attr": {}}
    for number, value in fields:
        if number in (4, 5):  # ctrl_deps, data_deps: packed, or one by one
            found["after"] += list(_varints(value)) if isinstance(value, bytes) else [value]
        elif number in (2, 10):
            if not isinstance(value, bytes):
                raise ValueError(f"field {number} of a node is a number")
            if number == 2:
                found["name"] = value.decode()
            else:
                name, content = _attribute(_fields(value))
                found["attr"][name] = content
        elif number in (1, 3, 7):
            if not isinstance(value, int):
                raise ValueError(f"field {number} of a node is no number")
            found[{1: "id", 3: "type", 7: "micros"}[number]] = value
    return found


def _attribute(fields: Fields) -> tuple[str, Any]:
    name, content = "", None
    for number, value in fields:
        if isinstance(value, int) != (number not in (1, 2, _DOUBLE, _FLOAT, _STRING, *_OTHERS)):
            raise ValueError(f"field {number} of an attribute has the wrong type")
        if number == 1:
            name = value.decode()
        elif number in (_DOUBLE, _FLOAT):
            content = struct.unpack("<d" if number == _DOUBLE else "<f", value)[0]
        elif number == _STRING:
            content = value.decode()
        elif number in _ZIGZAG:
            content = (value >> 1) ^ -(value & 1)
        elif isinstance(value, int):
            content = bool(value) if number == _BOOL else value - (value >> 63 << 64)
    return name, content


def _messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a stream, each of which begins with its length."""
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError(f"a message of {size} bytes at {at} of {len(data)}")
        yield data[at : at + size]
        at += size


def _fields(data: bytes) -> Fields:
    """Return the fields of a message of Protocol Buffers: numbers with integers or bytes."""
    found: Fields = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            found.append((number, value))
            continue
        if wire not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"wire type {wire} at byte {at}")
        size = 8 if wire == _FIXED64 else 4
        if wire == _BYTES:
            size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError(f"a field of {size} bytes at {at} of {len(data)}")
        found.append((number, data[at : at + size]))
        at += size
    return found


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer of variable length, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"an integer of more than 64 bits at byte {at}")
