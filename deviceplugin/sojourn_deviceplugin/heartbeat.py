"""That a node's plugin lives: a Lease that it renews, and which Node it all belongs to.

A Lease rather than a field of the GPUNode, whose every write wakes all who watch it. Whoever does
not see it renewed takes the plugin for gone; that is the operator's to judge.
"""

import datetime as dt
import http
from typing import Any, Final
from urllib.parse import quote

from sojourn_api import names

from sojourn_deviceplugin.kube import ONE_METADATA_ONLY, ApiError, Kube

RENEW_SECONDS: Final = names.HEARTBEAT_SECONDS / 3


class NoNodeError(Exception):
    """The API server has no Node of this name: nothing is to be said of it."""


class Heartbeat:
    """For one thread. `namespace` empty: no Lease is written."""

    def __init__(self, kube: Kube, node_name: str, *, namespace: str) -> None:
        self._kube = kube
        self._name = node_name
        self._namespace = namespace
        self._tried_at = float("-inf")
        self._runs_out_at = float("inf")
        """When others may say that we are gone; never, without a Lease."""
        self.owners: list[dict[str, Any]] = []
        """Owner references: what belongs to the Node goes when it is deleted."""

    def find_node(self) -> None:
        """Learn which Node this is; NoNodeError if it is gone. Without the right to, none is."""
        path = f"/api/v1/nodes/{quote(self._name)}"
        try:
            meta = self._kube.call("GET", path, accept=ONE_METADATA_ONLY)["metadata"]
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                raise NoNodeError(f"there is no Node {self._name}") from error
            if error.status != http.HTTPStatus.FORBIDDEN:
                raise
            self.owners = []
            return
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": meta["uid"]}
        self.owners = [owner]

    def ran_out(self, *, now: float) -> bool:
        """Whether the Lease has run out, and nobody could renew it meanwhile."""
        return now >= self._runs_out_at

    def beat(self, *, now: float) -> bool:
        """Renew the Lease when it is time; whether it was.

        `now` on any clock that only goes on. A refusal (ApiError) is no reason to ask sooner.
        """
        if not self._namespace or now - self._tried_at < RENEW_SECONDS:
            return False
        lease, space = names.heartbeat_name(self._name), self._namespace
        path = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases/{quote(lease)}"
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": lease,
                "namespace": space,
                "labels": {names.LABEL_HEARTBEAT: names.MANAGER_DEVICEPLUGIN},
                "ownerReferences": self.owners,
            },
            "spec": {
                "holderIdentity": self._name,
                "leaseDurationSeconds": names.HEARTBEAT_SECONDS,
                "renewTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        try:
            self._kube.apply(path, body, manager=names.MANAGER_DEVICEPLUGIN)
        except ApiError as error:
            if error.refused:
                self._tried_at, self._runs_out_at = now, float("inf")
            raise
        self._tried_at, self._runs_out_at = now, now + names.HEARTBEAT_SECONDS
        return True
