"""The chart's admission policies on a real API server: who may do what the operator does."""

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster import binaries
from localcluster.loopback import Api
from localcluster.processes import wait_until
from sojourn_api import names

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SYSTEM = "sojourn-system"
NAMESPACE = "admission"
OPERATOR = f"system:serviceaccount:{SYSTEM}:sojourn-operator"
PLUGIN = f"system:serviceaccount:{SYSTEM}:sojourn-deviceplugin"
USER = f"system:serviceaccount:{NAMESPACE}:user"


def pod(**changes: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "none", **changes.pop("container", {})}
    meta = {"name": "pod", "namespace": NAMESPACE, **changes.pop("metadata", {})}
    spec = {"containers": [container], **changes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def asking(*, init: bool = False, what: str = names.gpu_resource(0)) -> dict[str, Any]:
    resources = {"resources": {"limits": {what: "1"}}}
    if init:
        return pod(initContainers=[{"name": "init", "image": "none", **resources}])
    return pod(container=resources)


SESSION: dict[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": "LLMSession",
    "metadata": {"name": "chat", "namespace": NAMESPACE},
    "spec": {"model": "smollm2", "tier": "gold"},
}


class Admission:
    """Requests in the name of this or that user."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(self, raw: dict[str, Any], *, who: str, keep: bool = False) -> str:
        dry = [] if keep else ["--dry-run=server"]
        return self.kubectl("create", *dry, "-f", "-", who=who, stdin=json.dumps(raw))

    def refused(self, raw: dict[str, Any], *, who: str) -> str:
        """What the API server says to a request that it must refuse."""
        return self.error(lambda: self.create(raw, who=who))

    def error(self, call: Callable[[], object]) -> str:
        with pytest.raises(subprocess.CalledProcessError) as refused:
            call()
        return str(refused.value.stderr)

    def kubectl(self, *arguments: str, who: str = "", stdin: str = "") -> str:
        groups = ["--as-group=system:authenticated", "--as-group=system:masters"]
        identity = [f"--as={who}", *groups] if who else []
        return self._api.kubectl(*identity, *arguments, stdin=stdin)


@pytest.fixture(scope="module")
def admission(control_plane: Api) -> Admission:
    """The chart's policies, the CRDs and a namespace, on the API server."""
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    rendered = subprocess.run(
        [
            str(binaries.ensure("helm")["helm"]),
            *("template", "sojourn", str(ROOT / "charts" / "sojourn"), "--namespace", SYSTEM),
            *("--show-only", "templates/admission.yaml"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    manifests: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        # Without a controller manager nobody makes it, and pods are refused without it.
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": NAMESPACE},
        },
    ]
    for manifest in manifests:
        control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    control_plane.kubectl("apply", "--server-side", "-f", "-", stdin=rendered)
    found = Admission(control_plane)
    wait_until(lambda: takes_effect(found), what="the policies to take effect", seconds=30)
    return found


def takes_effect(admission: Admission) -> bool:
    """The API server learns of policies by watching them; each is asked once."""
    tests = (asking(), pod(metadata={"labels": {names.LABEL_SESSION: "x"}}))
    admission.kubectl(
        "annotate", "namespace", NAMESPACE, f"{names.ANNOTATION_TIERS}=silver", "--overwrite"
    )
    try:
        for raw in (*tests, SESSION):
            try:
                admission.create(raw, who=USER)
            except subprocess.CalledProcessError:
                continue
            return False
    finally:
        admission.kubectl("annotate", "namespace", NAMESPACE, f"{names.ANNOTATION_TIERS}-")
    return True


def test_policies_are_accepted_without_type_warnings(admission: Admission) -> None:
    policies = json.loads(admission.kubectl("get", "validatingadmissionpolicies", "-o", "json"))[
        "items"
    ]
    assert len(policies) == 4
    for policy in policies:
        warnings = (policy.get("status") or {}).get("typeChecking", {}).get("expressionWarnings")
        assert not warnings, warnings


def test_the_operator_may_create_pods_that_ask_for_gpu_slices(admission: Admission) -> None:
    assert "created" in admission.create(asking(), who=OPERATOR)


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("what", [names.gpu_resource(0), names.mig_resource("1g.10gb")])
def test_nobody_else_may(admission: Admission, what: str, *, init: bool) -> None:
    said = admission.refused(asking(init=init, what=what), who=USER)
    assert "only the Sojourn operator may create pods" in said
    assert "create an LLMSession instead" in said


def test_not_even_the_operator_of_another_namespace(admission: Admission) -> None:
    other = f"system:serviceaccount:{NAMESPACE}:sojourn-operator"
    assert "only the Sojourn operator" in admission.refused(asking(), who=other)


def test_other_pods_are_nobodys_business(admission: Admission) -> None:
    plain = pod(container={"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}})
    assert "created" in admission.create(plain, who=USER)


@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_nobody_else_may_mark_a_pod_as_ours(admission: Admission, field: str) -> None:
    said = admission.refused(pod(metadata={field: {names.ANNOTATION_TIER: "gold"}}), who=USER)
    assert f"metadata.{field}: sojourn.dev/ is written by the Sojourn operator only" in said


@pytest.fixture
def ours(admission: Admission) -> Iterator[dict[str, Any]]:
    """A pod of the operator's, silver."""
    raw = asking()
    raw["metadata"]["annotations"] = {names.ANNOTATION_TIER: "silver"}
    admission.create(raw, who=OPERATOR, keep=True)
    yield raw
    admission.kubectl(
        *("-n", NAMESPACE, "delete", "pod", "pod", "--force", "--grace-period=0"),
    )


def test_nobody_else_may_raise_the_tier_of_a_pod(
    admission: Admission, ours: dict[str, Any]
) -> None:
    assert ours
    change = ("annotate", "pod", "pod", "--overwrite", f"{names.ANNOTATION_TIER}=gold")
    said = admission.error(lambda: admission.kubectl("-n", NAMESPACE, *change, who=USER))
    assert "leave these keys as they are" in said
    remove = ("annotate", "pod", "pod", f"{names.ANNOTATION_TIER}-")
    said = admission.error(lambda: admission.kubectl("-n", NAMESPACE, *remove, who=USER))
    assert "leave these keys as they are" in said


def test_anybody_may_change_the_rest_of_it(admission: Admission, ours: dict[str, Any]) -> None:
    assert ours
    said = admission.kubectl("-n", NAMESPACE, "label", "pod", "pod", "note=mine", who=USER)
    assert "labeled" in said


def test_the_operator_may_change_its_marks(admission: Admission, ours: dict[str, Any]) -> None:
    assert ours
    change = ("annotate", "pod", "pod", "--overwrite", f"{names.ANNOTATION_TIER}=gold")
    assert "annotated" in admission.kubectl("-n", NAMESPACE, *change, who=OPERATOR)


def node_report(name: str) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": "GPUNode", "metadata": {"name": name}}


@pytest.fixture
def plugin_of_node_a(control_plane: Api, tmp_path: Path) -> Path:
    """A kubeconfig that acts as a token does which is bound to a pod of node-a."""
    raw = json.loads(control_plane.kubectl("config", "view", "--raw", "-o", "json"))
    (user,) = raw["users"]
    user["user"] |= {
        "as": PLUGIN,
        "as-groups": ["system:masters"],
        "as-user-extra": {"authentication.kubernetes.io/node-name": ["node-a"]},
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(raw))
    return path


def test_a_device_plugin_reports_its_own_node_only(
    admission: Admission, plugin_of_node_a: Path
) -> None:
    own, other = json.dumps(node_report("node-a")), json.dumps(node_report("node-b"))
    create = (f"--kubeconfig={plugin_of_node_a}", "create", "--dry-run=server", "-f", "-")
    assert "created" in admission.kubectl(*create, stdin=own)
    said = admission.error(lambda: admission.kubectl(*create, stdin=other))
    assert "of its own node only" in said


def lease(name: str) -> str:
    return json.dumps(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": SYSTEM},
        }
    )


def test_a_device_plugin_renews_the_lease_of_its_own_node_only(
    admission: Admission, plugin_of_node_a: Path
) -> None:
    """Else it could keep another alive, or take the operator's."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    admission.kubectl("apply", "-f", "-", stdin=json.dumps(space))
    create = (f"--kubeconfig={plugin_of_node_a}", "create", "--dry-run=server", "-f", "-")
    own = lease(names.heartbeat_name("node-a"))
    assert "created" in admission.kubectl(*create, stdin=own)
    for other in (names.heartbeat_name("node-b"), "sojourn-operator"):
        refused = partial(admission.kubectl, *create, stdin=lease(other))
        assert "of its own node only" in admission.error(refused)


@pytest.fixture
def tenant_of_silver(admission: Admission) -> Iterator[None]:
    """The namespace belongs to a tenant that may use silver and bronze."""
    admission.kubectl("annotate", "namespace", NAMESPACE, f"{names.ANNOTATION_TIERS}=silver,bronze")
    yield
    admission.kubectl("annotate", "namespace", NAMESPACE, f"{names.ANNOTATION_TIERS}-")


@pytest.mark.usefixtures("tenant_of_silver")
def test_a_tier_that_the_tenant_may_not_use_is_refused_with_those_it_may(
    admission: Admission,
) -> None:
    said = admission.refused(copy.deepcopy(SESSION), who=USER)
    assert "may not use gold; use one of silver,bronze" in said


@pytest.mark.usefixtures("tenant_of_silver")
def test_a_tier_that_the_tenant_may_use_is_taken(admission: Admission) -> None:
    raw = copy.deepcopy(SESSION)
    raw["spec"]["tier"] = "bronze"
    assert "created" in admission.create(raw, who=USER)


def test_without_a_tenant_every_tier_may_be_used(admission: Admission) -> None:
    assert "created" in admission.create(copy.deepcopy(SESSION), who=USER)


def test_the_policies_name_the_prefixes_that_the_operator_uses() -> None:
    text = (ROOT / "charts/sojourn/templates/_helpers.tpl").read_text()
    for prefix in (names.RESOURCE_PREFIX, names.MIG_PREFIX):
        assert text.count(f"startsWith('{prefix}')") == 2, "in limits and in requests"
    assert yaml.safe_load((ROOT / "charts/sojourn/Chart.yaml").read_text())["kubeVersion"]
