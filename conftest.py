"""Runs the examples in docstrings, in README.md and in docs/."""

from pathlib import Path

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers import markdown, rest

SOURCES = Path(__file__).parent / "src"
# Sybil parses each file that it is given: two seconds for those without an example.
EXAMPLES = [path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py") if ">>>" in path.read_text("utf-8")]

_docstrings = Sybil(
    parsers=[rest.DocTestParser()],
    path="src",
    patterns=EXAMPLES,
    document_types={".py": PythonDocStringDocument},
)
_pages = Sybil(parsers=[markdown.PythonCodeBlockParser()], patterns=["*.md"])

pytest_collect_file = (_docstrings + _pages).pytest()
