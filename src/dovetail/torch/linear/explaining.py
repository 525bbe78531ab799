"""explaining: what is known of each call of the operators: its plan, what was predicted and seen, why it is serial."""

from __future__ import annotations

from typing import Any

from dovetail.torch.linear.layers import noted
from dovetail.torch.linear.plans import Call, tables


def explain(group: Any = None) -> str:
    """Return a paragraph for each call of the operators, by place in the program and shapes.

    Parameters
    ----------
    group : ProcessGroup, optional
        Calls of this group only. Default: all groups.

    Returns
    -------
    str
        For each call: its plan, the predicted and measured time, the mean of the calls since, or why it is serial.
    """
    rows = [
        _paragraph(call, each)
        for each, table in list(tables.items())
        if group is None or each is group
        for call in table.values()
    ]
    rows += noted(group)
    return "\n".join(rows) if rows else "no operator of dovetail.torch was called"


def _paragraph(call: Call, group: Any) -> str:
    """Return the sentences of one call."""
    head = f"{call.site}: {call.case.title}, group {group.group_name or '0'}"
    plan = call.plan
    assert plan is not None
    if plan.origin == "alone":
        return f"{head}\n  computed alone: no data move"
    lines = [head, f"  plan: {call.words} ({plan.origin})"]
    if plan.predicted_s:
        measured = f", measured {_ms(plan.measured_s)} beside {_ms(plan.serial_s)} of serial" if plan.measured_s else ""
        lines.append(f"  predicted {_ms(plan.predicted_s)}{measured}")
    if max(plan.slowed) > 1:
        lines.append("  beside each other a product takes {:.2f} times as long, messages {:.2f}".format(*plan.slowed))
    if plan.why:
        lines.append(f"  serial because {plan.why}")
    if call.calls:
        lines.append(f"  seen: {call.calls} calls, {_ms(call.total_s / call.calls)} on average")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"
