# What `import dovetail` offers, for type checkers; __init__.py loads each name when it is first used.
from typing import Any

from dovetail.core import DovetailError as DovetailError
from dovetail.ir import Program as Program
from dovetail.ir import verify as verify
from dovetail.machine import Machine as Machine
from dovetail.machine import load as load_machine
from dovetail.plan import Plan as Plan
from dovetail.plan.search import plan as plan
from dovetail.report.explain import explain as explain
from dovetail.timeline import Timeline as Timeline
from dovetail.tune import TuneResult as TuneResult
from dovetail.tune.tune import tune as tune

__version__: str
__all__ = [
    "DovetailError",
    "Machine",
    "Plan",
    "Program",
    "Timeline",
    "TuneResult",
    "explain",
    "load_machine",
    "plan",
    "tune",
    "verify",
]

def find_call(name: str) -> Any: ...
