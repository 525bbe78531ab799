"""Runs the examples in docstrings, in README.md and in docs/."""

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers import markdown, rest

_docstrings = Sybil(
    parsers=[rest.DocTestParser()],
    path="src",
    patterns=["*.py"],
    document_types={".py": PythonDocStringDocument},
)
_pages = Sybil(parsers=[markdown.PythonCodeBlockParser()], patterns=["*.md"])

pytest_collect_file = (_docstrings + _pages).pytest()
