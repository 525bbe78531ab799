"""Small one-sided transfers in a row, on models whose repair is known."""

from __future__ import annotations

import pytest
from replay_models import US, Calls

from dovetail.advise.advise import advise_model
from dovetail.advise.finding import Finding

ROUNDS = 20
EACH = 10


def found(calls: tuple[str, ...], gap_us: float = 1.0, num_bytes: int = 8) -> Finding | None:
    """In each step EACH rows of these calls, each call 30 us; between them a loop takes `gap_us`."""
    builder = Calls(1)
    for _ in range(ROUNDS):
        builder.work(0, 1000 * US)
        for _ in range(EACH):
            for name in calls:
                builder.work(0, gap_us * US)
                builder.alone(0, "move", name, 30, num_bytes)
    advice = advise_model(builder.model(), lambda row: builder.sites.get(row, ""), lambda rows: builder.sites[rows[0]])
    return next((it for it in advice.findings if it.kind == "block"), None)


@pytest.mark.parametrize("calls", [
    ("MPI_Put",), ("MPI_Win_lock", "MPI_Get", "MPI_Win_unlock"), ("MPI_Fetch_and_op", "MPI_Win_flush"),
])  # fmt: skip
def test_small_transfers_in_a_row_are_packed(calls):
    finding = found(calls)
    assert finding is not None
    assert finding.saves_s == pytest.approx(ROUNDS * (EACH - 1) * len(calls) * 31 * US, rel=0.01)
    assert f"{EACH * len(calls)} in a row" in finding.evidence


@pytest.mark.parametrize(("calls", "gap_us", "num_bytes"), [
    (("MPI_Put",), 500.0, 8), (("MPI_Put",), 1.0, 1 << 20), (("MPI_Win_lock",), 1.0, 8), (("MPI_Type_size",), 1.0, 8),
])  # fmt: skip
def test_long_transfers_and_those_with_work_between_them_stay(calls, gap_us, num_bytes):
    assert found(calls, gap_us, num_bytes) is None
