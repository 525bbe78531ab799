"""Train a tensor-parallel MLP whose messages overlap: torchrun --nproc-per-node 2 examples/torch/mlp.py

Each rank has a part of the sequence, of the first layer's rows and of the second layer's columns. Rank 0 trains the
same MLP alone too. The program prints both losses, then what Dovetail knows of each call.
"""

import torch
import torch.distributed as dist
from torch import nn

import dovetail.torch as dt

STEPS, BATCH, TOKENS, WIDTH, HIDDEN = 50, 2, 32, 32, 64


class ParallelMLP(nn.Module):
    """`out(gelu(into(x)))` on this rank's tokens: x has shape (batch, tokens / ranks, width)."""

    def __init__(self, whole: nn.Sequential, rank: int, ranks: int) -> None:
        super().__init__()
        into, _, out = whole
        own = slice(rank * HIDDEN // ranks, (rank + 1) * HIDDEN // ranks)
        self.into = nn.Parameter(into.weight[own].detach().clone())
        self.into_bias = nn.Parameter(into.bias[own].detach().clone())
        self.out = nn.Parameter(out.weight[:, own].detach().clone())
        self.out_bias = nn.Parameter(out.bias.detach().clone())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = dt.all_gather_linear(tokens, self.into, self.into_bias, dim=1)
        return dt.linear_reduce_scatter(nn.functional.gelu(hidden), self.out, self.out_bias, dim=1)


def whole_mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))


def batches() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [torch.rand(BATCH, TOKENS, WIDTH, generator=draw) for _ in range(STEPS)]


def train(model: nn.Module, own: slice, parts: int) -> list[float]:
    """Return the loss of each step: this rank's part of the mean over all tokens."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for number, tokens in enumerate(batches()):
        optimizer.zero_grad()
        part = tokens[:, own]
        if number == 0 and parts > 1:
            with dt.warm_up():  # measures the calls of these shapes; what it chooses is saved
                nn.functional.mse_loss(model(part), part.flip(-1)).backward()
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(part), part.flip(-1)) / parts
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    dist.init_process_group("dovetail")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = slice(rank * TOKENS // ranks, (rank + 1) * TOKENS // ranks)
    losses = torch.tensor(train(ParallelMLP(whole_mlp(), rank, ranks), own, ranks))
    dist.all_reduce(losses)
    if rank == 0:
        alone = torch.tensor(train(whole_mlp(), slice(None), 1))
        print(
            f"loss of step 1 {losses[0]:.6f}, of step {STEPS} on {ranks} ranks {losses[-1]:.6f}, on one {alone[-1]:.6f}"
        )
        torch.testing.assert_close(losses, alone, rtol=1e-4, atol=1e-6)
        print(dt.explain())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
