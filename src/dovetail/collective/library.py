"""library: the MPI library's own collective as a Program: the baseline for Dovetail's algorithms."""

from __future__ import annotations

from dovetail.collective.spec import spec_of
from dovetail.ir import Builder, Kind, Program, Region
from dovetail.ir.collectives import COLLECTIVES

LIBRARY = "library"


def library_call(kind: str, ranks: int) -> Program:
    """Return the library's own call as one op per rank; all_to_next, which libraries lack, as plain messages.

    The call is in place if input and output have equal length, like users' calls. An all_gather is out of place,
    although Dovetail's algorithms are in place: the library copies a rank's part.

    >>> from dovetail.ir import to_text
    >>> print(to_text(library_call("all_to_next", 2)), end="")
    program "library all_to_next" ranks 2
    buffer input input 1
    buffer output output 1
    lane send net
    lane recv net
    channel 0->1 0 depth 8
    post 1 output[0:1] = input@0[0:1]
    rank 0 lane send
      send input[0:1] to 1
    rank 1 lane recv
      recv from 0 -> output[0:1]
    """
    traits = COLLECTIVES[kind]
    spec = spec_of(kind, ranks, in_place=traits.fills_output and not traits.joined)
    b, everyone = Builder(f"library {kind}", ranks), range(ranks)
    for buffer in spec.buffers:
        b.buffer(*buffer)
    for post in spec.posts:
        b.post(*post)
    source, result = spec.buffers[0], spec.buffers[-1]
    for rank in everyone:
        reads, writes = ([Region(buffer.name, 0, buffer.slots[rank])] for buffer in (source, result))
        if traits.to_next:
            if rank + 1 < ranks:
                b.add(Kind.send, rank, b.lane("send", "net"), reads=reads, chan_out=b.channel(rank, rank + 1))
            if rank:
                b.add(Kind.recv, rank, b.lane("recv", "net"), writes=writes, chan_in=b.channel(rank - 1, rank))
        else:
            call = b.collective(kind, everyone)
            b.add(Kind.collective, rank, b.lane("net", "net"), reads=reads, writes=writes, call=call)
    return b.build()
