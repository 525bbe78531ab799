"""Run random loop nests by C, NumPy, the reference and Programs, and compare each with an evaluation of our own."""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nest_cases as cases
import numpy as np
from nest_cases import Case, Evaluation, Let, Loop, Write, function_text
from nest_drawn import drawn

from dovetail.core import DovetailError, ProgramError

LIMIT_S = 300
Run = Callable[[Case, Path], "str | None"]


@dataclass
class Tally:
    """What became of the cases: how many agreed, what was refused (with an example each), what is wrong."""

    cases: int = 0
    agreed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[int, str, Case]] = field(default_factory=dict)
    faults: list[tuple[int, str, Case]] = field(default_factory=list)

    def add(self, index: int, case: Case, found: str | None) -> None:
        self.cases += 1
        if found is None:
            self.agreed += 1
        elif found.startswith("refused: "):
            kind = cases.kind_of(found)
            self.refused[kind] += 1
            self.examples.setdefault(kind, (index, found, case))
        else:
            self.faults.append((index, found, case))

    def report(self) -> str:
        lines = [
            f"{self.cases} cases: {self.agreed} agree, {sum(self.refused.values())} refused, {len(self.faults)} wrong"
        ]
        lines += [
            f"  {count:5d}  {kind}   (case {self.examples[kind][0]})" for kind, count in self.refused.most_common()
        ]
        return "\n".join(lines)


def serial(case: Case, folder: Path, inputs: int = 2) -> str | None:
    """None: C, NumPy and the reference agree with the evaluation. Else how the case was refused, or what is wrong.

    `inputs`: with so many arguments, of other sizes, steps and data, since C is compiled once.
    """
    try:
        nest = cases.made(case, folder)
    except Exception as error:
        return judged(error, wanted(case, cases.arguments(case)), case, recorded=False)
    return next(filter(None, (compared(varied(case, k), nest) for k in range(inputs))), None)


def varied(case: Case, by: int) -> Case:
    """The same nest, called with other arguments."""
    if not by:
        return case
    sizes = tuple((name, size + by * (1 - 2 * (case.seed % 2)) or 1) for name, size in case.sizes)
    steps = None if case.steps is None else (case.steps + by + case.seed % 3) % 6
    return replace(case, sizes=sizes, steps=steps, seed=case.seed + by)


def compared(case: Case, nest: Any) -> str | None:
    given = cases.arguments(case)
    want = wanted(case, given)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message=".*runs by NumPy")
            found = {
                "C": nest(*given, **case.parameters),
                "NumPy": nest.numpy(*given, **case.parameters),
                "the reference": nest.reference(*given, **case.parameters),
            }
    except Exception as error:
        return judged(error, want, case)
    if isinstance(want, str):
        return f"not refused, although {want}"
    return next((f"{way}: {how}" for way, have in found.items() if (how := differ(have, want))), None)


def judged(error: Exception, want: list[np.ndarray] | str, case: Case, recorded: bool = True) -> str:
    """A refusal, or what is wrong with this exception."""
    if isinstance(error, DovetailError):
        return refused(error, case)
    if isinstance(error, UnboundLocalError) and (isinstance(want, str) or not recorded):
        return "refused: a local variable has no value"  # Python says so: its loop has no index
    return f"{type(error).__name__}: {error}"


def wanted(case: Case, given: list[np.ndarray]) -> list[np.ndarray] | str:
    """The results, or why there are none."""
    evaluation = Evaluation(live(case), given)
    try:
        found = evaluation.results()
    except cases.OutOfBoundsError as error:
        return f"out of bounds: {error}"
    except KeyError as error:
        return f"a local variable has no value: {error}"
    return "an element of the new level is read before its write" if evaluation.has_early_reads else found


def values_of(case: Case) -> Iterator[cases.Tree]:
    return (node.value for node in cases.nodes(case.body) if not isinstance(node, Loop))


