"""On each of two hosts: how much an exchange at the link's full rate slows a matrix product on this host's core.

    traffic listen|connect ADDRESS

Prints one JSON line: `gflop_per_s` of the product alone and how much that `varied`, its `slowdown` beside the traffic,
`bytes_per_s` received, and `interrupts_per_s` of this core meanwhile: timers, and calls by other cores.
"""

import json
import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np

PORT = 7007
ROUNDS = 5
BESIDE_S = 0.4
SIDE = 384  # of the matrices: about a millisecond a product
LAST = b"\1"  # ends a stream of zeros


class Product:
    """A float32 matrix product, done again and again."""

    def __init__(self):
        random = np.random.default_rng()
        self.a, self.b = (random.random((SIDE, SIDE), np.float32) for _ in range(2))
        self.c = np.empty_like(self.a)

    def per_s(self, seconds):
        """How many a second, over about `seconds`."""
        begin_s, count = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - begin_s) < seconds:
            np.matmul(self.a, self.b, out=self.c)
            count += 1
        return count / passed_s


def meet(role, address):
    """The connection to the other host."""
    if role == "listen":
        with socket.create_server((address, PORT)) as server:
            return server.accept()[0]
    deadline_s = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=20)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def in_step(peer):
    """Both hosts leave this at about the same time."""
    peer.sendall(LAST)
    peer.recv(1)


def send_for(peer, seconds):
    zeros, end_s = bytes(1 << 18), time.monotonic() + seconds
    while time.monotonic() < end_s:
        peer.sendall(zeros)
    peer.sendall(LAST)


def receive(peer, rate):
    """Append to `rate` the bytes a second of one stream."""
    room, count, begin_s = memoryview(bytearray(1 << 20)), 0, time.monotonic()
    while got := peer.recv_into(room):
        count += got
        if room[got - 1 : got] == LAST:
            break
    rate.append(count / (time.monotonic() - begin_s))


def interrupts():
    """Of this process's core, since boot."""
    (cpu,) = os.sched_getaffinity(0)
    names, *rows = Path("/proc/interrupts").read_text().splitlines()
    column = names.split().index(f"CPU{cpu}")
    return sum(int(row.split()[1 + column]) for row in rows if row.split()[0] in ("LOC:", "RES:", "CAL:"))


def main(role, address):
    product, peer = Product(), meet(role, address)
    peer.settimeout(20)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    alone, slowed, rates, interrupted = [], [], [], []
    for _ in range(ROUNDS):
        in_step(peer)
        alone.append(product.per_s(BESIDE_S / 2))
        in_step(peer)
        streams = [
            threading.Thread(target=send_for, args=(peer, 1.2 * BESIDE_S)),
            threading.Thread(target=receive, args=(peer, rates)),
        ]
        for stream in streams:
            stream.start()
        before = interrupts()
        slowed.append(alone[-1] / product.per_s(BESIDE_S))
        interrupted.append((interrupts() - before) / BESIDE_S)
        for stream in streams:
            stream.join()
    found = {"slowdown": slowed, "bytes_per_s": rates, "interrupts_per_s": interrupted}
    found["gflop_per_s"] = [2e-9 * SIDE**3 * count for count in alone]
    medians = {name: statistics.median(values) for name, values in found.items()}
    print(json.dumps({**medians, "varied": max(alone) / min(alone) - 1}))


main(*sys.argv[1:])
