"""Values: each is documented, known to the schema, and used; nothing else is accepted."""

import json
from typing import Any

import pytest
import values_table
import yaml
from helmchart import CHART, ROOT, refusal

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


WRONG = [
    ("operators={}", "operators"),
    ("operator.replica=3", "replica"),
    ("operator.replicas=0", "operator/replicas"),
    ('operator.replicas="2"', "operator/replicas"),
    ('sessions.device="gpu"', "sessions/device"),
    ('sessions.storeUri="/var/store"', "sessions/storeUri"),
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


def test_the_crds_of_the_chart_are_those_of_the_api() -> None:
    api = {path.name: path.read_text() for path in (ROOT / "crds").glob("*.yaml")}
    chart = {path.name: path.read_text() for path in (CHART / "crds").iterdir()}
    assert chart == api, "run `cp crds/*.yaml charts/sojourn/crds/`"


def test_chart_and_project_have_the_same_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["version"]}"\n' in project
    assert chart["appVersion"] == chart["version"]
