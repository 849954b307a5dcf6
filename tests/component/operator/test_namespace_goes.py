"""`kubectl delete namespace` with a session that serves: nothing can be created there any more.

The API server alone has no controller of namespaces; the test deletes what that one would.
"""

from operatorrig import NAMESPACE, Rig, wait_until


def test_a_session_goes_with_its_namespace(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", snapshot={"policy": "Retain"})
    rig.create("brief")
    for name in ("chat", "brief"):
        rig.until_ready(name)
    pods = [pod for name in ("chat", "brief") for pod in rig.pods(name)]
    rig.core.delete_namespace(NAMESPACE)
    for pod in pods:
        rig.core.delete_namespaced_pod(pod, NAMESPACE)
    for name in ("chat", "brief"):
        rig.delete(name)
    wait_until(lambda: not (rig.session("chat") or rig.session("brief")), what="both are gone")
    assert rig.pods("chat") == rig.pods("brief") == []
