"""Who may ask: one API key per session, compared in constant time.

Only `/v1/*` is guarded; probes, metrics and status hold nothing of a conversation.
"""

import hmac
from dataclasses import dataclass

from sojourn_runtime.server.errors import unauthorised

GUARDED = "/v1/"
SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Guard:
    """The key that clients must send; an empty one admits everybody."""

    key: str

    def check(self, *, path: str, authorization: str | None) -> None:
        """Raises 401 unless the header carries the key."""
        if not self.key or not path.startswith(GUARDED):
            return
        if authorization is None:
            raise unauthorised("This session needs an API key: send 'Authorization: Bearer <key>'.")
        scheme, _, sent = authorization.partition(" ")
        # surrogateescape: aiohttp decodes headers so, and a stray byte must not become a 500
        given = sent.strip().encode("utf-8", "surrogateescape")
        same = hmac.compare_digest(given, self.key.encode())
        if scheme.lower() != SCHEME or not same:
            raise unauthorised("The API key is not the one of this session.")
