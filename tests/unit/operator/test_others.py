"""What pods that are no session's take of a node leaves less for sessions."""

from typing import Any

from sojourn_operator.seen.others import Taken, taken


def pod(node: str, *containers: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "kube-system", "uid": "u"},
        "spec": {
            "nodeName": node,
            "containers": [requesting(cpu, memory) for cpu, memory in containers],
            **more,
        },
    }


def requesting(cpu: str, memory: str, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def test_requests_of_all_containers_add_up_by_node() -> None:
    found = taken(
        [pod("a", ("250m", "64Mi"), ("1", "1Gi")), pod("a", ("100m", "0")), pod("b", ("2", "1G"))]
    )
    assert found == {"a": Taken(1350, (64 << 20) + (1 << 30), 2), "b": Taken(2000, 10**9, 1)}


def test_an_init_container_counts_where_it_asks_for_more_than_the_others_together() -> None:
    big = pod("a", ("1", "0"), ("1", "0"), initContainers=[requesting("3", "0")])
    small = pod("b", ("1", "0"), ("1", "0"), initContainers=[requesting("1", "0")])
    beside = pod("c", ("1", "0"), initContainers=[requesting("1", "0", restartPolicy="Always")])
    found = taken([big, small, beside])
    assert [found[name].cpu_milli for name in "abc"] == [3000, 2000, 2000]


def test_overhead_counts_and_a_pod_without_requests_is_still_a_pod() -> None:
    found = taken([pod("a", overhead={"cpu": "50m"}), {"spec": {"nodeName": "b"}}])
    assert found == {"a": Taken(50, 0, 1), "b": Taken(0, 0, 1)}


def test_requests_that_cannot_be_read_do_not_hide_the_pod() -> None:
    assert taken([pod("a", ("much", "1"))]) == {"a": Taken(0, 0, 1)}
