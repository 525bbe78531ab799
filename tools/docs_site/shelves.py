"""Which page stands on which shelf of the site, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Shelf(NamedTuple):
    """A part of the site: its title, what a reader finds there, and the pages in headed groups ("": no heading)."""

    title: str
    about: str
    groups: dict[str, tuple[str, ...]]

    @property
    def pages(self) -> tuple[str, ...]:
        return tuple(page for group in self.groups.values() for page in group)


RESULTS = ("products", "calls", "collectives", "simulator", "loops", "traces", "accelerate", "pytorch")
SHELVES = (
    Shelf(
        "Tutorials",
        "Follow these to the letter: install in the checkout, the rest in an empty folder. Each ends with a run.",
        {
            "": (
                "tutorials/first_speed_up",
                "tutorials/mlp",
                "tutorials/stencil",
                "tutorials/collective",
                "tutorials/trace",
                "tutorials/cluster",
            )
        },
    ),
    Shelf(
        "Guides",
        "One task a page: the shortest thing that runs, then why, then every option.",
        {
            "Choose and deploy": ("guides/choose", "guides/deploy", "guides/read", "machines", "shared"),
            "Products and collectives": ("products", "collectives", "mscclpp"),
            "Loops": ("stencils", "pipelines", "loops"),
            "Traces of any MPI program": ("trace", "causes", "accelerate"),
            "PyTorch and CUDA": ("torch", "torch_layers", "torch_plans", "torch_compile", "gpu"),
            "Extend": ("extend",),
            "Coming from": (
                "migrate/mscclang",
                "migrate/asynctp",
                "migrate/devito",
                "migrate/halo_exchange",
            ),
        },
    ),
    Shelf(
        "Reference",
        "Every command, function, algorithm, file format and word.",
        {"": ("cli", "api/index", "catalogue/index", "glossary")},
    ),
    Shelf(
        "Why",
        "How it works, what was measured, and where the sources err.",
        {
            "": ("how", "reproduce", "testbed", "changelog"),
            "Measured": ("results", *(f"results-{name}" for name in RESULTS)),
        },
    ),
)
OTHERS = "Guides"  # where a page stands that no shelf names


def shelved(found: Iterable[str]) -> tuple[Shelf, ...]:
    """Return the shelves with every page of `found` on one: those that none names stand last among the guides."""
    named = {page for shelf in SHELVES for page in shelf.pages}
    others = tuple(sorted(set(found) - named))
    if not others:
        return SHELVES
    return tuple(s._replace(groups={**s.groups, "More": others}) if s.title == OTHERS else s for s in SHELVES)
