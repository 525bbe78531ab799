"""Counts of a job are the sums of its ranks'; broken files are left out, and missing ranks are reported."""

from __future__ import annotations

import json

import pytest

from dovetail.accelerate.counts import RANK_SCHEMA, Bucket, read_counts
from dovetail.report.acceleration import counts_text


def written(folder, rank, rows, size=2, library="X 1"):
    document = {"schema": RANK_SCHEMA, "library": library, "host": "a", "rank": rank, "size": size}
    text = json.dumps(document | {"elapsed_s": 1.0 + rank, "rows": rows})
    (folder / f"{library}-{rank}.json").write_text(text)


def test_ranks_are_added_up(tmp_path):
    written(tmp_path, 0, [["Allgather", 2, 3, 4, 0.5, 1, 0.125, 0.0625], ["Send", 0, 3, 1, 0.25, 0, 0, 0]])
    written(tmp_path, 1, [["Allgather", 2, 3, 4, 0.25, 1, 0.125, 0.0]])
    (found,) = read_counts(tmp_path)
    assert found.buckets == (
        Bucket("Allgather", 2, 3, 8, 0.75, 2, 0.25, 0.0625),
        Bucket("Send", 0, 3, 1, 0.25, 0, 0, 0),
    )
    assert (found.elapsed_s, found.rank_s, found.in_mpi_s, found.in_collectives_s) == (2.0, 3.0, 1.0, 0.75)
    assert found.known_skew == (0.75, pytest.approx(0.1875))
    assert (found.missing, found.hosts) == (0, ("a",))


def test_the_longest_job_first_and_broken_files_left_out(tmp_path):
    written(tmp_path, 0, [], library="short")
    written(tmp_path, 1, [], library="long")
    (tmp_path / "cut.json").write_text('{"schema": ')
    (tmp_path / "list.json").write_text("[]")
    assert [job.library for job in read_counts(tmp_path)] == ["long", "short"]
    first = read_counts(tmp_path)[0]
    assert first.missing == 1
    assert "1 ranks left no counts; 1 further jobs are left out" in counts_text(first, 1)
    assert "skew unknown" in counts_text(first)
