"""The operator's roles hold the verbs that its code uses, and no more.

The code is read, not run: each call of `act.api.Api` that names its kind is a right that it needs.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from helmchart import ROOT, Rendered, render
from sojourn_operator import kinds
from sojourn_operator.commands import crds
from sojourn_operator.kinds import Kind

SOURCES = ROOT / "operator" / "sojourn_operator"
KINDS = {name: value for name, value in vars(kinds).items() if isinstance(value, Kind)}
VERBS = {
    "get": "get",
    "list": "list",
    "scan": "list",
    "create": "create",
    "replace": "update",
    "apply": "patch",
    "patch": "patch",
    "set_finalizers": "patch",
    "delete": "delete",
}
Right = tuple[str, str, str]
"""API group, resource, verb."""

# Calls whose kind is a variable, and what libraries do: each with its reason.
ELSEWHERE: dict[Right, str] = {
    ("sojourn.dev", "llmmodels/status", "patch"): "upkeep writes both by one function",
    ("sojourn.dev", "tenants/status", "patch"): "upkeep writes both by one function",
    ("sojourn.dev", "gpunodes/status", "patch"): "upkeep writes it by the same",
    ("sojourn.dev", "llmsessions/finalizers", "update"): "blockOwnerDeletion in owner references",
    ("apiextensions.k8s.io", "customresourcedefinitions", "list"): "kopf",
    ("apiextensions.k8s.io", "customresourcedefinitions", "watch"): "kopf",
}


def calls(path: Path) -> Iterator[Right]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in VERBS or not node.args or not isinstance(node.args[0], ast.Name):
            continue
        kind = KINDS.get(node.args[0].id)
        if kind is not None:
            yield kind.group, kind.plural + subresource(node), VERBS[node.func.attr]


def subresource(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "subresource":
            return f"/{ast.literal_eval(keyword.value)}"
    return ""


def watched() -> Iterator[Right]:
    """kopf watches, and a relist reads, what the cache has a table for."""
    text = (SOURCES / "seen" / "cache.py").read_text()
    for name, kind in KINDS.items():
        if f"kinds.{name}," in text:
            yield kind.group, kind.plural, "list"
            yield kind.group, kind.plural, "watch"


def needed() -> set[Right]:
    found = {right for path in SOURCES.rglob("*.py") for right in calls(path)}
    return found | set(watched()) | set(ELSEWHERE)


def granted(rendered: Rendered) -> set[Right]:
    rules = [
        *rendered["ClusterRole", "sojourn-operator"]["rules"],
        *rendered["Role", "sojourn-operator"]["rules"],
    ]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(scope="module")
def plain() -> Rendered:
    return render()


def test_the_code_is_understood() -> None:
    """Else both sets below could be empty and equal."""
    assert ("", "pods", "create") in needed()
    assert ("sojourn.dev", "llmsessions/status", "patch") in needed()
    assert ("coordination.k8s.io", "leases", "update") in needed()
    assert ("", "pods", "watch") in needed()


def test_the_operator_has_every_right_that_it_uses(plain: Rendered) -> None:
    assert needed() - granted(plain) == set()


def test_the_operator_has_no_right_that_it_does_not_use(plain: Rendered) -> None:
    assert granted(plain) - needed() == set()


def test_the_crds_job_has_what_apply_crds_uses(plain: Rendered) -> None:
    (rule,) = plain["ClusterRole", "sojourn-crds"]["rules"]
    assert rule["apiGroups"] == [crds.CRDS.group]
    assert rule["resources"] == [crds.CRDS.plural]
    assert set(rule["verbs"]) == {"get", "create", "patch"}
