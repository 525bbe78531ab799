"""Random changes to MSCCL++ plans: most are faults, some are harmless."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

Document = dict[str, Any]
Ops = list[dict[str, Any]]


def mutated(document: Document, rng: random.Random) -> Document:
    """The plan with one random change of one op, or of two neighbours."""
    changed = copy.deepcopy(document)
    lists = [b["ops"] for gpu in changed["gpus"] for b in gpu["threadblocks"] if b["ops"]]
    if lists:
        ops = rng.choice(lists)
        rng.choice(CHANGES)(ops, rng.randrange(len(ops)), rng)
    return changed


def _drop(ops: Ops, at: int, rng: random.Random) -> None:
    del ops[at]


def _drop_sync(ops: Ops, at: int, rng: random.Random) -> None:
    syncs = [number for number, op in enumerate(ops) if op["name"] in ("nop", "barrier")]
    if syncs:
        del ops[rng.choice(syncs)]


def _swap(ops: Ops, at: int, rng: random.Random) -> None:
    if at + 1 < len(ops):
        ops[at], ops[at + 1] = ops[at + 1], ops[at]


def _double(ops: Ops, at: int, rng: random.Random) -> None:
    ops.insert(at, copy.deepcopy(ops[at]))


def _shift(ops: Ops, at: int, rng: random.Random) -> None:
    for places in rng.sample([op.get(key, []) for op in ops for key in ("src_buff", "dst_buff")], 1):
        if places:
            place = rng.choice(places)
            place["index"] = max(0, place["index"] + rng.choice((-1, 1)))


def _retype(ops: Ops, at: int, rng: random.Random) -> None:
    places = [p for op in ops for key in ("src_buff", "dst_buff") for p in op.get(key, []) if "type" in p]
    if places:
        rng.choice(places)["type"] = rng.choice("ios")


def _relax(ops: Ops, at: int, rng: random.Random) -> None:
    renames = {"rlxsignal": "signal", "rlxwait": "wait", "rre": "rres", "res": "re", "copy": "cpkt", "upkt": "copy"}
    renames |= {"pwsf": "pws", "pws": "pwsf", "rppkt": "ppkt", "recpkt": "repkt", "cpkt": "copy"}
    if ops[at]["name"] in renames:
        ops[at]["name"] = renames[ops[at]["name"]]


def _cut(ops: Ops, at: int, rng: random.Random) -> None:
    for key in ("channel_ids", "semaphore_ids", "src_buff", "dst_buff"):
        if len(ops[at].get(key, [])) > 1:
            ops[at][key].pop(rng.randrange(len(ops[at][key])))


def _reroute(ops: Ops, at: int, rng: random.Random) -> None:
    """Another channel or remote buffer."""
    for key in rng.sample(("channel_ids", "dst_buff", "src_buff"), 3):
        entries = ops[at].get(key, [])
        if key == "channel_ids" and entries:
            entries[rng.randrange(len(entries))] = rng.randrange(3)
        elif places := [place for place in entries if isinstance(place, dict) and "buffer_id" in place]:
            rng.choice(places)["buffer_id"] = rng.randrange(3)


def _resize(ops: Ops, at: int, rng: random.Random) -> None:
    for place in ops[at].get("src_buff", []) + ops[at].get("dst_buff", []):
        place["size"] = max(0, place["size"] + 1)


def _regroup(ops: Ops, at: int, rng: random.Random) -> None:
    """Another part of a threadblock group, or all of it."""
    if "tbg_info" in ops[at]:
        ops[at]["tbg_info"]["tb_id"] = rng.randrange(ops[at]["tbg_info"]["tbg_size"])
        if rng.randrange(2):
            del ops[at]["tbg_info"]


CHANGES: tuple[Callable[[Ops, int, random.Random], None], ...] = (
    *(_drop, _drop, _drop_sync, _drop_sync, _swap, _swap),
    *(_double, _shift, _retype, _relax, _cut, _reroute, _resize, _regroup),
)
