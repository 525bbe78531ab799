"""Files that cannot be read: every verb exits with code 2, not 1, and the error names the file."""

import json
import os

import pytest

from dovetail.collective import build
from dovetail.ir import to_text

VERBS = {
    "show": ("show", "{}"),
    "show a page": ("show", "{}", "--page", "{out}"),
    "diff first": ("diff", "{}", "{good}"),
    "diff second": ("diff", "{good}", "{}"),
    "verify": ("verify", "{}"),
    "verify in JSON": ("verify", "{}", "--json"),
    "run": ("run", "{}", "--on", "numpy"),
    "simulate": ("simulate", "{}", "--machine", "shared-memory-2"),
    "simulate on": ("simulate", "{good}", "--machine", "{}"),
    "compare first": ("compare", "{}", "{}"),
    "compile": ("compile", "{}", "--out", "{out}"),
    "machines": ("machines", "{}"),
    "plan on": ("plan", "matmul_all_reduce", "--m", "8", "--k", "8", "--n", "8", "--machine", "{}"),
    "trace stats": ("trace", "stats", "{}"),
    "trace view": ("trace", "view", "{}"),
    "trace export": ("trace", "export", "{}", "--out", "{out}"),
    "trace causes": ("trace", "causes", "{}"),
    "trace advise": ("trace", "advise", "{}"),
}
CONTENTS = {
    "empty": b"",
    "binary": bytes(range(256)) * 4,
    "not UTF-8": b"\xff\xfe\x00abc",
    "truncated JSON": b'{"schema": "dovetail.plan/2", "sched',
    "another schema": b'{"schema": "dovetail.plan/99"}',
    "no schema": b'{"machine": {}}',
    "a list": b"[1, 2, 3]",
    "bare plan": b'{"schema": "dovetail.plan/2"}',
    "bare program": b'{"schema": "dovetail.program/1"}',
    "bare timeline": b'{"schema": "dovetail.timeline/1"}',
    "bare machine": b'{"schema": "dovetail.machine/1"}',
    "bare selection": b'{"schema": "dovetail.selection/1"}',
    "truncated XML": b'<algo name="x" nchunksperloop="1" ngpus="2"><gpu id="0"',
    "other XML": b"<html></html>",
    "words": b"hello there\n",
    "NUL": b"program x ranks 1\n\x00\n",
}


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.txt"
    path.write_text(to_text(build("ring_all_gather", 2)))
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_exit_code_2_for_what_cannot_be_read(verb, good, tmp_path, call):
    cases = {"missing": tmp_path / "missing.json", "a folder": tmp_path / "folder"}
    cases["a folder"].mkdir()
    for name, content in CONTENTS.items():
        cases[name] = tmp_path / name.replace(" ", "_")
        cases[name].write_bytes(content)
    if os.geteuid():
        cases["no permission"] = tmp_path / "closed"
        cases["no permission"].write_text("{}")
        cases["no permission"].chmod(0)
    for name, path in cases.items():
        words = [word.format(path, good=good, out=tmp_path / "out") for word in VERBS[verb]]
        code, out, errors = call(*words)
        assert code == 2, (name, code, out[-300:], errors[-300:])
        assert "Bug" not in errors, (name, errors)
        assert errors.strip(), name
        assert not out.strip() or json.loads(out)["ok"] is False, (name, out)


def test_an_op_without_regions_is_shown_and_named(tmp_path, call):
    """A program that can be read but is invalid: `show` prints it, and its last line gives the reason."""
    path = tmp_path / "bare.txt"
    for op in ("send", "recv", "copy", "reduce", "put", "get", "nop", "recv_reduce", "signal", "wait"):
        path.write_text(f"program x ranks 1\nbuffer a input 1\nlane l net\nrank 0 lane l\n  {op}\n")
        code, out, errors = call("show", path)
        assert code == 0, (op, errors)
        assert ("NOT valid: op 0" in out) is (op != "nop"), (op, out)