def live(case: Case) -> Case:
    """Without local variables that nothing uses, whose reads are not made."""
    used = {tree[1] for value in values_of(case) for tree in cases.trees(value) if tree[0] == "temporary"}

    def kept(body: tuple[Any, ...]) -> tuple[Any, ...]:
        nodes = (replace(node, body=kept(node.body)) if isinstance(node, Loop) else node for node in body)
        return tuple(node for node in nodes if not isinstance(node, Let) or node.name in used)

    return replace(case, body=kept(case.body))


def refused(error: DovetailError, case: Case) -> str:
    """A refusal; those that say something about where data lie or when it is ready are compared with the evaluation."""
    text = str(error)
    line = text.splitlines()[0]
    if "defect of ours" in text or isinstance(error, ProgramError):
        return f"{type(error).__name__}: {text}"
    if ("out of bounds" in line or "too small" in line) and not is_so(case, "out of bounds", " where " not in line):
        return f"refused without cause: {text}"
    if "cyclic" in line and not is_so(case, "an element of the new level", True):
        return f"refused without cause: {text}"
    return f"refused: {text}"


def is_so(case: Case, why: str, of_any_size: bool) -> bool:
    """Whether there are no results for this reason; `of_any_size`: if not of these arrays, of larger or small ones."""
    found = outcome(case)
    if of_any_size:
        names, now = zip(*case.sizes, strict=True)
        steps = None if case.steps is None else 2
        for others in (tuple(size + 9 for size in now), *itertools.product((1, 2, 3), repeat=len(now))):
            found += outcome(replace(case, sizes=tuple(zip(names, others, strict=True)), steps=steps))
    return why in found


def outcome(case: Case) -> str:
    """Why there are no results, with the reads of unused local variables made; "" where there are."""
    evaluation, found = Evaluation(case, cases.arguments(case)), ""
    try:
        evaluation.results()
    except cases.OutOfBoundsError:
        found = "out of bounds"
    return found + (" an element of the new level" if evaluation.has_early_reads else "")


def differ(have: Any, want: list[np.ndarray]) -> str | None:
    parts = have if isinstance(have, tuple) else (have,)
    if len(parts) != len(want):
        return f"{len(parts)} results, not {len(want)}"
    return next((how for a, b in zip(parts, want, strict=True) if (how := cases.wrong(a, b))), None)


# ---- smaller cases


