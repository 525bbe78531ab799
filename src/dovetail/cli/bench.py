"""`dovetail bench`: time a collective at several sizes, as nccl-tests does."""

from __future__ import annotations

from typing import Annotated

import typer

from dovetail.cli import options as opt
from dovetail.cli import output


def bench(
    collective: opt.CollectiveName,
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks to run on.", min=2)],
    nodes: opt.Nodes = None,
    least: opt.Least = None,
    most: opt.Most = None,
    factor: opt.Factor = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="tuned, library, or the name of a built-in algorithm.")
    ] = "tuned",
    channels: Annotated[int, typer.Option("--channels", help="Channels of a named algorithm.", min=1)] = 1,
    instances: Annotated[int, typer.Option("--instances", help="Instances of a named algorithm.", min=1)] = 1,
    slices: Annotated[str, typer.Option("--slice", help="Bytes of a slice of its messages; 0: whole.")] = "0",
    dtype: opt.Dtype = None,
    launch: opt.Launch = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds, at least, for each size.", min=1)] = 5,
    budget: opt.Budget = 60.0,
    seed: opt.Seed = None,
    json: opt.Json = False,
) -> int:
    """Time a collective; algorithm and bus bandwidth are those of nccl-tests, and every result is checked."""
    from dovetail.cli.collectives import BENCH_SCHEMA, Wish, bench_collective, bus_factor, sizes_between
    from dovetail.cli.tuning import fresh_seed
    from dovetail.core import parse_bytes
    from dovetail.plan.selection import Choice
    from dovetail.run.mpi import MpiExecutor

    with output.progress("timing") as say:
        aim, timed = bench_collective(
            Wish(collective, ranks, nodes, dtype or "float32"),
            sizes_between(least or "1K", most or "16M", 4.0 if factor is None else factor),
            algorithm,
            executor=MpiExecutor(launch),
            choice=Choice(channels=channels, instances=instances, slice_bytes=parse_bytes(slices)),
            rounds=rounds,
            budget_s=budget,
            seed=fresh_seed(seed),
            say=say,
        )
    times = bus_factor(collective, ranks)
    rows = [each.to_json(times) for each in timed]
    if json:
        about = {"collective": collective, "ranks": ranks, "nodes": aim.nodes, "dtype": aim.dtype}
        output.emit({"schema": BENCH_SCHEMA, **about, "bus_factor": times, "rows": rows})
    else:
        output.table(
            ["bytes", "count", "type", "algorithm", "time (µs)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"],
            [
                [
                    str(each.num_bytes),
                    str(each.count),
                    aim.dtype,
                    str(each.choice),
                    f"{each.seconds * 1e6:.2f}",
                    f"{row['algbw_gb_per_s']:.3f}",
                    f"{row['busbw_gb_per_s']:.3f}",
                    str(each.num_wrong),
                ]
                for each, row in zip(timed, rows, strict=True)
            ],
            ["right", "right", "left", "left", "right", "right", "right", "right"],
        )
    return int(any(each.num_wrong for each in timed))
