"""Run by 2 or 3 ranks: calls of torch.distributed on backend "dovetail", against what each rank knows by itself."""

import json
import os
import sys
import time
import traceback
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import dovetail.torch
from dovetail.core import OperatorError

RANK, RANKS = int(os.environ["DOVETAIL_RANK"]), int(os.environ["DOVETAIL_RANKS"])
FOLDER = sys.argv[1]
EVERY = range(RANKS)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)


def start(name, timeout_s=60.0):
    where = f"file://{FOLDER}/{name}"
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group("dovetail", init_method=where, rank=RANK, world_size=RANKS, timeout=limit)


def of(rank, shape=(5, 6), dtype=torch.float32, seed=0):
    """A rank's tensor of small whole numbers, which every rank can make."""
    draw = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(1, 4, shape, generator=draw).to(dtype)


def strided(tensor):
    """Equal values with gaps between them."""
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 99, dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def raised(kind, call, *parts):
    try:
        call()
    except kind as error:
        text = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert all(part in text for part in parts), text


def settled(call, is_async):
    work = call(async_op=is_async)
    if is_async:
        work.wait()
        assert work.is_completed()
        assert work.is_success()
    else:
        assert work is None


def check_reductions():
    for dtype in DTYPES:
        for op, of_two in (
            (ReduceOp.SUM, torch.add),
            (ReduceOp.PRODUCT, torch.mul),
            (ReduceOp.MIN, torch.minimum),
            (ReduceOp.MAX, torch.maximum),
        ):
            wanted = of(0, dtype=dtype)
            for rank in EVERY[1:]:
                wanted = of_two(wanted, of(rank, dtype=dtype))
            for layout in (lambda each: each, strided, lambda each: each.t().contiguous().t()):
                for is_async in (False, True):
                    found = layout(of(RANK, dtype=dtype))
                    settled(lambda found=found, op=op, **how: dist.all_reduce(found, op=op, **how), is_async)
                    same(found, wanted)
            found = strided(of(RANK, dtype=dtype))
            dist.reduce(found, RANKS - 1, op=op)
            same(found, wanted if RANK == RANKS - 1 else of(RANK, dtype=dtype))


def check_averages():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        found = of(RANK, dtype=dtype)
        dist.all_reduce(found, op=ReduceOp.AVG)
        wanted = sum(of(rank, dtype=torch.float64) for rank in EVERY) / RANKS
        torch.testing.assert_close(found, wanted.to(dtype))


def check_booleans():
    for op, wanted in ((ReduceOp.SUM, True), (ReduceOp.BOR, True), (ReduceOp.BAND, False), (ReduceOp.PRODUCT, False)):
        found = torch.tensor([RANK == 0, True, False])
        dist.all_reduce(found, op=op)
        same(found, torch.tensor([wanted, True, False]))


def check_complex():
    found = torch.complex(of(RANK), of(RANK, seed=1))
    dist.all_reduce(found)
    same(found, torch.complex(sum(map(of, EVERY)), sum(of(rank, seed=1) for rank in EVERY)))
    conj = torch.complex(of(RANK), of(RANK, seed=1)).conj()
    parts = [torch.empty_like(conj) for _ in EVERY]
    dist.group.WORLD.allgather([parts], [conj]).wait()
    same(parts[0].resolve_conj(), torch.complex(of(0), -of(0, seed=1)))


def check_what_gloo_does():
    found = of(RANK, dtype=torch.int32)
    dist.all_reduce(found, op=ReduceOp.BXOR)
    wanted = of(0, dtype=torch.int32)
    for rank in EVERY[1:]:
        wanted = wanted ^ of(rank, dtype=torch.int32)
    same(found, wanted)
    sparse = torch.sparse_coo_tensor(torch.tensor([[RANK, 3]]), torch.tensor([1.0, 2.0]), (4,))
    dist.all_reduce(sparse)
    wanted = torch.tensor([*(float(rank < RANKS) for rank in range(3)), 2.0 * RANKS])
    same(sparse.to_dense(), wanted)
    raised(RuntimeError, lambda: dist.all_reduce(of(RANK), op=ReduceOp.BOR))
    raised(RuntimeError, lambda: dist.all_reduce(of(RANK, dtype=torch.int32), op=ReduceOp.AVG))
    work = dist.all_reduce(found := of(RANK, dtype=torch.int64), op=ReduceOp.BAND, async_op=True)
    dist.all_reduce(after := of(RANK))
    work.wait()
    same(after, sum(map(of, EVERY)))
    assert found.dtype == torch.int64


