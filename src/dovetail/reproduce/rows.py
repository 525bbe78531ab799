"""rows: one row for each figure of a source, and the rules by which a row gets its verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Literal, get_args

Verdict = Literal["reproduced", "not_reproducible", "source_inconsistent", "missed"]
Basis = Literal["computed", "counted", "predicted", ""]
REPRODUCED: Verdict = "reproduced"
NOT: Verdict = "not_reproducible"
CONFLICT: Verdict = "source_inconsistent"
MISSED: Verdict = "missed"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FACTOR = 0.15  # a predicted factor or time within this share of the printed one is reproduced
STEP = 2.0  # a size that a source reads from sizes which double is reproduced within one doubling


@dataclass(frozen=True)
class Row:
    """One figure of a source.

    Attributes
    ----------
    section : str
        Where the source prints the figure.
    item : str
        What the figure is.
    theirs, ours, best
        The printed value; ours by the same method; ours by our best method, if that is another. Numbers have their
        unit in `unit`; None: there is no such value.
    verdict : str
        One of `VERDICTS`.
    why : str
        How ours came about; for other verdicts than `reproduced`, the reason.
    unit : str
        Unit of the values, e.g. "us", "x" for a factor, "" for a count or a text.
    basis : str
        "computed" from other printed figures, "counted", or "predicted" by simulation. Nothing here is measured.
    source : str
        Name of the source; `reproduce` fills it in.
    """

    section: str
    item: str
    theirs: Any
    ours: Any
    verdict: Verdict
    why: str
    best: Any = None
    unit: str = ""
    basis: Basis = "computed"
    source: str = ""

    @property
    def difference(self) -> float | None:
        """Return ours / theirs - 1 if both are numbers, else None.

        >>> Row("Table 1", "time", 100.0, 103.0, REPRODUCED, "").difference
        0.03
        """
        if not (_is_number(self.theirs) and _is_number(self.ours)) or not self.theirs:
            return None
        return round(float(self.ours) / float(self.theirs) - 1, 6)

    def to_json(self) -> dict[str, Any]:
        """Return the row by name, with its difference."""
        found = asdict(self)
        head = {"source": found.pop("source"), **found}
        return head | {"difference": self.difference}


@dataclass(frozen=True)
class Curves:
    """Predicted speed-ups over sizes.

    `num_bytes`: the sizes; `lines`: a speed-up at each size, by name; `printed`: the printed largest speed-up.
    """

    title: str
    num_bytes: tuple[int, ...]
    lines: dict[str, tuple[float, ...]]
    printed: float
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the curves by name."""
        return asdict(self)


def exact(section: str, item: str, theirs: Any, ours: Any, why: str, **more: Any) -> Row:
    """Return the row of a figure that must be equal; `missed` otherwise."""
    return Row(section, item, theirs, ours, REPRODUCED if theirs == ours else MISSED, why, **more)


def printed(
    section: str, item: str, theirs: str, ours: float, why: str, *, otherwise: Verdict = MISSED, **more: Any
) -> Row:
    """Return the row of a decimal, given as printed, that ours must round to, or be cut off to.

    >>> row = printed("Table", "difference", "7", 7.71, "from the two times")
    >>> row.verdict, row.theirs, row.why
    ('reproduced', 7.0, 'from the two times; cut off, not rounded')
    >>> printed("Table", "difference", "7", 8.01, "from the two times").verdict
    'missed'
    """
    step = Decimal(1).scaleb(int(Decimal(theirs).as_tuple().exponent))
    value = Decimal(repr(float(ours)))
    rounded, cut = value.quantize(step), value.quantize(step, "ROUND_DOWN")
    if Decimal(theirs) == rounded:
        return Row(section, item, float(theirs), ours, REPRODUCED, why, **more)
    if Decimal(theirs) == cut:
        return Row(section, item, float(theirs), ours, REPRODUCED, f"{why}; cut off, not rounded", **more)
    return Row(section, item, float(theirs), ours, otherwise, why, **more)


def factor(
    section: str, item: str, theirs: float, ours: float, why: str, *, otherwise: Verdict = MISSED, **more: Any
) -> Row:
    """Return the row of a predicted factor or time, which must lie within FACTOR of the printed one.

    >>> factor("7.1", "speed-up", 1.9, 1.7, "", unit="x").verdict, factor("7.1", "speed-up", 1.9, 1.5, "").verdict
    ('reproduced', 'missed')
    """
    near = abs(ours / theirs - 1) <= FACTOR
    more.setdefault("basis", "predicted")
    return Row(section, item, theirs, ours, REPRODUCED if near else otherwise, why, **more)


def size(
    section: str, item: str, theirs: float, ours: float | None, why: str, *, otherwise: Verdict = MISSED, **more: Any
) -> Row:
    """Return the row of a size in bytes that the source reads from sizes which double: within one doubling.

    >>> size("1", "half of the peak from", 16384, 22620.0, "").verdict
    'reproduced'
    """
    near = ours is not None and 1 / STEP <= ours / theirs <= STEP
    return Row(section, item, theirs, ours, REPRODUCED if near else otherwise, why, unit="bytes", **more)


def cannot(section: str, item: str, theirs: Any, why: str, **more: Any) -> Row:
    """Return the row of a figure for which the source prints too little, or which only its own machine gives."""
    return Row(section, item, theirs, more.pop("ours", None), NOT, why, **more)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
