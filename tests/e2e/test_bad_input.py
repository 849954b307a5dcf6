"""What is wrong with a model, a store or a saved context is said once, with its remedy.

Each case is a session of its own; all of them are applied at once, after the story, on its cluster.
A full store needs a file system of its own: the runtime's component tests play it.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from conversation import Reading
from kube import CommandFailedError
from localcluster.node import SHARED_STORE
from places import Place
from sojourn_api import names
from steps import EXAMPLES, MODEL, NAMESPACE, Steps, condition, condition_of
from story import Facts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TOKENS: Final = 400
SMALL: Final[dict[str, Any]] = {"resources": {"share": 100}}
RETAIN: Final[dict[str, Any]] = {"snapshot": {"policy": "Retain"}}
FOLDER: Final = SHARED_STORE / NAMESPACE
CACHE: Final = FOLDER / ".cache"
"""What session pods see as their weights cache: the one folder of theirs that we can write."""
MISSING: Final = f"file://{names.MODELS_MOUNT}/none.gguf"
TENANT: Final = "frugal"
MOVING: Final = "bad-moving"
MODELS: Final[dict[str, dict[str, Any]]] = {
    "bad-missing": {"uri": MISSING},
    "bad-cut": {"uri": f"file://{names.CACHE_MOUNT}/cut.gguf"},
    "bad-digest": {"digest": f"sha256:{'0' * 64}"},
    "bad-table": {"uri": f"file://{names.CACHE_MOUNT}/table.csv"},
    "bad-numbers": {"kvBytesPerToken": 2304},
    MOVING: {},
}

KEPT: Final = "kept"
DAMAGED: Final = "damaged"
SPOILT: Final = "spoilt"
FORBIDDEN: Final = "forbidden"
UNWRITABLE: Final = "unwritable"

WRONG: Final = {
    "missing": ("ModelNotFound", "none.gguf", "correct LLMModel.spec.uri"),
    "cut": ("WeightsTruncated", "cut.gguf", "fetch the file again"),
    "digest": ("WeightsDigestMismatch", f"sha256:{'0' * 64}", "correct LLMModel.spec.digest"),
    "table": ("UnknownWeightsFormat", "table.csv", "weights are a GGUF file, or a Hugging Face"),
    "numbers": ("ModelMismatch", "spec.kvBytesPerToken is 2304 and theirs 23040", "correct it to"),
    "long": (
        "ContextTooLong",
        "spec.contextLength is 16384",
        "lower spec.contextLength to at most 8192",
    ),
    "nameless": ("UnknownModel", "LLMModel nobody", "create it"),
    FORBIDDEN: ("TierForbidden", f"tenant {TENANT} may not use tier gold", "it may use: silver"),
    UNWRITABLE: ("StoreUnwritable", "journal-", "check the store's mount and its owner"),
    SPOILT: ("SnapshotCorrupt", "none of", "restore the folder from a backup"),
    KEPT: ("ModelNotFound", "none.gguf", "correct LLMModel.spec.uri"),
}
"""By session: the reason of Ready=False, and what its message names as object and remedy."""
PAUSED_BEFORE: Final = (KEPT, SPOILT)
NEVER_STARTED: Final = ("nameless", "long", FORBIDDEN)

every_case = pytest.mark.parametrize("name", WRONG)


@dataclass(slots=True)
class Told:
    """Sessions, their events and their files, before and after what went wrong."""

    paused: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    files_after: dict[str, dict[str, str]] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    refusal: str = ""
    other: dict[str, Any] = field(default_factory=dict)
    files_after_other: dict[str, str] = field(default_factory=dict)
    back: dict[str, Any] = field(default_factory=dict)
    log: str = ""


@pytest.fixture(scope="module")
def told(place: Place, facts: Facts) -> Iterator[Told]:
    del facts
    steps = Steps(place.kube)
    steps.clear()
    found = Told()
    weights = set((CACHE / "weights").iterdir())
    try:
        _save_three(steps, found)
        _prepare(place)
        _apply_wrong(steps, found)
        _look(steps, found)
        _give_back(steps, found)
        yield found
    finally:
        _clear(steps, weights)


def _save_three(steps: Steps, found: Told) -> None:
    """Three sessions in the middle of the same answer, paused."""
    steps.kube.apply(_model(MOVING))
    for name in (KEPT, DAMAGED, SPOILT):
        steps.kube.apply(_session(steps, name, model=_model_of(name)))
    for name in (KEPT, DAMAGED, SPOILT):
        steps.wait_ready(name)
    for name in (KEPT, DAMAGED):
        (found.readings[name],) = steps.begin_together(
            name, tokens=TOKENS, seeds=(None,), read=40, model=_model_of(name)
        )
        steps.suspend(name, wanted=True)
    steps.suspend(SPOILT, wanted=True)
    for name in (KEPT, DAMAGED, SPOILT):
        found.paused[name] = steps.wait_paused(name)


def _prepare(place: Place) -> None:
    """Half a model, another model, a store that refuses, a spoilt context and a damaged one."""
    data = bytearray(place.weights.read_bytes())
    (CACHE / "table.csv").write_text("name,price\nbread,2\n")
    (CACHE / "cut.gguf").write_bytes(data[: len(data) // 2])
    data[-1] ^= 1
    (CACHE / "other.gguf").write_bytes(data)
    (FOLDER / UNWRITABLE).mkdir()
    (FOLDER / UNWRITABLE).chmod(0o555)
    for manifest in (FOLDER / SPOILT).glob("manifest-*"):
        _damage(manifest)
    for segment in (FOLDER / DAMAGED).glob("segment-*"):
        _damage(segment)


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(50, len(data), 4001):
        data[at] ^= 0xFF
    path.write_bytes(data)


def _apply_wrong(steps: Steps, found: Told) -> None:
    found.files = {name: _contents(name) for name in PAUSED_BEFORE}
    sessions = [
        _session(steps, "missing", model="bad-missing", **RETAIN),
        _session(steps, "cut", model="bad-cut", **RETAIN),
        _session(steps, "digest", model="bad-digest", **RETAIN),
        _session(steps, "table", model="bad-table", **RETAIN),
        _session(steps, "numbers", model="bad-numbers", **RETAIN),
        _session(steps, "long", contextLength=16384, **RETAIN),
        _session(steps, "nameless", model="nobody"),
        _session(steps, FORBIDDEN, tier="gold", suspend=True),
        _session(steps, UNWRITABLE, **RETAIN),
    ]
    models = [_model(name) for name in MODELS if name != MOVING]
    steps.kube.apply("---\n".join([*models, *sessions]))
    steps.kube.apply(_tenant())
    steps.kube.wait("the namespace is marked", lambda: _mark(steps), bool, seconds=30)
    _move(steps, MISSING)
    for name in (KEPT, DAMAGED, SPOILT, FORBIDDEN):
        steps.suspend(name, wanted=False)


def _look(steps: Steps, found: Told) -> None:
    for name, (reason, _, _) in WRONG.items():
        if name != UNWRITABLE:
            steps.wait_for(f"{name} says {reason}", name, _says(reason), seconds=90)
    # Its back-off is our clock: by its second failure, whatever loops would have looped.
    steps.wait_for(
        "a store that refuses is tried again",
        UNWRITABLE,
        lambda s: s["status"].get("failures", 0) >= 2 and _says("StoreUnwritable")(s),
        seconds=60,
    )
    for name in (UNWRITABLE, *WRONG):
        found.sessions.setdefault(name, steps.read(name))
        found.events.setdefault(name, steps.events_of(name))
    found.files_after = {name: _contents(name) for name in PAUSED_BEFORE}
    found.refusal = _refusal(steps)


def _says(reason: str) -> Callable[[dict[str, Any]], bool]:
    return lambda session: condition_of(session, "Ready").get("reason") == reason


def _refusal(steps: Steps) -> str:
    """What the API server says of one more session in the forbidden tier."""
    try:
        steps.kube.apply(_session(steps, "forbidden-too", tier="gold"))
    except CommandFailedError as error:
        return str(error)
    return ""


def _give_back(steps: Steps, found: Told) -> None:
    """The model is first another one, then what it was; the damaged session goes on meanwhile."""
    _move(steps, f"file://{names.CACHE_MOUNT}/other.gguf")
    refused = _says("SnapshotOfOtherModel")
    found.other = steps.wait_for("other weights are refused", KEPT, refused, seconds=90)
    found.files_after_other = _contents(KEPT)
    good = yaml.safe_load(_model(MOVING))["spec"]["uri"]
    _move(steps, good)
    found.back = steps.wait_ready(KEPT, after_epoch=found.other["status"]["epoch"])
    epoch = steps.wait_ready(DAMAGED)["status"]["epoch"]
    for name, reading in found.readings.items():
        steps.go_on(name, reading)
    found.log = steps.kube.kubectl("-n", NAMESPACE, "logs", names.pod_name(DAMAGED, epoch))


def _clear(steps: Steps, weights: set[Path]) -> None:
    if (FOLDER / UNWRITABLE).exists():
        (FOLDER / UNWRITABLE).chmod(0o777)
    steps.clear()
    steps.kube.kubectl("delete", "tenant", TENANT, "--ignore-not-found")
    steps.kube.kubectl("delete", "llmmodels", *MODELS, "--ignore-not-found")
    steps.kube.wait("the tenant's mark is gone", lambda: _mark(steps), lambda mark: not mark)
    for name in WRONG:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    for path in (CACHE / "cut.gguf", CACHE / "other.gguf", CACHE / "table.csv"):
        path.unlink(missing_ok=True)
    for path in set((CACHE / "weights").iterdir()) - weights:
        path.unlink()


def _session(steps: Steps, name: str, *, tier: str = "silver", **spec: Any) -> str:
    manifest = yaml.safe_load(steps.session(name, tier))
    manifest["spec"] |= SMALL | spec
    return yaml.safe_dump(manifest)


def _model_of(session: str) -> str:
    return MOVING if session == KEPT else MODEL


def _model(name: str) -> str:
    manifest = yaml.safe_load((EXAMPLES / "model-smollm2.yaml").read_text())
    manifest["metadata"]["name"] = name
    manifest["spec"] |= MODELS[name]
    return yaml.safe_dump(manifest)


def _tenant() -> str:
    spec = {"namespaces": [NAMESPACE], "tiers": ["silver"]}
    kind = {"apiVersion": names.API_VERSION, "kind": "Tenant", "metadata": {"name": TENANT}}
    return yaml.safe_dump(kind | {"spec": spec})


def _move(steps: Steps, uri: str) -> None:
    patch = json.dumps({"spec": {"uri": uri}})
    steps.kube.kubectl("patch", "llmmodel", MOVING, "--type=merge", "-p", patch)


def _mark(steps: Steps) -> str:
    annotations = steps.kube.get("namespace", NAMESPACE)["metadata"].get("annotations", {})
    return str(annotations.get(names.ANNOTATION_TIERS, ""))


def _contents(name: str) -> dict[str, str]:
    """The digest of each file of a session's saved context."""
    return {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in (FOLDER / name).iterdir()
        if path.is_file()
    }


