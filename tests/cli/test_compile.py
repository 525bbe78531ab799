"""`dovetail compile`: the files it reads and writes, and its errors for mistakes in a user's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.collective import PROTOCOLS, algorithms_for, build, msccl
from dovetail.ir import Program, parse, to_text, verify

WORDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
PROG = """from dovetail.collective import Algorithm, build

def program(num_ranks, chunks=1, channels=1):
    p = Algorithm("mine", "all_gather", num_ranks, chunks=chunks)
    for r in range(num_ranks):
        c = p.chunk(r, "input", 0, chunks).copy(r, "output", r * chunks)
        for q in range(1, num_ranks):
            c = c.copy((r + q) % num_ranks, ch=r % channels)
    return p

def early(num_ranks):
    p = Algorithm("early", "all_gather", num_ranks)
    p.chunk(0, "output", 0).copy(1)  # fault: early
    return p

def missing(num_ranks):
    return nothing  # fault: missing

def unknown(num_ranks):
    return Algorithm("unknown", "all_gathr", num_ranks)  # fault: unknown

def short(num_ranks):
    p = Algorithm("short", "all_reduce", num_ranks, in_place=True)
    p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0))  # fault: short
    return p

def leaves(num_ranks):
    raise SystemExit("enough")  # fault: leaves

def helped(num_ranks):
    import helper
    return helper.broken()

def proved(num_ranks):
    return build("ring_all_reduce", num_ranks)

def others(num_ranks):
    return build("ring_all_reduce", num_ranks + 1)

def number(num_ranks):
    return num_ranks

def nobody():
    pass
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prog.py").write_text(PROG)
    Path("prog.txt").write_text(to_text(build("ring_all_gather", 2)))
    Path("helper.py").write_text("def broken():\n    return 1 / 0\n")
    Path("one.py").write_text(PROG.split("def early")[0].replace("def program", "def _make") + "ring = _make(3)\n")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]):
    def _call(*words: object) -> tuple[int, str, str]:
        code = main(["compile", *map(str, words)])
        return code, *capsys.readouterr()

    return _call


def line_of(fault: str) -> int:
    return next(n for n, line in enumerate(PROG.splitlines(), 1) if line.endswith(f"# fault: {fault}"))


def test_a_file_becomes_text_on_stdout(call) -> None:
    code, out, err = call("prog.py", "--ranks", 3)
    assert code == 0
    program = parse(out)
    assert verify(program).collective_found == "all_gather"
    assert "at prog.py:8" in out
    assert err.startswith("mine, all_gather on 3 ranks:")


@pytest.mark.parametrize("dialect", msccl.DIALECTS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_xml_is_read_back_by_its_dialect(call, dialect: str, protocol: str) -> None:
    code, out, err = call("ring_all_reduce", "--ranks", 4, "--to", dialect, "--protocol", protocol, "--channels", 2)
    assert code == 0, err
    read = msccl.read(out, dialect)
    assert (read.header.proto, read.header.ngpus, read.header.nchannels) == (protocol, 4, 2)
    assert msccl.certify(read, dialect).ok


@pytest.mark.parametrize("dialect", msccl.DIALECTS)
def test_xml_for_small_buffers_only_is_reported(call, dialect: str) -> None:
    words = ("two_step_all_to_all", "--ranks", 8, "--nodes", 2, "--to", dialect)
    code, out, err = call(*words)
    limit = msccl.certify(msccl.read(out), dialect).safe_up_to_bytes
    assert (code, limit) == (0, 8 << 20)
    assert err.splitlines()[0] == f"Warning: valid on {dialect} up to {limit} bytes (8 MiB), not beyond"
    code, out, err = call(*words, "--out", "a.xml", "--json")
    assert (code, json.loads(out)["safe_up_to_bytes"]) == (0, limit)
    assert err == f"Warning: a.xml: valid on {dialect} up to {limit} bytes (8 MiB), not beyond\n"


@pytest.mark.parametrize("form", ["msccl", "text"])
def test_no_limit_is_reported_if_every_size_is_safe(call, form: str) -> None:
    code, out, err = call("ring_all_reduce", "--ranks", 4, "--to", form, "--json")
    assert (code, json.loads(out)["safe_up_to_bytes"], err) == (0, None, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for kind in WORDS for name in algorithms_for(kind)])
def test_collectives_that_a_dialect_names_can_be_written(call, name: str) -> None:
    for dialect in msccl.DIALECTS:
        code, out, err = call(name, "--ranks", 8, "--instances", 2, "--to", dialect)
        assert code == 0, err
        assert msccl.certify(msccl.read(out, dialect), dialect).ok


def test_collectives_without_a_name_are_custom_or_raise(call) -> None:
    code, out, _ = call("all_to_next", "--ranks", 4, "--nodes", 2, "--to", "msccl")
    assert (code, 'coll="custom"' in out) == (0, True)
    code, _, err = call("all_to_next", "--ranks", 4, "--nodes", 2, "--to", "rccl")
    assert (code, "rccl has no word for" in err) == (1, True)


def test_more_channels_than_a_runtime_has_are_refused(call) -> None:
    code, out, err = call("ring_all_reduce", "--ranks", 8, "--channels", 8, "--instances", 24, "--to", "msccl")
    assert (code, out) == (1, "")
    assert "msccl has 32 channels" in err


