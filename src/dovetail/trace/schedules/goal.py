"""goal: read GOAL schedules, the text that LogGOPSim simulates: what each rank computes, sends and receives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.core import FileError
from dovetail.trace.schedules.dag import CALC, RECV, SEND, Node, Replay, to_replay

NANOSECOND = 1e-9  # the unit of `calc`
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_OP = re.compile(
    r"(?:(?P<label>[a-zA-Z]\w*)\s*:\s*)?"
    r"(?:calc\s+(?P<ns>\d+)|(?P<way>send|recv)\s+(?P<size>\d+)b\s+(?:to|from)\s+(?P<peer>-?\d+)"
    r"(?:\s+tag\s+(?P<tag>-?\d+))?)"
    r"(?:\s+cpu\s+(?P<cpu>\d+))?(?:\s+nic\s+\d+)?"
)
_WAIT = re.compile(r"(?P<one>[a-zA-Z]\w*)\s+(?P<how>i?requires)\s+(?P<other>[a-zA-Z]\w*)")
FORMS = "`calc N`, `send Nb to RANK tag T`, `recv Nb from RANK tag T`, `A requires B` or `A irequires B`"


def read_goal(path: Path) -> Replay:
    """Return the Replay of a GOAL file.

    `calc N` computes for N nanoseconds on its `cpu`. `A requires B`: A begins after B has ended. `A irequires B`: A
    begins after all that B requires has ended, which is when B can begin. A `nic` is ignored: the machine's links
    decide what takes turns.

    Parameters
    ----------
    path : Path
        The text, not LogGOPSim's binary form.

    Raises
    ------
    FileError
        If a line is no GOAL, a rank or label is missing, or messages do not match; the error names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not text", hint="give the text of the schedule, not txt2bin's output") from error
    reader = _Reader(path)
    for number, line in enumerate(_COMMENT.sub(_blank, text).split("\n"), 1):
        for statement in _statements(line):
            reader.take(statement, f"{path}:{number}")
    return reader.finished()


def _blank(match: re.Match[str]) -> str:
    """Return a comment's line breaks, so that lines keep their numbers."""
    return "\n" * match[0].count("\n")


def _statements(line: str) -> Iterator[str]:
    """Yield the statements of a line; braces are statements of their own."""
    yield from filter(None, (part.strip() for part in re.split(r"([{}])", line)))


class _Wait(NamedTuple):
    one: int
    how: str
    other: int


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.nodes = path, list[Node]()
        self.num_ranks, self.rank, self.next = 0, -1, -1
        self.seen: set[int] = set()
        self.labels: dict[str, int] = {}
        self.waits: list[_Wait] = []

    def take(self, statement: str, where: str) -> None:
        """Read one statement."""
        word, _, rest = statement.partition(" ")
        if word in ("num_ranks", "rank") and rest.strip().isdigit() and self.rank < 0:
            self._head(word, int(rest), where)
        elif statement == "{" and self.next >= 0:
            self.rank, self.next, self.labels = self.next, -1, {}
        elif statement == "}" and self.rank >= 0:
            self.rank = -1
        elif self.rank >= 0 and (match := _WAIT.fullmatch(statement)):
            ends = [self._labelled(match[name], where) for name in ("one", "other")]
            self.waits.append(_Wait(ends[0], match["how"], ends[1]))
        elif self.rank >= 0 and (match := _OP.fullmatch(statement)):
            self._op(match, where)
        else:
            hint = FORMS if self.rank >= 0 else "`num_ranks N`, then `rank R {` for each rank"
            raise FileError("this is no GOAL statement", where=where, found=statement, hint=hint)

    def _head(self, word: str, number: int, where: str) -> None:
        if word == "num_ranks":
            self.num_ranks = number
        elif number >= self.num_ranks or number in self.seen:
            found = f"rank {number}, where num_ranks is {self.num_ranks}"
            raise FileError("a rank is given twice, or not among num_ranks", where=where, found=found)
        else:
            self.next = number
            self.seen.add(number)

    def _labelled(self, label: str, where: str) -> int:
        if label not in self.labels:
            raise FileError(f"no operation of rank {self.rank} has the label '{label}'", where=where)
        return self.labels[label]

    def _op(self, match: re.Match[str], where: str) -> None:
        unit = f"cpu {match['cpu'] or 0}"
        if match["ns"] is not None:
            node = Node(CALC, self.rank, where, seconds=int(match["ns"]) * NANOSECOND, unit=unit)
        else:
            peer, tag = int(match["peer"]), int(match["tag"] or 0)
            if not 0 <= peer < self.num_ranks or tag < 0:
                what = "a message needs a rank of the schedule, and a tag"
                hint = "receives from any source or with any tag (-1) depend on timing, and are not replayed"
                raise FileError(what, where=where, found=match[0], hint=hint)
            kind = SEND if match["way"] == "send" else RECV
            node = Node(kind, self.rank, where, num_bytes=int(match["size"]), peer=peer, tag=tag, unit=unit)
        if match["label"]:
            self._label(match["label"], where)
        self.nodes.append(node)

    def _label(self, label: str, where: str) -> None:
        """Give the next node a label."""
        if label in self.labels:
            found = f"'{label}' of {self.nodes[self.labels[label]].where}"
            raise FileError(f"rank {self.rank} has the label '{label}' twice", where=where, found=found)
        self.labels[label] = len(self.nodes)

    def finished(self) -> Replay:
        if self.rank >= 0 or self.num_ranks < 1:
            what = "the file ends within a rank" if self.rank >= 0 else "the file has no num_ranks"
            raise FileError(what, where=str(self.path))
        for one, how, other in self.waits:
            if how == "requires":
                self.nodes[one].after.append(other)
        required = [list(node.after) for node in self.nodes]
        for one, how, other in self.waits:
            if how == "irequires":
                self.nodes[one].after += required[other]
        return to_replay(self.path.stem, self.num_ranks, self.nodes)


def read_goals(paths: Sequence[Path]) -> Replay:
    """Return the Replay of the one GOAL file given. Raises FileError for several."""
    if len(paths) != 1:
        raise FileError("a GOAL file holds all ranks", found=f"{len(paths)} files", hint="give one of them")
    return read_goal(paths[0])
