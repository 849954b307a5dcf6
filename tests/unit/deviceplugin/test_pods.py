"""What an annotated pod may claim."""

import json
from typing import Any

import pytest
from sojourn_api import names
from sojourn_deviceplugin.ledger import UNKNOWN, Grant
from sojourn_deviceplugin.pods import session_pod, tier_of


def raw() -> dict[str, Any]:
    gpus = [{"ordinal": 1, "uuid": "GPU-1", "slices": 2, "share": 300}]
    return {
        "metadata": {
            "namespace": "ns",
            "name": "s-1",
            "ownerReferences": [
                {"apiVersion": "sojourn.dev/v1alpha1", "kind": "LLMSession", "controller": True}
            ],
            "annotations": {
                names.ANNOTATION_TIER: "gold",
                names.ANNOTATION_PRIORITY: "2500",
                names.ANNOTATION_GPUS: json.dumps(gpus),
            },
        }
    }


def grant(*, ordinal: int = 1, slices: int = 2) -> Grant:
    devices = frozenset(f"d-{n}" for n in range(slices))
    return Grant(ordinal=ordinal, devices=devices, slot="1", made_ns=0)


def test_a_grant_gets_the_priority_and_share_of_its_gpu() -> None:
    tier = tier_of(grant(), session_pod(raw()), slice_bytes=1024)
    assert (tier.priority, tier.share, tier.bytes) == (2500, 300, 2048)


def test_a_grant_gets_the_time_slice_of_its_tier() -> None:
    pod = raw()
    pod["metadata"]["annotations"][names.ANNOTATION_TIME_SLICE] = "20"
    assert tier_of(grant(), session_pod(pod), slice_bytes=1024).time_slice_ns == 20_000_000


def test_a_pod_of_an_older_operator_has_the_usual_time_slice() -> None:
    assert tier_of(grant(), session_pod(raw()), slice_bytes=1024).time_slice_ns == 50_000_000


@pytest.mark.parametrize("other", [grant(ordinal=0), grant(slices=3)])
def test_a_grant_that_the_operator_did_not_count_stays_lowest(other: Grant) -> None:
    assert tier_of(other, session_pod(raw()), slice_bytes=1024) == UNKNOWN


def test_without_a_pod_a_grant_stays_lowest() -> None:
    assert tier_of(grant(), None, slice_bytes=1024) == UNKNOWN


@pytest.mark.parametrize(
    "spoil",
    [
        lambda meta: meta["ownerReferences"][0].update(kind="Job"),
        lambda meta: meta["ownerReferences"][0].update(apiVersion="evil.dev/v1"),
        lambda meta: meta["ownerReferences"][0].update(controller=False),
        lambda meta: meta["annotations"].update({names.ANNOTATION_PRIORITY: "high"}),
        lambda meta: meta["annotations"].update({names.ANNOTATION_TIME_SLICE: "short"}),
        lambda meta: meta["annotations"].update({names.ANNOTATION_GPUS: "[{}]"}),
        lambda meta: meta["annotations"].update({names.ANNOTATION_GPUS: "nonsense"}),
        lambda meta: meta.pop("annotations"),
        lambda meta: meta.pop("ownerReferences"),
    ],
)
def test_a_pod_that_is_not_the_operators_is_none(spoil: Any) -> None:
    pod = raw()
    spoil(pod["metadata"])
    assert session_pod(pod) is None
