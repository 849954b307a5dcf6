"""Keys and certificates of the control plane, made by openssl, and the kubeconfigs that hold them.

One authority signs all. Elliptic curve keys: a dozen of them take a quarter of a second, RSA keys
take several.
"""

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Longer than any cluster here lives.
_DAYS = "30"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    folder: Path
    pair: Pair

    @classmethod
    def create(cls, folder: Path) -> "Authority":
        folder.mkdir(parents=True, exist_ok=True)
        pair = Pair(folder / "ca.crt", folder / "ca.key")
        _new_key(pair.key)
        _openssl(
            *("req", "-x509", "-new", "-key", str(pair.key), "-out", str(pair.certificate)),
            *("-days", _DAYS, "-subj", "/CN=sojourn-local-cluster"),
        )
        return cls(folder, pair)

    def issue(
        self, name: str, *, user: str, group: str = "", addresses: Sequence[str] = ()
    ) -> Pair:
        """For a client (`user`, `group`) and, at `addresses`, for a server too."""
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        _new_key(pair.key)
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        subject = (f"/O={group}" if group else "") + f"/CN={user}"
        _openssl("req", "-new", "-key", str(pair.key), "-out", str(request), "-subj", subject)
        names = [f"IP:{a}" if a[0].isdigit() else f"DNS:{a}" for a in addresses]
        lines = ["extendedKeyUsage=clientAuth,serverAuth"]
        if names:
            lines.append("subjectAltName=" + ",".join(names))
        extensions.write_text("\n".join(lines) + "\n")
        _openssl(
            *("x509", "-req", "-in", str(request), "-out", str(pair.certificate)),
            *("-CA", str(self.pair.certificate), "-CAkey", str(self.pair.key), "-CAcreateserial"),
            *("-days", _DAYS, "-extfile", str(extensions)),
        )
        return pair

    def signing_pair(self, name: str) -> Pair:
        """A bare key pair for service account tokens; the "certificate" is the public key."""
        pair = Pair(self.folder / f"{name}.pub", self.folder / f"{name}.key")
        _new_key(pair.key)
        _openssl("pkey", "-in", str(pair.key), "-pubout", "-out", str(pair.certificate))
        return pair

    def write_kubeconfig(self, path: Path, *, server: str, pair: Pair) -> None:
        """As JSON, which every reader of YAML reads. Written whole or not at all."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "sojourn",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": _encoded(self.pair.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": "user",
                    "user": {
                        "client-certificate-data": _encoded(pair.certificate),
                        "client-key-data": _encoded(pair.key),
                    },
                }
            ],
            "contexts": [{"name": "sojourn", "context": {"cluster": "sojourn", "user": "user"}}],
            "current-context": "sojourn",
        }
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.touch(mode=0o600)
        unfinished.write_text(json.dumps(content, indent=1))
        unfinished.replace(path)


def _new_key(path: Path) -> None:
    _openssl(
        "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(path)
    )


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, stderr=subprocess.PIPE)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
