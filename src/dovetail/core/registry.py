"""registry: look up objects by name: built-in ones, and those that other packages declare as entry points.

Built-in objects have the form of entry points, `name = "package.module:Thing"`, and are loaded and checked like them.
They are listed in a table in Dovetail's source, not in its installed metadata, because reading the metadata of all
installed packages takes 15 to 80 ms, and a source checkout on PYTHONPATH has none. The metadata are read only for a
name that is not built in, or to list all names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeVar

from dovetail.core.errors import DovetailError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one kind (operators, executors, …) by name. Each is loaded when it is first used.

    Parameters
    ----------
    group : str
        The group of entry points by which packages add objects.
    what : str
        The kind of object, with its article, for errors: "an executor".
    built_in : Mapping[str, str]
        Built-in objects: name to "package.module:Thing". A package cannot replace them.
    parts : Iterable[str]
        Attributes that every object must have.
    classes : bool
        Whether the objects are classes.
    error : type[DovetailError]
        Raised for an unknown name, and for an object that cannot be loaded.
    made : callable, optional
        `made(name, thing)` returns the object for the imported thing. Default: the thing itself.

    >>> rooms = Registry("dovetail.doors", "a door", {"front": "dovetail.core.errors:DovetailError"})
    >>> rooms["front"].__name__, "front" in rooms
    ('DovetailError', True)
    >>> rooms["frond"]
    Traceback (most recent call last):
    ...
    dovetail.core.errors.DovetailError: no door 'frond'
      try         did you mean 'front'?
    """

    def __init__(
        self,
        group: str,
        what: str,
        built_in: Mapping[str, str],
        parts: Iterable[str] = (),
        *,
        classes: bool = True,
        error: type[DovetailError] = DovetailError,
        made: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self.group, self.what, self.built_in = group, what, built_in
        self.parts, self.classes, self.error = tuple(parts), classes, error
        self.made = made or (lambda name, found: found)
        self._loaded: dict[str, T] = {}

    @property
    def noun(self) -> str:
        """Return the kind of object, without its article."""
        return self.what.partition(" ")[2]

    @cached_property
    def others(self) -> dict[str, str]:
        """Return "package.module:Thing" by name for other packages. Warn of a package that declares a built-in name."""
        found = {}
        for point in entry_points(self.group):
            if point.name not in self.built_in:
                found[point.name] = point.value
            elif point.value != self.built_in[point.name]:
                package = f" of package {point.dist.name}" if point.dist else ""
                what = f"entry point {point.name!r}{package} is ignored: the name of {self.what} of Dovetail"
                warnings.warn(what, RuntimeWarning, stacklevel=3)
        return found

    @cached_property
    def usable(self) -> tuple[str, ...]:
        """Return the names of all objects that can be loaded. Warn of objects of packages that cannot."""
        usable = [*self.built_in]
        for name in self.others:
            try:
                self[name]
            except self.error as error:
                warnings.warn(f"{self.what} of a package is ignored: {error}", RuntimeWarning, stacklevel=2)
            else:
                usable.append(name)
        return tuple(usable)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.built_in, *self.others))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.others

    def __getitem__(self, name: str) -> T:
        """Return the object called `name`. Raise `error` if there is none, or if it is of another kind."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def place(self, name: str) -> str:
        """Return the "package.module:Thing" of a name. Raise `error`, with the nearest name, if there is none."""
        if name not in self:
            raise self.error(f"no {self.noun} '{name}'", hint=did_you_mean(name, self) or ", ".join(sorted(self)))
        return self.built_in.get(name) or self.others[name]

    def _load(self, name: str) -> T:
        place = self.place(name)
        try:
            found: T = self.made(name, at(place))
        except Exception as error:  # of any kind: importing a package runs its code
            if name in self.built_in:
                raise
            cause = f"{type(error).__name__}: {error}"
            what = f"the {self.noun} '{name}' of another package cannot be imported"
            raise self.error(what, where=place, found=cause) from error
        if fault := self._fault(found):
            kind = f"a class of {self.noun}s" if self.classes else self.what
            raise self.error(f"the {self.noun} '{name}' of another package is not {kind}", where=place, found=fault)
        return found

    def _fault(self, found: object) -> str:
        """Return why an object is not of this kind; empty if it is."""
        if isinstance(found, type) != self.classes:
            return repr(found)
        lacks = [part for part in self.parts if part not in dir(found)]
        return f"it lacks {', '.join(lacks)}" if lacks else ""

    def forget(self) -> None:
        """Drop loaded objects and the list of packages; the next use looks for packages again."""
        self._loaded.clear()
        for name in ("others", "usable"):
            self.__dict__.pop(name, None)


def at(place: str) -> Any:
    """Import and return "package.module:Name".

    >>> at("pathlib:PurePath").__name__
    'PurePath'
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def entry_points(group: str) -> Iterable[Any]:
    """Return the entry points of a group, of all installed distributions."""
    from importlib.metadata import entry_points as found

    return found(group=group)
