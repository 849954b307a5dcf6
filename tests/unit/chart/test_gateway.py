"""The gateway in the chart: off by default, least privilege, settings that the program reads."""

import json
from typing import Any

import pytest
import yaml
from helmchart import NAMESPACE, ROOT, Rendered, pod_of, render
from sojourn_api import names
from sojourn_gateway.settings import Settings, parse

NAME = "sojourn-gateway"


@pytest.fixture(scope="module")
def on() -> Rendered:
    return render("gateway.enabled=true", "metrics.podMonitors=true")


def command(rendered: Rendered) -> list[str]:
    (container,) = pod_of(rendered, "Deployment", NAME)["containers"]
    return list(container["command"])


def test_it_is_off_unless_asked_for() -> None:
    assert not [name for _, name in render("metrics.podMonitors=true") if "gateway" in name]


def test_the_program_reads_what_the_chart_writes_and_the_defaults_agree(on: Rendered) -> None:
    program, *flags = command(on)
    assert program == NAME
    assert parse(flags) == Settings()


def test_every_setting_arrives() -> None:
    values = {"holdSeconds": 1, "spliceSeconds": 86400, "mostHeld": 4, "mostHeldPerSession": 3}
    values["mostOpen"] = 5
    rendered = render(
        "gateway.enabled=true", *(f"gateway.{name}={value}" for name, value in values.items())
    )
    found = parse(command(rendered)[1:])
    assert (found.hold_seconds, found.splice_seconds) == (1, 86400)
    assert (found.most_held, found.most_held_per_session) == (4, 3)
    assert found.most_open == 5


def test_without_dns_addresses_can_be_given() -> None:
    names = [{"ip": "10.96.0.7", "hostnames": ["chat-1.chats.svc"]}]
    rendered = render("gateway.enabled=true", f"gateway.hostAliases={json.dumps(names)}")
    assert pod_of(rendered, "Deployment", NAME)["hostAliases"] == names


def test_its_pods_pass_the_restricted_level(on: Rendered) -> None:
    pod = pod_of(on, "Deployment", NAME)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "volumes" not in pod
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_it_has_time_to_end_in_order(on: Rendered) -> None:
    grace = pod_of(on, "Deployment", NAME)["terminationGracePeriodSeconds"]
    assert grace > Settings().linger_seconds + Settings().drain_seconds


def test_it_may_learn_of_sessions_and_patch_them_and_nothing_else(on: Rendered) -> None:
    (rule,) = on["ClusterRole", NAME]["rules"]
    assert rule == {
        "apiGroups": [names.GROUP],
        "resources": ["llmsessions"],
        "verbs": ["list", "watch", "patch"],
    }
    (subject,) = on["ClusterRoleBinding", NAME]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    assert ("Role", NAME) not in on


def test_a_policy_narrows_the_patch_to_one_annotation(on: Rendered) -> None:
    spec = on["ValidatingAdmissionPolicy", "sojourn-gateway-wakes"]["spec"]
    (condition,) = spec["matchConditions"]
    user = f"system:serviceaccount:{NAMESPACE}:{NAME}"
    assert condition["expression"] == f"request.userInfo.username == '{user}'"
    assert spec["failurePolicy"] == "Fail"
    (validation,) = spec["validations"]
    assert names.ANNOTATION_WAKE in validation["expression"]
    binding = on["ValidatingAdmissionPolicyBinding", "sojourn-gateway-wakes"]["spec"]
    assert binding["validationActions"] == ["Deny"]
    off = render("gateway.enabled=true", "admission.enabled=false")
    assert ("ValidatingAdmissionPolicy", "sojourn-gateway-wakes") not in off


def test_its_service_finds_its_pods(on: Rendered) -> None:
    service = on["Service", NAME]["spec"]
    template = on["Deployment", NAME]["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    (port,) = service["ports"]
    (container,) = template["spec"]["containers"]
    assert port["port"] == 80
    assert port["targetPort"] == container["ports"][0]["name"]
    assert container["ports"][0]["containerPort"] == Settings().port


def test_it_reaches_sessions_and_the_api_server_and_nobody_else(on: Rendered) -> None:
    spec = on["NetworkPolicy", NAME]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    ports = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
    assert ports == {53, 443, 6443, names.PORT}
    (to_sessions,) = [rule for rule in spec["egress"] if rule["ports"][0]["port"] == names.PORT]
    assert to_sessions["to"][0]["podSelector"]["matchExpressions"] == [
        {"key": names.LABEL_SESSION, "operator": "Exists"}
    ]


def test_who_reaches_it_can_be_said() -> None:
    rendered = render(
        "gateway.enabled=true", 'networkPolicies.gatewayFrom=[{"podSelector":{"matchLabels":{}}}]'
    )
    (rule,) = rendered["NetworkPolicy", NAME]["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {}}}]


def test_the_sessions_of_the_example_let_it_in(on: Rendered) -> None:
    documents = yaml.safe_load_all((ROOT / "examples" / "namespace.yaml").read_text())
    (policy,) = [one for one in documents if one["kind"] == "NetworkPolicy"]
    labels: dict[str, Any] = on["Deployment", NAME]["spec"]["template"]["metadata"]["labels"]
    assert any(
        source["podSelector"].get("matchLabels", {}).items() <= labels.items()
        and source["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == NAMESPACE
        for source in policy["spec"]["ingress"][0]["from"]
        if "namespaceSelector" in source and source["podSelector"].get("matchLabels")
    )


def test_its_metrics_are_scraped_where_podmonitors_are(on: Rendered) -> None:
    assert ("PodMonitor", NAME) in on
