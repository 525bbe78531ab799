"""`dovetail tune`: what stays in its folder."""

from __future__ import annotations

import pytest

SIZES = ["--m", "512", "--k", "256", "--n", "128"]


@pytest.fixture(autouse=True)
def _cache(own_cache):
    pass


@pytest.mark.parametrize(
    ("words", "function", "default"),
    [
        (["matmul_all_reduce", *SIZES], "dovetail.tuner.tune", "dovetail-matmul_all_reduce-m512-k256-n128-float32-r2"),
        (["all_reduce"], "dovetail.tuner.collectives.tune_collective", "dovetail-all_reduce-float32-r2"),
        (["all_reduce", "--dtype", "float64"], "dovetail.tuner.collectives.tune_collective", None),
    ],
)
def test_an_interrupt_leaves_no_empty_folders(call, monkeypatch, tmp_path, words, function, default):
    """The folder of a job that has files stays: they say what its ranks did."""
    monkeypatch.chdir(tmp_path)
    full = []

    def interrupted(*_, out, **__):
        full.append(out / "runs" / "job-full")
        for name in ("job-empty", "job-full"):
            (out / "runs" / name).mkdir(parents=True)
        (full[0] / "output.txt").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupted)
    assert call("tune", *words, "--ranks", "2", "--on", "shared")[0] == 130
    assert default in (None, full[0].parent.parent.name)
    assert [*full[0].parent.iterdir()] == full
    (full[0] / "output.txt").unlink()
    monkeypatch.setattr(function, lambda *_, out, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert call("tune", *words, "--ranks", "2", "--on", "shared")[0] == 130
    assert not full[0].parent.exists()
