"""Who leads: a `coordination.k8s.io/Lease`, held and renewed in a thread of its own.

The leader alone writes. `check` is called before each side effect: it refuses one that could reach
the API server after another replica may have taken over. Nothing here knows what leading is for.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sojourn_operator import metrics
from sojourn_operator.act.api import TIMEOUT_SECONDS, Api, ApiError, NotFoundError, Raw
from sojourn_operator.kinds import LEASES, Kind

LEASE_SECONDS: Final = 15
"""How long others wait for a leader that says nothing (the figure of kube-controller-manager)."""
SAFE_SECONDS: Final = LEASE_SECONDS - TIMEOUT_SECONDS - 1
"""A side effect begun so long after a renewal still ends within the Lease; 1 s for clock rates."""
RENEW_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.5
"""A standby reads the Lease so often, which is what a hand-over costs: meanwhile no pod's end is
recorded, and a drain of the leader's node waits.
"""

log = logging.getLogger(__name__)


class NotLeaderError(Exception):
    """This replica does not lead, or cannot be sure to."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The Lease as last seen, and when on our own clock: others' clocks are not trusted."""

    holder: str
    version: str
    at: float


class Leader:
    """Competes for the Lease from `start` to `stop`; calls `on_change` after it was won or lost."""

    def __init__(
        self, api: Api, *, name: str, namespace: str, identity: str, on_change: Callable[[], None]
    ) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._on_change = on_change
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._gives_back = True
        self._renewed: float | None = None
        self._seen: _Seen | None = None
        self.epoch = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, give_back: bool = True) -> None:
        """Gives the Lease back, so that the standby need not wait for it to expire.

        Only if nothing is written any more in its name: what is under way could reach the API
        server after another one leads.
        """
        self._gives_back = give_back
        self._stopping.set()
        self._thread.join(timeout=2 * TIMEOUT_SECONDS)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def leads(self) -> bool:
        renewed = self._renewed
        return renewed is not None and time.monotonic() - renewed < SAFE_SECONDS

    def check(self) -> None:
        if not self.leads():
            raise NotLeaderError(f"{self._identity} does not hold the Lease {self._name}")

    def _run(self) -> None:
        led = False
        while not self._stopping.is_set():
            self._try()
            if self.leads() is not led:
                led = not led
                log.info("%s the Lease %s", "holds" if led else "does not hold", self._name)
                metrics.LEADER.set(led)
                self._on_change()
            self._stopping.wait(RENEW_SECONDS if led else LOOK_SECONDS)
        if self._gives_back:
            self._release()

    def _try(self) -> None:
        begun = time.monotonic()
        try:
            if self._claim(begun):
                self._renewed = begun
        except ApiError as error:
            metrics.ERRORS.labels("lease").inc()
            log.warning("cannot renew the Lease: %s; tried again", error)

    def _claim(self, now: float) -> bool:
        try:
            lease = self._api.get(LEASES, name=self._name, namespace=self._namespace)
        except NotFoundError:
            return self._write(self._api.create, self._lease(epoch=1, acquired=True))
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        epoch = int(spec.get("leaseTransitions") or 0)
        if holder != self._identity:
            self._renewed = None
            if holder and not self._expired(lease, now):
                return False
            return self._write(self._api.replace, self._lease(epoch=epoch + 1, base=lease))
        return self._write(self._api.replace, self._lease(epoch=epoch, base=lease, acquired=False))

    def _expired(self, lease: Raw, now: float) -> bool:
        """Whether its holder let a whole term pass since we first saw this version of it."""
        holder = lease["spec"]["holderIdentity"]
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or (self._seen.holder, self._seen.version) != (holder, version):
            self._seen = _Seen(holder, version, now)
        term = float(lease["spec"].get("leaseDurationSeconds") or LEASE_SECONDS)
        return now - self._seen.at > term

    def _lease(self, *, epoch: int, base: Raw | None = None, acquired: bool = True) -> Raw:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        meta = {"name": self._name, "namespace": self._namespace}
        old = (base or {}).get("spec") or {}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.name,
            "metadata": base["metadata"] if base else meta,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "acquireTime": now if acquired else old.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": epoch,
            },
        }

    def _write(self, verb: Callable[[Kind, Raw], Raw], lease: Raw) -> bool:
        verb(LEASES, lease)
        self.epoch = int(lease["spec"]["leaseTransitions"])
        metrics.LEASE_EPOCH.set(self.epoch)
        return True

    def _release(self) -> None:
        if not self.leads():
            return
        self._renewed = None
        metrics.LEADER.set(0)
        try:
            lease = self._api.get(LEASES, name=self._name, namespace=self._namespace)
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                self._api.replace(LEASES, lease)
        except ApiError as error:
            log.warning("cannot give the Lease back; the standby waits for its end: %s", error)
