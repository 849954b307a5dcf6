"""The story of Sojourn, told once on a real Kubernetes: the order of steps and what is said.

`tell` prints it for the demo and returns what happened for the tests.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import conversation
from control import control_runtime
from conversation import Reading
from kube import NotInTimeError
from narrator import Narrator
from places import Place
from steps import MODEL, NAMESPACE, SYSTEM, Steps

TOKENS = 600
SEED = 7
SILVER = ("chat-1", "chat-2")
GOLD = "gold-1"


@dataclass(frozen=True, slots=True)
class Run:
    """A response that was paused and moved, and the same one from a process that never was."""

    seed: int | None
    reading: Reading
    control: Reading

    @property
    def identical(self) -> bool:
        """Whether both texts are the same, token for token."""
        return self.control.deltas == self.reading.deltas

    @property
    def once(self) -> bool:
        """Whether the client saw every event exactly once, over all attachments."""
        return self.reading.numbers == self.control.numbers

    def verdict(self) -> str:
        """One line for the reader."""
        name = "greedy" if self.seed is None else f"seed {self.seed}"
        return (
            f"{name:8} {len(self.reading.deltas)} tokens: "
            f"{'identical' if self.identical else 'DIFFERENT'}, "
            f"every sequence_number {'once' if self.once else 'NOT once'}"
        )


@dataclass(slots=True)
class Facts:
    """What happened: LLMSession objects as they were, events, texts, and seconds by step."""

    times: dict[str, float] = field(default_factory=dict)
    victim: str = ""
    readings: dict[int | None, Reading] = field(default_factory=dict)
    paused: dict[str, Any] = field(default_factory=dict)
    gold: dict[str, Any] = field(default_factory=dict)
    back: dict[str, Any] = field(default_factory=dict)
    moved: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    runs: tuple[Run, ...] = ()

    @property
    def other(self) -> str:
        """The Silver session that Gold did not pause."""
        return next(name for name in SILVER if name != self.victim)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Note how long a step took."""
        start = time.monotonic()
        yield
        self.times[what] = time.monotonic() - start


def tell(place: Place) -> Facts:
    """The whole story on one cluster."""
    tale, steps, facts = Narrator(place.kube), Steps(place.kube), Facts()
    _install(tale, steps, facts, place)
    _start_two_sessions(tale, steps, facts, place)
    _chat(tale, steps, facts)
    _gold_comes(tale, steps, facts)
    _room_appears_elsewhere(tale, steps, facts)
    _gold_goes(tale, steps)
    _drain(tale, steps, facts)
    _compare(tale, facts, place)
    return facts


def _install(tale: Narrator, steps: Steps, facts: Facts, place: Place) -> None:
    tale.begin("A Kubernetes with two GPU nodes of different kinds")
    tale.show("get", "nodes")
    tale.begin("Helm installs the CRDs, the operator and the device plugin")
    with facts.timed("helm install"):
        steps.install(values=place.values)
    tale.show("get", "pods", "-n", SYSTEM)
    tale.show("get", "gpunodes")
    tale.show("get", "qostiers")


def _start_two_sessions(tale: Narrator, steps: Steps, facts: Facts, place: Place) -> None:
    tale.begin("Two Silver sessions of a real model")
    place.prepare_namespace(NAMESPACE)
    steps.clear()
    tale.answer("kubectl apply -f examples/...", steps.apply_examples())
    with facts.timed("two Silver sessions Ready"):
        for name in SILVER:
            steps.apply_session(name, "silver")
            steps.wait_ready(name)
    tale.show("get", "llms", "-n", NAMESPACE)


