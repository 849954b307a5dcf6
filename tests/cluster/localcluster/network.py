"""The network namespace in which the whole cluster lives, so that nothing of it is in the host's.

One bridge without ports holds the addresses of the API server and the nodes; pods hang on their
own veth pairs. Deleting the namespace deletes bridge, routes and every iptables rule with it.
"""

import subprocess

from localcluster.paths import API_ADDRESS, BRIDGE, NETWORK_NAMESPACE, NODES


def create() -> None:
    name = NETWORK_NAMESPACE.name
    _run("ip", "netns", "add", name)
    inside = ("ip", "-netns", name)
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "link", "add", BRIDGE, "type", "bridge")
    for address in (API_ADDRESS, *(node.address for node in NODES)):
        _run(*inside, "address", "add", f"{address}/24", "dev", BRIDGE)
    _run(*inside, "link", "set", BRIDGE, "up")
    # Routing comes before the rewriting of Service addresses: without a route to 10.96.0.0/16 a
    # process on the node gets "network unreachable" before kube-proxy's rules see the packet.
    _run(*inside, "route", "add", "default", "dev", BRIDGE, "src", API_ADDRESS)
    _run(
        *("nsenter", f"--net={NETWORK_NAMESPACE}", "sh", "-c"),
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
    )


def exists() -> bool:
    return NETWORK_NAMESPACE.exists()


def delete() -> None:
    if exists():
        _run("ip", "netns", "delete", NETWORK_NAMESPACE.name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
