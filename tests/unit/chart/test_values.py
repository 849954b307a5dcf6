"""Values: each is documented, known to the schema, and used; nothing else is accepted."""

import json
from pathlib import Path
from typing import Any

import pytest
import values_table
import yaml
from helmchart import CHART, ROOT, refusal, render
from sojourn_deviceplugin import config as plugin_config
from sojourn_operator import config as operator_config

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
KNOWN = {value.path for value in values_table.documented()}


def test_every_value_is_documented() -> None:
    assert set(values_table.leaves(DEFAULTS, KNOWN)) == KNOWN


def test_the_table_in_the_readme_is_that_of_the_values() -> None:
    said = "run `python tests/unit/chart/values_table.py`"
    assert values_table.shown() == values_table.table(), said


@pytest.mark.parametrize("path", sorted(KNOWN))
def test_every_value_is_in_the_schema(path: str) -> None:
    schema = SCHEMA
    for name in path.split("."):
        assert schema["additionalProperties"] is False, f"{path}: an unknown name would pass"
        schema = schema["properties"][name]
    assert schema.get("type") or schema.get("anyOf")


@pytest.mark.parametrize("path", sorted(KNOWN))
def test_every_value_is_used_by_a_template(path: str) -> None:
    templates = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    image = path.startswith("images.") and path.count(".") == 2
    assert f".Values.{path.rsplit('.', 1)[0] if image else path}" in templates


def test_the_schema_has_no_value_that_the_file_lacks() -> None:
    def names(schema: dict[str, Any], path: str = "") -> set[str]:
        if path in KNOWN or path == "global":
            return {path}
        found: set[str] = set()
        for name, inner in schema["properties"].items():
            found |= names(inner, f"{path}.{name}" if path else name)
        return found

    assert names(SCHEMA) - {"global"} == KNOWN


def test_sessions_may_compute_on_whatever_the_operator_knows() -> None:
    known = SCHEMA["properties"]["sessions"]["properties"]["device"]["enum"]
    assert set(known) == set(operator_config.DEVICES)


WRONG = [
    ("operators={}", "operators"),
    ("operator.replica=3", "replica"),
    ("operator.replicas=0", "operator/replicas"),
    ('operator.replicas="2"', "operator/replicas"),
    ('sessions.device="gpu"', "sessions/device"),
    ('sessions.storeUri="/var/store"', "sessions/storeUri"),
    ('sessions.storeUri="file://var/lib/sojourn/store"', "sessions/storeUri"),
    ('sessions.storeUri="file:///var/store"', "sessions/storeUri"),
    ('sessions.storeUri="gs://bucket/contexts"', "sessions/storeUri"),
    ('sessions.storeUri="s3://"', "sessions/storeUri"),
    ('devicePlugin.sliceBytes="1GB"', "devicePlugin/sliceBytes"),
    ('devicePlugin.kubeletDir="var/lib/kubelet"', "devicePlugin/kubeletDir"),
    ('devicePlugin.deviceListStrategy="envvar"', "devicePlugin/deviceListStrategy"),
    ('devicePlugin.tolerations=[{"operators":"Exists"}]', "devicePlugin/tolerations/0"),
    ('images.operator.digest="latest"', "images/operator/digest"),
    ('images.pullPolicy="Sometimes"', "images/pullPolicy"),
    ("networkPolicies.apiServerPorts=[]", "networkPolicies/apiServerPorts"),
    ("uninstall.timeoutSeconds=0", "uninstall/timeoutSeconds"),
    ('admission.enabled="yes"', "admission/enabled"),
]


@pytest.mark.parametrize(("setting", "place"), WRONG)
def test_a_wrong_value_is_refused_by_name(setting: str, place: str) -> None:
    said = refusal(setting)
    assert place in said.replace(".", "/")


CONTRADICTIONS = [
    ('devicePlugin.sliceBytes="255Mi"', "devicePlugin.sliceBytes: 255Mi is below 256Mi"),
    ("devicePlugin.sliceBytes=268435455", "is below 256Mi"),
    ('devicePlugin.sliceBytesByModel={"H200":"64Mi"}', "sliceBytesByModel.H200: 64Mi is below"),
    ("devicePlugin.processNames=true", "set devicePlugin.hostProc=true too"),
    ('sessions.priorityClass.name=""', "set sessions.priorityClass.create=false"),
    ('sessions.extraVolumeMounts=[{"name":"a","mountPath":"/a"}]', "sessions.extraVolumes"),
    ('devicePlugin.extraVolumeMounts=[{"name":"a","mountPath":"/a"}]', "devicePlugin.extraVolumes"),
    ("gateway.mostHeld=1025", "1025 requests cannot wait where gateway.mostOpen lets 1024 in"),
    ("gateway.mostHeldPerSession=257", "gateway.mostHeld lets 256 of all wait"),
]


@pytest.mark.parametrize(("setting", "sentence"), CONTRADICTIONS)
def test_values_that_contradict_each_other_are_refused_with_a_remedy(
    setting: str, sentence: str
) -> None:
    assert sentence in refusal(setting)


EDGES = [
    ('devicePlugin.sliceBytes="256Mi"',),
    ("devicePlugin.sliceBytes=268435456",),
    ("devicePlugin.processNames=true", "devicePlugin.hostProc=true"),
    ("sessions.priorityClass.create=false", 'sessions.priorityClass.name=""'),
    ('sessions.storeUri="s3://bucket"',),
    ('sessions.storeUri="file:///var/lib/sojourn/store/prod"',),
    ("gateway.mostHeld=1024", "gateway.mostHeldPerSession=1024"),
]


@pytest.mark.parametrize("settings", EDGES)
def test_values_at_the_edge_of_what_is_refused_are_taken(settings: tuple[str, ...]) -> None:
    assert render(*settings)


def test_a_size_in_bytes_reaches_the_device_plugin_as_it_is(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("devicePlugin: {sliceBytes: 1073741824, reservedBytes: 536870912}")
    rendered = render(values=values)
    data = yaml.safe_load(
        rendered["ConfigMap", "sojourn-deviceplugin"]["data"]["deviceplugin.yaml"]
    )
    config = plugin_config.parse(data)
    assert (config.slice_bytes, config.reserved_bytes) == (1 << 30, 1 << 29)


def test_the_crds_of_the_chart_are_those_of_the_api() -> None:
    api = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    chart = {path.name: path.read_text() for path in (CHART / "crds").iterdir()}
    assert chart == api, "run `cp crds/*.yaml charts/sojourn/crds/`"


def test_chart_and_project_have_the_same_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["version"]}"\n' in project
    assert chart["appVersion"] == chart["version"]