@every_case
def test_the_ready_condition_has_the_reason_and_names_object_and_remedy(
    told: Told, name: str
) -> None:
    reason, what, remedy = WRONG[name]
    ready = condition_of(told.sessions[name], "Ready")
    assert (ready["status"], ready["reason"]) == ("False", reason)
    assert what in ready["message"]
    assert remedy in ready["message"]


@every_case
def test_one_event_tells_it(told: Told, name: str) -> None:
    (event,) = [e for e in told.events[name] if e["reason"] in {"Failed", "Rejected"}]
    assert event["type"] == "Warning"
    assert WRONG[name][0] in event["message"]
    assert event["count"] == max(told.sessions[name]["status"].get("failures", 0), 1)


@every_case
def test_nothing_loops(told: Told, name: str) -> None:
    """One start, and then peace; only what may pass by itself is tried again, after 5 and 10 s."""
    before = told.paused[name]["status"]["epoch"] if name in PAUSED_BEFORE else 0
    starts = told.sessions[name]["status"]["epoch"] - before
    if name == UNWRITABLE:
        assert 2 <= starts <= 4
    else:
        assert starts == (0 if name in NEVER_STARTED else 1)


@pytest.mark.parametrize("name", PAUSED_BEFORE)
def test_the_saved_context_is_untouched(told: Told, name: str) -> None:
    assert told.files[name]
    assert told.files_after[name] == told.files[name]
    assert told.sessions[name]["status"]["snapshot"] == told.paused[name]["status"]["snapshot"]


def test_a_tier_that_the_tenant_lacks_is_refused_at_the_door_afterwards(told: Told) -> None:
    assert "the tenant of this namespace may not use gold; use one of silver" in told.refusal


def test_the_context_of_another_model_is_refused_and_kept(told: Told) -> None:
    message = condition_of(told.other, "Ready")["message"]
    assert "give the session its model back, or another store" in message
    assert told.files_after_other == told.files[KEPT]


def test_the_context_goes_on_when_its_model_is_back(told: Told) -> None:
    assert condition(told.back, "Ready") == "True"
    assert told.back["status"]["exact"] is True
    assert told.readings[KEPT].status in {"completed", "incomplete"}


def test_damaged_blocks_are_computed_again_with_the_same_text(told: Told) -> None:
    assert "differs from its checksum" in told.log
    assert told.readings[DAMAGED].deltas == told.readings[KEPT].deltas
    assert told.readings[DAMAGED].numbers == told.readings[KEPT].numbers
