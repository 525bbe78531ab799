"""messages: messages between the ranks of a World, by tag, from a given rank or from any, in the background."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dovetail.core import RunError
from dovetail.run.ranks.world import World

HEAD_TAG = 20001
FIRST_DATA_TAG, DATA_TAGS = 1 << 24, 1 << 24
LONGEST_NAP_S = 1e-3  # between two polls
MOVING_NAP_S = 2e-4  # the longest in the background while data move: each poll moves what a ring holds
SPIN_S = 2e-4  # that a waiting rank polls before it naps, if no data move
TURN_S = 2e-4  # that a waiting rank polls before other threads get their turn

Done = Callable[[Exception | None, int], None]  # called with an error or None, and the sender's rank


class _Receive:
    """A receive: where its data go, whose message with which tag it takes (source None: any rank's)."""

    def __init__(self, address: int, num_bytes: int, source: int | None, tag: int, done: Done) -> None:
        self.address, self.num_bytes, self.source, self.tag, self.done = address, num_bytes, source, tag, done

    def takes(self, source: int, tag: int) -> bool:
        return self.tag == tag and self.source in (None, source)


class Messages:
    """Sends and receives on addresses. Several threads may use it.

    A message is a head (tag, bytes, number), then its data. Each rank always awaits the next head of every other rank.
    So a receive from any rank takes the earliest head that fits, and sizes are compared before data arrive. A thread
    makes progress while some send or receive has not ended.
    """

    def __init__(self, world: World) -> None:
        self._world, self._lock, self._wake = world, threading.RLock(), threading.Event()
        self._heads: dict[int, tuple[int, Any]] = {}  # by source: the request of its next head, and the head
        self._gone: dict[int, RunError] = {}  # why a rank sends nothing any more
        self._arrived: list[tuple[int, int, int, int]] = []  # heads without a receive: source, tag, bytes, number
        self._receives: list[_Receive] = []  # without a head so far, in the order of their calls
        # Handle, the other rank, what is called at its end, and what must live until then.
        self._active: list[tuple[int, int, Callable[[RunError | None], None], Any]] = []
        self._sent = [0] * world.size
        self._is_closed, self._num_waiting = False, 0
        for source in set(range(world.size)) - {world.rank}:
            self._await_head(source)
        self._thread = threading.Thread(target=self._progress, name="dovetail messages", daemon=True)
        self._thread.start()

    def send(self, address: int, num_bytes: int, target: int, tag: int, done: Done) -> None:
        """Send bytes to a rank. They must not change before `done` is called."""
        with self._lock:
            number = self._sent[target]
            self._sent[target] += 1
            head = np.array([tag, num_bytes, number], np.int64)
            self._begin("isend", head.ctypes.data, head.nbytes, target, HEAD_TAG, lambda _: None, head)
            ended = lambda error: done(error, self._world.rank)  # noqa: E731
            self._begin("isend", address, num_bytes, target, _data_tag(number), ended)
            self.poll()
            if self._is_busy:
                self._wake.set()

    def receive(self, address: int, num_bytes: int, source: int | None, tag: int, done: Done) -> None:
        """Receive a message with this tag, from a rank or (None) from any. `done` gets an error if its size differs."""
        asked = _Receive(address, num_bytes, source, tag, done)
        with self._lock:
            self.poll()
            for place, (sender, its_tag, its_bytes, number) in enumerate(self._arrived):
                if asked.takes(sender, its_tag):
                    del self._arrived[place]
                    self._take(asked, sender, its_bytes, number)
                    break
            else:
                self._receives.append(asked)
                self._fail_unanswerable()
            if self._is_busy:
                self._wake.set()

    def wait(self, has_ended: Callable[[], bool], limit_s: float) -> bool:
        """Poll until `has_ended()`, at most `limit_s` seconds (0: without a limit). Return whether it has."""
        begin = moved = time.monotonic()  # moved: when a message last came or went
        with self._lock:
            self._num_waiting += 1
        try:
            while not has_ended():
                now = time.monotonic()
                if 0 < limit_s < now - begin:
                    return has_ended()
                if self._active or now - moved < SPIN_S:
                    if self._poll_until_one_ends(now - moved):
                        moved = time.monotonic()
                    else:
                        time.sleep(0)  # other threads may want the lock
                else:
                    time.sleep(min((now - moved) / 8, LONGEST_NAP_S))
                    self.poll()
        finally:
            with self._lock:
                self._num_waiting -= 1
        return True

    def _poll_until_one_ends(self, waited_s: float) -> bool:
        """Poll until something has ended, at most `TURN_S`. Return whether it has. Meanwhile other callers wait."""
        with self._lock:
            if self._is_closed:
                return True
            sources = list(self._heads)
            handles = [self._heads[source][0] for source in sources] + [entry[0] for entry in self._active]
            if not handles:
                return False
            place, error = self._world.await_one(handles, waited_s, TURN_S)
            if place < 0:
                return False
            if place < len(sources):
                self._end_head(sources[place], error)
            else:
                self._active.pop(place - len(sources))[2](error)
            return True

    def poll(self) -> None:
        """Make progress."""
        with self._lock:
            if self._is_closed:
                return
            for source in list(self._heads):
                self._look_for_head(source)
            entries, self._active = self._active, []
            finished: list[tuple[Callable[[RunError | None], None], RunError | None]] = []
            for entry in entries:
                handle, _, ended, _ = entry
                try:
                    if self._world.test(handle):
                        finished.append((ended, None))
                    else:
                        self._active.append(entry)
                except RunError as error:
                    finished.append((ended, error))
            for ended, why in finished:  # these may begin sends and receives
                ended(why)

    def lose(self, rank: int, error: RunError) -> None:
        """Let what is sent to a rank or awaited from it fail: it has ended, which the transport may not notice."""
        with self._lock:
            if self._is_closed or rank in self._gone:
                return
            self._gone[rank] = error
            if (head := self._heads.pop(rank, None)) is not None:
                self._world.cancel(head[0])
            lost = [entry for entry in self._active if entry[1] == rank]
            self._active = [entry for entry in self._active if entry[1] != rank]
            for _, _, ended, _ in lost:  # their requests stay: the transport may still use their memory
                ended(error)
            self._fail_unanswerable()

    def close(self) -> None:
        """Cancel what has not ended. The ranks of the World no longer send to each other."""
        with self._lock:
            self._is_closed = True
            for handle, _ in self._heads.values():
                self._world.cancel(handle)
            for handle, _, _, _ in self._active:
                self._world.cancel(handle)
            self._heads, self._active = {}, []
            for asked in self._receives:
                asked.done(RunError("the group was closed before a message came"), -1)
            self._receives = []
        self._wake.set()
        self._thread.join()

    @property
    def _is_busy(self) -> bool:
        return bool(self._active or self._receives)

    def _progress(self) -> None:
        while not self._is_closed:
            if not self._is_busy:
                self._wake.wait()
                self._wake.clear()
            time.sleep(MOVING_NAP_S if self._active else LONGEST_NAP_S)
            if not self._num_waiting:  # else that thread polls
                self.poll()

    def _begin(
        self, name: str, address: int, num_bytes: int, peer: int, tag: int, ended: Any, kept: Any = None
    ) -> None:
        try:
            handle = self._world.begin(name, ctypes.c_void_p(address), num_bytes, peer, tag)
        except RunError as error:
            ended(error)
            return
        self._active.append((handle, peer, ended, kept))

    def _await_head(self, source: int) -> None:
        head = np.zeros(3, np.int64)
        handle = self._world.begin("irecv", ctypes.c_void_p(head.ctypes.data), head.nbytes, source, HEAD_TAG)
        self._heads[source] = handle, head

    def _look_for_head(self, source: int) -> None:
        while source in self._heads:
            try:
                if not self._world.test(self._heads[source][0]):
                    return
                error = None
            except RunError as raised:
                error = raised
            self._end_head(source, error)

    def _end_head(self, source: int, error: RunError | None) -> None:
        """Await the next head of a rank whose last one has come, and match that one; after an error no more come."""
        _, head = self._heads.pop(source)
        if error is not None:
            self._gone[source] = error
            self._fail_unanswerable()
            return
        tag, num_bytes, number = head.tolist()
        self._await_head(source)
        asked = next((each for each in self._receives if each.takes(source, tag)), None)
        if asked is None:
            self._arrived.append((source, tag, num_bytes, number))
        else:
            self._receives.remove(asked)
            self._take(asked, source, num_bytes, number)

    def _take(self, asked: _Receive, source: int, num_bytes: int, number: int) -> None:
        """Receive the data of a message whose head has come. If its size is wrong, they go elsewhere."""
        address, aside, wrong = asked.address, None, None
        if num_bytes != asked.num_bytes:
            text = f"rank {source} sends {num_bytes} bytes with tag {asked.tag}"
            wrong = RunError(text, found=f"rank {self._world.rank} expects {asked.num_bytes}")
            aside = np.empty(num_bytes, np.uint8)
            address = aside.ctypes.data
        ended = lambda error: asked.done(error or wrong, source)  # noqa: E731
        self._begin("irecv", address, num_bytes, source, _data_tag(number), ended, aside)

    def _fail_unanswerable(self) -> None:
        """End the receives from ranks that have ended."""
        for asked in list(self._receives):
            gone = self._gone.get(asked.source) if asked.source is not None else None
            if asked.source is None and len(self._gone) >= self._world.size - 1:
                gone = next(iter(self._gone.values()))
            if gone is not None:
                self._receives.remove(asked)
                asked.done(gone, -1)


def _data_tag(number: int) -> int:
    return FIRST_DATA_TAG + number % DATA_TAGS
