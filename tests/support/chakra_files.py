"""Chakra execution traces: messages of Protocol Buffers, written by hand."""

import struct
from pathlib import Path


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def attribute(name: str, value: object) -> bytes:
    body = content(1, name.encode())
    if isinstance(value, bool):
        return content(10, body + number(27, value))
    if isinstance(value, str):
        return content(10, body + content(29, value.encode()))
    if isinstance(value, float):
        return content(10, body + varint(3 << 3 | 1) + struct.pack("<d", value))
    assert isinstance(value, int)
    return content(10, body + number(9, value))


def node(
    id: int, type: int, *, after: tuple[int, ...] = (), micros: int = 0, packed: bool = True, **attr: object
) -> bytes:
    deps = content(5, b"".join(map(varint, after))) if packed else b"".join(number(4, each) for each in after)
    head = number(1, id) + content(2, f"n{id}".encode()) + number(3, type) + deps + number(7, micros)
    return head + b"".join(attribute(name, value) for name, value in attr.items())


METADATA = content(1, b"0.0.4")


def chakra(folder: Path, *ranks: list[bytes], first: tuple[bytes, ...] = (METADATA,)) -> Path:
    for rank, nodes in enumerate(ranks):
        messages = [*first, *nodes]
        (folder / f"run.{rank}.et").write_bytes(b"".join(varint(len(each)) + each for each in messages))
    return folder / "run.0.et"