def _chat(tale: Narrator, steps: Steps, facts: Facts) -> None:
    tale.begin("An OpenAI client chats, and starts long responses in the background")
    question = "What is the capital of Japan? One sentence."
    tale.say(f"user:      {question}")
    tale.say(f"assistant: {steps.chat(SILVER[0], question)}")
    facts.victim = _on_the_larger_gpu(steps)
    seeds = (None, SEED)
    begun = steps.begin_together(facts.victim, tokens=TOKENS, seeds=seeds, read=TOKENS // 2)
    facts.readings = dict(zip(seeds, begun, strict=True))
    tale.say(
        f"{facts.victim} writes two responses of {TOKENS} tokens, greedy and with seed {SEED};"
    )
    tale.say("the client has read half of each and goes away:")
    _show_ends(tale, facts)


def _gold_comes(tale: Narrator, steps: Steps, facts: Facts) -> None:
    tale.begin("A Gold session fits nowhere: a Silver one is paused for it")
    tale.say("Gold is promised a share of 2500, which an H100 alone has, and Silver runs there")
    with facts.timed("Gold applied to Gold Ready"):
        with facts.timed("Gold applied to Silver paused and saved"):
            steps.apply_session(GOLD, "gold")
            facts.paused = steps.wait_paused(facts.victim)
        with facts.timed("then until Silver's pod is gone"):
            steps.wait_no_pod(facts.victim)
        facts.gold = steps.wait_ready(GOLD)
    tale.show("get", "llms", "-n", NAMESPACE)
    tale.show("describe", "llms", facts.victim, "-n", NAMESPACE)
    tale.show("get", "sessionsnapshots", "-n", NAMESPACE)


def _room_appears_elsewhere(tale: Narrator, steps: Steps, facts: Facts) -> None:
    tale.begin("Room appears on the other node: the Silver comes back there")
    tale.say(f"the user of {facts.other} suspends it by hand (spec.suspend: true)")
    with facts.timed("room made on the other node to the paused one Ready there"):
        steps.suspend(facts.other, wanted=True)
        steps.wait_paused(facts.other)
        epoch = facts.paused["status"]["epoch"]
        facts.back = steps.wait_ready(facts.victim, after_epoch=epoch)
    tale.show("get", "llms", "-n", NAMESPACE)
    for reading in facts.readings.values():
        steps.go_on(facts.victim, reading, read=8)
    tale.say("the client attaches again (starting_after) and reads on where it had stopped:")
    _show_ends(tale, facts)


def _gold_goes(tale: Narrator, steps: Steps) -> None:
    tale.begin("Gold is deleted, and the suspended session is wanted again")
    steps.delete(GOLD)
    for name in SILVER:
        steps.suspend(name, wanted=False)
        steps.wait_ready(name)
    tale.show("get", "llms", "-n", NAMESPACE)


def _drain(tale: Narrator, steps: Steps, facts: Facts) -> None:
    tale.begin("A node is drained while a response runs on it")
    seed = SEED + 1
    tale.say(f"{facts.other} is deleted; {facts.victim} begins a third response, with seed {seed}")
    steps.delete(facts.other)
    (facts.readings[seed],) = steps.begin_together(
        facts.victim, tokens=TOKENS, seeds=(seed,), read=20
    )
    status = steps.read(facts.victim)["status"]
    with facts.timed("drain to Ready on the other node"):
        with facts.timed("kubectl drain"):
            tale.show("drain", status["node"], "--ignore-daemonsets", "--timeout=120s")
        facts.moved = steps.wait_ready(facts.victim, after_epoch=status["epoch"])
    tale.show("get", "llms", "-n", NAMESPACE)
    steps.kube.kubectl("uncordon", status["node"])
    about = f"involvedObject.kind=LLMSession,involvedObject.name={facts.victim}"
    tale.show("get", "events", "-n", NAMESPACE, "--field-selector", about)
    facts.events = steps.events_of(facts.victim)
    for reading in facts.readings.values():
        if reading.status == "in_progress":
            steps.go_on(facts.victim, reading)


def _compare(tale: Narrator, facts: Facts, place: Place) -> None:
    tale.begin("The same requests to a process that is never paused")
    with (
        tempfile.TemporaryDirectory() as folder,
        control_runtime(place.weights, Path(folder), model_name=MODEL) as base,
        conversation.client_of(base, "no key is set there") as client,
    ):
        for seed, reading in facts.readings.items():
            control = conversation.whole(client, MODEL, tokens=TOKENS, seed=seed)
            facts.runs += (Run(seed, reading, control),)
            tale.say(facts.runs[-1].verdict())


def _on_the_larger_gpu(steps: Steps) -> str:
    """The session that Gold will need to pause: 2.5 A100-equivalents fit the H100 only."""
    for name in SILVER:
        if "H100" in steps.read(name)["status"].get("gpu", ""):
            return name
    raise NotInTimeError("no session was placed on the H100")


def _show_ends(tale: Narrator, facts: Facts) -> None:
    for reading in facts.readings.values():
        tale.say(f"  ...{reading.text[-70:]!r}")
