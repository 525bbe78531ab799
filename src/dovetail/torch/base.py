"""base: what every process group behind backend "dovetail" has: its names, messages, end, and how a call is made."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakSet, ref

import torch.distributed as dist

from dovetail.call.selection_rules import checks_calls
from dovetail.core import OperatorError, RunError
from dovetail.run.faults import raise_fault
from dovetail.run.ranks.comm import KINDS
from dovetail.store.selection import LIBRARY
from dovetail.torch import private, spans
from dovetail.torch.calls import Calls
from dovetail.torch.messages import MessageWork
from dovetail.torch.ranks import SharedRanks, meet
from dovetail.torch.tensors import check, given, taken
from dovetail.torch.work import Ended, GroupError, Worker

FAREWELL_S = 5.0  # seconds that `shutdown` waits for calls under way
GLOO_S = 1.0  # seconds that the end of Python waits for gloo's threads
DONE = Ended()
NEEDS_ENGINE, OTHER_FAILED = 1, 2  # of native/run/door.h
_open_groups: WeakSet[Any] = WeakSet()


@atexit.register
def _let_all_go() -> None:
    for group in list(_open_groups):
        if isinstance(group._ranks, SharedRanks):
            group._ranks.close_messages()
        group._let_go()
    private.let_gloo_rest(GLOO_S)


class GroupBase:
    """A process group without its collectives: see DovetailGroup. Its classes also derive from `ProcessGroup`."""

    turn: int  # how many collectives were called

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, global_ranks: Sequence[int] = ()) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._global_ranks = list(global_ranks)
        self._name = self._description = ""
        self._ranks: Any = meet(store, rank, size, timeout.total_seconds())
        own = ref(self)
        self._ranks.count = lambda: found.turn if (found := own()) is not None else 0
        is_detail = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
        self._calls = Calls(self._ranks.made, checks_calls() or is_detail)
        self._worker = self._new_worker()
        self._gloo: Any = None
        self._is_open = True
        _open_groups.add(self)

    def _new_worker(self) -> Any:
        """Return what makes calls in their order."""
        return Worker(f"dovetail group of {self._size}", self._ranks.rest)

    # Names and sizes

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    getRank, getSize = rank, size

    def name(self) -> str:
        """Return "dovetail"."""
        return "dovetail"

    getBackendName = _get_backend_name = name

    def getGroupName(self) -> str:
        """Return the name that torch gave the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Set the name."""
        self._name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def getGroupDesc(self) -> str:
        """Return torch's description of the group."""
        return self._description

    def setGroupDesc(self, text: str) -> None:
        """Set the description."""
        self._description = text

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Any:
        """Return the store in which the ranks met."""
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        self.turn = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.turn

    # Messages

    def send(self, tensors: Any, target: int, tag: int = 0) -> Any:
        """Send a tensor to a rank of the group."""
        return self._message("send", tensors, target, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        """Receive a tensor from a rank of the group."""
        return self._message("receive", tensors, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive a tensor from any rank. The work's `_source_rank()` says from which."""
        return self._message("receive", tensors, None, tag)

    def _message(self, name: str, tensors: Any, peer: int | None, tag: int) -> Any:
        (tensor,) = self._only(tensors, name)
        check(tensor, name)
        if not self._is_open:
            raise GroupError(f"{name} failed: the process group was destroyed")
        if peer is not None and not 0 <= peer < self._size:
            raise OperatorError(f"there is no rank {peer} in a group of {self._size}")
        messages = self._ranks.messages
        if hasattr(self, "open_mail"):  # native code makes the next ones
            self.open_mail(messages.door())
        span = given((tensor,)) if name == "send" else taken((tensor,))
        work = MessageWork(messages, (tensor, span), lambda error: self._explained(name, error))
        if name == "send" and peer is not None:
            messages.send(span.address, span.num_bytes, peer, tag, work.end)
        else:
            messages.receive(span.address, span.num_bytes, peer, tag, work.end)
        return work

    def raise_fault_of_message(self, name: str, is_of_transport: bool, text: str, found: str) -> None:
        """Raise the error of a send or receive that native code made."""
        if self._ranks is None:
            raise GroupError(f"{name} failed: {text}", found=found or None)
        raise self._explained(name, self._ranks.messages.error_of(is_of_transport, text, found))

    # The end

    def shutdown(self) -> None:
        """Finish the calls that were begun, and give back the memory. Later calls fail; other ranks no longer wait."""
        if self._is_open:
            self._worker.close(FAREWELL_S)
            self._ranks.close()
            self._let_go()

    def abort(self) -> None:
        """End as `shutdown` does."""
        self.shutdown()

    def _let_go(self) -> None:
        """Drop what is native: torch may hold the group until after the native module has ended."""
        self._is_open = False
        for name in ("_ranks", "_calls", "_gloo"):
            setattr(self, name, None)

    # How a call is made

    def _do(self, name: str, call: Callable[[], Any], results: Sequence[Any], opts: Any) -> Any:
        """Do a call now, or later on the group's thread if the caller does not wait for it."""
        if not self._is_open:
            raise GroupError(f"{name} failed: the process group was destroyed")
        self.turn += 1
        title = self._title(name, results) if spans.are_on() else ""
        if not opts.asyncOp:
            try:
                with spans.shown(title):
                    self._worker.now(call)
            except RunError as error:
                raise self._failed(name, error) from None
            return DONE

        def explained() -> None:
            try:
                call()
            except RunError as error:
                raise self._failed(name, error) from None

        return self._worker.later(explained, results, title)

    def _title(self, name: str, results: Sequence[Any]) -> str:
        times = self._size if name in ("reduce_scatter", "scatter") else 1
        return self.title_of(name, times * sum(each.nbytes for each in results))

    def title_of(self, name: str, num_bytes: int) -> str:
        """Return the name of a call in profiles. `num_bytes`: of the larger of a rank's input and output."""
        choice = self._calls.made.choice(name, num_bytes) if name in KINDS else None
        return spans.title(name, num_bytes, self._name, choice.algorithm if choice else LIBRARY)

    def finish_call(self, name: str, outcome: int, text: str, *arguments: Any) -> None:
        """Make a call for which native code needs an engine, or raise its error. `outcome`: as in native/run/door.h."""
        try:
            if outcome == NEEDS_ENGINE:
                self._calls.one(*arguments)
            elif outcome == OTHER_FAILED:
                raise_fault(self._calls.made.bound)
            else:
                raise RunError(text)
        except RunError as error:
            raise self._failed(name, error) from None

    def _failed(self, name: str, error: RunError) -> Any:
        """Let all ranks' calls fail from now on: other ranks may have ended this one. Return the error to raise."""
        explained = self._explained(name, error)
        if not isinstance(error, GroupError):
            self._ranks.fail(explained.what)
        return explained

    def _by_gloo(self, name: str, call: Callable[[Any], Any], results: Sequence[Any], opts: Any) -> Any:
        """Do a call by a gloo group of the same ranks, after all earlier calls."""

        def act() -> None:
            if self._gloo is None:
                store = dist.PrefixStore("gloo", self._store)
                self._gloo = private.ProcessGroupGloo(store, self._rank, self._size, timeout=self._timeout)
            call(self._gloo).wait()

        return self._do(name, act, results, opts)

    def _explained(self, name: str, error: Any) -> Any:
        if not isinstance(error, RunError) or isinstance(error, GroupError):
            return error
        error = self._ranks.explained(error) if self._ranks is not None else error
        what = error.what.removeprefix(f"rank {self._rank}: ").removeprefix("the collective failed: ")
        hint = error.hint
        if "another size" in error.what:
            hint = "call it with equal sizes on all ranks; TORCH_DISTRIBUTED_DEBUG=DETAIL names the rank that differs"
        where = ""
        if self._global_ranks and self._global_ranks != list(range(self._size)):
            where = f"; the group's ranks 0 to {self._size - 1} are {self._global_ranks} of the default group"
        return GroupError(f"{name} failed: {what}{where}", found=error.found, hint=hint)

    def _refuse(self, error: Exception) -> None:
        """Raise an error of this rank's arguments, on the other ranks too."""
        self._worker.now(lambda: self._ranks.refuse(error))
        raise error

    def _check(self, name: str, tensors: Sequence[Any]) -> None:
        try:
            for tensor in tensors:
                check(tensor, name)
        except OperatorError as error:
            self._refuse(error)

    def _only(self, tensors: Any, name: str) -> Any:
        if len(tensors) != 1:
            self._refuse(OperatorError(f"{name} takes one tensor a rank", found=f"a list of {len(tensors)}"))
        return tensors

    def _check_pair(self, name: str, out: Any, tensor: Any) -> None:
        if out.dtype != tensor.dtype:
            self._refuse(OperatorError(f"{name} from {tensor.dtype} to {out.dtype}", hint="tensors of one dtype"))

    def _check_list(self, name: str, tensors: Sequence[Any], like: Any, *, of_own_size: Sequence[Any]) -> None:
        """Raise unless there is a tensor for each rank, of the dtype of `like`; `of_own_size`: of its size too."""
        if len(tensors) != self._size:
            self._refuse(
                OperatorError(f"{name} needs a tensor for each of {self._size} ranks", found=f"{len(tensors)}")
            )
        for each in tensors:
            self._check_pair(name, each, like)
        for each in of_own_size:
            if each.numel() != like.numel():
                found = f"shapes {list(like.shape)} and {list(each.shape)}"
                self._refuse(OperatorError(f"{name} needs tensors of one size", found=found))

    def _check_whole(self, name: str, whole: Any, part: Any) -> None:
        self._check_pair(name, whole, part)
        if whole.numel() != part.numel() * self._size:
            found = f"shapes {list(whole.shape)} and {list(part.shape)} on {self._size} ranks"
            self._refuse(OperatorError(f"{name} needs a tensor of {self._size} parts", found=found))

    def _elements_of(self, side: str, tensor: Any, sizes: Sequence[int]) -> list[int]:
        """Return the elements that go to, or come from, each rank; `sizes` are rows of axis 0."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes and rows % self._size == 0:
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows or min(sizes) < 0:
            found = f"{side} split sizes {list(sizes)}, {rows} rows, {self._size} ranks"
            self._refuse(OperatorError("all_to_all needs a number of rows for each rank", found=found))
        row = tensor.numel() // rows if rows else 0
        return [each * row for each in sizes]
