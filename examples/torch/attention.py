"""Train a tensor-parallel transformer block: torchrun --nproc-per-node 2 examples/torch/attention.py [--steps 50]

Each rank has a part of the sequence, of the attention's heads and of the hidden units. Queries, keys and values share
one gather. Rank 0 trains the same block alone too. The program prints both losses, then what Dovetail knows of each
call.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, mse_loss, scaled_dot_product_attention

import dovetail.torch as dt

BATCH, TOKENS, WIDTH, HEADS, HIDDEN = 2, 16, 32, 4, 64


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`. x has shape (batch, tokens, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.query, self.key, self.value, self.joined = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.into, self.out = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def columns(self, x: torch.Tensor, layers: list[nn.Linear]) -> list[torch.Tensor]:
        """Apply layers whose units are cut over the ranks to all tokens."""
        return [layer(x) for layer in layers]

    def rows(self, x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
        """Apply a layer whose inputs are cut over the ranks; return this rank's tokens."""
        return layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.columns(self.norms[0](x), [self.query, self.key, self.value])
        heads = [each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (query, key, value)]
        seen = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.rows(seen, self.joined)
        (hidden,) = self.columns(self.norms[1](x), [self.into])
        return x + self.rows(gelu(hidden), self.out)


class ParallelBlock(Block):
    """The same block on this rank's tokens, heads and hidden units."""

    def __init__(self, whole: Block, rank: int, ranks: int) -> None:
        super().__init__()
        self.load_state_dict(whole.state_dict())
        for layer in (self.query, self.key, self.value, self.into):
            layer.weight = nn.Parameter(layer.weight.detach().chunk(ranks)[rank].clone())
            layer.bias = nn.Parameter(layer.bias.detach().chunk(ranks)[rank].clone())
        for layer in (self.joined, self.out):
            layer.weight = nn.Parameter(layer.weight.detach().chunk(ranks, 1)[rank].clone())

    def columns(self, x: torch.Tensor, layers: list[nn.Linear]) -> list[torch.Tensor]:
        return dt.all_gather_linear(x, [each.weight for each in layers], [each.bias for each in layers], dim=1)

    def rows(self, x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
        return dt.linear_reduce_scatter(x, layer.weight, layer.bias, dim=1)

    def add_up(self) -> None:
        """Add up the gradients of the norms over the ranks: each rank has seen its own tokens only."""
        for each in self.norms.parameters():
            dist.all_reduce(each.grad)


def whole_block() -> Block:
    torch.manual_seed(1)
    return Block()


def train(model: Block, steps: int, rank: int, ranks: int) -> list[float]:
    """Return the loss of each step: this rank's part of the mean over all tokens."""
    optimizer, draw, losses = torch.optim.SGD(model.parameters(), lr=0.2), torch.Generator().manual_seed(2), []

    def backward(part: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = mse_loss(model(part), part.flip(-1)) / ranks
        loss.backward()
        return loss.item()

    for number in range(steps):
        part = torch.rand(BATCH, TOKENS, WIDTH, generator=draw).chunk(ranks, 1)[rank]
        if number == 0 and ranks > 1:
            with dt.warm_up():  # measures the calls of these shapes; what it chooses is saved
                backward(part)
        losses.append(backward(part))
        if ranks > 1:
            model.add_up()
        optimizer.step()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    steps = parser.parse_args().steps
    dist.init_process_group("dovetail")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = torch.tensor(train(ParallelBlock(whole_block(), rank, ranks), steps, rank, ranks))
    dist.all_reduce(losses)
    if rank == 0:
        alone = torch.tensor(train(whole_block(), steps, 0, 1))
        found = f"of step {steps} on {ranks} ranks {losses[-1]:.6f}, on one {alone[-1]:.6f}"
        print(f"loss of step 1 {losses[0]:.6f}, {found}")
        torch.testing.assert_close(losses, alone, rtol=1e-4, atol=1e-6)
        print(dt.explain())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
