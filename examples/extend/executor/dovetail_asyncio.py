"""asyncio: an executor of another package; ranks are tasks of one event loop, messages go through its queues."""

import asyncio
import platform
import time
from collections import defaultdict

import numpy as np

from dovetail.core import RunError
from dovetail.ir import RECVS, SENDS, Kind, kernel_calls
from dovetail.passes import two_sided
from dovetail.run.arrays import fresh_inputs, numpy_dtype
from dovetail.run.check import check_results
from dovetail.run.executor import Executor
from dovetail.run.job import JobResult, Outcome, run_rounds

KINDS = {*SENDS, *RECVS, Kind.copy, Kind.reduce, Kind.compute, Kind.nop}


class AsyncioExecutor(Executor):
    """Runs every lane of every rank as a task. Programs of messages, copies, sums and kernels."""

    def execute_unverified(self, job):
        bound = {v.name: Bound(v, job.seed) for v in job.variants}
        rounds = run_rounds(job, lambda variant, index: bound[variant.name].once(), time.monotonic)
        outcomes = []
        for at, variant in enumerate(job.variants):
            found = bound[variant.name].check() if variant.check else None
            checked = (found.max_rel_error, found.tolerance, found.num_wrong) if found else ()
            outcomes.append(Outcome(variant.name, tuple(map(float, rounds.seconds[:, at])), (), *checked))
        facts = {"host": platform.node(), "mpi": "tasks of asyncio"}
        return JobResult(tuple(outcomes), len(rounds.seconds), rounds.disturbed, facts)


class Bound:
    """A variant with its arrays, run again and again."""

    def __init__(self, variant, seed):
        self.variant, self.program = variant, two_sided(variant.program)
        self.inputs = fresh_inputs(variant.program, variant.workload, seed)
        self.kernels = kernel_calls(variant.workload)
        self.ops = list(self.program.ops())
        if other := {op.kind for op in self.ops} - KINDS or variant.workload.sizes:
            raise RunError("asyncio cannot run this program", found=", ".join(map(str, other)))

    def once(self):
        """Seconds of one run."""
        self.held = {rank: self.fresh(rank) for rank in range(self.program.num_ranks)}
        begin = time.monotonic()
        asyncio.run(self.run())
        return time.monotonic() - begin

    def fresh(self, rank):
        """A rank's arrays: inputs as they begin, the others empty."""
        slots = self.variant.workload.slots
        return {
            b.name: self.inputs[b.name][rank].copy()
            if b.role == "input"
            else np.empty((b.slots[rank], *slots[b.name][rank].shape), numpy_dtype(slots[b.name][rank].dtype))
            for b in self.program.buffers
        }

    async def run(self):
        self.done = [asyncio.Event() for _ in self.ops]
        self.queues = [asyncio.Queue(channel.depth) for channel in self.program.channels]
        lanes = defaultdict(list)
        for op in self.ops:
            lanes[op.rank, op.lane].append(op)
        async with asyncio.TaskGroup() as tasks:
            for ops in lanes.values():
                tasks.create_task(self.lane(ops))

    async def lane(self, ops):
        """One lane's ops, in order, each after those that it depends on."""
        for op in ops:
            for row in op.after:
                await self.done[row].wait()
            await self.do(op, self.held[op.rank])
            self.done[op.index].set()

    async def do(self, op, held):
        """Carry out one op: take a message in and add it to what the op reads, store the result, send it on."""
        reads = [held[region.buffer][region.slots()] for region in op.reads]
        if op.kind in RECVS:
            reads = [sum(reads, await self.queues[op.chan_in].get())]
        if op.kind == Kind.compute:
            self.compute(self.program.kernels[op.call], op, reads, held)
        elif op.writes:
            (region,) = op.writes
            add = held[region.buffer][region.slots()] if op.kind == Kind.reduce else 0
            held[region.buffer][region.slots()] = reads[0] + add
        if op.kind in SENDS:
            await self.queues[op.chan_out].put(reads[0])

    def compute(self, kernel, op, reads, held):
        found = [np.empty_like(held[region.buffer][region.slots()]) for region in op.writes]
        self.kernels[kernel.name](reads, found)
        for region, array in zip(op.writes, found, strict=True):
            held[region.buffer][region.slots()] = array + (
                held[region.buffer][region.slots()] if kernel.accumulate else 0
            )

    def check(self):
        self.once()
        return check_results(self.variant, self.held, lambda name, rank: self.inputs[name][rank])
