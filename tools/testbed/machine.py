"""Can this machine carry a testbed? Each requirement is tried in a scratch namespace, not guessed."""

import os
import shutil
import subprocess
from pathlib import Path

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}


def works(*words):
    return subprocess.run(words, capture_output=True).returncode == 0


def problems():
    """Every reason why no testbed can be built here, each one line; empty when it can."""
    if os.geteuid() != 0:
        return ["not root: network namespaces need it; use sudo, or a container with NET_ADMIN and SYS_ADMIN"]
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        packages = sorted({TOOLS[tool] for tool in missing})
        return [f"missing {', '.join(missing)}: install {' and '.join(packages)}"]
    if not works("unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "true"):
        return ["namespaces (net, uts, ipc, pid, mount) may not be created: the container forbids it"]
    return in_scratch_namespace(feature_problems)


def tcp_problem(name):
    """Why TCP cannot find its pace by the algorithm `name` here, or None."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return None if name in known else f"this kernel's TCP knows {', '.join(known)}, not {name!r}"


def netem_problem():
    """Why links cannot be given a delay here, or None."""
    line = "tc -n {} qdisc add dev lo root netem delay 1ms"
    if in_scratch_namespace(lambda space: works(*line.format(space).split())) is True:
        return None
    return "this kernel has no netem queue (CONFIG_NET_SCH_NETEM)"


def in_scratch_namespace(question):
    space = f"dt_check_{os.getpid()}"
    if not works("ip", "netns", "add", space):
        return ["`ip netns add` fails: /run/netns cannot be written or mounted"]
    try:
        return question(space)
    finally:
        works("ip", "netns", "del", space)


def feature_problems(space):
    tried = {
        "virtual Ethernet pairs (CONFIG_VETH)": "ip -n {} link add v0 type veth peer name v1",
        "bridges (CONFIG_BRIDGE)": "ip -n {} link add b0 type bridge",
        "token bucket queues (CONFIG_NET_SCH_TBF)": "tc -n {} qdisc add dev lo root tbf rate 1mbit burst 3k limit 9k",
    }
    return [f"the kernel lacks {what}" for what, line in tried.items() if not works(*line.format(space).split())]
