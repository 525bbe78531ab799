"""sources: all functions that find remedies in a model of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dovetail.advise import balance_remedies as remedies_balance
from dovetail.advise import block_remedies as remedies_block
from dovetail.advise import call_remedies as remedies_call
from dovetail.advise import chain_remedies as remedies_chain
from dovetail.advise import fence_remedies as remedies_fence
from dovetail.advise import hand_remedies as remedies_hand
from dovetail.advise import late_remedies as remedies_late
from dovetail.advise import lock_remedies as remedies_lock
from dovetail.advise import lockstep_remedies as remedies_lockstep
from dovetail.advise import order_remedies as remedies_order
from dovetail.advise import pickle_remedies as remedies_pickle
from dovetail.advise import poll_remedies as remedies_poll
from dovetail.advise import ready_remedies as remedies_ready
from dovetail.advise import root_remedies as remedies_root
from dovetail.advise import service_remedies as remedies_service
from dovetail.advise import signal_remedies as remedies_signal
from dovetail.advise import star_remedies as remedies_star
from dovetail.advise import traffic_remedies as remedies_traffic
from dovetail.advise import transfer_remedies as remedies_transfer
from dovetail.advise import unchanged_remedies as remedies_unchanged
from dovetail.advise import volume_remedies as remedies_volume
from dovetail.advise import waiting_remedies as remedies_waiting
from dovetail.advise.remedy import Remedy, Site
from dovetail.trace.analysis.replay_model import ReplayModel

SOURCES: tuple[Callable[[ReplayModel, Site], Iterator[Remedy]], ...] = (
    *(
        remedies_waiting.overlap,
        remedies_waiting.nonblocking,
        remedies_waiting.waited_at_once,
        remedies_waiting.sends,
        remedies_waiting.post_earlier,
    ),
    *(remedies_waiting.progress, remedies_waiting.collective_progress, remedies_waiting.sender_progress),
    *(remedies_traffic.merge, remedies_block.block, remedies_traffic.temporal_block),
    *(remedies_balance.balance, remedies_balance.slow_link),
    *(remedies_order.barrier, remedies_fence.fence, remedies_order.any_order, remedies_order.standard),
    *(remedies_order.send_and_receive, remedies_order.as_they_come),
    *(remedies_poll.poll, remedies_order.seldom, remedies_lock.lock),
    *(remedies_call.setup, remedies_call.probe, remedies_call.file_calls),
    *(remedies_chain.pipeline, remedies_chain.dispatch),
    *(remedies_ready.send_ready, remedies_ready.send_before_writing, remedies_ready.send_each),
    *(remedies_late.send_earlier, remedies_late.answer_first, remedies_waiting.target_progress),
    remedies_service.in_any_order,
    *(remedies_lockstep.run_ahead, remedies_lockstep.in_step),
    *(remedies_signal.turns, remedies_signal.empty, remedies_signal.tiny_tasks),
    *(
        remedies_volume.gathered,
        remedies_volume.collected,
        remedies_volume.repeated,
        remedies_root.through_root,
        remedies_transfer.transfers,
        remedies_unchanged.unchanged,
        remedies_unchanged.sent_again,
        remedies_pickle.pickled,
        remedies_hand.by_hand,
        remedies_hand.in_two,
        remedies_star.to_all,
    ),
)
