"""The pass of torch.compile on 2 ranks: each pattern against eager results, what it leaves, and planted faults."""

import ast
import json
from collections import defaultdict
from functools import cache
from types import SimpleNamespace

import needs
import pytest
from forked_ranks import cache_in
from shared_ranks import run_shared

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]
PROGRAM = needs.RANKS / "torch_compiled_ranks.py"
CHECKS = [
    each.name
    for each in ast.parse(PROGRAM.read_text()).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("check_")
]


@cache
def results(folder):
    """Run all checks on 2 ranks; return {check: {rank: "passed" or a traceback}}."""
    found = defaultdict(dict)
    names = [name for name in CHECKS if name != "check_inductor" or needs.missing("compiler") is None]
    env = cache_in(folder) | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/code"}
    code, printed = run_shared(2, PROGRAM.name, folder, *names, limit_s=240, env=env)
    for line in printed.splitlines():
        if line.startswith('["check_'):
            for row in line.replace("][", "]\n[").splitlines():
                name, rank, text, _ = json.loads(row)
                found[name][rank] = text
    return SimpleNamespace(code=code, printed=printed, found=found)


@pytest.mark.parametrize("check", CHECKS)
def test_compiled_graphs(check, tmp_path_factory):
    if check == "check_inductor":
        needs.need("compiler")
    made = results(str(tmp_path_factory.getbasetemp()))
    texts = made.found[check]
    assert set(texts) == {0, 1}, made.printed[-3000:]
    assert set(texts.values()) == {"passed"}, "\n".join(texts.values())
    assert made.code == 0, made.printed[-3000:]
