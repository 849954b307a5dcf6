"""The end of an operator, and who goes on: what a rollout and a drain of its node wait for."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from kubernetes.client import V1Eviction, V1ObjectMeta
from operatorrig import NAMESPACE, Rig, wait_until
from sojourn_operator.leader import LEASE_SECONDS

ENDED_SECONDS = 5.0
"""A clean end takes under one; not giving the Lease back would cost LEASE_SECONDS."""


def test_a_drain_of_the_leaders_node_does_not_wait_for_its_lease(rig: Rig) -> None:
    """The pod of a session and the leader are evicted at the same moment."""
    rig.nodes.add_node("node-a")
    leader = rig.operate(identity="one")
    rig.create("chat")
    rig.until_ready("chat")
    rig.operate(identity="two").until_ready()
    rig.nodes.add_node("node-b")
    begun = time.monotonic()
    rig.core.patch_node("node-a", {"spec": {"unschedulable": True}})
    leader.process.send_signal(signal.SIGTERM)
    eviction = V1Eviction(metadata=V1ObjectMeta(name="chat-1", namespace=NAMESPACE))
    rig.core.create_namespaced_pod_eviction("chat-1", NAMESPACE, eviction)
    wait_until(lambda: "chat-1" not in rig.pods("chat"), what="the pod is gone, as a drain waits")
    assert leader.process.wait(timeout=ENDED_SECONDS) == 0
    assert time.monotonic() - begun < ENDED_SECONDS < LEASE_SECONDS
    status = rig.until_ready("chat", epoch=2)
    assert (status["node"], status["snapshot"]["tokens"]) == ("node-b", 100)


def test_an_operator_in_the_middle_of_a_flood_ends_soon_and_the_other_goes_on(rig: Rig) -> None:
    rig.nodes.add_node("node-a", gpus=8)
    leader = rig.operate(identity="one")
    leader.until_ready()
    other = rig.operate(identity="two")
    other.until_ready()
    keys = [f"chat-{number}" for number in range(24)]
    for key in keys:
        rig.create(key, resources={"slices": 2, "share": 5})
    wait_until(lambda: rig.status(keys[0]).get("placement"), what="the first is placed")
    begun = time.monotonic()
    leader.process.send_signal(signal.SIGTERM)
    assert leader.process.wait(timeout=ENDED_SECONDS) == 0
    assert time.monotonic() - begun < ENDED_SECONDS
    for key in keys:
        rig.until_ready(key)
    assert other.metric("sojourn_operator_leader") == 1
    assert [rig.pods(key) for key in keys] == [[f"{key}-1"] for key in keys]


def test_sigterm_during_its_imports_ends_it_though_it_is_process_one() -> None:
    """The kernel gives a container's first process no handlers: it would live out its grace."""
    command = [sys.executable, "-m", "sojourn_operator", "run"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE)
    wait_until(lambda: _catches(child.pid, signal.SIGTERM), what="it catches SIGTERM")
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=ENDED_SECONDS)
    assert (child.returncode, errors) == (0, b"")


def _catches(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)
