"""Run by ranks however they were started: joins them by init_process_group("dovetail"), and makes calls of each kind.

Arguments: "all" (calls, errors, and anew) or "dies" (the last rank ends itself); "pretend": every other rank is taken
for one of another host. Each rank prints one line of JSON.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta

sys.path += [os.environ["TORCH_SITE"]] if "TORCH_SITE" in os.environ else []  # where another Python has torch

import torch
import torch.distributed as dist

import dovetail.torch
from dovetail.torch import mpi, ranks

WHAT, OPTIONS = sys.argv[1], sys.argv[2:]


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def fails(text, call):
    try:
        call()
    except ValueError as error:
        said = str(error)
    else:
        raise AssertionError("no error")
    assert text in said, said


def collectives(group=None):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for dtype, length in ((torch.float32, 3), (torch.bfloat16, 1000), (torch.int64, 300_000)):
        dist.all_reduce(tensor := torch.full((length,), rank + 1).to(dtype), group=group)
        same(tensor, torch.full((length,), size * (size + 1) // 2).to(dtype))
    outs = [torch.zeros(each + 1) for each in range(size)]
    dist.all_gather(outs, torch.full((rank + 1,), float(rank)), group=group)
    same(torch.cat(outs), torch.cat([torch.full((each + 1,), float(each)) for each in range(size)]))
    dist.reduce_scatter_single(part := torch.zeros(2), torch.arange(2.0 * size), group=group)
    same(part, size * torch.arange(2.0 * rank, 2.0 * rank + 2))
    dist.all_to_all_single(out := torch.zeros(size), torch.arange(float(size)) + 10 * rank, group=group)
    same(out, 10 * torch.arange(float(size)) + rank)
    ones = [torch.ones(9) for _ in range(5)]
    works = [dist.all_reduce(each, group=group, async_op=True) for each in ones]
    for work in works:
        work.wait()
    same(torch.stack(ones), torch.full((5, 9), float(size)))
    dist.all_gather_object(found := [None] * size, {"rank": rank}, group=group)
    assert found == [{"rank": each} for each in range(size)]


def messages():
    rank, size = dist.get_rank(), dist.get_world_size()
    for length in (1, 100_000):
        begun = [dist.irecv(come := torch.zeros(length), (rank - 1) % size), dist.isend(
            torch.full((length,), float(rank)), (rank + 1) % size
        )]  # fmt: skip
        for work in begun:
            work.wait()
        same(come, torch.full((length,), float((rank - 1) % size)))


def groups_in_turn():
    rank, size = dist.get_rank(), dist.get_world_size()
    outer, last = dist.new_group([0, size - 1]), dist.new_group([size - 1])
    everyone = dist.new_group(backend="dovetail")
    for turn in range(3):
        dist.all_reduce(one := torch.ones(4), group=everyone)
        same(one, torch.full((4,), float(size)))
        for group, members in ((outer, (0, size - 1)), (last, (size - 1,))):
            if rank in members:
                dist.all_reduce(one := torch.full((4,), float(turn)), group=group)
                same(one, torch.full((4,), float(turn * len(members))))
    if rank in (0, size - 1):
        collectives(outer)
    dist.destroy_process_group(everyone)


def refused_arguments():
    """One rank refuses before the other has made the group."""
    if dist.get_rank() == 0:
        made = mpi.Messages
        mpi.Messages = lambda world: time.sleep(0.5) or made(world)
    group = dist.new_group(backend="dovetail")
    tensor = torch.ones(3, device="meta" if dist.get_rank() == 1 else "cpu")
    fails("takes CPU tensors", lambda: dist.all_reduce(tensor, group=group))


def a_rank_that_does_not_call():
    dist.barrier()  # no rank is late for the group, which waits for 4 s
    group = dist.new_group(backend="dovetail", timeout=timedelta(seconds=2))
    if dist.get_rank() == 1:
        time.sleep(3)  # so long that the others do not find it gone instead
        return
    fails("timeout after 2 s, waiting for rank 1", lambda: dist.all_reduce(torch.ones(3), group=group))


def die():
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(tensor := torch.ones(100_000))
    if rank == size - 1:
        if os.fork() == 0:  # a child that lives on keeps no connection open
            os.close(1), os.close(2)
            time.sleep(12)
            os._exit(0)
        time.sleep(0.3)  # the others wait by then
        print(json.dumps({"rank": rank, "dies": time.time()}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    said = []
    for call in (lambda: dist.all_reduce(tensor), lambda: dist.recv(tensor, size - 1), dist.barrier):
        try:
            call()
        except RuntimeError as error:
            said.append(str(error).splitlines()[0])
    print(json.dumps({"rank": rank, "said": said, "at": time.time()}), flush=True)


def main():
    if "pretend" in OPTIONS:
        ranks.host = lambda: f"host {int(os.environ['RANK']) % 2}"
    dist.init_process_group("dovetail")
    joined = type(dist.group.WORLD._ranks).__name__
    if WHAT == "dies":
        die()
        return
    for check in (collectives, messages, groups_in_turn, refused_arguments, a_rank_that_does_not_call, collectives):
        check()
    dist.destroy_process_group()
    if "pretend" in OPTIONS:  # the store of the first group may still be served
        os.environ["MASTER_PORT"] = OPTIONS[-1]
    dist.init_process_group("dovetail")
    dist.all_reduce(ones := torch.ones(2))
    same(ones, torch.full((2,), float(dist.get_world_size())))
    dist.destroy_process_group()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    found = {name: os.environ.get(name) for name in names}
    line = json.dumps({"passed": True, "joined": joined, "groups": dovetail.torch.DovetailGroup.__name__} | found)
    print(line, flush=True)


main()
