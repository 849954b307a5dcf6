"""What a node's containerd, kubelet and pod network are told.

Pure: only values, with the reason beside each that is not obvious. `node` writes and uses them.
"""

import ipaddress
from pathlib import Path

from localcluster import cgroups
from localcluster.certs import Pair
from localcluster.paths import FIRST_SERVICE_ADDRESS, Node

CNI_PLUGINS = Path("/usr/lib/cni")
PAUSE_IMAGE = "docker.io/sojourn/pause:dev"
CDI_FOLDER = "/opt/sojourn/cdi"  # not /etc/cdi, which would be the host's
CONTAINERD_ENDPOINT = "unix:///run/containerd/containerd.sock"


def cni(node: Node) -> dict[str, object]:
    """`ptp`: each pod on its own link, so every packet is routed and meets kube-proxy's rules."""
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": node.pod_range}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def containerd(cni_folder: Path, *, cdi: bool) -> str:
    """`cdi`: for a containerd of 1.7 and later, which an older one's parser would refuse."""
    devices = f"""\
  enable_cdi = true
  cdi_spec_dirs = ["{CDI_FOLDER}"]
"""
    # restrict_oom_score_adj: else runc dies with "can't get final child's PID from pipe: EOF"
    # where CAP_SYS_RESOURCE is missing.
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
{devices if cdi else ""}\
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{cni_folder}"
"""


def kubelet(node: Node, *, pair: Pair, clients: Path, resolver: Path) -> dict[str, object]:
    """`clients`: the authority whose certificates may ask this kubelet for something."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(clients)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pair.certificate),
        "tlsPrivateKeyFile": str(pair.key),
        "healthzBindAddress": "127.0.0.1",
        # Both nodes share the loopback of one network namespace.
        "healthzPort": 10300 + int(ipaddress.ip_address(node.address)) % 256,
        "containerRuntimeEndpoint": CONTAINERD_ENDPOINT,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.root_of(node.name),
        "cgroupsPerQOS": True,
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "resolvConf": str(resolver),
        "clusterDomain": "cluster.local",
        "clusterDNS": [FIRST_SERVICE_ADDRESS],  # nobody answers: nothing here may need DNS
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # With the controller's 20 s of grace, so that a dead node is noticed soon.
        "nodeLeaseDurationSeconds": 20,
        # Extended resources show in the node's status at the next report only (10 s by default).
        "nodeStatusUpdateFrequency": "1s",
        # A full disk of the developer must not evict pods or delete imported images.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    }