def check_gathers():
    for dtype in (*DTYPES, torch.bool, torch.complex128, torch.float8_e4m3fn):
        wanted = [of(rank, dtype=dtype) for rank in EVERY]
        bits = torch.uint8 if dtype == torch.float8_e4m3fn else dtype
        for layout in (lambda each: each, strided) if bits == dtype else (lambda each: each,):
            parts = [layout(torch.zeros(5, 6, dtype=dtype)) for _ in EVERY]
            dist.all_gather(parts, layout(of(RANK, dtype=dtype)))
            for part, its in zip(parts, wanted, strict=True):
                same(part.view(bits), its.view(bits))
            parts = parts if RANK == 1 else None
            dist.gather(layout(of(RANK, dtype=dtype)), parts, dst=1)
        whole = torch.zeros(5 * RANKS, 6, dtype=dtype)
        dist.all_gather_into_tensor(whole, of(RANK, dtype=dtype))
        same(whole.view(bits), torch.cat([its.view(bits) for its in wanted]))
    uneven = [torch.zeros(rank + 1, 2) for rank in EVERY]
    dist.all_gather(uneven, torch.full((RANK + 1, 2), float(RANK)))
    for rank, part in enumerate(uneven):
        same(part, torch.full((rank + 1, 2), float(rank)))


def check_scatters():
    out = strided(torch.zeros(5, 6))
    dist.scatter(out, [of(rank, seed=7) for rank in EVERY] if RANK == 1 else None, src=1)
    same(out, of(RANK, seed=7))
    parts = [of(RANK, seed=rank) for rank in EVERY]
    wanted = sum(of(rank, seed=RANK) for rank in EVERY)
    dist.reduce_scatter(out, parts)
    same(out, wanted)
    out = torch.zeros(5, 6)
    dist.reduce_scatter_tensor(out, torch.cat(parts))
    same(out, wanted)
    out = torch.zeros(RANK + 1)
    dist.reduce_scatter(out, [torch.full((rank + 1,), float(RANK)) for rank in EVERY])
    same(out, torch.full((RANK + 1,), float(sum(EVERY))))
    found = of(RANK, seed=3)
    dist.broadcast(found, 1)
    same(found, of(1, seed=3))


def check_all_to_all():
    parts = [torch.full((2,), 10.0 * RANK + rank) for rank in EVERY]
    outs = [torch.zeros(2) for _ in EVERY]
    dist.all_to_all(outs, parts)
    same(torch.stack(outs), torch.stack([torch.full((2,), 10.0 * rank + RANK) for rank in EVERY]))
    whole, out = torch.cat(parts), torch.zeros(2 * RANKS)
    dist.all_to_all_single(out, whole)
    same(out, torch.cat(outs))
    sent = [rank + 1 for rank in EVERY]
    rows = torch.full((sum(sent), 3), float(RANK), dtype=torch.bfloat16)
    out = torch.zeros((RANK + 1) * RANKS, 3, dtype=torch.bfloat16)
    dist.all_to_all_single(out, rows, [RANK + 1] * RANKS, sent)
    same(out[:, 0], torch.arange(RANKS).repeat_interleave(RANK + 1).to(out.dtype))
    wrong = [RANK + 1] * RANKS if RANK else [2] * RANKS
    out = torch.zeros(sum(wrong), 3, dtype=torch.bfloat16)
    raised(OperatorError, lambda: dist.all_to_all_single(out, rows, wrong, sent), "to rank 0, which expects 6")


def check_coalesced():
    tensors = [of(RANK, seed=seed) for seed in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for seed, tensor in enumerate(tensors):
        same(tensor, sum(of(rank, seed=seed) for rank in EVERY))
    group = dist.group.WORLD
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        outs = [torch.zeros(5 * RANKS, 6) for _ in range(2)]
        getattr(group, name)(outs, [of(RANK, seed=seed) for seed in range(2)]).wait()
        same(outs[1], torch.cat([of(rank, seed=1) for rank in EVERY]))
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        outs = [torch.zeros(2) for _ in range(2)]
        getattr(group, name)(outs, [torch.arange(2.0 * RANKS) + seed for seed in range(2)]).wait()
        same(outs[1], RANKS * (torch.arange(2.0 * RANKS) + 1)[2 * RANK : 2 * RANK + 2])
    for name in ("all_gather_single", "_allgather_base"):
        getattr(group, name)(out := torch.zeros(5 * RANKS, 6), of(RANK)).wait()
        same(out, torch.cat(list(map(of, EVERY))))
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        getattr(group, name)(out := torch.zeros(2), torch.arange(2.0 * RANKS)).wait()
        same(out, RANKS * torch.arange(2.0 * RANKS)[2 * RANK : 2 * RANK + 2])
    for name in ("all_to_all_single", "alltoall_base"):
        getattr(group, name)(out := torch.zeros(RANKS), torch.full((RANKS,), float(RANK)), [], []).wait()
        same(out, torch.arange(float(RANKS)))
    lists = [[torch.zeros(5, 6), torch.zeros(3)] for _ in EVERY]
    group.allgather_coalesced(lists, [of(RANK), of(RANK, (3,))]).wait()
    same(lists[1][1], of(1, (3,)))
    group.allreduce([found := of(RANK)], ReduceOp.MAX).wait()
    group.broadcast(found, 1).wait()
    group.barrier().wait()


def check_order():
    """Calls that are not waited for run in their order, before a later one that is."""
    tensor = torch.ones(1000, dtype=torch.float64)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(20)]
    dist.all_reduce(tensor)
    same(tensor, torch.full_like(tensor, float(RANKS) ** 21))
    assert all(work.is_completed() for work in works)


