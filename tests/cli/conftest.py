"""Fixtures that tests of the command line share."""

import json

import pytest


@pytest.fixture
def document(call):
    """Run a command line with --json; return the one document that it prints, which begins with `schema`."""

    def _document(*words: object, code: int = 0) -> dict:
        found, out, err = call(*words, "--json")
        assert found == code, err
        assert out.count("\n") == 1
        read = json.loads(out)
        assert next(iter(read)) == "schema"
        return read

    return _document
