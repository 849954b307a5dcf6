"""Who takes more than was granted: when it is told, and when the operator is asked to pause it.

Pure: what was seen, and when, is given. Nothing is ended here: the plugin has no right to touch a
pod, and a session must save its context first, which is the operator's to see to.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sojourn_api import names
from sojourn_api.objects import Condition, Offender

from sojourn_deviceplugin.config import Policy
from sojourn_deviceplugin.ledger import Grant

REMEMBERED_NS: Final = 30_000_000_000
"""A charge stands for so long after it was last seen: who offends now and then is no flapping."""
LOOKS: Final = 3
PATIENCE_NS: Final = 3_000_000_000
"""Nobody is stopped for one look: it can catch an innocent, if a flag's owner was stopped, so that
its flag did not count, and goes on in time for the look."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one look held against a grant. `size` only grows with the offence: bytes, or steps."""

    grant: Grant
    uid: str
    reason: str
    size: int
    message: str


@dataclass(frozen=True, slots=True)
class _Entry:
    charge: Charge
    first_ns: int
    last_ns: int
    looks: int = 1

    @property
    def settled(self) -> bool:
        return self.looks >= LOOKS and self.last_ns - self.first_ns >= PATIENCE_NS


class Book:
    """The charges that stand."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: dict[tuple[int, str, str], _Entry] = {}

    def look(self, charges: Iterable[Charge], *, now_ns: int) -> list[Charge]:
        """Take down what was seen now; returns what is new, to be told once."""
        new = []
        for charge in charges:
            key = (*charge.grant.key, charge.reason)
            known = self._entries.get(key)
            if known is None:
                new.append(charge)
                self._entries[key] = _Entry(charge, first_ns=now_ns, last_ns=now_ns)
                continue
            # Its words are new when it has doubled; with each look's figures all looks were writes.
            told = charge if charge.size >= 2 * known.charge.size else known.charge
            self._entries[key] = replace(known, charge=told, last_ns=now_ns, looks=known.looks + 1)
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if now_ns - entry.last_ns <= REMEMBERED_NS
        }
        return new

    def forget(self, grants: Iterable[Grant]) -> None:
        """Only these grants are left."""
        left = {grant.key for grant in grants}
        self._entries = {key: entry for key, entry in self._entries.items() if key[:2] in left}

    def standing(self) -> tuple[Offender, ...]:
        """What is held against pods now, by name."""
        found = [
            Offender(
                namespace=entry.charge.grant.holder.namespace,
                pod=entry.charge.grant.holder.pod,
                uid=entry.charge.uid,
                reason=entry.charge.reason,
                message=entry.charge.message,
                stop=self._policy is Policy.STOP and entry.settled,
            )
            for entry in self._entries.values()
            if entry.charge.grant.holder is not None
        ]
        return tuple(sorted(found, key=lambda one: (one.namespace, one.pod, one.reason)))


def kept(standing: Iterable[Offender], *, sees: bool) -> Condition:
    """The GPUNode's condition, without its time. `sees`: processes are told apart by pod."""
    held = tuple(standing)
    if held:
        message = "; ".join(one.message for one in held)
        return Condition(names.GRANTS_KEPT, "False", held[0].reason, message)
    if not sees:
        text = "nobody computes under a higher flag; whose memory is whose shows with hostProc only"
        return Condition(names.GRANTS_KEPT, "Unknown", "MemoryNotSeen", text)
    return Condition(names.GRANTS_KEPT, "True", "Kept", "no pod takes more than it was granted")
