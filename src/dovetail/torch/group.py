"""group: the process group behind backend "dovetail": its collectives, on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dovetail.core import OperatorError
from dovetail.torch import private
from dovetail.torch.base import GroupBase
from dovetail.torch.calls import ALL_REDUCE
from dovetail.torch.options import each_reduced, parts_of, reducing, rooted, scattered
from dovetail.torch.tensors import REDUCTIONS, is_plain


def _sized(sizes: Sequence[int]) -> bool:
    return len(set(sizes)) == 1


class DovetailGroup(GroupBase):
    """A process group of ranks on one host, in shared memory, or on several, by MPI.

    `init_process_group("dovetail")` makes it.
    Collectives run in the order of their calls: with `async_op=True` on a thread of the group, else on the caller's.
    What the transport lacks (sparse tensors, PREMUL_SUM, bit operations on integers) is done by a gloo group of the
    same ranks, which is made at the first such call.

    Parameters
    ----------
    store : torch.distributed.Store
        Where the ranks meet.
    rank, size : int
        Of this process, and of the group.
    timeout : datetime.timedelta
        How long a call waits for a rank before it fails.
    global_ranks : list of int
        The ranks in the default group, for errors; may be empty.
    """

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Reduce a tensor over all ranks, in place."""
        (tensor,) = (tensors,) if isinstance(tensors, torch.Tensor) else self._only(tensors, "all_reduce")
        opts = opts if isinstance(opts, private.AllreduceOptions) else reducing(private.AllreduceOptions(), opts)
        op = opts.reduceOp.op
        numbers = REDUCTIONS.get((tensor.dtype, op)) if tensor.is_cpu else None
        if numbers is None or tensor.layout is not torch.strided or not is_plain(tensor):
            return self._allreduce_other(tensor, opts, op, numbers)
        dtype, op_number = numbers
        arguments = (ALL_REDUCE, (at := tensor.data_ptr()), at, tensor.numel(), dtype, op_number, 0, tensor.nbytes)
        return self._do("all_reduce", lambda: self._calls.one(*arguments), (tensor,), opts)

    def _allreduce_other(self, tensor: Any, opts: Any, op: Any, numbers: Any) -> Any:
        if numbers is None or tensor.layout is not torch.strided:
            is_sparse = isinstance(tensor, torch.Tensor) and tensor.is_cpu and tensor.layout is not torch.strided
            self._check("all_reduce", () if is_sparse else (tensor,))
            return self._by_gloo("all_reduce", lambda gloo: gloo.allreduce([tensor], opts), (tensor,), opts)
        self._check("all_reduce", (tensor,))
        return self._do("all_reduce", lambda: self._calls.reduce("all_reduce", tensor, op), (tensor,), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce each of several tensors over all ranks, in place."""
        opts = reducing(private.AllreduceCoalescedOptions(), opts)
        op = opts.reduceOp.op
        self._check("all_reduce", tensors)

        def each() -> None:
            for tensor in tensors:
                self._calls.reduce("all_reduce", tensor, op)

        if any((tensor.dtype, op) not in REDUCTIONS for tensor in tensors):
            kept = list(tensors)
            return self._by_gloo("all_reduce", lambda gloo: each_reduced(gloo, kept, opts), kept, opts)
        return self._do("all_reduce", each, tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Copy the root's tensor to all ranks, in place."""
        (tensor,) = (tensors,) if isinstance(tensors, torch.Tensor) else self._only(tensors, "broadcast")
        opts = rooted(private.BroadcastOptions(), opts)
        self._check("broadcast", (tensor,))
        return self._do("broadcast", lambda: self._calls.broadcast(tensor, opts.rootRank), (tensor,), opts)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Any:
        """Reduce a tensor over all ranks, into that of the root."""
        (tensor,) = (tensors,) if isinstance(tensors, torch.Tensor) else self._only(tensors, "reduce")
        opts = reducing(rooted(private.ReduceOptions(), opts), op)
        root, op = opts.rootRank, opts.reduceOp.op
        self._check("reduce", (tensor,))
        if (tensor.dtype, op) not in REDUCTIONS:
            return self._by_gloo("reduce", lambda gloo: gloo.reduce([tensor], opts), (tensor,), opts)
        return self._do("reduce", lambda: self._calls.reduce("reduce", tensor, op, root), (tensor,), opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Copy all ranks' tensors to a list of tensors on every rank; sizes may differ by rank."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        (outs,), (tensor,) = self._only(outputs, "all_gather"), self._only(inputs, "all_gather")
        opts = opts if isinstance(opts, private.AllgatherOptions) else private.AllgatherOptions()
        self._check("all_gather", (tensor, *outs))
        self._check_list("all_gather", outs, tensor, of_own_size=outs[self._rank : self._rank + 1])
        if _sized([out.numel() for out in outs]):
            return self._do("all_gather", lambda: self._calls.gather(outs, tensor), outs, opts)
        return self._do("all_gather", lambda: self._calls.gather_uneven(outs, tensor), outs, opts)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Join all ranks' tensors in one on every rank."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        """Join all ranks' tensors in one on every rank, for several tensors."""
        opts = opts if isinstance(opts, private.AllgatherOptions) else private.AllgatherOptions()
        pairs = list(zip(outputs, tensors, strict=True))
        for out, tensor in pairs:
            self._check("all_gather", (out, tensor))
            self._check_whole("all_gather", out, tensor)

        def each() -> None:
            for out, tensor in pairs:
                self._calls.gather((out,), tensor)

        return self._do("all_gather", each, outputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Copy all ranks' lists of tensors to `outputs`, a list for each rank."""
        opts = opts if isinstance(opts, private.AllgatherOptions) else private.AllgatherOptions()
        columns = [[theirs[place] for theirs in outputs] for place in range(len(inputs))]
        for outs, tensor in zip(columns, inputs, strict=True):
            self._check("all_gather", (tensor, *outs))
            self._check_list("all_gather", outs, tensor, of_own_size=outs)

        def each() -> None:
            for outs, tensor in zip(columns, inputs, strict=True):
                self._calls.gather(outs, tensor)

        return self._do("all_gather", each, [out for outs in columns for out in outs], opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Copy all ranks' tensors to a list of tensors on the root. Other ranks give no outputs."""
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        (tensor,), opts = self._only(inputs, "gather"), rooted(private.GatherOptions(), opts)
        root = opts.rootRank
        outs = outputs[0] if self._rank == root and len(outputs) == 1 else []
        self._check("gather", (tensor, *outs))
        if self._rank == root:
            self._check_list("gather", outs, tensor, of_own_size=outs)
        return self._do("gather", lambda: self._calls.gather(outs, tensor, root), outs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Copy tensor number r of the root's list to rank r. Other ranks give no inputs."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        (out,), opts = self._only(outputs, "scatter"), rooted(private.ScatterOptions(), opts)
        root = opts.rootRank
        tensors = inputs[0] if self._rank == root and len(inputs) == 1 else []
        self._check("scatter", (out, *tensors))
        if self._rank == root:
            self._check_list("scatter", tensors, out, of_own_size=tensors)
        return self._do("scatter", lambda: self._calls.scatter(out, tensors, root), (out,), opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Reduce a list of tensors over all ranks; rank r gets number r. Sizes may differ by rank."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        (out,), (tensors,) = self._only(outputs, "reduce_scatter"), self._only(inputs, "reduce_scatter")
        opts = reducing(private.ReduceScatterOptions(), opts)
        op = opts.reduceOp.op
        self._check("reduce_scatter", (out, *tensors))
        self._check_list("reduce_scatter", tensors, out, of_own_size=tensors[self._rank : self._rank + 1])
        is_even = _sized([tensor.numel() for tensor in tensors])
        if (out.dtype, op) not in REDUCTIONS:
            return self._by_gloo("reduce_scatter", lambda gloo: scattered(gloo, out, tensors, opts), (out,), opts)
        call = self._calls.reduce_scatter if is_even else self._calls.reduce_scatter_uneven
        return self._do("reduce_scatter", lambda: call(out, tensors, op), (out,), opts)

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Reduce a tensor over all ranks; each rank gets its part."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        """Reduce each of several tensors over all ranks; each rank gets its part of each."""
        opts = reducing(private.ReduceScatterOptions(), opts)
        op, pairs = opts.reduceOp.op, list(zip(outputs, tensors, strict=True))
        for out, tensor in pairs:
            self._check("reduce_scatter", (out, tensor))
            self._check_whole("reduce_scatter", tensor, out)

        def each() -> None:
            for out, tensor in pairs:
                self._calls.reduce_scatter(out, (tensor,), op)

        if any((out.dtype, op) not in REDUCTIONS for out, _ in pairs):
            return self._by_gloo("reduce_scatter", lambda gloo: parts_of(gloo, pairs, opts), outputs, opts)
        return self._do("reduce_scatter", each, outputs, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Send tensor number r to rank r. Sizes may differ."""
        opts = opts if isinstance(opts, private.AllToAllOptions) else private.AllToAllOptions()
        outs, tensors = list(outputs), list(inputs)
        self._check("all_to_all", (*outs, *tensors))
        self._check_list("all_to_all", outs, outs[0] if outs else None, of_own_size=())
        self._check_list("all_to_all", tensors, outs[0], of_own_size=())
        sent, awaited = [each.numel() for each in tensors], [each.numel() for each in outs]
        return self._do("all_to_all", lambda: self._calls.all_to_all_uneven(outs, tensors, sent, awaited), outs, opts)

    def all_to_all_single(
        self, output: Any, tensor: Any, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> Any:
        """Send rows of one tensor to all ranks, equally many or (`input_sizes`) by rank; so for what is received."""
        opts = opts if isinstance(opts, private.AllToAllOptions) else private.AllToAllOptions()
        self._check("all_to_all", (output, tensor))
        self._check_pair("all_to_all", output, tensor)
        if not output_sizes and not input_sizes:
            if output.numel() != tensor.numel() or (tensor.dim() and tensor.shape[0] % self._size):
                found = f"shapes {list(tensor.shape)} and {list(output.shape)} on {self._size} ranks"
                self._refuse(OperatorError("all_to_all cuts axis 0 into equal parts", found=found))
            return self._do("all_to_all", lambda: self._calls.all_to_all(output, tensor), (output,), opts)
        sent = self._elements_of("input", tensor, input_sizes)
        awaited = self._elements_of("output", output, output_sizes)
        return self._do(
            "all_to_all", lambda: self._calls.all_to_all_uneven((output,), (tensor,), sent, awaited), (output,), opts
        )

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Wait for all ranks."""
        opts = opts if isinstance(opts, private.BarrierOptions) else private.BarrierOptions()
        return self._do("barrier", self._calls.barrier, (), opts)

    # The names of torch up to 2.12
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
