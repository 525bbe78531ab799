"""message_delays: why each message took so long: its transfer, another message, a late receive, or missing progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.trace.analysis.delays import LEAST_HELD_S, Delays, is_held, of_sizes
from dovetail.trace.analysis.matching import Messages

MUCH_LONGER = 2.0  # a message is delayed if it takes this multiple of the time of others of its size
LEAST_STALLED = 4096  # bytes; smaller messages need no progress after their send
SOON = 0.25  # an arrival is soon after a call if this share, at most, of the message's time follows the call
MOSTLY, LEAST_OFTEN = 0.75, 4  # share and least number of similar messages that count as evidence

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Calls = Mapping[int, Sequence[int]]  # row of a call -> indices of messages


class Delayed(NamedTuple):
    """For each message: the index of the message that really delayed it (-1: none), its own transfer time, and whether
    the call that received it waited for another message, which was sent later."""

    cause: NDArray[np.int64]
    likely_s: Floats
    is_beside: Flags


def delayed_by(found: Messages, receives: Calls, sends: Calls, sent: Calls, blocks: Sequence[bool]) -> Delayed:
    """Return which messages were delayed by others, and by which.

    A call that receives a message may instead have waited for a message that it sends (`sends`, if it `blocks`), or
    whose send it completes (`sent`): the one that arrived as the call ended. Only messages that took much longer than
    others of their size count as delayed. The transfer time is the 10th percentile of undelayed messages of the size.
    """
    cause = np.full(len(found.src), -1, "i8")
    for row, taken in receives.items():
        own = [*(i for i in sends.get(row, ()) if blocks[i]), *sent.get(row, ())]
        if own:
            cause[taken] = max(own, key=lambda i: found.received_s[i])
    took = found.received_s - found.sent_s
    cause[np.abs(found.received_s[cause] - found.received_s) > 0.1 * took] = -1
    likely_s, sure = np.full(len(took), np.inf), (cause < 0) & (found.received_row >= 0)
    sizes, tenth_s = of_sizes(found.num_bytes[sure], took[sure], lambda those: float(np.percentile(those, 10)))
    known = np.isin(found.num_bytes, sizes)
    likely_s[known] = tenth_s[np.searchsorted(sizes, found.num_bytes[known])]
    is_long, is_beside = took > np.maximum(MUCH_LONGER * likely_s, LEAST_HELD_S), np.zeros(len(took), bool)
    for taken in (those for those in receives.values() if len(those) > 1):
        latest = max(taken, key=lambda i: found.sent_s[i])
        if not is_long[latest]:  # this one explains when the call ended
            is_beside[[i for i in taken if i != latest]] = True
            cause[taken] = -1
    return Delayed(np.where(is_long, cause, -1), likely_s, is_beside)


@dataclass
class MessageDelays:
    """The delay of each message, and the reason for it.

    Attributes
    ----------
    found : Messages
        The messages.
    back_s : array of float
        When the sender was in the library again after the sending call; infinite if that call waited for the message.
    seconds : array of float
        From when the message could leave until it arrived.
    rendezvous : array of bool
        It waited for its receive.
    stalls : array of bool
        For lack of progress, it moved only while its receiver waited for it.
    held : array of bool
        For lack of progress, it left only when its sender, which did other work, was in the library again.
    came_back : array of bool
        Its receiver waited for it until `back_s` or longer.
    """

    found: Messages = field(repr=False)
    back_s: Floats
    seconds: Floats
    rendezvous: Flags
    stalls: Flags
    held: Flags
    came_back: Flags

    def arrived_s(self) -> Floats:
        """Return when each message arrived."""
        f = self.found
        since_s = np.where(self.rendezvous & (f.posted_s > f.sent_s), f.posted_s, f.sent_s)
        since_s = np.where(self.stalls, f.waited_s, np.where(self.held, self.back_s, since_s))
        arrived_s: Floats = since_s + self.seconds
        return arrived_s


def message_delays(
    found: Messages, usual: Delays, rendezvous: Flags, delayed: Delayed, back_s: Floats
) -> MessageDelays:
    """Return the reason for each message's delay.

    `usual`: the trace's curve of message times. `rendezvous`: whether a message's sender waits for its receive.
    `delayed`: the result of `delayed_by`. `back_s`: see `MessageDelays`.
    """
    made = _without_progress(found, usual(found.num_bytes), rendezvous, delayed, back_s)
    made.came_back = (found.received_s >= back_s) & (made.arrived_s() > found.waited_s)
    _hold(made)
    return made


def is_rendezvous(found: Messages, usual: Delays, plain: Flags, synchronous: Flags) -> Flags:
    """Return whether the sender of each message waits for its receive."""
    waits = usual.limits.is_rendezvous(found.num_bytes, found.src, found.dst)
    flags: Flags = waits | is_held(found, plain) | synchronous
    return flags


def _without_progress(
    f: Messages, usual_s: Floats, rendezvous: Flags, delayed: Delayed, back_s: Floats
) -> MessageDelays:
    """Return the delays before `_hold` has found the messages that left only at their sender's next call."""
    cause, likely_s, is_beside = delayed
    ready = np.where(rendezvous, np.fmax(f.sent_s, f.posted_s), f.sent_s)
    spent = f.received_s - f.waited_s
    under_way = ready + usual_s > f.waited_s
    stalls = ~under_way & (spent > np.maximum(0.5 * usual_s, LEAST_HELD_S)) & (f.num_bytes >= LEAST_STALLED)
    stalls &= cause < 0
    delay = np.where(stalls, spent, f.received_s - ready)
    arrived = ~under_way & ~stalls
    delay[arrived] = np.minimum(usual_s, f.waited_s - ready)[arrived]
    blocks = rendezvous & ~stalls & (f.done_end_s == f.sent_end_s)  # the sender's call shows its time, too
    delay = np.where(blocks, np.fmin(delay, f.done_end_s - ready), delay)
    delay = np.where(cause >= 0, np.minimum(delay, likely_s), delay)
    delay = np.where(is_beside & ~stalls, np.minimum(delay, np.fmax(usual_s, likely_s)), delay)
    none = np.zeros(len(stalls), bool)
    return MessageDelays(f, back_s, np.maximum(delay, 0.0), rendezvous | stalls, stalls, none, none)


def _hold(made: MessageDelays) -> None:
    """Set `held`: messages that left only when their sender, which did other work, was in the library again.

    Evidence: of the messages between two ranks with one size, most arrived soon after the sender's next call.
    """
    f, back_s = made.found, made.back_s
    ready = np.fmax(f.sent_s, f.posted_s)
    waited = ~made.stalls & (f.num_bytes >= LEAST_STALLED) & np.isfinite(back_s)
    waited &= np.fmax(ready, f.waited_s) + LEAST_HELD_S < back_s
    soon = waited & made.came_back & (f.received_s - back_s < SOON * (f.received_s - ready))
    _, like = np.unique(np.stack([f.src, f.dst, f.num_bytes]), axis=1, return_inverse=True)
    like = like.ravel()
    often = np.bincount(like, soon) >= MOSTLY * np.maximum(np.bincount(like, waited), LEAST_OFTEN)
    made.held = soon & often[like]
    made.rendezvous = made.rendezvous | made.held
    made.seconds = np.where(made.held, f.received_s - np.where(made.held, back_s, 0.0), made.seconds)
