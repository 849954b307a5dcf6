"""A fact to be told as an event, and what makes it the same fact; `act.events` tells it."""

import hashlib
from dataclasses import dataclass

from sojourn_api.names import API_VERSION
from sojourn_api.objects import ObjectMeta


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that an event is about."""

    kind: str
    name: str
    namespace: str
    uid: str
    api_version: str = API_VERSION

    @classmethod
    def of(cls, kind: str, meta: ObjectMeta) -> "Subject":
        return cls(kind, meta.name, meta.namespace, meta.uid)


@dataclass(frozen=True, slots=True)
class Note:
    """One fact. `once_per` says what makes it a new fact: usually the session's epoch."""

    subject: Subject
    reason: str
    message: str
    once_per: str
    warning: bool = False
    same: str | None = None
    """Groups messages that differ in numbers only; None: the message itself."""

    @property
    def name(self) -> str:
        parts = (self.subject.uid, self.reason, self.message if self.same is None else self.same)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        return f"{self.subject.name}.{digest}"
