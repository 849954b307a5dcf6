"""The page docs/api.md, made from the CRDs: each field, its bounds and its meaning.

Run as a program it writes the page; run as a test it compares it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "api.md"
ORDER = ("llmsessions", "llmmodels", "qostiers", "tenants", "gpunodes", "sessionsnapshots")
HEAD = """# The API

Group `sojourn.dev`, version `v1alpha1`; `kubectl explain llmsession.spec` tells the same.
This page is made from the CRDs by `python tests/unit/api/test_reference.py`; a test compares it.
Shares are thousandths of an A100-80GB; a field in **bold** is required.
"""
CONDITIONS = "conditions[]"
"""The same in each kind, so told once."""


def page() -> str:
    crds = [yaml.safe_load((ROOT / "crds" / f"{name}.yaml").read_text()) for name in ORDER]
    return "\n".join([HEAD, *(line for crd in crds for line in _kind(crd))])


def _kind(crd: dict[str, Any]) -> Iterator[str]:
    names = crd["spec"]["names"]
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    yield f"## {names['kind']}\n"
    yield f"{schema['description']}\n"
    scope = "namespaced" if crd["spec"]["scope"] == "Namespaced" else "cluster-wide"
    yield f"Short name `{names['shortNames'][0]}`, {scope}.\n"
    for part in ("spec", "status"):
        if part in schema["properties"]:
            yield f"| `{part}` | | |\n| --- | --- | --- |"
            yield from _rows(schema["properties"][part])
            yield ""
    rules = list(_rules(schema))
    if rules:
        yield "Refused with these words:\n"
        yield from (f"- {rule}" for rule in rules)
        yield ""


def _rows(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        full = f"{path}{name}"
        shown = f"**{full}**" if name in required else full
        yield f"| {shown} | {_limits(field)} | {field['description'].replace('|', '&#124;')} |"
        if field["type"] == "object":
            yield from _rows(field, f"{full}.")
        elif field["type"] == "array" and f"{name}[]" != CONDITIONS:
            yield from _rows(field["items"], f"{full}[].")


def _limits(field: dict[str, Any]) -> str:
    kind = field["type"]
    if "enum" in field:
        kind = ", ".join(f"`{value}`" for value in field["enum"])
    elif kind == "integer":
        kind = f"{field['minimum']} to {field['maximum']}"
    elif kind == "string":
        kind = f"text, at most {field['maxLength']}" if "maxLength" in field else field["format"]
    elif kind == "array":
        kind = f"list, at most {field['maxItems']}"
    elif "additionalProperties" in field:
        kind = f"map, at most {field['maxProperties']}"
    default = field.get("default")
    if default is None or isinstance(default, dict | list):
        return str(kind)
    shown = str(default).lower() if isinstance(default, bool) else default
    return f"{kind}; default `{shown}`"


def _rules(schema: dict[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule["message"]
    for inner in schema.get("properties", {}).values():
        yield from _rules(inner)
    if "items" in schema:
        yield from _rules(schema["items"])


def test_the_page_is_made_from_the_crds() -> None:
    said = "run `python tests/unit/api/test_reference.py`"
    assert PAGE.read_text() == page(), said


def test_the_page_has_every_kind_and_its_fields() -> None:
    made = page()
    for kind in ("LLMSession", "LLMModel", "QoSTier", "Tenant", "GPUNode", "SessionSnapshot"):
        assert f"\n## {kind}\n" in made
    assert "| **model** |" in made
    assert "| **template.env[].name** |" in made
    assert "- spec.tier cannot be changed" in made


if __name__ == "__main__":
    PAGE.write_text(page())