def smaller(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    for body in fewer(case.body):
        yield replace(case, body=body)
    if case.steps:
        yield replace(case, steps=case.steps - 1)
    for at, (name, size) in enumerate(case.sizes):
        for less in {size // 2, size - 1}:
            if 0 < less < size:
                yield replace(case, sizes=(*case.sizes[:at], (name, less), *case.sizes[at + 1 :]))
    if not case.plain:
        yield replace(case, plain=True)
    used = {
        tree[1] for node in cases.nodes(case.body) if not isinstance(node, Loop) for tree in cases.trees(node.value)
    }
    used |= {node.array for node in cases.nodes(case.body) if isinstance(node, Write)}
    kept = tuple(spec for spec in case.arrays if spec.name in used)
    sizes = {axis for spec in kept for axis in spec.axes}
    if kept != case.arrays and set(dict(case.sizes)) == sizes:
        yield replace(case, arrays=kept)


def fewer(body: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for at, node in enumerate(body):
        before, after = body[:at], body[at + 1 :]
        if len(body) > 1:
            yield before + after
        if isinstance(node, Loop):
            for inner in fewer(node.body):
                yield (*before, replace(node, body=inner), *after)
        else:
            for value in simpler(node.value):
                yield (*before, replace(node, value=value), *after)


def simpler(tree: cases.Tree) -> Iterator[cases.Tree]:
    if tree[0] in cases.LEAVES:
        return
    for at, part in enumerate(tree[1:], 1):
        if part[0] not in ("number", "<", "<=", ">", "==", "!=", "&", "|", "not"):
            yield part
        for less in simpler(part):
            if less[0] != "number":
                yield (*tree[:at], less, *tree[at + 1 :])


def shrunk(case: Case, run: Callable[[Case], str | None], most: int = 200) -> Case:
    """A small case that is wrong in the same way."""
    way = fault_kind(run(case))
    tries, found = 0, True
    while found and tries < most:
        found = False
        for less in smaller(case):
            tries += 1
            if tries > most:
                break
            try:
                same = fault_kind(run(less)) == way
            except Exception:
                same = False
            if same:
                case, found = less, True
                break
    return case


def fault_kind(found: str | None) -> str | None:
    if found is None or found.startswith("refused: "):
        return None
    return cases.kind_of(found)[:60].split(" differ")[0]


def suspects(case: Case) -> str:
    """What in a case is a known source of faults, to sort them by."""
    operators = {tree[0] for value in values_of(case) for tree in cases.trees(value)}
    found = ["locals"] if any(isinstance(node, Let) for node in cases.nodes(case.body)) else []
    found += ["minimum or maximum"] if {"minimum", "maximum"} & operators else []
    return ", ".join(found)


def shown(index: int, found: str, case: Case) -> str:
    about = f"sizes {dict(case.sizes)}, steps {case.steps}, {case.dtype}, data {case.seed}{' plain' * case.plain}"
    return f"--- case {index} ({case.kind}; {about})\n{found}\n{function_text(case, f'nest_{index}')}"


# ---- many


def isolated(run: Run) -> Run:
    """The same in a process of its own: what crashes or hangs is a fault of its case."""

    def within(case: Case, folder: Path) -> str | None:
        out, into = os.pipe()
        if not (child := os.fork()):
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            try:
                os.write(into, b"=" + (run(case, folder) or "").encode()[:60_000])
                os._exit(0)
            finally:
                os._exit(1)
        os.close(into)
        with os.fdopen(out, "rb") as file:
            found = file.read().decode()
        _, status = os.waitpid(child, 0)
        return found[1:] or None if status == 0 and found else f"crashed or hung: status {status}"

    return within


def fuzz(seed: int, indices: range, run: Run, kind: str | None = None, seconds: float = float("inf")) -> Tally:
    """Run cases one after another; those that `seconds`, or Ctrl-C, leave no time for are not counted."""
    tally, end = Tally(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        for index in indices:
            if time.monotonic() > end:
                break
            case = drawn(seed, index, kind)
            tally.add(index, case, run(case, Path(folder)))
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=["stencil", "pipeline", "free", "levels"])
    parser.add_argument("--ranks", action="store_true", help="Programs on 1 to 5 ranks, in this process")
    parser.add_argument("--tiles", action="store_true", help="programs of tiles by `dovetail tile --emit-c`")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after these")
    parser.add_argument("--shrink", type=int, default=3, help="kinds of faults to shrink")
    parser.add_argument("--examples", action="store_true", help="show an example of each refusal")
    asked = parser.parse_args()
    faulthandler.enable()
    run = serial
    if asked.ranks:
        from nest_programs import on_ranks as run  # type: ignore[assignment]
    if asked.tiles:
        from nest_tiles import in_tiles as run  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder, suppress(Exception):
        run(drawn(0, 0, "stencil"), Path(folder))  # what a first case imports and finds out, its children know
    run = isolated(run)
    tally = fuzz(asked.seed, range(asked.first, asked.first + asked.cases), run, asked.kind, asked.seconds)
    print(tally.report())
    if asked.examples:
        print(*(shown(*example) for example in tally.examples.values()), sep="\n")
    by_kind: dict[str, list[tuple[int, str, Case]]] = {}
    for fault in tally.faults:
        by_kind.setdefault(f"{fault_kind(fault[1])} ({suspects(fault[2])})", []).append(fault)
    with tempfile.TemporaryDirectory() as folder:
        for kind, (first, *others) in list(by_kind.items()):
            print(f"=== {1 + len(others)} times: {kind}   (cases {[first[0], *(each[0] for each in others[:9])]})")
            index, found, case = first
            if asked.shrink > 0:
                asked.shrink -= 1
                case = shrunk(case, lambda each: run(each, Path(folder)))
                found = run(case, Path(folder)) or found
            print(shown(index, found, case))
    return bool(tally.faults)


if __name__ == "__main__":
    sys.exit(main())
