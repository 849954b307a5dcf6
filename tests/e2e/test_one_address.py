"""Through the chart's gateway a client sees one unbroken stream, over a pause and the way back.

On the same cluster as the story: a Silver session writes a response and a chat at once, is paused
for Gold, and comes back when Gold has gone. The local cluster has no DNS: `hostAliases` stand in.
"""

import json
import re
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import conversation
import openai
import pytest
from control import control_runtime
from conversation import Reading
from kube import CommandFailedError
from places import Place
from steps import API_KEY, MODEL, NAMESPACE, SYSTEM, Steps, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS: Final = 400
SEED: Final = 11
QUESTION: Final = "Tell me a long story about a dog who lives on a ship."
SESSION: Final = "fronted-1"
GOLD: Final = "fronted-gold"
NAME: Final = "sojourn-gateway"


@dataclass(slots=True)
class Heard:
    """What one client has of two streams so far."""

    response: Reading = field(default_factory=Reading)
    chat: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, int]:
        return len(self.response.deltas), len(self.chat)

    def listen(self, base: str, model: str) -> None:
        """Both at once, to their ends."""
        with conversation.client_of(base, API_KEY) as client, ThreadPoolExecutor(2) as pool:
            one = pool.submit(
                conversation.listen, client, model, self.response, tokens=TOKENS, seed=SEED
            )
            parts = conversation.chat_parts(client, model, QUESTION, tokens=TOKENS, seed=SEED)
            self.chat.extend(parts)
            one.result()


@dataclass(frozen=True, slots=True)
class Told:
    """What a client heard through the gateway, and of a process that was never paused."""

    base: str
    heard: Heard
    before: tuple[int, int]
    """Tokens that it had when its session was paused."""
    after: dict[str, Any]
    """The session when the streams had ended."""
    control: Heard


@pytest.fixture(scope="module")
def door(place: Place) -> Iterator[str]:
    """The gateway's base URL, in front of one Silver session on the H100."""
    steps = Steps(place.kube)
    steps.install(values=place.values)
    place.prepare_namespace(NAMESPACE)
    steps.clear()
    steps.apply_examples()
    steps.apply_session(SESSION, "silver", gpu_model="H100")
    steps.wait_ready(SESSION)
    service = place.kube.get("service", SESSION, namespace=NAMESPACE)["spec"]["clusterIP"]
    names = [{"ip": service, "hostnames": [f"{SESSION}.{NAMESPACE}.svc"]}]
    on = {"gateway.enabled": True, "gateway.hostAliases": names}
    steps.install(values=place.values, settings=on)
    # Until those of before a restart are gone: a stream through one of them would break.
    place.kube.wait("two gateways alone", lambda: pods(place), lambda found: len(found) == 2)
    with place.kube.port_forward(NAME, namespace=SYSTEM, port=80) as base:
        yield base
    for name in (GOLD, SESSION):
        steps.delete(name)
    steps.install(values=place.values)


@pytest.fixture(scope="module")
def told(place: Place, door: str) -> Told:
    steps, heard = Steps(place.kube), Heard()
    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(heard.listen, door, f"{NAMESPACE}/{SESSION}")
        place.kube.wait("both begun", lambda: heard.tokens, lambda seen: min(seen) >= 40)
        steps.apply_session(GOLD, "gold")
        steps.wait_paused(SESSION)
        before = heard.tokens
        steps.wait_ready(GOLD)
        steps.delete(GOLD)
        listening.result(180)
    after = steps.read(SESSION)
    with (
        tempfile.TemporaryDirectory() as folder,
        control_runtime(place.weights, Path(folder), model_name=MODEL) as base,
    ):
        control = Heard()
        control.listen(base, MODEL)
    return Told(door, heard, before, after, control)


def pods(place: Place) -> list[dict[str, Any]]:
    return place.kube.items("pods", "-n", SYSTEM, "-l", f"app.kubernetes.io/name={NAME}")


def metric(base: str, name: str) -> float:
    with urllib.request.urlopen(f"{base}/metrics") as answer:  # noqa: S310 - our own address
        found = re.findall(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[0]) if found else 0.0


def test_the_pause_came_in_the_middle_of_both_streams(told: Told) -> None:
    assert all(40 <= some < TOKENS for some in told.before)
    assert told.after["status"]["epoch"] > 1
    assert metric(told.base, 'sojourn_gateway_splices_total{outcome="spliced"}') == 2


def test_a_response_is_one_stream_with_the_text_of_a_run_never_paused(told: Told) -> None:
    assert told.heard.response.deltas == told.control.response.deltas
    assert told.heard.response.numbers == list(range(len(told.control.response.numbers)))
    assert told.heard.response.status == told.control.response.status


def test_a_chat_is_one_stream_with_the_text_of_a_run_never_paused(told: Told) -> None:
    assert told.heard.chat == told.control.chat


def test_the_session_judges_the_key(told: Told, place: Place) -> None:
    with (
        conversation.client_of(told.base, "a-wrong-key") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.responses.create(model=f"{NAMESPACE}/{SESSION}", input="Hello.")
    told_logs = place.kube.kubectl("-n", SYSTEM, "logs", f"deployment/{NAME}", "--all-pods")
    assert "listening on port" in told_logs
    assert API_KEY not in told_logs
    assert "a-wrong-key" not in told_logs


def test_its_pods_run_without_rights_on_a_root_that_is_read_only(told: Told, place: Place) -> None:
    assert condition(told.after, "Ready") == "True"
    within = ("-n", SYSTEM, "exec", f"deployment/{NAME}", "--")
    assert place.kube.kubectl(*within, "id", "-u") == "65532\n"
    with pytest.raises(CommandFailedError, match="Read-only file system"):
        place.kube.kubectl(*within, "touch", "/usr/x")
    with pytest.raises(CommandFailedError, match="Read-only file system"):
        place.kube.kubectl(*within, "touch", "/tmp/x")


def test_its_pods_pass_the_restricted_level_and_not_all_do(told: Told, place: Place) -> None:
    assert condition(told.after, "Ready") == "True"
    place.kube.kubectl("create", "namespace", "strict")
    place.kube.kubectl("label", "ns", "strict", "pod-security.kubernetes.io/warn=restricted")
    dry = ("apply", "--dry-run=server", "--warnings-as-errors", "-f", "-")
    try:
        place.kube.kubectl(*dry, stdin=moved(place, "deployment", NAME))
        with pytest.raises(CommandFailedError, match="warning"):
            place.kube.kubectl(*dry, stdin=moved(place, "daemonset", "sojourn-deviceplugin"))
    finally:
        place.kube.kubectl("delete", "namespace", "strict")


def moved(place: Place, kind: str, name: str) -> str:
    """The same workload in the namespace `strict`."""
    found = place.kube.get(kind, name, namespace=SYSTEM)
    kept = {key: found[key] for key in ("apiVersion", "kind", "spec")}
    return json.dumps(kept | {"metadata": {"name": name, "namespace": "strict"}})
