"""model: CostModel predicts seconds on one machine, and states the error of each prediction."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike

from dovetail.core import CostError, DovetailError
from dovetail.cost.curve import Curve, Segment
from dovetail.ir import SENDS, Kind, Program, dtype_bytes
from dovetail.machine import Machine

PRIOR_BYTES_PER_S = 10e9
REDUCES = frozenset({Kind.reduce, Kind.recv_reduce, Kind.recv_reduce_send, Kind.recv_reduce_copy_send})
_PRIOR = Curve(
    "bytes",
    (Segment(0.0, 0.0, 1.0 / PRIOR_BYTES_PER_S),),
    label="prior",
    provenance={"source": "assumed 10 GB/s; this machine has no such curve"},
)


class Accuracy(NamedTuple):
    """Label of a curve, and its relative errors on its own samples (NaN if it was not fitted)."""

    label: str
    median_error: float
    max_error: float


MODELS = 32  # most models cached


@dataclass(frozen=True, eq=False)
class CostModel:
    """The cost curves of one machine. Keys are those of `Machine.costs`.

    >>> from dovetail.machine import load
    >>> model = CostModel.of(load("atlas-a2-8"))
    >>> round(model.seconds("all_reduce:8", 6 * 2**20) * 1e6, 2)
    142.23
    >>> model.accuracy("all_reduce:8").label
    'published'
    """

    machine: Machine
    curves: Mapping[str, Curve]

    @staticmethod
    def of(machine: Machine) -> CostModel:
        """Return the model of `machine`, cached by the object's identity (comparing machines compares all curves)."""
        found = _ASKED.get(id(machine))
        if found is None:
            found = _ASKED[id(machine)] = machine, _of(machine)  # holds the machine, so that its id stays unique
            if len(_ASKED) > MODELS:
                _ASKED.pop(next(iter(_ASKED)), None)
        return found[1]

    def __contains__(self, key: object) -> bool:
        return key in self.curves

    def curve(self, key: str) -> Curve:
        """Return the curve of `key`; `reduce` and `copy` have a prior. Raises CostError, which lists all known keys."""
        found = self.curves.get(key)
        if found is None and key in ("reduce", "copy"):
            return _PRIOR
        if found is None:
            raise self._missing(key)
        return found

    @overload
    def seconds(self, key: str, x: float, extrapolate: bool = False) -> float: ...

    @overload
    def seconds(self, key: str, x: ArrayLike, extrapolate: bool = False) -> Any: ...

    def seconds(self, key: str, x: ArrayLike, extrapolate: bool = False) -> Any:
        """Return seconds of `key` at `x` (bytes, rows or FLOP, by key): a float, or an array of the shape of `x`.

        Raises CostError for an unknown key, and outside the measured range unless `extrapolate`.
        """
        return _evaluate(self.curve(key), key, x, extrapolate)

    @overload
    def kernel_seconds(
        self, key: str, units: float, flops: float, num_bytes: float = 0.0, *, extrapolate: bool = False
    ) -> float: ...

    @overload
    def kernel_seconds(
        self, key: str, units: ArrayLike, flops: ArrayLike, num_bytes: ArrayLike = 0.0, *, extrapolate: bool = False
    ) -> Any: ...

    def kernel_seconds(
        self, key: str, units: ArrayLike, flops: ArrayLike, num_bytes: ArrayLike = 0.0, *, extrapolate: bool = False
    ) -> Any:
        """Return seconds of `units` units of Work `key`: by its own curve, else by a roofline.

        Roofline: the larger of `flops` at the machine's FLOP rate and `num_bytes` at its memory rate (if known). Raises
        CostError if the machine has neither curve, and outside the measured range unless `extrapolate`.
        """
        name = self.kernel_curve(key)
        if not name.startswith("flops:"):
            return self.seconds(name, units, extrapolate)
        computing = self.seconds(name, flops, extrapolate)
        return np.maximum(computing, self.seconds("memory", num_bytes)) if "memory" in self else computing

    def kernel_curve(self, key: str) -> str:
        """Return the cost key that prices Work `key`: `kernel:<key>` (without `block=`), or `flops:<kernel>:<dtype>`.

        >>> from dovetail.machine import load
        >>> CostModel.of(load("atlas-a2-8")).kernel_curve("matmul:k=3072:n=8192:float16:block=64")
        'flops:matmul:float16'
        """
        plain = ":".join(part for part in key.split(":") if not part.startswith("block="))
        for name in (f"kernel:{key}", f"kernel:{plain}", rate_key(key)):
            if name in self.curves:
                return name
        raise self._missing(f"kernel:{key}", rate_key(key))

    def factor(self, key: str, num_bytes: ArrayLike) -> Any:
        """Return the slow-down factor `cil:…` beside messages of `num_bytes`: at least 1, constant beyond its range."""
        sizes = np.asarray(num_bytes, dtype=np.float64)
        curve = self.curves.get(key)
        if curve is None:
            return np.ones_like(sizes)
        return np.maximum(curve.seconds(np.clip(sizes, curve.low, curve.high)), 1.0)

    def eager_limit(self, kind: str) -> float:
        """Return the largest message, in bytes, that does not wait for its receive on links of `kind`, or inf."""
        limit = self.machine.facts.get("eager_limit_bytes")
        if isinstance(limit, Mapping):
            limit = limit.get(kind)
        return math.inf if limit is None else float(limit)

    def accuracy(self, key: str) -> Accuracy:
        """Return label and errors of the curve of `key` on its own samples."""
        curve = self.curve(key)
        return Accuracy(curve.label, curve.median_error, curve.max_error)

    def assumptions(self, program: Program | None = None) -> tuple[str, ...]:
        """Return what predictions assume on this machine, in sentences; only what affects `program`, if given.

        >>> from dovetail.machine import Machine
        >>> CostModel.of(Machine("bare", 1, (0,))).assumptions()[0]
        'no `reduce` curve: 10 GB/s assumed'
        """
        rate = f"{PRIOR_BYTES_PER_S / 1e9:g} GB/s"
        used = set(Kind) if program is None else {Kind(int(kind)) for kind in np.unique(program.kind)}
        needs = {"reduce": REDUCES, "copy": {Kind.copy}}
        lines = [
            f"no `{key}` curve: {rate} assumed" for key, kinds in needs.items() if key not in self and used & kinds
        ]
        if Kind.compute in used and used & (SENDS | {Kind.put, Kind.get, Kind.collective}):
            cil = [key for key in ("cil:compute", "cil:net") if key not in self]
            lines += [f"no `{key}` curve: compute and traffic are assumed not to slow each other" for key in cil]
        if "eager_limit_bytes" not in self.machine.facts and used & SENDS:
            lines.append("no `eager_limit_bytes` fact: no message is assumed to wait for its receive")
        unmeasured = sorted({c.label for c in self.curves.values()} - {"measured"})
        return (*lines, *(f"some costs are {label}, not measured here" for label in unmeasured))

    def _missing(self, key: str, instead: str = "") -> CostError:
        known = ", ".join(sorted(self.curves)) or "none"
        what = f"machine '{self.machine.name}' has no cost '{key}'" + (f" and no '{instead}'" if instead else "")
        hint = self._near(key) or "probe the machine, or choose another"
        return CostError(what, found=f"costs {known}", hint=hint)

    def _near(self, key: str) -> str | None:
        """Return a hint from the known costs of the key's kind: for which numbers of ranks, or the nearest key."""
        kind, _, rest = key.partition(":")
        alike = [each for each in self.curves if each.partition(":")[0] == kind]
        numbers = sorted(int(number) for number in (each.partition(":")[2] for each in alike) if number.isdigit())
        if rest.isdigit() and numbers:
            keys = " or ".join(f"'{kind}:{number}'" for number in numbers)
            ranks = " and ".join(map(str, numbers))
            return f"did you mean {keys}? {kind} is known on {ranks} ranks only. Or probe the machine"
        near = difflib.get_close_matches(key, alike, 1)
        return f"did you mean '{near[0]}'? Or probe the machine" if near else None


@functools.cache
def rate_key(key: str) -> str:
    """Return the cost key of the FLOP rate that applies to a Work key.

    >>> rate_key("matmul:k=3072:n=8192:float16:block=64")
    'flops:matmul:float16'
    """
    parts = key.split(":")
    return f"flops:{parts[0]}:{next((part for part in parts if _is_dtype(part)), '')}"


_ASKED: dict[int, tuple[Machine, CostModel]] = {}  # by the machine's id


def _of(machine: Machine) -> CostModel:
    curves = {}
    for key, document in machine.costs.items():
        try:
            curves[key] = Curve.from_json(document)
        except DovetailError as error:
            raise CostError(f"machine '{machine.name}', cost '{key}': {error.what}", found=error.found) from error
    return CostModel(machine, curves)


def _evaluate(curve: Curve, key: str, x: ArrayLike, extrapolate: bool) -> Any:
    try:
        return curve.seconds(x, extrapolate)
    except CostError as error:
        raise CostError(f"{key}: {error.what}", found=error.found, hint=error.hint) from None


def _is_dtype(text: str) -> bool:
    try:
        return dtype_bytes(text) > 0
    except DovetailError:
        return False
