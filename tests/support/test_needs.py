"""A missing thing skips with its cause named, and fails where it was promised."""

import subprocess

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch, request):
    """Run one test file under our conftest, with `promised` as CI's promises, where `mpich` and `torch` are missing."""
    here = request.path.parents[1]
    pytester.makepyfile(**{name: (here / "support" / f"{name}.py").read_text() for name in ("needs", "thorough")})
    pytester.makeconftest(
        (here / "conftest.py").read_text()
        + "\nfor cause in ('mpich', 'torch'):\n    needs.CAUSES[cause] = lambda: 'planted'\n"
    )
    pytester.makeini("[pytest]\npythonpath = .\nmarkers = needs: x\n")

    def _run(body: str, promised: str):
        monkeypatch.setenv("DOVETAIL_REQUIRE", promised)
        pytester.makepyfile(test_planted="import pytest, needs\n" + body)
        return pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")

    return _run


MARKED = "@pytest.mark.needs('{}')\ndef test_it(): pass\n"


@pytest.mark.slow
def test_missing_thing_skips_with_its_cause(run):
    result = run(MARKED.format("mpich"), promised="")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs mpich: planted*"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        MARKED.format("mpich"),
        "def test_it(): needs.need('mpich')\n",
        "def test_it(mpi): pass\n",
        "def test_it(): pytest.skip('no MPI here')\n",
    ],
    ids=["marker", "call", "fixture", "unnamed"],
)
def test_missing_promised_thing_fails(run, body):
    result = run(body, promised="mpich,openmpi")
    outcomes = result.parseoutcomes()
    assert outcomes.get("skipped", 0) == 0
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) >= 1
    assert result.ret == 1


@pytest.mark.slow
def test_missing_promised_thing_fails_at_collection(run):
    result = run("needs.need('mpich')\n", promised="mpich")
    assert result.ret != 0
    result.assert_outcomes(errors=1)


@pytest.mark.slow
def test_unpromised_thing_may_be_missing(run):
    run(MARKED.format("jax"), promised="mpich").assert_outcomes(skipped=1)


@pytest.mark.slow
def test_expected_failure_is_no_skip(run):
    run("@pytest.mark.xfail\ndef test_it(): assert 0\n", promised="mpich").assert_outcomes(xfailed=1)


@pytest.mark.mpi
def test_each_mpi_starts_ranks_with_dovetail(mpi):
    code = "import dovetail._native; from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    result = mpi.run(2, "-c", code)
    said = "".join(result.stdout.split())  # two ranks may write between each other's words and line ends
    assert (result.returncode, said) == (0, "22"), result.stderr


@pytest.mark.mpi
@pytest.mark.needs("compiler")
def test_each_mpi_compiles_for_its_ranks(mpi, tmp_path):
    (tmp_path / "size.c").write_text(
        "#include <mpi.h>\n#include <stdio.h>\nint main(void) { int n; MPI_Init(0, 0);"
        ' MPI_Comm_size(MPI_COMM_WORLD, &n); printf("%d\\n", n); MPI_Finalize(); }\n'
    )
    subprocess.run([mpi.mpicc, tmp_path / "size.c", "-o", tmp_path / "size"], env=mpi.env, check=True)
    result = subprocess.run(
        [*mpi.mpiexec(2), tmp_path / "size"], env=mpi.env, capture_output=True, text=True, check=True
    )
    assert "".join(result.stdout.split()) == "22"
