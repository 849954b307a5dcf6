"""The tiers of a tenant stand on its namespaces, against a real API server."""

from collections.abc import Iterator

import pytest
from kubernetes.client import CoreV1Api
from kubernetes.client.api_client import ApiClient
from sojourn_api.names import ANNOTATION_TIERS
from sojourn_api.objects import ObjectMeta, Tenant
from sojourn_operator.act.api import Api
from sojourn_operator.namespaces import LOOK_SECONDS, TierMarks

NAMES = ("marked-a", "marked-b")


def tenant(name: str, *namespaces: str, tiers: tuple[str, ...] = ("gold", "silver")) -> Tenant:
    meta = ObjectMeta(name=name, namespace="", uid=name, generation=1, created="2026-01-01")
    return Tenant(meta, namespaces=namespaces, tiers=tiers)


@pytest.fixture
def core(api: ApiClient) -> Iterator[CoreV1Api]:
    found = CoreV1Api(api)
    for name in NAMES:
        found.create_namespace({"metadata": {"name": name, "annotations": {"note": "mine"}}})
    yield found
    for name in NAMES:
        found.delete_namespace(name)
        found.replace_namespace_finalize(
            name, {"metadata": {"name": name}, "spec": {"finalizers": []}}
        )


def marks(core: CoreV1Api) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in NAMES:
        annotations = core.read_namespace(name).metadata.annotations
        assert annotations["note"] == "mine"
        if ANNOTATION_TIERS in annotations:
            found[name] = annotations[ANNOTATION_TIERS]
    return found


def test_the_namespaces_of_a_tenant_are_marked_with_its_tiers(
    core: CoreV1Api, api: ApiClient
) -> None:
    TierMarks(Api(api)).write([tenant("lab", "marked-a")], now=0)
    assert marks(core) == {"marked-a": "gold,silver"}


def test_a_namespace_that_leaves_its_tenant_may_use_every_tier_again(
    core: CoreV1Api, api: ApiClient
) -> None:
    found = TierMarks(Api(api))
    found.write([tenant("lab", "marked-a", "marked-b")], now=0)
    found.write([tenant("lab", "marked-b", tiers=("bronze",))], now=1)
    assert marks(core) == {"marked-b": "bronze"}


def test_a_mark_of_a_tenant_that_is_gone_is_removed_by_a_new_operator(
    core: CoreV1Api, api: ApiClient
) -> None:
    TierMarks(Api(api)).write([tenant("lab", "marked-a")], now=0)
    TierMarks(Api(api)).write([], now=1)
    assert marks(core) == {}


def test_a_mark_that_somebody_removed_comes_back_in_time(core: CoreV1Api, api: ApiClient) -> None:
    found = TierMarks(Api(api))
    found.write([tenant("lab", "marked-a")], now=0)
    core.patch_namespace("marked-a", {"metadata": {"annotations": {ANNOTATION_TIERS: None}}})
    found.write([tenant("lab", "marked-a")], now=LOOK_SECONDS - 1)
    assert marks(core) == {}, "namespaces are not listed in every pass"
    found.write([tenant("lab", "marked-a")], now=LOOK_SECONDS + 1)
    assert marks(core) == {"marked-a": "gold,silver"}


def test_of_two_tenants_that_claim_a_namespace_the_first_has_it(
    core: CoreV1Api, api: ApiClient
) -> None:
    claims = [tenant("b", "marked-a", tiers=("bronze",)), tenant("a", "marked-a")]
    TierMarks(Api(api)).write(claims, now=0)
    assert marks(core) == {"marked-a": "gold,silver"}