def test_files_of_programs_are_converted(call) -> None:
    assert call("recursive_halving_doubling_all_reduce", "--ranks", 4, "--to", "msccl", "--out", "a.xml")[0] == 0
    assert call("a.xml", "--to", "json", "--out", "a.json")[0] == 0
    assert call("a.json", "--ranks", 4, "--to", "rccl", "--out", "r.xml")[0] == 0
    assert msccl.certify(msccl.read(Path("r.xml"), "rccl"), "rccl").collective_found == "all_reduce"
    code, out, err = call("a.xml", "--to", "azure")
    assert (code, 'outofplace="0"' in out) == (0, True), err
    code, out, err = call("a.xml", "--to", "mscclpp")
    assert code == 0, err
    Path("p.json").write_text(out)
    assert call("p.json", "--to", "mscclpp")[1] == out


def test_an_invalid_program_is_not_converted(call) -> None:
    text = call("prog.py", "--ranks", 2)[1].replace("-> output[1:2]", "-> output[0:1]")
    Path("bad.txt").write_text(text)
    code, out, err = call("bad.txt", "--to", "json")
    assert (code, out) == (1, "")
    assert "fails the" in err


def test_a_file_is_written_and_reported(call) -> None:
    code, out, err = call("prog.py", "--ranks", 2, "--to", "json", "--out", "deep/p.json", "--set", "chunks=3")
    assert (code, err) == (0, "")
    assert out.startswith("deep/p.json: mine, all_gather on 2 ranks:")
    assert Program.from_json(json.loads(Path("deep/p.json").read_text())).slots_of("output", 0) == 6


def test_json_describes_the_compiled_program(call) -> None:
    code, out, err = call("hierarchical_all_reduce", "--ranks", 8, "--nodes", 2, "--to", "json", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert next(iter(document)) == "schema"
    assert (document["collective_found"], document["ranks"]) == ("all_reduce", 8)
    assert verify(Program.from_json(document["program"])).ok


def test_instances_and_options_reach_the_algorithm(call) -> None:
    one, two = (json.loads(call("prog.py", "--ranks", 2, *more, "--json")[1]) for more in ((), ("--channels", 2)))
    assert (one["channels"], two["channels"]) == (1, 2)
    assert call("prog.py:proved", "--ranks", 2)[0] == 0
    assert "for 3 ranks" in call("one.py", "--ranks", 2)[2]
    assert call("one.py")[0] == call("one.py:ring", "--ranks", 3)[0] == 0


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("early", 1, "output[0] of rank 0 holds nothing yet"),
        ("missing", 2, "NameError: name 'nothing' is not defined"),
        ("unknown", 2, "no collective 'all_gathr'"),
        ("short", 1, "fails the result check"),
        ("leaves", 2, "SystemExit: enough"),
    ],
)
def test_mistakes_in_the_file_are_reported_by_line(call, name: str, code: int, said: str) -> None:
    found, out, err = call(f"prog.py:{name}", "--ranks", 3)
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err
    assert f"prog.py:{line_of(name)}" in err


def test_a_mistake_in_an_imported_file_is_reported_there(call) -> None:
    code, _, err = call("prog.py:helped", "--ranks", 3)
    assert code == 2
    assert "ZeroDivisionError" in err
    assert "helper.py:2" in err


def test_a_file_that_is_not_python(call) -> None:
    Path("broken.py").write_text("x = 1\nfor:\n")
    code, _, err = call("broken.py", "--ranks", 2)
    assert code == 2
    assert "broken.py:2" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prog.py",), "needs a number of ranks"),
        (("prog.py", "--ranks", 2, "--nodes", 2), "takes no nodes"),
        (("prog.py:number", "--ranks", 2), "returned int"),
        (("prog.py:nobody", "--ranks", 2), "takes no number of ranks"),
        (("prog.py:others", "--ranks", 2), "what others in prog.py returned is for 3 ranks"),
        (("prog.py:nix", "--ranks", 2), "has no nix"),
        (("pro.py", "--ranks", 2), "did you mean prog.py?"),
        (("one.py", "--channels", 2), "takes no channels"),
        (("prog.txt", "--ranks", 3), "prog.txt is for 2 ranks"),
        (("prog.txt", "--instances", 3), "takes no instances"),
        (("nix.xml",), "cannot read nix.xml"),
        (("ring_all_reduc", "--ranks", 2), "did you mean 'ring_all_reduce'?"),
        (("prog.py", "--ranks", 2, "--to", "xml"), "no form 'xml'"),
        (("prog.py", "--ranks", 2, "--protocol", "LL12"), "did you mean 'LL128'?"),
        (("prog.py", "--ranks", 2, "--set", "chunks"), "--set NAME=VALUE"),
        (("double_tree_all_reduce", "--ranks", 2, "--channels", 2), "has no channels"),
    ],
)
def test_misuse_is_reported(call, words: tuple, said: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(("name", "ranks"), [("direct_all_to_all", 64), ("all_pairs_all_reduce", 40)])
def test_many_peers_go_on_several_channels(call, name: str, ranks: int) -> None:
    """A runtime allows 32 threadblocks of a GPU on one channel."""
    code, out, err = call(name, "--ranks", ranks, "--to", "rccl")
    assert (code, 'nchannels="2"' in out) == (0, True), err