def check_returns_at_once():
    """A call with async_op=True returns while another rank has not come."""
    tensor = torch.ones(3)
    if RANK == 0:
        work = dist.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        dist.broadcast_object_list([0], 0, group=OTHER)
        assert not work.is_completed()
        dist.broadcast_object_list([0], 0, group=OTHER)
        work.wait()
    else:
        dist.broadcast_object_list([0], 0, group=OTHER)
        dist.broadcast_object_list([0], 0, group=OTHER)
        dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(RANKS)))


def check_futures():
    future = dist.all_reduce(of(RANK), async_op=True).get_future()
    doubled = future.then(lambda done: 2 * done.value()[0])
    same(doubled.wait(), 2 * sum(map(of, EVERY)))
    work = dist.group.WORLD.allreduce([of(RANK)])
    same(work.result()[0], sum(map(of, EVERY)))
    same(work.get_future().wait()[0], sum(map(of, EVERY)))


def check_functional():
    import torch.distributed._functional_collectives as functional

    same(functional.all_reduce(of(RANK), "sum", dist.group.WORLD) + 0, sum(map(of, EVERY)))
    wanted = torch.cat(list(map(of, EVERY)))
    same(functional.all_gather_tensor(of(RANK), 0, dist.group.WORLD) + 0, wanted)
    parts = functional.reduce_scatter_tensor(torch.arange(2.0 * RANKS), "sum", 0, dist.group.WORLD)
    same(parts + 0, RANKS * torch.arange(2.0 * RANKS)[2 * RANK : 2 * RANK + 2])
    out = functional.all_to_all_single(torch.full((RANKS,), float(RANK)), None, None, dist.group.WORLD)
    same(out + 0, torch.arange(float(RANKS)))


def check_messages():
    far = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    for size in (1, 3000, 300_000):
        sent, got = torch.full((size,), float(RANK)), torch.zeros(size)
        works = [dist.irecv(got, far[1]), dist.isend(sent, far[0])]  # all ranks receive first
        for work in works:
            work.wait()
        same(got, torch.full((size,), float(far[1])))
    if RANK == 0:
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0, 2.0]), 1, tag=2)
    if RANK == 1:
        dist.recv(two := torch.zeros(2), 0, tag=2)
        one = strided(torch.zeros(1))
        dist.recv(one, 0, tag=1)
        same(torch.cat([one, two]), torch.tensor([1.0, 2.0, 2.0]))


def check_messages_from_any():
    if RANK:
        dist.send(torch.tensor([float(RANK)]), 0)
    else:
        for _ in EVERY[1:]:
            source = dist.recv(got := torch.zeros(1))
            same(got, torch.tensor([float(source)]))
    dist.barrier()  # the next check sends too


def check_batches():
    sent, got = of(RANK), torch.zeros(5, 6)
    far = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    pairs = dist.P2POp(dist.irecv, got, far[1]), dist.P2POp(dist.isend, sent, far[0])
    for work in dist.batch_isend_irecv(list(pairs)):
        work.wait()
    same(got, of(far[1]))


def check_messages_beside_collectives():
    """A long message moves while its sender waits in a collective."""
    if RANK == 0:
        work = dist.isend(torch.ones(1 << 20), 1)
        dist.barrier()
        work.wait()
    elif RANK == 1:
        dist.recv(got := torch.zeros(1 << 20), 0)
        dist.barrier()
        same(got, torch.ones(1 << 20))
    else:
        dist.barrier()


def check_message_of_other_size():
    if RANK == 0:
        dist.send(torch.ones(100_000), 1)
    elif RANK == 1:
        raised(RuntimeError, lambda: dist.recv(torch.zeros(5), 0), "rank 0 sends 400000 bytes", "rank 1 expects 20")
        dist.barrier()
        return
    dist.barrier()


