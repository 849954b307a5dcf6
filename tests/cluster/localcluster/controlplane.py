"""etcd, kube-apiserver, controller-manager, scheduler and kube-proxy, in the cluster's namespace.

One supervisor runs them in a pid namespace of their own. kube-proxy is here and not on the nodes:
both nodes share the network namespace, so one set of rules serves both.
"""

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster import apiserver, processes
from localcluster.certs import Authority
from localcluster.paths import (
    API_ADDRESS,
    API_PORT,
    AUDIT_LOG,
    DATA,
    KUBECONFIG,
    NETWORK_NAMESPACE,
    NODES,
    POD_RANGE,
    READY_FILE,
    STATE,
)
from localcluster.supervisor import Program, Specification, namespace_command

BINARIES = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"),
    "kubectl",
)
NAME = "control-plane"
_CERTIFICATES = STATE / "certificates"
_INSIDE = f"https://{API_ADDRESS}:{API_PORT}"
_ADDRESSES = apiserver.Addresses(
    etcd_port=2379, etcd_peer_port=2380, bind="0.0.0.0", port=API_PORT, advertised=API_ADDRESS
)


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """What nodes need to know of it."""

    authority: Authority
    url: str


def start(binaries: Mapping[str, Path], *, forwarded_port: int) -> ControlPlane:
    authority = Authority.create(_CERTIFICATES)
    credentials = apiserver.issue(authority, addresses=_ADDRESSES)
    admin = authority.issue("admin", user="admin", group="system:masters")
    authority.write_kubeconfig(KUBECONFIG, server=f"https://127.0.0.1:{forwarded_port}", pair=admin)
    kubeconfigs = {
        name: _kubeconfig(authority, name)
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy")
    }
    commands = {
        "etcd": apiserver.etcd_command(
            binaries["etcd"], addresses=_ADDRESSES, folder=DATA / "etcd"
        ),
        "kube-apiserver": apiserver.apiserver_command(
            binaries["kube-apiserver"],
            addresses=_ADDRESSES,
            credentials=credentials,
            audit_log=AUDIT_LOG,
            audit_policy=_CERTIFICATES / "audit-policy.json",
        ),
        "kube-controller-manager": [
            str(binaries["kube-controller-manager"]),
            *_client_flags(kubeconfigs["kube-controller-manager"]),
            f"--service-account-private-key-file={credentials.service_accounts.key}",
            f"--root-ca-file={authority.pair.certificate}",
            "--use-service-account-credentials",
            "--pvclaimbinder-sync-period=1s",  # 15 s by default, and claims wait for it at times
            "--node-monitor-grace-period=20s",  # 50 s by default: tests wait for dead nodes
            "--controllers=*,-node-ipam-controller",  # pod ranges are fixed
        ],
        "kube-scheduler": [
            str(binaries["kube-scheduler"]),
            *_client_flags(kubeconfigs["kube-scheduler"]),
        ],
        "kube-proxy": [
            str(binaries["kube-proxy"]),
            f"--kubeconfig={kubeconfigs['kube-proxy']}",
            f"--hostname-override={NODES[0].name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_RANGE}",
            "--iptables-min-sync-period=100ms",  # 1 s by default; a few rules cost nothing
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
            # The limits of connection tracking can be set in the host's namespace only.
            *("--conntrack-max-per-core=0", "--conntrack-min=0"),
            *("--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"),
            "--oom-score-adj=0",  # lowering it needs CAP_SYS_RESOURCE, which may be missing
        ],
    }
    after = {
        "kube-apiserver": "tcp:127.0.0.1:2379",
        "kube-controller-manager": f"file:{READY_FILE}",
        "kube-scheduler": f"file:{READY_FILE}",
        "kube-proxy": f"file:{READY_FILE}",
    }
    specification = Specification(
        [
            Program(name, command, str(processes.log_of(name)), after.get(name, ""))
            for name, command in commands.items()
        ]
    )
    path = STATE / f"{NAME}.json"
    specification.write(path)
    processes.start(NAME, namespace_command(NETWORK_NAMESPACE, path))
    return ControlPlane(authority, _INSIDE)


def wait_until_ready(forwarded_port: int) -> None:
    """Tell those who wait for it too: they would only fail and back off before."""
    url = f"https://127.0.0.1:{forwarded_port}/readyz"
    context = ssl.create_default_context(cafile=str(_CERTIFICATES / "ca.crt"))
    processes.wait_until(
        lambda: answers(url, context), what="the API server to be ready", seconds=60
    )
    READY_FILE.touch()


def answers(url: str, context: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(url, context=context, timeout=2) as response:  # noqa: S310
            return int(response.status) == 200
    except (urllib.error.URLError, OSError):
        return False


def _kubeconfig(authority: Authority, name: str) -> Path:
    path = _CERTIFICATES / f"{name}.kubeconfig"
    pair = authority.issue(name, user=f"system:{name}")
    authority.write_kubeconfig(path, server=_INSIDE, pair=pair)
    return path


def _client_flags(kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    ]
