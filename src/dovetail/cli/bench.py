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
    slices: Annotated[
        str, typer.Option("--slice", help="Cut messages of a named algorithm into slices of this many bytes; 0: no.")
    ] = "0",
    dtype: opt.Dtype = None,
    on: opt.On = "mpi",
    launch: opt.Launch = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Least number of rounds for each size.", min=1)] = 5,
    budget: opt.Budget = 60.0,
    seed: opt.Seed = None,
    json: opt.Json = False,
) -> int:
    """Time a collective at several sizes and check every result. Bandwidths are defined as in nccl-tests."""
    from dovetail.cli.collectives import BENCH_SCHEMA, print_timed
    from dovetail.core import parse_bytes
    from dovetail.planner import operator_class
    from dovetail.run.executor import executor_on
    from dovetail.store.selection import Choice
    from dovetail.tuner.collectives import collectives_of
    from dovetail.tuner.timing import bus_factor, time_collective

    asked = {"min": least, "max": most, "factor": factor, "dtype": dtype, "nodes": nodes}
    points = collectives_of(operator_class(collective), **asked)
    with output.progress("timing") as say:
        timed = time_collective(
            points,
            ranks,
            algorithm,
            parameters=Choice(channels=channels, instances=instances, slice_bytes=parse_bytes(slices)),
            executor=executor_on(on, launch=launch),
            rounds=rounds,
            budget_s=budget,
            seed=seed,
            say=say,
        )
    if json:
        operator = timed[0].operator
        about = {"collective": collective, "ranks": ranks, "nodes": operator.nodes, "dtype": operator.dtype}
        rows = [each.to_json() for each in timed]
        output.emit({"schema": BENCH_SCHEMA, **about, "bus_factor": bus_factor(collective, ranks), "rows": rows})
    else:
        print_timed(timed)
    return int(any(each.num_wrong for each in timed))