def check_groups():
    groups = [dist.new_group([0, 1]), dist.new_group(list(EVERY)), OTHER]
    for turn in range(10):
        for group in groups[1:] if RANK > 1 else groups:
            dist.all_reduce(found := torch.full((4,), float(turn)), group=group, async_op=turn % 2 == 1)
            if turn % 2 == 0:
                same(found, torch.full((4,), float(turn * dist.get_world_size(group))))
    for group in groups[:2]:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
            raised(RuntimeError, lambda group=group: group.allreduce([of(RANK)]), "was destroyed")


def check_objects():
    found = [None] * RANKS
    dist.all_gather_object(found, {"rank": RANK, "long": "x" * RANK * 1000})
    assert [each["rank"] for each in found] == list(EVERY)
    dist.broadcast_object_list(held := [RANK], 1)
    assert held == [1]


def check_refusals_on_one_rank():
    """What one rank must not give is an error on all ranks, and later calls work."""
    for bad, part in (
        (torch.ones(4, device="meta"), "device meta"),
        (torch.quantize_per_tensor(torch.ones(4), 1.0, 0, torch.qint8), "quantized"),
    ):
        raised(ValueError, lambda bad=bad: dist.all_reduce(bad if RANK == 1 else torch.ones(4)), part)
        dist.all_reduce(found := of(RANK))
        same(found, sum(map(of, EVERY)))
    raised(ValueError, lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(5)), f"of {RANKS} parts")
    raised(ValueError, lambda: dist.all_gather([torch.zeros(3)], torch.zeros(3)), f"for each of {RANKS} ranks")
    raised(ValueError, lambda: dist.recv(torch.ones(4, device="meta"), 0), "device meta")


def check_refusals_of_all():
    for _ in range(3):
        raised(ValueError, lambda: dist.broadcast(torch.ones(4, device="meta"), 0), "device meta")
    dist.all_reduce(found := of(RANK))
    same(found, sum(map(of, EVERY)))


def check_other_sizes():
    """Each rank raises an error, and so do later calls: the ranks are no longer in step."""
    for size in (4, 40_000):
        group, tensor = dist.new_group(list(EVERY)), torch.ones(size + RANK)
        for call in (lambda: dist.all_reduce(tensor, group=group), lambda: dist.barrier(group)):  # noqa: B023
            raised(dovetail.torch.GroupError, call, " failed")
        dist.destroy_process_group(group)


def check_debugging():
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL ranks compare their arguments before data move."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    group = dist.new_group(list(EVERY))
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "OFF"
    tensor = torch.ones(4 + RANK)
    raised(ValueError, lambda: dist.all_reduce(tensor, group=group), "4 on rank 0, 5 on rank 1")
    same(tensor, torch.ones(4 + RANK))
    raised(ValueError, lambda: dist.broadcast(tensor[:4], RANK % 2, group=group), "root 0 on rank 0, 1 on rank 1")
    dist.all_reduce(found := of(RANK), group=group)
    same(found, sum(map(of, EVERY)))


def check_gradients():
    """Tensors that need gradients, and views of them, are taken as they are."""
    leaf = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf)
    dist.all_gather([leaf.detach().clone() for _ in EVERY], leaf[::2].repeat(2))
    same(leaf.detach(), torch.full((4,), float(RANKS)))


def check_a_second_start():
    """A process that has destroyed its groups starts anew, in the same store too."""
    global OTHER
    dist.destroy_process_group()
    kept = dist.FileStore(f"{FOLDER}/again", RANKS)  # torch removes the file of a store that nobody holds
    for store in (dist.FileStore(f"{FOLDER}/first", RANKS), kept, kept):
        dist.init_process_group("dovetail", store=store, rank=RANK, world_size=RANKS, timeout=timedelta(seconds=60))
        dist.all_reduce(found := of(RANK))
        same(found, sum(map(of, EVERY)))
        dist.destroy_process_group()
    start("end")
    OTHER = dist.new_group(list(EVERY))


def check_limits():
    group = dist.new_group(list(EVERY), timeout=timedelta(seconds=0.3))
    if RANK == 0:
        begin = time.monotonic()
        raised(RuntimeError, lambda: dist.barrier(group), "timeout after 0.3 s, waiting for rank")
        assert time.monotonic() - begin < 10
        raised(RuntimeError, lambda: dist.barrier(group), "an earlier call failed")
    dist.barrier()
    if RANK == 1:
        raised(RuntimeError, lambda: [dist.barrier(group) for _ in range(2)], "failed")  # rank 0 had sent for one


def main():
    global OTHER
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, about names that it will drop
    start("world")
    OTHER = dist.new_group(list(EVERY))
    for name, check in [(n, c) for n, c in globals().items() if n.startswith("check_")]:
        begin = time.perf_counter()
        try:
            check()
            text = "passed"
        except BaseException:
            text = traceback.format_exc()
        print(json.dumps([name, RANK, text, round(time.perf_counter() - begin, 3)]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
