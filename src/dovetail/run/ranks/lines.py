"""lines: connections between the ranks of several hosts: where a host listens, and who may connect there."""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

CONNECT_S = 5.0  # seconds that a rank tries one address of another
WELCOME = b"welcome\n"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_LONGEST = 1 << 16  # bytes of a line


def listener(backlog: int) -> socket.socket:
    """Return a socket that listens on all networks of this host, at any port."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=backlog)


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this host's networks, but for the loopback.

    That of the network that $GLOO_SOCKET_IFNAME names comes first.

    >>> all(address.count(".") == 3 for address in own_addresses())
    True
    """
    found, first = [], os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    names = sorted((name for _, name in socket.if_nameindex()), key=lambda name: name != first)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for name in names:
            with suppress(OSError):  # without such an address
                answer = fcntl.ioctl(asked, _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def reached(addresses: Sequence[str], port: int, token: str, rank: int) -> tuple[socket.socket, str] | None:
    """Return a connection as `rank` to the process that knows `token`, and its address; None if none leads there."""
    for address in addresses:
        with suppress(OSError, ValueError):
            line = socket.create_connection((address, port), CONNECT_S)
            line.sendall(json.dumps([token, rank]).encode() + b"\n")
            if line.recv(len(WELCOME)) == WELCOME:
                return line, address
            line.close()
    return None


def rank_at(line: socket.socket, token: str) -> int | None:
    """Return the rank that has connected, and welcome it. Close the connection of a process that is no rank."""
    with suppress(OSError, ValueError, TypeError):
        line.settimeout(CONNECT_S)
        given, rank = json.loads(line_of(line))
        if hmac.compare_digest(given, token):
            line.sendall(WELCOME)
            return int(rank)
    line.close()
    return None


def line_of(line: socket.socket) -> bytes:
    """Return the bytes received up to the end of a line, which nothing follows so far. Raises ValueError if none ends.

    >>> ours, theirs = socket.socketpair()
    >>> theirs.sendall(b"[1, 2]\\n")
    >>> line_of(ours)
    b'[1, 2]\\n'
    """
    found = b""
    while not found.endswith(b"\n"):
        part = line.recv(4096)
        if not part or len(found) > _LONGEST:
            raise ValueError("no line")
        found += part
    return found
