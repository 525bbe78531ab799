"""The house keeps its shape: imports run downhill, and importing starts nothing."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import face_stub
import pytest
from needs import ROOT

import dovetail
from dovetail.ir.registry import BUILT_IN, operator_class

# The editable install's finder would answer for `dovetail` before sys.path does, so it is set aside.
CHECK = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
sys.path.insert(0, "src")
from importlinter.cli import lint_imports
sys.exit(lint_imports(config_filename="pyproject.toml", no_cache=True))
"""


def check_imports(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CHECK], cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_imports_run_downhill():
    result = check_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("at", "line", "broken"),
    [
        ("core/planted.py", "import dovetail.ir", "imports run downhill"),
        ("ir/planted.py", "import dovetail.machine", "imports run downhill"),
        ("utils/__init__.py", "", "imports run downhill"),
        ("timeline/planted.py", "import dovetail._native", "the native module has four doors"),
        ("ir/planted.py", "def f():\n    import mpi4py.MPI", "mpi4py and torch are imported in run and torch only"),
    ],
    ids=["upward", "sideways", "new room", "native", "mpi4py"],
)
def test_planted_import_is_caught(copy, at, line, broken):
    for room in (at.split("/")[0], "ir", "machine"):
        (copy / "src/dovetail" / room).mkdir(exist_ok=True)
        (copy / "src/dovetail" / room / "__init__.py").touch()
    (copy / "src/dovetail" / at).write_text(line + "\n")
    result = check_imports(copy)
    assert result.returncode == 1
    assert f"{broken} BROKEN" in " ".join(result.stdout.split()), result.stdout


def imported(source: Path, files: dict[str, Path]) -> set[str]:
    """The files that a file imports: at once, later in a function, or for types alone."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in files else node.module for name in names} & {*files}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names} & {*files}
    return found - {name for name, path in files.items() if path == source}


def check_circles(package: Path) -> None:
    """CycleError where files import one another in a circle."""
    places = {path.relative_to(package.parent).with_suffix(""): path for path in package.rglob("*.py")}
    files = {".".join(place.parts).removesuffix(".__init__"): path for place, path in places.items()}
    TopologicalSorter({name: imported(path, files) for name, path in files.items()}).prepare()


def test_no_files_import_one_another_in_a_circle():
    check_circles(ROOT / "src/dovetail")


@pytest.mark.parametrize(
    "line",
    [
        "from dovetail.ir import operator\n",
        "def f():\n    from dovetail.ir import operator\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dovetail.ir.operator import Operator\n",
    ],
    ids=["at once", "in a function", "for types"],
)
def test_planted_circle_is_caught(tmp_path, line):
    (tmp_path / "dovetail/ir").mkdir(parents=True)
    (tmp_path / "dovetail/ir/operator.py").write_text("from dovetail.ir.schedule import Schedule\n")
    check_circles(tmp_path / "dovetail")
    (tmp_path / "dovetail/ir/schedule.py").write_text(line)
    with pytest.raises(CycleError, match="a cycle"):
        check_circles(tmp_path / "dovetail")


def loaded_by_name(source: Path) -> list[str]:
    """What a file loads by a name that import-linter cannot see, up to the first part that the program fills in."""
    calls = [node for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    names = [call.args[0] for call in calls if ast.unparse(call.func).split(".")[-1] in ("import_module", "__import__")]
    return [ast.unparse(name).strip("f'\"").partition("{")[0] for name in names]


def strays(package: Path) -> list[str]:
    """Files below the top package that load by name anything outside their own room; cli, at the top, and the
    registry may."""
    return [
        f"{path.relative_to(package)} loads {name}"
        for path in package.glob("*/**/*.py")
        if path != package / "core/registry.py" and package / "cli" not in path.parents
        for name in loaded_by_name(path)
        if not name.startswith(f"dovetail.{path.relative_to(package).parts[0]}.")
    ]


def test_rooms_load_by_name_only_what_is_their_own(tmp_path):
    assert strays(ROOT / "src/dovetail") == []
    (tmp_path / "collective").mkdir()
    (tmp_path / "collective/planted.py").write_text("found = import_module(f'dovetail.{room}')\n")
    assert strays(tmp_path) == ["collective/planted.py loads dovetail."]


def reaching_up(package: Path) -> list[str]:
    """Files of rooms that take from the package itself, which knows every room, more than its version and the native
    module."""
    taken = []
    for path in package.glob("*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == package.name:
                names = {name.name for name in node.names} - {"_native", "__version__"}
                taken += [f"{path.relative_to(package)} takes {name}" for name in sorted(names)]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == package.name:
                taken += [] if node.attr.startswith("__") else [f"{path.relative_to(package)} takes {node.attr}"]
    return taken


def test_no_room_reaches_up_by_way_of_the_package(tmp_path):
    """What a front door offers of a room above it, the package fills in."""
    assert reaching_up(ROOT / "src/dovetail") == []
    planted = tmp_path / "dovetail/matmul/planted.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("def f():\n    from dovetail import tune\n    import dovetail\n    return dovetail.plan\n")
    assert reaching_up(tmp_path / "dovetail") == ["matmul/planted.py takes tune", "matmul/planted.py takes plan"]


@pytest.mark.parametrize("package", face_stub.PACKAGES)
def test_type_checkers_know_the_names_that_there_are(package):
    module = importlib.import_module(package)
    assert Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8") == face_stub.formatted(
        face_stub.stub(package)
    ), "python tools/face_stub.py"
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_completion_knows_the_operators():
    assert {operator_class(name).__name__ for name in BUILT_IN} <= {*dir(dovetail)}


def test_importing_starts_nothing():
    heavy = {"mpi4py", "torch", "scipy", "plotly", "typer", "islpy"}
    code = f"import sys, dovetail; print(*({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_every_document_is_reported_of():
    """No schema is written that the table of documents lacks, and it has none that is not written."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    reported = (ROOT / "docs/how.md").read_text(encoding="utf-8")
    assert set(re.findall(r'"(dovetail\.[a-z_.]+/\d+)"', sources)) == set(
        re.findall(r"`(dovetail\.[a-z_.]+/\d+)`", reported)
    )


def test_tests_that_start_ranks_are_one_group(request):
    """Two at once would take each other's cores. pytest-xdist 3.8 cannot group the tests of pytest 9.2."""
    ranks = [item for item in request.session.items if any(map(item.get_closest_marker, ("mpi", "testbed")))]
    if request.config.getoption("loadgroup", False):
        assert all(item.nodeid.endswith("@ranks") for item in ranks)


def test_torch_is_asked_for_by_name():
    """Where PyTorch is missing, the import names what to install."""
    code = "import sys; sys.modules['torch'] = None; import dovetail.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("dovetail.torch needs PyTorch: pip install 'dovetail[torch]'")
