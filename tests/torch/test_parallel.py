"""torch.ops.symm_mem on CPU tensors, and plans of parallelize_module that overlap, on 2 ranks."""

import ast
import json
import subprocess
from collections import defaultdict
from functools import cache
from types import SimpleNamespace

import needs
import pytest
from forked_ranks import cache_in
from shared_ranks import run_shared

pytestmark = pytest.mark.needs("torch")
PROGRAM = needs.RANKS / "torch_parallel_ranks.py"
CHECKS = [
    each.name
    for each in ast.parse(PROGRAM.read_text()).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("check_")
]
RANKS = 2


@cache
def results():
    """Run all checks on the ranks; return {check: {rank: "passed" or a traceback}}."""
    found = defaultdict(dict)
    folder = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    code, printed = run_shared(RANKS, PROGRAM.name, folder, *CHECKS, limit_s=200, env=cache_in(folder))
    for line in printed.splitlines():
        if line.startswith('["check_'):
            for row in line.replace("][", "]\n[").splitlines():
                name, rank, text, _ = json.loads(row)
                found[name][rank] = text
    return SimpleNamespace(code=code, printed=printed, found=found)


@pytest.mark.parametrize("check", CHECKS)
def test_parallel(check):
    made = results()
    texts = made.found[check]
    assert set(texts) == set(range(RANKS)), made.printed[-3000:]
    assert set(texts.values()) == {"passed"}, "\n".join(texts.values())
    assert made.code == 0, made.printed[-3000:]
