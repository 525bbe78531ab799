"""Train a small net with DistributedDataParallel: torchrun --nproc-per-node 2 examples/torch/ddp.py

Each rank has its part of every batch. Rank 0 trains the same net on whole batches too, and prints both losses.
"""

import torch
import torch.distributed as dist
from torch import nn

import dovetail.torch  # noqa: F401  (registers backend "dovetail")

STEPS, BATCH = 30, 64


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(2)
    inputs = [torch.rand(BATCH, 16, generator=draw) for _ in range(STEPS)]
    return [(each, each.square().sum(1, keepdim=True)) for each in inputs]


def train(model: nn.Module, rank: int, ranks: int) -> float:
    """Return the loss of the last step, over the whole batch if the rank has it all."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for inputs, wanted in batches():
        own = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[own]), wanted[own])
        loss.backward()
        optimizer.step()
    return loss.detach()


def main() -> None:
    dist.init_process_group("dovetail")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loss = train(nn.parallel.DistributedDataParallel(net()), rank, ranks)
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    if rank == 0:
        alone = train(net(), 0, 1)
        print(f"loss after {STEPS} steps on {ranks} ranks {loss:.6f}, on one {alone:.6f}")
        torch.testing.assert_close(loss, alone, rtol=1e-3, atol=1e-5)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
