"""Train a net whose parameters are cut over ranks (FSDP2): torchrun --nproc-per-node 2 examples/torch/fsdp2.py

Each rank holds a part of every parameter, gathers a layer before it runs, and reduces its gradients into parts. Rank 0
trains the same net alone too, and prints both losses.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dovetail.torch  # noqa: F401  (registers backend "dovetail")

STEPS, BATCH = 20, 32


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)), nn.Linear(32, 1))


def train(model: nn.Module, rank: int, ranks: int) -> torch.Tensor:
    """Return the loss of the last step on this rank's part of the batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        inputs = torch.rand(BATCH, 32, generator=draw)
        wanted = inputs.square().sum(1, keepdim=True)
        own = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[own]), wanted[own])
        loss.backward()
        optimizer.step()
    return loss.detach()


def main() -> None:
    dist.init_process_group("dovetail")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    model = net()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss = train(model, rank, ranks)
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    if rank == 0:
        alone = train(net(), 0, 1)
        print(f"loss after {STEPS} steps on {ranks} ranks {loss:.6f}, on one {alone:.6f}")
        torch.testing.assert_close(loss, alone, rtol=1e-3, atol=1e-5)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
