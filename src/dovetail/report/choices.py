"""choices: tables of the schedules that rules, simulation and exhaustive search choose, and of their scores."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.report.tables import Align, render_table
from dovetail.report.units import percent, seconds
from dovetail.tuner.choices import TIE, Compared, Pick, Score, scores

LEGEND = (
    f"All choose by the costs of a probed machine; times are simulated on the true one. Right: of the best schedule's "
    f"family, or within {TIE:.0%} of it (tied). Own: within {TIE:.0%} of the best of the families that a rule knows. "
    "Losses are geometric means of (time / best time), minus 1."
)


def choices_text(compared: Sequence[Compared], *, terminal: bool = False, width: int = 100) -> str:
    """Return a table of choosers for one scenario; for several, tables of scenarios and of scores."""
    if len(compared) == 1:
        return f"{scenario_table(compared[0], terminal=terminal, width=width)}\n\n{LEGEND}"
    tables = [scenarios_table(compared), score_table(scores(compared), terminal=terminal, width=width)]
    return "\n\n".join([*tables, LEGEND])


def scenario_table(compared: Compared, *, terminal: bool = False, width: int = 100) -> str:
    """Return a table of every chooser's schedule in one scenario, its true seconds, and its regret."""
    rows = [
        [pick.chooser, str(pick.schedule or pick.why_not), seconds(pick.true_s), percent(pick.regret), _verdict(pick)]
        for pick in compared.picks
    ]
    aligns: list[Align] = ["left", "left", "right", "right", "left"]
    headers = ["chooser", "schedule", "true time", "regret", "family"]
    return render_table(headers, rows, aligns, terminal=terminal, bold_row=len(rows) - 1, width=width)


def scenarios_table(compared: Sequence[Compared]) -> str:
    """Return a table with a row per scenario: each chooser's family, and its excess over the best time."""
    choosers = [pick.chooser for pick in compared[0].picks]
    rows = []
    for each in compared:
        taken = {pick.chooser: pick for pick in each.picks}
        cells = [_cell(taken[name]) if name in taken else "" for name in choosers[:-1]]
        rows.append([each.scenario.name, _sizes(each), *cells, each.best.family, seconds(each.best.true_s)])
    return render_table(["scenario", "operator", *choosers[:-1], "best", "true time"], rows)


def score_table(found: Sequence[Score], *, terminal: bool = False, width: int = 100) -> str:
    """Return a table of each chooser's scores over all scenarios."""
    headers = ["chooser", "scenarios", "right", "tied", "within 1 %", "loss on a miss", "mean loss", "worst", "own"]
    rows = [
        [
            each.chooser,
            str(each.count) + (f" of {each.count + each.silent}" if each.silent else ""),
            *map(percent, (each.right, each.tied, each.close, each.miss_loss)),
            *(percent(loss) if each.count else "–" for loss in (each.mean_loss, each.worst)),
            percent(each.own),
        ]
        for each in found
    ]
    aligns: list[Align] = ["left", *["right"] * 8]  # type: ignore[list-item]
    return render_table(headers, rows, aligns, terminal=terminal, width=width)


def _sizes(compared: Compared) -> str:
    operator = compared.scenario.operator
    return operator.title.removeprefix(f"{operator.name} ")


def _cell(pick: Pick) -> str:
    if pick.schedule is None:
        return "–"
    return f"{pick.family} +{percent(pick.regret)}" if pick.regret > 0 else pick.family


def _verdict(pick: Pick) -> str:
    if pick.schedule is None:
        return ""
    if pick.family == pick.best_family:
        return "best"
    return "as good" if pick.ties else "wrong"
