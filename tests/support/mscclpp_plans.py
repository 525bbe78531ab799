"""Small MSCCL++ plans for tests, as the JSON objects that its DSL would print."""

from __future__ import annotations

import json
from typing import Any

Op = dict[str, Any]
NOP: Op = {"name": "nop"}


def here(buffer: str, index: int, size: int = 1) -> Op:
    return {"type": buffer, "index": index, "size": size}


def there(number: int, index: int, size: int = 1) -> Op:
    """Chunks of remote buffer `number` of the threadblock."""
    return {"buffer_id": number, "index": index, "size": size}


def move(name: str, read: list[Op] | Op, write: list[Op] | Op, by: str = "memory", **more: Any) -> Op:
    listed = [side if isinstance(side, list) else [side] for side in (read, write)]
    return {"name": name, "src_buff": listed[0], "dst_buff": listed[1], "channel_type": by, **more}


def sync_op(name: str, *channels: int, by: str = "memory") -> Op:
    return {"name": name, "channel_ids": list(channels), "channel_type": by}


def semaphore(name: str, *numbers: int) -> Op:
    return {"name": name, "semaphore_ids": list(numbers)}


def barrier(number: int, size: int) -> Op:
    return {"name": "barrier", "barrier_id": number, "num_threadblocks": size}


def block(number: int, ops: list[Op], peers: int, remotes: int, by: str = "memory") -> Op:
    """A threadblock that may use every channel and remote buffer of its gpu."""
    channels = [{"channel_type": by, "channel_ids": list(range(peers))}] if peers else []
    buffers = [{"access_channel_type": by, "remote_buffer_ids": list(range(remotes))}] if remotes else []
    return {"id": number, "ops": ops, "channels": channels, "remote_buffer_refs": buffers}


def plan(
    collective: str,
    chunks: tuple[int, int, int],
    blocks: list[list[list[Op]]],
    *,
    remote: str = "i",
    in_place: bool = True,
    semaphores: tuple[int, ...] = (),
    by: str = "memory",
    **header: Any,
) -> dict[str, Any]:
    """A plan whose gpu r has the threadblocks blocks[r], a channel to each other gpu, and their buffer `remote`."""
    n = len(blocks)
    gpus = []
    for rank in range(n):
        peers = [peer for peer in range(n) if peer != rank]
        gpus.append(
            {
                "id": rank,
                **dict(zip(("input_chunks", "output_chunks", "scratch_chunks"), chunks, strict=True)),
                "threadblocks": [block(t, ops, n - 1, n - 1, by) for t, ops in enumerate(blocks[rank])],
                "channels": [{"channel_type": by, "connected_to": peers}],
                "remote_buffers": [{"rank": p, "type": remote, "access_channel_types": [by]} for p in peers],
                "semaphores": [{"init_value": value} for value in semaphores],
            }
        )
    top = {"name": "small", "collective": collective, "protocol": "Simple", "inplace": in_place, "gpus": gpus}
    top |= {"num_threads_per_block": 1024, "use_double_scratch_buffer": False, "buffer_alignment": 16} | header
    return json.loads(json.dumps(top))  # no part of it twice, so that tests may change any


def all_reduce(n: int = 2) -> dict[str, Any]:
    """Each gpu reads its chunk from all others, and puts the sum to all."""
    channels, blocks = range(n - 1), []
    for rank in range(n):
        own = [here("i", rank), *(there(c, rank) for c in channels)]
        blocks.append(
            [
                [
                    sync_op("rlxsignal", *channels),
                    sync_op("rlxwait", *channels),
                    NOP,
                    move("rres", own, own, reduce_op="sum"),
                    NOP,
                    sync_op("signal", *channels),
                    sync_op("wait", *channels),
                    NOP,
                ]
            ]
        )
    return plan("allreduce", (n, n, 0), blocks)


def all_gather(n: int = 2, **header: Any) -> dict[str, Any]:
    """Out of place, by packets: each gpu copies its input, puts it to all, and unpacks what comes."""
    blocks = []
    for rank in range(n):
        puts = move("ppkt", [here("i", 0)] * (n - 1), [there(c, rank) for c in range(n - 1)])
        blocks.append(
            [
                [move("copy", here("i", 0), here("o", rank), "none"), puts],
                [move("upkt", here("s", peer), here("o", peer), "none") for peer in range(n) if peer != rank],
            ]
        )
    said: dict[str, Any] = {"protocol": "LL", "use_double_scratch_buffer": True} | header
    return plan("allgather", (1, n, n), blocks, remote="s", in_place=False, **said)


def shared_sum(n: int, group: int) -> dict[str, Any]:
    """All-reduce out of place, by packets: each gpu puts its input to all, and `group` threadblocks share the sum."""
    blocks: list[list[list[Op]]] = []
    for rank in range(n):
        peers = [peer for peer in range(n) if peer != rank]
        puts = [move("ppkt", here("i", 0), there(c, rank - (rank > peer))) for c, peer in enumerate(peers)]
        parts = [here("i", 0), *(here("s", c) for c in range(n - 1))]
        sums = [
            move("repkt", parts, here("o", 0), "none", tbg_info={"tb_id": t, "tbg_size": group}) for t in range(group)
        ]
        blocks.append([[*puts[t : t + 1], *sums[t : t + 1]] for t in range(max(n - 1, group))])
    said: dict[str, Any] = {"protocol": "LL", "use_double_scratch_buffer": True}
    return plan("allreduce", (1, 1, n - 1), blocks, remote="s", in_place=False, **said)


def ops_of(document: dict[str, Any], gpu: int = 0, threadblock: int = 0) -> list[Op]:
    ops: list[Op] = document["gpus"][gpu]["threadblocks"][threadblock]["ops"]
    return ops
