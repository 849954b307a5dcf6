"""The operator with the rights that the chart grants, and no other."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helmchart import render
from operatorrig import Rig, wait_until

pytestmark = pytest.mark.cluster

KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Lease")


def service_account(rig: Rig) -> Path:
    """A kubeconfig of the chart's service account with the chart's roles."""
    kubectl = rig.control_plane.kubectl
    rendered = render()
    objects = [raw for (kind, name), raw in rendered.items() if _is_the_operators(kind, name)]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    token = kubectl("create", "token", "sojourn-operator", "-n", "sojourn-system").strip()
    admin: dict[str, Any] = yaml.safe_load(rig.control_plane.kubeconfig.read_text())
    admin["users"] = [{"name": user["name"], "user": {"token": token}} for user in admin["users"]]
    path = rig.folder / "kubeconfig"
    path.write_text(yaml.safe_dump(admin))
    return path


def _is_the_operators(kind: str, name: str) -> bool:
    return kind in KINDS and name == "sojourn-operator"


def test_a_whole_life_needs_no_right_that_the_chart_does_not_grant(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate(kubeconfig=service_account(rig))
    rig.create("silver", resources={"slices": 60, "share": 100})
    rig.until_ready("silver")
    rig.create("golden", tier="gold", resources={"slices": 60, "share": 100})
    rig.until_ready("golden")
    rig.until("silver", "Paused", "True", "PreemptedByGold")
    rig.delete("golden")
    rig.until_ready("silver", epoch=2)
    rig.delete("silver")
    wait_until(lambda: rig.session("silver") is None, what="silver is gone")
    assert "forbidden" not in (rig.folder / "operator.log").read_text().lower()
