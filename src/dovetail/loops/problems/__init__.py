"""Problems: nests and stencils that come with Dovetail, a file each, written like users'; `ir.registry` lists them."""

import sys
from types import ModuleType
from typing import Any

from dovetail.core.registry import at
from dovetail.ir.registry import BUILT_IN

_FILES = [name for name, place in BUILT_IN.items() if place == f"{__name__}.{name}:{name}"]
_PLACES = {name: BUILT_IN[name] for name in _FILES} | {"acoustic3d_of": f"{__name__}.acoustic3d:acoustic3d_of"}

__all__ = [*_PLACES]


class _Problems(ModuleType):
    """Loads a nest when it is first named. Its file has the same name, and importing a file sets no attribute."""

    def __getattr__(self, name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        self.__dict__[name] = at(_PLACES[name])
        return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Problems
