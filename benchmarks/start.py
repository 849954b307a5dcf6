"""From the wish to resume to the next token: where the time of a session's start goes.

On a cluster where Sojourn runs (`make demo KEEP=1` leaves one). A session with running responses
is suspended and resumed again and again; beside it, in the same rounds, a bare pod of the same
image and a bare `import torch`. The parts of the runtime come from its own status.

`python benchmarks/start.py --kubeconfig FILE [--rounds 10] [--json FILE]`
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))

from kube import Kube
from localcluster import binaries
from localcluster.paths import KUBECONFIG
from steps import MODEL, NAMESPACE, Steps

SESSION = "bench"
TOKENS = 1000
"""Of the answer that runs through each pause; `READ` of them are there when it comes."""
READ = 600
BARE = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s, namespace: %(namespace)s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  enableServiceLinks: false
  automountServiceAccountToken: false
  containers:
    - name: bare
      image: %(image)s
      imagePullPolicy: IfNotPresent
      command: [python3, -c, "import time; time.sleep(600)"]
"""


def resumed(kube: Kube, steps: Steps) -> dict[str, float]:
    """One pause and one resume, in milliseconds by part."""
    steps.suspend(SESSION, wanted=True)
    paused = steps.wait_paused(SESSION)
    epoch = paused["status"]["epoch"]
    kube.wait(
        "the old pod is gone",
        lambda: kube.items("pods", "-n", NAMESPACE, "-l", f"sojourn.dev/session={SESSION}"),
        lambda pods: not pods,
    )
    asked = time.monotonic()
    steps.suspend(SESSION, wanted=False)
    pods = kube.wait(
        "the pod is created",
        lambda: kube.items("pods", "-n", NAMESPACE, "-l", f"sojourn.dev/session={SESSION}"),
        bool,
    )
    created = time.monotonic()
    steps.wait_ready(SESSION, after_epoch=epoch)
    ready = time.monotonic()
    name = pods[0]["metadata"]["name"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8000/proxy/sojourn/v1/status"
    status = json.loads(kube.kubectl("get", "--raw", path))
    startup = status["startup"]
    serving = startup["servingMs"]
    whole = (ready - created) * 1000
    return {
        "asked to pod created": (created - asked) * 1000,
        "imports": startup["listeningMs"],
        "weights": startup["loadedMs"] - startup["listeningMs"],
        "restore and first step": serving - startup["loadedMs"],
        "process to next token": serving,
        "pod created to Ready seen": whole,
        "tokens restored": float((status["resumed"] or {"tokens": 0})["tokens"]),
    }


def bare_pod(kube: Kube, image: str) -> float:
    """Milliseconds from creation of a pod that does nothing to its being Running."""
    fields = {"name": "bare", "namespace": NAMESPACE, "image": image}
    start = time.monotonic()
    kube.apply(BARE % fields)
    kube.wait(
        "the bare pod runs",
        lambda: kube.get("pod", "bare", namespace=NAMESPACE),
        lambda pod: pod["status"]["phase"] == "Running",
    )
    took = (time.monotonic() - start) * 1000
    kube.kubectl("-n", NAMESPACE, "delete", "pod", "bare", "--grace-period=0", "--force")
    return took


def import_torch() -> float:
    """Milliseconds of a process that imports torch and ends."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return (time.monotonic() - start) * 1000


def measure(kube: Kube, *, rounds: int) -> dict[str, list[float]]:
    """All figures of all rounds, by name."""
    steps = Steps(kube)
    kube.kubectl("-n", NAMESPACE, "delete", "llms", "--all", "--timeout=90s")
    steps.apply_session(SESSION, "silver")
    steps.wait_ready(SESSION)
    image = kube.items("pods", "-n", NAMESPACE, "-l", f"sojourn.dev/session={SESSION}")[0]
    figures: dict[str, list[float]] = {}
    for number in range(rounds):
        steps.begin_together(SESSION, tokens=TOKENS, seeds=(number,), read=READ)
        row = resumed(kube, steps)
        row["bare pod"] = bare_pod(kube, image["spec"]["containers"][0]["image"])
        row["bare import torch"] = import_torch()
        row["pod created to Ready / (bare pod + import torch)"] = row[
            "pod created to Ready seen"
        ] / (row["bare pod"] + row["bare import torch"])
        for name, value in row.items():
            figures.setdefault(name, []).append(value)
    steps.delete(SESSION)
    return figures


def main() -> None:
    """Print a table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, default=KUBECONFIG)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tools = binaries.ensure("kubectl", "helm")
    kube = Kube(args.kubeconfig, str(tools["kubectl"]), str(tools["helm"]))
    figures = measure(kube, rounds=args.rounds)
    print(f"| {MODEL}, {args.rounds} rounds | p50 | worst |\n| --- | --- | --- |")
    for name, values in figures.items():
        print(f"| {name} | {statistics.median(values):.2f} | {max(values):.2f} |")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
