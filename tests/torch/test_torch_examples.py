"""Example programs of examples/torch, and the program of docs/torch_compile.md, on 2 ranks under torchrun."""

import json
import os
import subprocess
import sys
import textwrap

import needs
import pytest
from forked_ranks import cache_in

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]
EXAMPLES = needs.ROOT / "examples" / "torch"


def torchrun(cache, *words, limit_s=240):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *map(str, words)]
    caches = cache_in(cache) | {"TORCHINDUCTOR_CACHE_DIR": str(cache / "code")}
    env = os.environ | {"OMP_NUM_THREADS": "1"} | caches
    found = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=env, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def test_attention_reaches_the_loss_of_one_rank(tmp_path):
    printed = torchrun(tmp_path, EXAMPLES / "attention.py", "--steps", "4")
    assert "of step 4 on 2 ranks" in printed
    assert "all_gather of 16 × 32 by 16+16+16 columns" in printed, "queries, keys and values share one gather"


def test_decoder_compares_its_variants(tmp_path):
    sizes = ("--scale", "4", "--layers", "1", "--prompt", "8", "--tokens", "2", "--rounds", "3")
    lines = torchrun(tmp_path, EXAMPLES / "decoder.py", *sizes).splitlines()
    for phase in ("prefill", "decode"):
        rows = [line for line in lines if line.startswith(f"{phase} ")]
        names = [line[9:30].strip() for line in rows]
        assert names == ["gloo", "by name", "tp_plan", "tp_plan by name", "operator"], rows


def test_advice_on_a_profile_names_the_late_rank(tmp_path, capfd):
    from dovetail.cli import main

    folder = tmp_path / "new" / "steps"
    assert "on 2 ranks, dovetail" in torchrun(tmp_path, EXAMPLES / "profiled.py", folder)
    files = [str(folder / f"rank{rank}.json") for rank in range(2)]
    assert main(["trace", "import", *files, "-o", str(tmp_path / "steps.dovetail")]) == 0
    capfd.readouterr()
    assert main(["trace", "advise", str(tmp_path / "steps.dovetail"), "--json"]) == 0
    (first, *_) = [it for it in json.loads(capfd.readouterr().out)["findings"] if it["kind"] == "imbalance"]
    assert first["root"]["rank"] == 1


@pytest.mark.thorough
def test_the_program_of_the_page_prints_what_the_page_says(tmp_path):
    page = (needs.ROOT / "docs" / "torch_compile.md").read_text()
    program, printed = page.split("    # program.py\n")[1].split("\n`torchrun")
    (tmp_path / "program.py").write_text("# program.py\n" + textwrap.dedent(program))
    said = textwrap.dedent(printed.split("prints\n\n")[1].split("\n\n")[0])
    assert torchrun(tmp_path, tmp_path / "program.py").strip() == said.strip()
