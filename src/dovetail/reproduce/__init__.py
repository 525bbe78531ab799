"""reproduce: the figures that the five sources print, ours by the same method and by the best, with a verdict each."""

from dovetail.reproduce.reproduction import SOURCES, Reproduction, reproduce
from dovetail.reproduce.rows import CONFLICT, MISSED, NOT, REPRODUCED, VERDICTS, Curves, Row, Verdict

__all__ = [
    "CONFLICT",
    "MISSED",
    "NOT",
    "REPRODUCED",
    "SOURCES",
    "VERDICTS",
    "Curves",
    "Reproduction",
    "Row",
    "Verdict",
    "reproduce",
]
