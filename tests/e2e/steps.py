"""The steps of the story: what a user does on a real Kubernetes, and what a user waits for.

Their order, and what is told about them, belongs to `story`; what must be true, to `test_story`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import conversation
import openai
import yaml
from conversation import Reading
from kube import Kube
from sojourn_api import names

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NAMESPACE = "sojourn-demo"
"""Of the story alone, which deletes all sessions there before it begins."""
MODEL = "smollm2-135m"
API_KEY = "demo-key"
PORT = 8000
SYSTEM = "sojourn-system"


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps on one cluster."""

    kube: Kube

    # --- what a user applies -------------------------------------------------------------------

    def install(self, *, values: Path, settings: Mapping[str, Any] | None = None) -> None:
        """`helm install`, waiting until what it installs is up; `settings` come over `values`."""
        extra = [f"--set-json={path}={json.dumps(v)}" for path, v in (settings or {}).items()]
        told = self.kube.helm(
            *("upgrade", "--install", "sojourn", str(ROOT / "charts" / "sojourn")),
            *("--namespace", SYSTEM, "--create-namespace", "--values", str(values)),
            *("--wait", "--timeout", "180s"),
            *extra,
        )
        if "REVISION: 1\n" not in told:
            self._take_new_images()
        self.kube.wait(
            "GPUNodes are reported Ready",
            lambda: self.kube.items("gpunodes"),
            lambda nodes: nodes and all(condition(node, "Ready") == "True" for node in nodes),
        )

    def clear(self) -> None:
        """Remove what an earlier telling has left on this cluster."""
        self.kube.kubectl("-n", NAMESPACE, "delete", "llms", "--all", "--timeout=120s")
        self.kube.kubectl("-n", NAMESPACE, "delete", "events", "--all")

    def apply_examples(self) -> str:
        """The model and the sessions' API key, as in examples/."""
        key = yaml.safe_load((EXAMPLES / "api-key.yaml").read_text())
        key["metadata"]["namespace"] = NAMESPACE
        key["stringData"] = dict.fromkeys(key["stringData"], API_KEY)
        return self.kube.apply((EXAMPLES / "model-smollm2.yaml").read_text()) + self.kube.apply(
            yaml.safe_dump(key)
        )

    def _take_new_images(self) -> None:
        """Built again under the same tag, which no Deployment notices."""
        for what in ("deployment", "daemonset"):
            self.kube.kubectl("-n", SYSTEM, "rollout", "restart", what)
        for what in ("deployment", "daemonset"):
            self.kube.kubectl("-n", SYSTEM, "rollout", "status", what, "--timeout=120s")

    def session(self, name: str, tier: str, *, gpu_model: str = "") -> str:
        """The manifest of a session, as in examples/; with a wish for a GPU model if given."""
        manifest = yaml.safe_load((EXAMPLES / f"{tier}-session.yaml").read_text())
        manifest["metadata"] = {"name": name, "namespace": NAMESPACE}
        if gpu_model:
            manifest["spec"]["placement"] = {"gpuModels": [gpu_model]}
        return yaml.safe_dump(manifest, sort_keys=False)

    def apply_session(self, name: str, tier: str, *, gpu_model: str = "") -> None:
        """Apply one session; it need not find a place."""
        self.kube.apply(self.session(name, tier, gpu_model=gpu_model))

    def suspend(self, name: str, *, wanted: bool) -> None:
        """Pause by hand, or end that."""
        patch = f'{{"spec":{{"suspend":{str(wanted).lower()}}}}}'
        self.kube.kubectl("-n", NAMESPACE, "patch", "llms", name, "--type=merge", "-p", patch)

    def delete(self, name: str) -> None:
        """Delete a session and wait until it is gone."""
        self.kube.kubectl(
            "-n", NAMESPACE, "delete", "llms", name, "--ignore-not-found", "--timeout=90s"
        )

    # --- what a user sees ----------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any]:
        """The LLMSession."""
        return self.kube.get("llms", name, namespace=NAMESPACE)

    def wait_ready(
        self, name: str, *, seconds: float = 120, after_epoch: int = 0
    ) -> dict[str, Any]:
        """Until the session answers requests (in an epoch beyond `after_epoch`)."""
        return self.wait_for(
            f"{name} is Ready",
            name,
            lambda s: condition(s, "Ready") == "True" and s["status"]["epoch"] > after_epoch,
            seconds=seconds,
        )

    def wait_paused(self, name: str, *, seconds: float = 90) -> dict[str, Any]:
        """Until the session is paused and its context is saved."""
        return self.wait_for(
            f"{name} is paused with its context saved",
            name,
            lambda s: condition(s, "Paused") == "True" and condition(s, "ContextSaved") == "True",
            seconds=seconds,
        )

    def wait_no_pod(self, name: str) -> None:
        """Until no pod of the session is left, and so its GPU is free."""
        self.kube.wait(f"no pod of {name} is left", lambda: self.pods(name), lambda pods: not pods)

    def pods(self, name: str) -> list[dict[str, Any]]:
        """All pods of the session, those that have ended as well."""
        selector = f"{names.LABEL_SESSION}={name}"
        return self.kube.items("pods", "-n", NAMESPACE, "-l", selector)

    def wait_for(
        self, what: str, name: str, until: Callable[[dict[str, Any]], bool], *, seconds: float
    ) -> dict[str, Any]:
        """Until `until` holds of the session."""
        return self.kube.wait_for(what, "llms", name, until, namespace=NAMESPACE, seconds=seconds)

    def events_of(self, name: str) -> list[dict[str, Any]]:
        """The events about one session, oldest first."""
        found = self.kube.items(
            *("events", "-n", NAMESPACE, "--field-selector"),
            f"involvedObject.kind=LLMSession,involvedObject.name={name}",
        )
        return sorted(found, key=lambda e: str(e.get("firstTimestamp") or e.get("eventTime")))

    # --- what a client does --------------------------------------------------------------------

    def chat(self, name: str, question: str) -> str:
        """One streamed chat turn with a session."""
        with self._client(name) as client:
            return conversation.chat(client, MODEL, question)

    def begin_together(
        self,
        name: str,
        *,
        tokens: int,
        seeds: Sequence[int | None],
        read: int,
        model: str = MODEL,
    ) -> tuple[Reading, ...]:
        """Start background responses at the same time, and read the first `read` tokens of each."""
        with (
            self._client(name) as client,
            ThreadPoolExecutor(len(seeds)) as pool,
        ):
            begin = partial(conversation.begin, client, model, tokens=tokens, read=read)
            return tuple(pool.map(lambda seed: begin(seed=seed), seeds))

    def go_on(self, name: str, reading: Reading, *, read: int | None = None) -> None:
        """Attach again to a response where the client left it."""
        with self._client(name) as client:
            conversation.go_on(client, reading, read=read)

    @contextmanager
    def _client(self, name: str) -> Iterator[openai.OpenAI]:
        with (
            self.kube.port_forward(name, namespace=NAMESPACE, port=PORT) as base,
            conversation.client_of(base, API_KEY) as client,
        ):
            yield client


def condition(thing: dict[str, Any], kind: str) -> str:
    """The status of one condition; empty where there is none."""
    found = condition_of(thing, kind)
    return str(found.get("status", ""))


def condition_of(thing: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition whole; empty where there is none."""
    conditions = thing.get("status", {}).get("conditions", [])
    return next((dict(c) for c in conditions if c["type"] == kind), {})
