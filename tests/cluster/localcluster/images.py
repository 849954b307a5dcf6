"""Images without a registry: composed from layers here, and imported into each node's containerd.

An OCI layout is written straight into `ctr images import`, with only those blobs that the node
lacks.
"""

import io
import json
import subprocess
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

from localcluster import contents, node
from localcluster.layers import Blob, put
from localcluster.libraries import libraries
from localcluster.paths import NODES, Node

COMPONENTS = ("operator", "deviceplugin", "runtime", "gateway")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIGURATION = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    "PYTHONUNBUFFERED=1",
    "PYTHONDONTWRITEBYTECODE=1",
)
_NOBODY = "65532:65532"
_ROOT = "0:0"


class ImageError(Exception):
    """A node refused an image."""


@dataclass(frozen=True, slots=True)
class Image:
    """`blobs` are all that the manifest leads to."""

    name: str
    manifest: Blob
    blobs: tuple[Blob, ...]


def build_basic() -> list[Image]:
    """What every cluster has: the pods' first process, and a Python to try things with."""
    return [
        _compose("pause", [contents.pause()], entrypoint=["/pause"], user=_NOBODY),
        _compose("base", [contents.debian()], entrypoint=["/usr/bin/python3"], user=_NOBODY),
    ]


def build_components() -> list[Image]:
    debian, project = contents.debian(), contents.project()
    return [
        _compose(
            name,
            [debian, libraries(name), project],
            entrypoint=["/usr/bin/python3", "-m", f"sojourn_{name}"],
            # The folders of the kubelet, where a device plugin's sockets lie, are root's.
            user=_ROOT if name == "deviceplugin" else _NOBODY,
        )
        for name in COMPONENTS
    ]


def load_everywhere(images: Sequence[Image]) -> None:
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda each: load(each, images), NODES):
            pass


def load(to: Node, images: Sequence[Image]) -> None:
    """Nothing happens for images that the node has."""
    present = _images_of(to)
    wanted = [image for image in images if present.get(image.name) != image.manifest.digest]
    if not wanted:
        return
    # containerd may collect a replaced image's layers at the moment when the new one is unpacked
    # upon them. The second try finds them gone, and writes them.
    refusal = _imported(to, wanted) and _imported(to, wanted)
    if refusal:
        raise ImageError(f"{to.name} refused the images: {refusal}")
    _forget_replaced(to)


def _imported(to: Node, wanted: Sequence[Image]) -> str:
    """Why not; empty if they are."""
    held = set(_ctr(to, "content", "ls", "-q").split())
    lacking = {
        blob.digest: blob for image in wanted for blob in image.blobs if blob.digest not in held
    }
    command = node.command_on(to.name, ["ctr", "-n", "k8s.io", "images", "import", "-"])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise ImageError("no pipe to ctr")
        try:
            _write_layout(process.stdin, wanted, list(lacking.values()))
            process.stdin.close()
        except BrokenPipeError:
            pass  # ctr ended early; it says why
        said = process.stdout.read().decode()
    return said or f"exit status {process.returncode}" if process.returncode else ""


def _forget_replaced(on: Node) -> None:
    """The kubelet's own names (`sha256:<id>`) of images that have no other name any more.

    They would fill the disk, a layer for each change of code; running containers keep theirs.
    """
    named = _images_of(on)
    wanted = {digest for name, digest in named.items() if not name.startswith("sha256:")}
    replaced = [name for name, digest in named.items() if digest not in wanted]
    if replaced:
        _ctr(on, "images", "rm", *replaced)


def _write_layout(stream: IO[bytes], images: Sequence[Image], blobs: Sequence[Blob]) -> None:
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": _MANIFEST,
                "digest": image.manifest.digest,
                "size": image.manifest.size,
                "annotations": {"io.containerd.image.name": image.name},
            }
            for image in images
        ],
    }
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        for blob in blobs:
            archive.add(blob.path, f"blobs/sha256/{blob.path.name}")
        _add(archive, "index.json", json.dumps(index).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _images_of(of: Node) -> dict[str, str]:
    lines = _ctr(of, "images", "ls").splitlines()[1:]
    return {words[0]: words[2] for words in (line.split() for line in lines)}


def _ctr(on: Node, *arguments: str) -> str:
    command = node.command_on(on.name, ["ctr", "-n", "k8s.io", *arguments])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _compose(name: str, layers: Sequence[Blob], *, entrypoint: list[str], user: str) -> Image:
    configuration = put(
        _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {
                    "User": user,
                    "Env": list(_ENVIRONMENT),
                    "Entrypoint": entrypoint,
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            }
        )
    )
    manifest = put(
        _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(configuration, _CONFIGURATION),
                "layers": [_descriptor(layer, _LAYER) for layer in layers],
            }
        )
    )
    full_name = f"docker.io/sojourn/{name}:dev"
    return Image(full_name, manifest, (manifest, configuration, *layers))


def _descriptor(blob: Blob, media_type: str) -> dict[str, object]:
    return {"mediaType": media_type, "digest": blob.digest, "size": blob.size}


def _json(content: dict[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
