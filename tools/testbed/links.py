"""The wires: rates, shaping with tc, and the star and mesh topologies of virtual Ethernet pairs."""

import os
import re
from collections import defaultdict

from state import TestbedError, command

BITS_PER_UNIT = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
QUEUE_BYTES = 400_000
ETHERNET_HEADER_BYTES = 14
UNSHAPED = "none"
FRAME_S = 720e-6
TCP_SETTING = "tcp_congestion_control"


def bits_per_second(rate):
    """`100mbit` -> 1e8; None for `none` (an unshaped link)."""
    if rate == UNSHAPED:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    bits = float(match[1]) * BITS_PER_UNIT[match[2]] if match else 0
    if not 1e5 <= bits <= 1e11:
        raise TestbedError(
            f"rate {rate!r} is not understood",
            "RATE",
            "100mbit, 1gbit, 2.5gbit (kbit, mbit or gbit; 100kbit to 100gbit), or 'none' for unshaped links",
        )
    return bits


def default_mtu(rate):
    """What the line carries in 720 us, 1500 to 65000 bytes: a frame costs interrupts, whatever its size.

    9000 at 100 Mbit/s, 65000 from 722 Mbit/s on; unshaped links pass segments of 64 KB anyway.
    """
    bits = bits_per_second(rate)
    return 9000 if bits is None else int(min(max(bits / 8 * FRAME_S, 1500), 65000))


def burst_bytes(bits, mtu, frames=1):
    """The least that passes whole frames and still makes up for a timer that comes 128 us late."""
    return int(frames * (mtu + ETHERNET_HEADER_BYTES) + bits / 8 * 128e-6)


class Wiring:
    """Collects `ip`, `tc` and receive-steering work per namespace, then does it in a few processes."""

    def __init__(self, testbed):
        self.testbed = testbed
        self.root_ip = []
        self.ip, self.tc, self.steer = defaultdict(list), defaultdict(list), defaultdict(list)

    def pair(self, end_a, end_b, shaped):
        """A cable between two (namespace, device) ends; `shaped` cables carry MTU-size frames only."""
        mtu = self.testbed.mtu if shaped else 1500
        (space_a, device_a), (space_b, device_b) = end_a, end_b
        self.root_ip.append(
            f"link add {device_a} netns {space_a} mtu {mtu} type veth peer name {device_b} netns {space_b} mtu {mtu}"
        )
        frames = "gso_max_segs 1" if shaped and self.testbed.rate != UNSHAPED else ""
        for space, device in (end_a, end_b):
            self.ip[space].append(f"link set {device} up {frames}")

    def switch(self, space, bridge):
        self.ip[space] += [f"link add {bridge} type bridge forward_delay 0", f"link set {bridge} up"]

    def receive_on(self, space, device, host):
        """All receive work of one device on one CPU: packets of one flow are never reordered."""
        cpus = sorted(os.sched_getaffinity(0))
        mask = 1 << cpus[(host - 1) % len(cpus)]
        self.steer[space].append(f"echo {mask:x} > /sys/class/net/{device}/queues/rx-0/rps_cpus")

    def shape(self, space, device, rate, fresh=True):
        """Token bucket at `rate`, with the delay before it where the device is a host's own."""
        if not fresh:
            self.tc[space].append(f"qdisc del dev {device} root")
        bits = bits_per_second(rate)
        if bits is None:
            return
        mtu, delay_us = self.testbed.mtu, self.testbed.delay_us
        place = "root"
        if delay_us and space != self.testbed.namespace("switch"):
            self.tc[space].append(f"qdisc add dev {device} root handle 1: netem delay {delay_us}us limit 10000")
            place = "parent 1:1 handle 10:"
        burst = burst_bytes(bits, mtu, 2 if space == self.testbed.namespace("switch") else 1)
        limit = max(QUEUE_BYTES, 20 * mtu)
        self.tc[space].append(f"qdisc add dev {device} {place} tbf rate {bits:.0f}bit burst {burst} limit {limit}")

    def do(self):
        if self.root_ip:
            command("ip", "-batch", "-", stdin="\n".join(self.root_ip))
        for space, lines in self.ip.items():
            command("ip", "-n", space, "-batch", "-", stdin="\n".join(lines))
        for space, lines in self.steer.items():
            command("ip", "netns", "exec", space, "sh", "-e", stdin="\n".join(lines))
        for space, lines in self.tc.items():
            command("tc", "-n", space, "-batch", "-", stdin="\n".join(lines))


