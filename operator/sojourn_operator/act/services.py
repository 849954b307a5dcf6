"""The Service that gives a session one address through all its pods. Pure: nothing is created."""

from collections.abc import Mapping
from typing import Any

from sojourn_api import names
from sojourn_api.objects import Session

from sojourn_operator.act.pods import MANAGED_BY, owner


def build(session: Session, *, headless: bool = False) -> dict[str, Any]:
    """Named as the session; it has an endpoint only while the session's pod answers.

    `headless`: its name stands for the pod's own address. To allot one takes the API server longer
    the more Services there are, and a cluster has only so many; but after a move, clients that
    remember a name's address find the session some seconds later.
    """
    meta = session.meta
    port = {"name": names.PORT_NAME, "port": names.PORT, "targetPort": names.PORT_NAME}
    spec = {"selector": {names.LABEL_SESSION: meta.name}, "ports": [port]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {MANAGED_BY: names.MANAGER_OPERATOR, names.LABEL_SESSION: meta.name},
            "ownerReferences": [owner(session, controller=True)],
        },
        "spec": spec | ({"clusterIP": "None"} if headless else {}),
    }


def belongs(raw: Mapping[str, Any], session: Session) -> bool:
    """Whether a Service is this session's."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == session.meta.uid for owner in owners)


def endpoint(session: Session) -> str:
    """Where clients in the cluster find the session's OpenAI API."""
    return f"http://{session.meta.name}.{session.meta.namespace}.svc:{names.PORT}/v1"
