"""The identity of weights: sha256 over their bytes, computed once per file and then remembered.

A remembered digest is believed while size, modification time and inode of the file are unchanged.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from sojourn_runtime.model.atomic import write_atomically

_CHUNK = 4 << 20


def weights_digest(files: Sequence[Path], cache: Path) -> str:
    """`sha256:...` of one file, or of the names and digests of several."""
    digests = [(path.name, _file_digest(path, cache)) for path in sorted(files)]
    if len(digests) == 1:
        return f"sha256:{digests[0][1]}"
    listing = "".join(f"{digest}  {name}\n" for name, digest in digests)
    return f"sha256:{hashlib.sha256(listing.encode()).hexdigest()}"


def _file_digest(path: Path, cache: Path) -> str:
    status = path.stat()
    identity = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    remembered = cache / "digests" / key
    if remembered.exists():
        return remembered.read_text()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    write_atomically(remembered, [digest.hexdigest().encode()])
    return digest.hexdigest()