def shaped_devices(testbed):
    """Every (namespace, device, host number) that carries data; the host's number chooses the receiving CPU."""
    numbers = range(1, testbed.hosts + 1)
    for i in numbers:
        space = testbed.namespace(f"h{i}")
        if testbed.topology == "mesh":
            yield from ((space, f"p{j}", i) for j in numbers if j != i)
            continue
        for k in range(testbed.nics):
            yield space, f"eth{k}", i
            yield testbed.namespace("switch"), f"s{k}_{i}", i


def lay_management(wiring):
    """mg0 of every host and of the head, on one unshaped switch: launch and output."""
    testbed, switch = wiring.testbed, wiring.testbed.namespace("switch")
    wiring.switch(switch, "brm")
    for address, host in [(254, "head"), *enumerate(testbed.host_names, 1)]:
        space, port = testbed.namespace(host), f"m{address}"
        wiring.ip[space].append("link set lo up")
        wiring.pair((space, "mg0"), (switch, port), shaped=False)
        wiring.ip[switch].append(f"link set {port} master brm")
        wiring.ip[space].append(f"addr add 10.76.0.{address}/24 dev mg0")


def lay_star(wiring):
    """eth<k> of host i is 10.77.<k>.<i>, all of them on one switch."""
    testbed, switch = wiring.testbed, wiring.testbed.namespace("switch")
    wiring.switch(switch, "br0")
    for i, host in enumerate(testbed.host_names, 1):
        space = testbed.namespace(host)
        for k in range(testbed.nics):
            wiring.pair((space, f"eth{k}"), (switch, f"s{k}_{i}"), shaped=True)
            wiring.ip[switch].append(f"link set s{k}_{i} master br0")
            wiring.ip[space].append(f"addr add 10.77.{k}.{i}/24 dev eth{k}")
        if testbed.nics > 1:
            keep_apart(wiring, space, i)


def keep_apart(wiring, space, i):
    """What comes from an address leaves through its own network, wherever it goes, and only that one answers for it:
    else a message would leave through the network that its receiver happens to use."""
    for k in range(wiring.testbed.nics):
        wiring.ip[space] += [
            f"route add 10.77.0.0/16 dev eth{k} src 10.77.{k}.{i} table {100 + k}",
            f"rule add from 10.77.{k}.{i} table {100 + k}",
        ]
    settings = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 0}
    wiring.steer[space] += [f"echo {value} > /proc/sys/net/ipv4/conf/all/{name}" for name, value in settings.items()]


def lay_mesh(wiring):
    """A private cable per pair; host i is 10.77.0.<i> on the port-less bridge eth0, the others by host routes."""
    testbed = wiring.testbed
    for i, host in enumerate(testbed.host_names, 1):
        space = testbed.namespace(host)
        wiring.switch(space, "eth0")
        wiring.ip[space] += [f"link set eth0 mtu {testbed.mtu}", f"addr add 10.77.0.{i}/24 dev eth0"]
    for i in range(1, testbed.hosts + 1):
        for j in range(i + 1, testbed.hosts + 1):
            a, b = testbed.namespace(f"h{i}"), testbed.namespace(f"h{j}")
            wiring.pair((a, f"p{j}"), (b, f"p{i}"), shaped=True)
            wiring.ip[a].append(f"route add 10.77.0.{j} dev p{j} src 10.77.0.{i}")
            wiring.ip[b].append(f"route add 10.77.0.{i} dev p{i} src 10.77.0.{j}")


def lay(testbed):
    """All cables of the testbed, shaped."""
    wiring = Wiring(testbed)
    for host in ["head", *testbed.host_names] if testbed.tcp else []:
        wiring.steer[testbed.namespace(host)].append(f"echo {testbed.tcp} > /proc/sys/net/ipv4/{TCP_SETTING}")
    lay_management(wiring)
    lay_mesh(wiring) if testbed.topology == "mesh" else lay_star(wiring)
    for space, device, host in shaped_devices(testbed):
        wiring.receive_on(space, device, host)
        wiring.shape(space, device, testbed.rate)
    wiring.do()


def reshape(old, new, between=None):
    """Give every data link of a standing testbed the rate of `new`; `between`: only that of two hosts of a mesh."""
    wiring = Wiring(new)
    frames = "gso_max_segs 65535" if new.rate == UNSHAPED else "gso_max_segs 1"
    devices = list(shaped_devices(new))
    if between:
        a, b = between
        ends = {(new.namespace(f"h{a}"), f"p{b}"), (new.namespace(f"h{b}"), f"p{a}")}
        devices = [device for device in devices if device[:2] in ends]
        if not devices:
            raise TestbedError(f"no link joins hosts {a} and {b} alone", "--between", "two hosts of `--topology mesh`")
    for space, device, _ in devices:
        wiring.ip[space].append(f"link set {device} {frames}")
        wiring.shape(space, device, new.rate, fresh=old.rate == UNSHAPED)
    wiring.do()
