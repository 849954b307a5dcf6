"""What the chart installs: least privilege, settings that the programs read, and clean hooks."""

import json
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from helmchart import CHART, NAMESPACE, ROOT, Rendered, helm, pod_of, render
from sojourn_api import names
from sojourn_deviceplugin import config as plugin_config
from sojourn_operator import cli
from sojourn_operator import config as operator_config
from sojourn_operator.seen.cache import Cache

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
SAMPLES = {
    "cdiKind": "nvidia.com/gpu",
    "mpsPipeDir": "/run/mps/pipe",
    "mpsShmDir": "/run/mps/shm",
    "mpsThreads": "all",
}
SIMULATION = ROOT / "tests" / "cluster" / "manifests" / "values.yaml"


@pytest.fixture(scope="module")
def plain() -> Rendered:
    """Rendered with the defaults."""
    return render()


def test_helm_finds_nothing_to_complain_about() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_operator_reads_the_settings_that_the_chart_writes(plain: Rendered) -> None:
    raw = yaml.safe_load(plain["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    config = operator_config.parse(raw, source="chart")
    assert config.session_image == "sojourn/runtime:0.1.0"
    assert config.lease == operator_config.Lease(name="sojourn-operator", namespace=NAMESPACE)


def test_the_defaults_of_chart_and_operator_agree(plain: Rendered) -> None:
    raw = yaml.safe_load(plain["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    del raw["sessionImage"]  # the chart's own version, and a class that the chart creates
    del raw["priorityClassName"]
    assert operator_config.parse(raw, source="chart") == operator_config.Config()


def test_the_device_plugin_reads_the_settings_that_the_chart_writes(plain: Rendered) -> None:
    data = plain["ConfigMap", "sojourn-deviceplugin"]["data"]["deviceplugin.yaml"]
    assert plugin_config.parse(yaml.safe_load(data)) == plugin_config.Config()


def test_every_setting_of_the_device_plugin_can_be_made() -> None:
    extra = SCHEMA["properties"]["devicePlugin"]["properties"]["extraConfig"]["properties"]
    wanted = {name: SAMPLES.get(name, schema.get("maximum")) for name, schema in extra.items()}
    rendered = render(
        f"devicePlugin.extraConfig={json.dumps(wanted)}",
        "devicePlugin.hostProc=true",
        "devicePlugin.hostCgroup=true",
    )
    data = rendered["ConfigMap", "sojourn-deviceplugin"]["data"]["deviceplugin.yaml"]
    raw = yaml.safe_load(data)
    assert plugin_config.parse(raw)
    known = {plugin_config.camel(field.name) for field in fields(plugin_config.Config)}
    assert known - set(raw) == {"publish"}, "a chart without an API server makes no sense"


def test_every_setting_of_the_operator_can_be_made(plain: Rendered) -> None:
    raw = yaml.safe_load(plain["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    config = operator_config.parse(raw, source="chart")
    assert len(raw) == len(fields(config))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Deployment", "sojourn-operator"), ("Job", "sojourn-crds"), ("Job", "sojourn-release")],
)
def test_pods_of_the_operator_pass_the_restricted_level(
    plain: Rendered, kind: str, name: str
) -> None:
    pod = pod_of(plain, kind, name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all("configMap" in volume for volume in pod["volumes"])
    assert_least_privilege(pod)


def test_the_device_plugin_is_root_without_a_capability(plain: Rendered) -> None:
    pod = pod_of(plain, "DaemonSet", "sojourn-deviceplugin")
    assert pod["securityContext"]["runAsUser"] == 0
    assert_least_privilege(pod)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def assert_least_privilege(pod: dict[str, Any]) -> None:
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_device_plugin_sees_four_folders_of_the_node_and_no_more(plain: Rendered) -> None:
    pod = pod_of(plain, "DaemonSet", "sojourn-deviceplugin")
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        names.ARBITER_DIR,
        str(plugin_config.Config().state_dir),
    }


def test_the_device_plugin_sees_the_processes_of_the_host_only_when_asked() -> None:
    rendered = render("devicePlugin.hostProc=true", "devicePlugin.processNames=true")
    data = rendered["ConfigMap", "sojourn-deviceplugin"]["data"]["deviceplugin.yaml"]
    config = plugin_config.parse(yaml.safe_load(data))
    (container,) = pod_of(rendered, "DaemonSet", "sojourn-deviceplugin")["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts[str(config.host_proc)]["readOnly"] is True
    assert config.process_names is True


def test_the_device_plugin_sees_the_hosts_cgroups_only_when_asked() -> None:
    rendered = render("devicePlugin.hostCgroup=true", 'devicePlugin.offenders="stop"')
    data = rendered["ConfigMap", "sojourn-deviceplugin"]["data"]["deviceplugin.yaml"]
    config = plugin_config.parse(yaml.safe_load(data))
    (container,) = pod_of(rendered, "DaemonSet", "sojourn-deviceplugin")["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert not mounts[str(config.host_cgroup)].get("readOnly")
    assert config.offenders is plugin_config.Policy.STOP


def test_the_device_plugin_runs_where_the_label_says(plain: Rendered) -> None:
    pod = pod_of(plain, "DaemonSet", "sojourn-deviceplugin")
    assert pod["nodeSelector"] == {names.LABEL_GPU_NODE: "true"}
    assert pod["priorityClassName"] == "system-node-critical"


def test_a_replica_of_a_dead_node_is_replaced_soon(plain: Rendered) -> None:
    """Kubernetes' default of 300 seconds would leave sessions without an operator for so long."""
    tolerated = pod_of(plain, "Deployment", "sojourn-operator")["tolerations"]
    assert {one["key"] for one in tolerated} >= {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert all(one["tolerationSeconds"] <= 30 for one in tolerated)


def test_every_command_of_the_operator_is_one_of_its_subcommands(plain: Rendered) -> None:
    known = {command.name for command in cli.COMMANDS}
    used = set()
    for (kind, name), raw in plain.items():
        if kind in {"Deployment", "Job"}:
            (container,) = raw["spec"]["template"]["spec"]["containers"]
            program, subcommand, *_ = container["command"]
            assert program == "sojourn-operator", name
            used.add(subcommand)
    assert used == {"run", "apply-crds", "release"}
    assert used <= known


def test_two_replicas_are_spread_and_one_stays_while_nodes_are_drained(plain: Rendered) -> None:
    assert plain["Deployment", "sojourn-operator"]["spec"]["replicas"] == 2
    assert plain["PodDisruptionBudget", "sojourn-operator"]["spec"]["minAvailable"] == 1
    affinity = pod_of(plain, "Deployment", "sojourn-operator")["affinity"]["podAntiAffinity"]
    assert set(affinity) == {"preferredDuringSchedulingIgnoredDuringExecution"}


def test_a_single_replica_has_no_disruption_budget() -> None:
    assert ("PodDisruptionBudget", "sojourn-operator") not in render("operator.replicas=1")


def test_a_change_of_settings_restarts_the_operator(plain: Rendered) -> None:
    def checksum(rendered: Rendered) -> str:
        meta = rendered["Deployment", "sojourn-operator"]["spec"]["template"]["metadata"]
        return str(meta["annotations"]["checksum/config"])

    assert checksum(render("operator.lostNodeSeconds=61")) != checksum(plain)


def test_roles_have_no_wildcards(plain: Rendered) -> None:
    for (kind, name), raw in plain.items():
        if kind in {"Role", "ClusterRole"}:
            assert "*" not in json.dumps(raw["rules"]), name


def test_the_operator_may_watch_every_kind_that_it_knows(plain: Rendered) -> None:
    allowed = permissions(plain, "sojourn-operator")
    for table in Cache(lambda: None).tables():
        kind = table.kind
        assert {"list", "watch"} <= allowed[kind.group, kind.plural], kind.name


def test_nobody_of_ours_reads_secrets(plain: Rendered) -> None:
    for name in ("sojourn-operator", "sojourn-deviceplugin", "sojourn-crds"):
        assert ("", "secrets") not in permissions(plain, name)


def test_the_device_plugin_writes_nothing_but_gpunodes(plain: Rendered) -> None:
    writing = {"create", "update", "patch", "delete", "deletecollection"}
    for (group, resource), verbs in permissions(plain, "sojourn-deviceplugin").items():
        if verbs & writing:
            assert (group, resource.partition("/")[0]) == (names.GROUP, "gpunodes")


def permissions(rendered: Rendered, role: str) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in rendered["ClusterRole", role]["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_the_lease_is_the_only_one_that_the_operator_may_change(plain: Rendered) -> None:
    own, others = plain["Role", "sojourn-operator"]["rules"]
    assert own["resourceNames"] == ["sojourn-operator"]
    assert own["verbs"] == ["get", "update"]
    assert others["verbs"] == ["list"]  # signs of life of the device plugins


def test_the_lease_is_of_the_release_and_never_reset_by_an_upgrade(plain: Rendered) -> None:
    lease = plain["Lease", "sojourn-operator"]
    raw = yaml.safe_load(plain["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    assert raw["lease"] == {key: lease["metadata"][key] for key in ("name", "namespace")}
    assert "spec" not in lease


def test_sessions_never_preempt_through_the_scheduler(plain: Rendered) -> None:
    raw = yaml.safe_load(plain["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    config = operator_config.parse(raw, source="chart")
    created = plain["PriorityClass", config.priority_class_name]
    assert created["preemptionPolicy"] == "Never"


def test_an_own_priority_class_is_used_and_not_created() -> None:
    rendered = render("sessions.priorityClass.create=false", 'sessions.priorityClass.name="mine"')
    raw = yaml.safe_load(rendered["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    assert raw["priorityClassName"] == "mine"
    assert "PriorityClass" not in {kind for kind, _ in rendered}


def test_network_policies_are_on_and_can_be_off(plain: Rendered) -> None:
    assert ("NetworkPolicy", "sojourn-operator") in plain
    assert ("NetworkPolicy", "sojourn-deviceplugin") in plain
    off = render("networkPolicies.enabled=false")
    assert "NetworkPolicy" not in {kind for kind, _ in off}


def test_metrics_can_be_kept_for_prometheus_alone() -> None:
    source = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    rendered = render(f"networkPolicies.metricsFrom={json.dumps([source])}")
    (rule,) = rendered["NetworkPolicy", "sojourn-operator"]["spec"]["ingress"]
    assert rule["from"] == [source]


def test_admission_trusts_the_operator_of_this_namespace_alone(plain: Rendered) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:sojourn-operator"
    for policy in ("sojourn-gpu-pods", "sojourn-pod-marks"):
        spec = plain["ValidatingAdmissionPolicy", policy]["spec"]
        (condition,) = spec["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username != '{user}'"
        assert spec["failurePolicy"] == "Fail"
        binding = plain["ValidatingAdmissionPolicyBinding", policy]["spec"]
        assert binding == {"policyName": policy, "validationActions": ["Deny"]}


def test_admission_and_the_check_of_tiers_can_be_off() -> None:
    no_tiers = render("admission.enforceTiers=false")
    assert ("ValidatingAdmissionPolicy", "sojourn-tiers") not in no_tiers
    assert ("ValidatingAdmissionPolicy", "sojourn-gpu-pods") in no_tiers
    off = render("admission.enabled=false")
    assert "ValidatingAdmissionPolicy" not in {kind for kind, _ in off}


def test_an_upgrade_carries_the_crds_of_the_new_chart(plain: Rendered) -> None:
    data = plain["ConfigMap", "sojourn-crds"]["data"]
    assert data == {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    (rule,) = plain["ClusterRole", "sojourn-crds"]["rules"]
    assert sorted(rule["resourceNames"]) == sorted(
        yaml.safe_load(text)["metadata"]["name"] for text in data.values()
    )


def test_hooks_run_when_they_must_and_leave_nothing(plain: Rendered) -> None:
    hooks: dict[str, set[str]] = {}
    for (kind, name), raw in plain.items():
        notes = raw["metadata"].get("annotations", {})
        if hook := notes.get("helm.sh/hook"):
            hooks.setdefault(hook, set()).add(f"{kind}/{name}")
            assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    assert hooks["pre-delete"] == {"Job/sojourn-release"}
    assert "Job/sojourn-crds" in hooks["pre-upgrade"]
    assert {name.partition("/")[2] for name in hooks["pre-upgrade"]} == {"sojourn-crds"}


def test_hooks_can_be_off() -> None:
    rendered = render("crds.upgrade=false", "uninstall.releaseSessions=false")
    assert "Job" not in {kind for kind, _ in rendered}


def test_without_the_device_plugin_nothing_of_it_is_left() -> None:
    rendered = render("devicePlugin.enabled=false", "metrics.podMonitors=true")
    assert not [
        name for name in rendered if name[1] in {"sojourn-deviceplugin", "sojourn-own-gpunode"}
    ]
    assert ("PodMonitor", "sojourn-operator") in rendered


def test_images_may_be_pinned_by_digest() -> None:
    digest = "sha256:" + "a" * 64
    rendered = render(f'images.operator.digest="{digest}"', 'images.runtime.tag="1.2"')
    (container,) = pod_of(rendered, "Deployment", "sojourn-operator")["containers"]
    assert container["image"] == f"sojourn/operator@{digest}"
    raw = yaml.safe_load(rendered["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    assert raw["sessionImage"] == "sojourn/runtime:1.2"


def test_everything_belongs_to_the_release(plain: Rendered) -> None:
    for name, raw in plain.items():
        labels = raw["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "sojourn", name
        assert labels["app.kubernetes.io/instance"] == "sojourn", name


def test_users_may_do_with_sessions_what_they_may_with_pods(plain: Rendered) -> None:
    view = plain["ClusterRole", "sojourn-view"]
    edit = plain["ClusterRole", "sojourn-edit"]
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert view["rules"][0]["verbs"] == ["get", "list", "watch"]


def test_a_namespaces_users_can_be_let_read_models_and_tiers() -> None:
    """They are told to look there; a RoleBinding to view reaches no cluster-wide kind."""
    for rendered in (render(), render("rbac.aggregate=false")):
        viewer = rendered["ClusterRole", "sojourn-viewer"]
        (rule,) = viewer["rules"]
        assert rule["resources"] == ["llmmodels", "qostiers"]
        assert rule["verbs"] == ["get", "list", "watch"]
        assert not [key for key in viewer["metadata"]["labels"] if "aggregate-to" in key]
    page = (CHART / "README.md").read_text()
    assert "--clusterrole=sojourn-viewer" in page


def test_the_readme_says_how_to_remove_the_leases_that_an_uninstall_leaves() -> None:
    page = (CHART / "README.md").read_text()
    assert f"`kubectl delete leases -n {NAMESPACE} -l {names.LABEL_HEARTBEAT}`" in page


def test_the_simulation_is_made_of_ordinary_values() -> None:
    rendered = render(values=SIMULATION)
    config = yaml.safe_load(rendered["ConfigMap", "sojourn-operator"]["data"]["operator.yaml"])
    assert operator_config.parse(config, source="simulation").device == "cpu"
    pod = pod_of(rendered, "DaemonSet", "sojourn-deviceplugin")
    (container,) = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert Path(str(env["FAKE_NVML_SCENARIO"])).is_absolute()
    assert env["LD_LIBRARY_PATH"]


def test_the_notes_show_a_session_that_the_api_takes() -> None:
    text = (CHART / "templates" / "NOTES.txt").read_text()
    manifest = textwrap.dedent(text.split("<<'EOF'\n")[1].split("     EOF\n")[0])
    model, session = yaml.safe_load_all(manifest)
    example = yaml.safe_load((ROOT / "examples" / "model-smollm2.yaml").read_text())
    del example["spec"]["decodeFraction"]
    assert model == example
    assert session["kind"] == "LLMSession"
    assert session["spec"]["model"] == model["metadata"]["name"]
