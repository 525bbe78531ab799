"""Generated machines route as their topology asks; files of hwloc and NCCL are read, and bad ones named."""

import pytest

from dovetail.core import MachineError
from dovetail.cost import CostModel
from dovetail.cost.routes import Routes
from dovetail.ir import Builder, Kind, Region
from dovetail.machine import SWITCH, Machine, load, presets
from dovetail.machine.presets import families
from dovetail.machine.topology_xml import read_topology
from dovetail.report.topology import topology_svg, write_machine

HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine"><info name="CPUModel" value="Some CPU"/>
<object type="Package"><object type="NUMANode"/><object type="L3Cache">
<object type="Core"><object type="PU"/><object type="PU"/></object>
<object type="Core"><object type="PU"/><object type="PU"/></object></object></object></object></topology>"""
SWITCHED = """<system version="1"><cpu numaid="0" arch="x86_64">
<pci busid="a" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80" rank="0">
<nvlink target="s1" count="6" tclass="0x068000"/><nvlink target="s2" count="6" tclass="0x068000"/></gpu></pci>
<pci busid="b" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="80" rank="1">
<nvlink target="s1" count="12" tclass="0x068000"/></gpu></pci>
<nic><net name="mlx5_0" dev="0" speed="200000"/></nic></cpu></system>"""
DIRECT = """<system version="1"><cpu><pci busid="a"><gpu dev="0" sm="70">
<nvlink target="b" count="2" tclass="0x0302"/></gpu>
</pci><pci busid="b"><gpu dev="1" sm="70"><nvlink target="a" count="2" tclass="0x0302"/></gpu></pci></cpu></system>"""
BUS = """<system version="1"><cpu><pci busid="p" class="0x0604" link_speed="8 GT/s" link_width="4">
<pci busid="a" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="60"/></pci></pci>
<pci busid="b" link_speed="16 GT/s" link_width="8"><gpu dev="1" sm="60"/></pci></cpu></system>"""

NO_SPEEDS = ("fast", "-8 GT/s", "0 GT/s", "nan", "inf", "1e300 GT/s", "8 GB/s")


def written(folder, text, name="box.xml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rate(machine, kind):
    return 1 / CostModel.of(machine).curve(f"p2p:{kind}").segments[0].slope


@pytest.mark.parametrize("name", presets())
def test_every_curve_of_a_preset_names_its_source(name):
    machine = load(name)
    assert all(curve["provenance"] for curve in machine.costs.values())
    assert machine.provenance
    assert Machine.from_json(machine.to_json()) == machine
    assert "<svg" in topology_svg(machine)


@pytest.mark.parametrize(
    ("name", "ranks", "nodes", "links"),
    [
        ("ndv4-a100-8x1", 8, 1, 1),
        ("ndv4-a100-8x3", 24, 3, 9),
        ("h100-8x2", 16, 2, 6),
        ("torus-4x4", 16, 16, 64),
        ("torus-2x3x4", 24, 24, 24 * 5),
        ("fat-tree-4x4x2", 16, 16, 2 * (16 + 8)),
    ],
)
def test_generated_machines(name, ranks, nodes, links):
    machine = load(name)
    assert (machine.name, machine.ranks, machine.num_nodes, len(machine.links)) == (name, ranks, nodes, links)
    assert Machine.from_json(machine.to_json()) == machine
    assert "<svg" in topology_svg(machine)


@pytest.mark.parametrize("name", ["torus-0x4", "torus-4096x4096", "ndv4-a100-8x0", "fat-tree-4x0"])
def test_impossible_numbers_are_named(name):
    with pytest.raises(MachineError, match=f"'{name}' cannot be generated"):
        load(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fat-tree-4x4x0", "0 spine switches; at least 1 is needed"),
        ("fat-tree-4x4x99999999", "99999999 spine switches; 1 to 65536 can be generated"),
        ("fat-tree-4x0x2", "0 hosts of a leaf switch"),
        ("fat-tree-0x4", "0 leaf switches"),
        ("torus-4x0", "0 ranks along axis 2"),
        ("h100-8x0", "0 nodes"),
        ("torus-4096x4096", "16777216 ranks; 1 to 65536 can be generated"),
    ],
)
def test_the_number_that_is_wrong_is_named(name, said):
    with pytest.raises(MachineError, match=said):
        load(name)


def test_an_unknown_name_lists_the_families():
    with pytest.raises(MachineError) as error:
        load("torus")
    assert all(family in str(error.value) for family in families())


def test_a_torus_goes_the_shorter_way_round():
    ring = load("torus-8x1")
    assert [len(ring.route(0, to)[1]) for to in range(1, 8)] == [1, 2, 3, 4, 3, 2, 1]


def test_a_fat_tree_spreads_destinations_over_its_spines():
    tree = load("fat-tree-2x4")
    middle = [tuple(tree.links[row][1] for row in tree.route(0, to)[1])[1] for to in (4, 5, 6, 7)]
    assert sorted(middle) == [-6, -5, -4, -3]
    assert len(tree.route(0, 3)[1]) == 2, "below one leaf no spine is used"


def sends(pairs, ranks):
    """A program in which each pair sends one slot."""
    b = Builder("sends", ranks)
    b.buffer("x", "input", [1] * ranks), b.buffer("y", "output", [1] * ranks)
    for src, dst in pairs:
        channel = b.channel(src, dst)
        b.add(Kind.send, src, b.lane("send", "net"), reads=[Region("x", 0, 1)], chan_out=channel)
        b.add(Kind.recv, dst, b.lane("recv", "net"), writes=[Region("y", 0, 1)], chan_in=channel)
    return b.build()


def test_each_gpu_has_its_own_network_card():
    machine = load("ndv4-a100-8x2")
    program = sends([(0, 8), (1, 9), (2, 9)], 16)
    one, other, last = (set(each) for each in _links(Routes.of(program, machine), 3))
    assert not one & other
    assert other & last, "two messages enter by the card of rank 9"
    plain = Machine.from_json({**machine.to_json(), "facts": {}})
    assert {*_links(Routes.of(program, plain), 3)[0]} == {*_links(Routes.of(program, plain), 3)[1]}


def _links(routes, count):
    return [routes.links[routes.start[i] : routes.start[i + 1]].tolist() for i in range(count)]


def test_hwloc(tmp_path):
    machine = read_topology(written(tmp_path, HWLOC))
    assert (machine.name, machine.ranks, machine.num_nodes, machine.costs) == ("box", 2, 1, {})
    assert machine.facts == {"cores": 2, "packages": 1, "numa_nodes": 1, "cpu": "Some CPU", "l3_caches": 1}


def test_gpus_on_a_switch(tmp_path):
    machine = read_topology(written(tmp_path, SWITCHED))
    assert machine.route(0, 1)[0] == "nvlink x12"
    assert {(link.src, link.dst) for link in machine.links} == {(0, SWITCH), (SWITCH, 0), (1, SWITCH), (SWITCH, 1)}
    assert rate(machine, "nvlink x12") == pytest.approx(240e9)
    assert (machine.facts["network_cards"], machine.facts["network_mbit_per_s"]) == (1, 200000)


def test_gpus_that_are_linked_directly(tmp_path):
    machine = read_topology(written(tmp_path, DIRECT))
    assert [tuple(link) for link in machine.links] == [(0, 1, "nvlink x2"), (1, 0, "nvlink x2")]
    assert rate(machine, "nvlink x2") == pytest.approx(40e9)


def test_gpus_on_a_bus_are_as_fast_as_the_slowest_bridge(tmp_path):
    machine = read_topology(written(tmp_path, BUS))
    assert sorted({link.kind for link in machine.links}) == ["pci 15.8 GB/s", "pci 3.94 GB/s"]
    assert machine.route(0, 1)[0] == "pci 3.94 GB/s"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ('link_speed="" link_width="0"', "pci 15.8 GB/s"),
        ('link_speed="Unknown" link_width="255"', "pci 15.8 GB/s"),
        ('link_width=""', "pci 15.8 GB/s"),
        ("", "pci 15.8 GB/s"),
        ('link_speed="16.0 GT/s PCIe" link_width="8"', "pci 15.8 GB/s"),
        ('link_speed="2.5 GT/s" link_width="1"', "pci 0.25 GB/s"),
    ],
)
def test_what_a_file_does_not_say_of_a_link_is_what_nccl_takes(tmp_path, given, kind):
    gpu = f'<pci busid="a" {given}><gpu dev="0" sm="60"/></pci><pci busid="b" {given}><gpu dev="1" sm="60"/></pci>'
    machine = read_topology(written(tmp_path, f"<system><cpu>{gpu}</cpu></system>"))
    assert {link.kind for link in machine.links} == {kind}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no XML"),
        ("<topology>", "is no XML"),
        ("<other/>", "a document <other>"),
        ("<topology/>", "names no cores"),
        ("<system/>", "names no GPUs"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><topology/>', "is refused"),
        ("<topology/>".encode("utf-16"), "is refused"),
        (SWITCHED.replace('count="12"', 'count="many"'), "count of <nvlink> is no number"),
        (SWITCHED.replace("200000", "-1"), "speed of <net> is no number"),
        *((BUS.replace('"8 GT/s"', f'"{speed}"'), "link_speed of <pci> is no speed") for speed in NO_SPEEDS),
        (BUS.replace('link_width="4"', 'link_width="33"'), "a PCI link has 1 to 32 lanes"),
        (BUS.replace('link_width="4"', 'link_width="-4"'), "link_width of <pci> is no number"),
        (SWITCHED.replace('count="12"', 'count="0"').replace('count="6"', 'count="0"'), "no bandwidth"),
    ],
)
def test_bad_files_are_named(tmp_path, text, said):
    with pytest.raises(MachineError, match=said):
        read_topology(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MachineError, match="cannot read"):
        read_topology(tmp_path / "none.xml")


def test_a_picture_has_every_end_and_no_markup_of_a_name():
    machine = load("fat-tree-2x2")
    picture = topology_svg(machine)
    assert (picture.count("<circle"), picture.count("<rect")) == (4, 4)
    odd = Machine.from_json({**machine.to_json(), "name": "<b>", "links": [[a, b, "<i>"] for a, b, _ in machine.links]})
    assert "<b>" not in topology_svg(odd)
    assert "<i>" not in topology_svg(odd)
    assert "too many to draw" in topology_svg(load("torus-8x8x9"))


@pytest.mark.parametrize("name", ["torus-4x4", "dgx1-v100-8", "h100-8x4"])
def test_labels_have_a_halo_and_lie_above_all_links(name):
    machine = load(name)
    picture = topology_svg(machine)
    links, _, labels = picture.partition('<g style="paint-order:stroke;stroke:var(--bg,Canvas);')
    assert "<line" not in labels.partition("</g>")[0]
    assert "<circle" in links
    assert labels.partition("</g>")[0].count("rank") == machine.num_nodes


@pytest.mark.browser
@pytest.mark.needs("chromium")
@pytest.mark.parametrize(("scheme", "colour"), [("light", "rgb(252, 252, 250)"), ("dark", "rgb(23, 25, 28)")])
def test_the_halo_has_the_colour_of_the_page(tmp_path, scheme, colour):
    from browser import launched

    page = write_machine(tmp_path / "mesh.html", load("dgx1-v100-8"))
    with launched() as browser:
        browser.page.emulate_media(color_scheme=scheme)
        browser.page.goto(page.resolve().as_uri())
        style = "getComputedStyle(document.querySelector('svg[role=img] g text'))"
        assert browser.run(f"{style}.stroke") == colour
        assert browser.run(f"{style}.paintOrder").startswith("stroke")
        assert browser.run("getComputedStyle(document.body).backgroundColor") == colour
