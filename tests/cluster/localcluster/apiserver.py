"""The command lines of etcd and kube-apiserver, for the whole cluster and for the API alone.

Only arguments; who runs them, and in which namespace, belongs to `controlplane` and `loopback`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from localcluster.certs import Authority, Pair
from localcluster.paths import FIRST_SERVICE_ADDRESS, SERVICE_RANGE

# Who changed what, by whom, one line each; what the cluster's own programs read is left out.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"], "userGroups": ["system:nodes"]},
        {
            "level": "None",
            "verbs": ["get", "list", "watch"],
            "users": [
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-scheduler",
                "system:kube-proxy",
            ],
        },
        {
            "level": "None",
            "verbs": ["get", "list", "watch"],
            "userGroups": ["system:serviceaccounts:kube-system"],
        },
        {"level": "None", "nonResourceURLs": ["/readyz*", "/healthz*", "/livez*"]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the two listen. `advertised` is where pods find the API server: never loopback."""

    etcd_port: int
    etcd_peer_port: int
    bind: str
    port: int
    advertised: str | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    authority: Authority
    server: Pair
    kubelet_client: Pair
    service_accounts: Pair


def issue(authority: Authority, *, addresses: Addresses) -> Credentials:
    names = ["127.0.0.1", FIRST_SERVICE_ADDRESS, "localhost", "kubernetes.default.svc"]
    if addresses.advertised:
        names.append(addresses.advertised)
    return Credentials(
        authority,
        authority.issue("apiserver", user="kube-apiserver", addresses=names),
        authority.issue("kubelet-client", user="kubelet-client", group="system:masters"),
        authority.signing_pair("service-accounts"),
    )


def etcd_command(binary: Path, *, addresses: Addresses, folder: Path) -> list[str]:
    client = f"http://127.0.0.1:{addresses.etcd_port}"
    peer = f"http://127.0.0.1:{addresses.etcd_peer_port}"
    return [
        str(binary),
        f"--data-dir={folder}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nothing here has to survive the loss of power
        "--log-level=warn",
    ]


def apiserver_command(
    binary: Path,
    *,
    addresses: Addresses,
    credentials: Credentials,
    audit_log: Path,
    audit_policy: Path,
) -> list[str]:
    audit_policy.write_text(json.dumps(_AUDIT_POLICY))
    advertise = (
        [f"--advertise-address={addresses.advertised}"]
        if addresses.advertised
        # A loopback address cannot be an endpoint, and without nodes nobody looks for one.
        else ["--endpoint-reconciler-type=none"]
    )
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{addresses.etcd_port}",
        f"--bind-address={addresses.bind}",
        f"--secure-port={addresses.port}",
        *advertise,
        f"--cert-dir={audit_policy.parent}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--client-ca-file={credentials.authority.pair.certificate}",
        f"--tls-cert-file={credentials.server.certificate}",
        f"--tls-private-key-file={credentials.server.key}",
        f"--kubelet-certificate-authority={credentials.authority.pair.certificate}",
        f"--kubelet-client-certificate={credentials.kubelet_client.certificate}",
        f"--kubelet-client-key={credentials.kubelet_client.key}",
        # Else `kubectl logs` and `exec` look the node's name up in a DNS that is not there.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={credentials.service_accounts.certificate}",
        f"--service-account-signing-key-file={credentials.service_accounts.key}",
        "--authorization-mode=Node,RBAC",
        # Beside the defaults, among them PodSecurity and ValidatingAdmissionPolicy.
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={audit_policy}",
        f"--audit-log-path={audit_log}",
        "--profiling=false",
    ]
