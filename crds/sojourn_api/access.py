"""How a pod reaches the API server: its address, its authority, and the service account's token.

Requests belong to each component's own small client.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NotInPodError(Exception):
    """There is no service account here; the text names what is missing."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and who we are."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    namespace: str = ""
    """Our own; empty where it is not known."""

    @property
    def headers(self) -> dict[str, str]:
        """Who we are, for one request: the token is read anew, since the kubelet renews it."""
        if self.token_file is None:
            return {}
        return {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}


def in_cluster() -> Access:
    """What every pod is given."""
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    except KeyError as error:
        raise NotInPodError("not in a pod: KUBERNETES_SERVICE_HOST is not set") from error
    host = f"[{host}]" if ":" in host else host
    own = ACCOUNT / "namespace"
    namespace = own.read_text().strip() if own.exists() else ""
    return Access(f"https://{host}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt", namespace)
