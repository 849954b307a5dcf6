"""The Containerfiles fit the project: what they copy is there, what they start is installed."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from helmchart import Rendered, pod_of, render

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPONENTS = ("operator", "deviceplugin", "runtime", "gateway")
FILES = {"gateway": "runtime/Containerfile.gateway"}


def lines(component: str) -> list[str]:
    text = (ROOT / FILES.get(component, f"{component}/Containerfile")).read_text()
    return text.replace("\\\n", " ").splitlines()


def instruction(component: str, name: str) -> str:
    """The argument of the last instruction of this name."""
    return [line for line in lines(component) if line.startswith(f"{name} ")][-1].split(" ", 1)[1]


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_copied_exists(component: str) -> None:
    for line in lines(component):
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            for source in sources:
                assert (ROOT / source).exists(), line


@pytest.mark.parametrize("component", COMPONENTS)
def test_all_that_the_wheel_is_made_of_is_copied(component: str) -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    copied = {line.split()[1] for line in lines(component) if line.startswith("COPY ")}
    for package in packages["targets"]["wheel"]["packages"]:
        assert package.split("/")[0] in copied


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_component_gets_its_libraries_and_its_command(component: str) -> None:
    text = "\n".join(lines(component))
    (extras,) = re.findall(r"\.whl\)\[([\w,]+)\]", text)
    assert component in extras.split(",")
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    (program,) = json.loads(instruction(component, "ENTRYPOINT"))
    assert program == f"sojourn-{component}"
    assert program in PROJECT["scripts"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_only_the_device_plugin_is_root(component: str) -> None:
    expected = "0:0" if component == "deviceplugin" else "65532:65532"
    assert instruction(component, "USER") == expected


@pytest.fixture(scope="module")
def plain() -> Rendered:
    return render("gateway.enabled=true")


@pytest.mark.parametrize(
    ("component", "kind"),
    [("operator", "Deployment"), ("deviceplugin", "DaemonSet"), ("gateway", "Deployment")],
)
def test_image_and_chart_agree_on_port_user_and_program(
    plain: Rendered, component: str, kind: str
) -> None:
    pod = pod_of(plain, kind, f"sojourn-{component}")
    (container,) = pod["containers"]
    assert str(container["ports"][0]["containerPort"]) == instruction(component, "EXPOSE")
    assert str(pod["securityContext"]["runAsUser"]) == instruction(component, "USER").split(":")[0]
    assert [container["command"][0]] == json.loads(instruction(component, "ENTRYPOINT"))
