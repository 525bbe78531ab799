"""siblings: layers of one parent module that are given the same input, which is gathered once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch

Results = Callable[[Sequence[Any], Any], list[Any]]


class Made(NamedTuple):
    """Results of layers for one input that have not been asked for."""

    given: Any
    state: tuple[Any, ...]
    results: dict[Any, Any]


class Siblings:
    """Layers that are expected to be called with the same input, one after another.

    The first call computes the results of all by one gather; the calls of the others take theirs. A layer that is
    called with another input than the first goes into a family of its own, with those that were not called either.
    """

    def __init__(self) -> None:
        self._layers: list[Any] = []
        self._made: Made | None = None

    def add(self, layer: Any) -> None:
        """Add a layer."""
        self._layers.append(layer)

    def result(self, layer: Any, given: Any, part: Any, results: Results) -> Any:
        """Return a layer's result for an input. `part`: this rank's rows of it. `results`: computes several layers'."""
        made, state = self._made, _state(given)
        if made is not None and layer in made.results and made.given() is given and made.state == state:
            out = made.results.pop(layer)
            if not made.results:
                self._made = None
            return out
        if made is not None:
            self._part_with(list(made.results))
            if layer.siblings is not self:
                return layer.siblings.result(layer, given, part, results)
        layers = [layer, *(each for each in self._layers if each is not layer and each.takes == layer.takes)]
        outs = results(layers, part)
        self._made = Made(ref(given), state, dict(zip(layers[1:], outs[1:], strict=True))) if layers[1:] else None
        return outs[0]

    def _part_with(self, layers: Sequence[Any]) -> None:
        """Let these layers, whose results were not asked for, be a family of their own."""
        self._made = None
        others = Siblings()
        for each in layers:
            self._layers.remove(each)
            each.join(others)


def _state(given: Any) -> tuple[Any, ...]:
    """Return what changes if a result for the same input would: its version, gradients, autocast."""
    local = getattr(given, "_local_tensor", given)
    versions = [-1 if each.is_inference() else each._version for each in (given, local)]
    return (*versions, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
