"""The pod that removes a deleted session's folder from a mounted store. Pure: nothing is created.

The operator mounts no store, and a session may be deleted while it is paused: so its last pod is
this one, without a GPU. An object store is emptied by its own lifecycle rules, not from here.
"""

from typing import Any, Final

from sojourn_api import names
from sojourn_api.objects import ObjectMeta, Session

from sojourn_operator.act import pods
from sojourn_operator.config import Config

SECONDS: Final = 120
"""After so long the session goes without it, and an event names the folder that is left."""
SUFFIX: Final = "purge"
PROGRAM: Final = """\
import os, shutil, sys
folder = sys.argv[1]
if os.path.isdir(folder):
    shutil.rmtree(folder)
"""


def name(meta: ObjectMeta) -> str:
    """Of the pod that removes the session's folder."""
    return f"{meta.name}-{SUFFIX}"


def build(session: Session, *, config: Config) -> dict[str, Any]:
    """It sees its namespace's folder of the store, and nothing else."""
    meta = session.meta
    mount = {
        "name": pods.STORE_VOLUME,
        "mountPath": names.STORE_MOUNT,
        "subPath": meta.namespace,
    }
    container = {
        "name": names.CONTAINER,
        "image": config.session_image,
        "imagePullPolicy": config.session_image_pull_policy,
        "command": ["python3", "-c", PROGRAM, f"{names.STORE_MOUNT}/{meta.name}"],
        "volumeMounts": [mount],
        "securityContext": pods.CONTAINER_SECURITY,
    }
    claim = {"claimName": config.store_claim}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(meta),
            "namespace": meta.namespace,
            "labels": {
                pods.MANAGED_BY: names.MANAGER_OPERATOR,
                names.LABEL_SESSION: meta.name,
                # No start of the session has this number, so it is never taken for one.
                names.LABEL_EPOCH: "0",
            },
            "ownerReferences": [pods.owner(session, controller=True)],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": SECONDS,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": pods.POD_SECURITY,
            "tolerations": pods.tolerations(session),
            "imagePullSecrets": pods.pull_secrets(session),
            "volumes": [{"name": pods.STORE_VOLUME, "persistentVolumeClaim": claim}],
            "containers": [container],
        },
    }
