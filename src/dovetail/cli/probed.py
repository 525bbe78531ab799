"""Machines that a probe measured here, as the cache holds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.core import DovetailError, cache_dir, load_json

if TYPE_CHECKING:
    from dovetail.machine import Machine
    from dovetail.matmul import MatmulAllReduce


def known(wish: MatmulAllReduce, ranks: int, launch: str | None) -> Machine | None:
    """The cached machine behind a launch command, with the costs of the wish where they are cached too."""
    from dovetail.cli.tuning import machine_path, product_path
    from dovetail.run.mpi import default_launch

    links = load(machine_path(launch or default_launch(), ranks))
    return links and (load(product_path(links, wish)) or links)


def load(path: Path) -> Machine | None:
    """The machine in a file of the cache; None where there is none. Raises DovetailError for a broken file."""
    from dovetail.machine import Machine

    return Machine.from_json(load_json(path, "cached machine")) if path.exists() else None


def cached() -> Iterator[tuple[Path, Machine]]:
    """Every probed machine in the cache, newest first; broken files are passed over."""
    paths = list((cache_dir() / "machines").glob("*.json"))
    for path in sorted(paths, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            found = load(path)
        except DovetailError:
            continue
        if found:
            yield path, found
