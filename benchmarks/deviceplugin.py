"""What the device plugin costs: Allocate beside an empty call, restarts, memory, the arbiter.

Starts the real plugin over the fake NVML and the fake kubelet of the tests. Prints one JSON object
(`--out FILE` writes it). About five minutes on two cores.
"""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import arbiterplayers  # noqa: E402
import grpc  # noqa: E402
from deviceprocess import Process  # noqa: E402
from devicerig import until  # noqa: E402
from fakekubelet import Kubelet, running  # noqa: E402
from fakenvml import machine as fake  # noqa: E402
from jsonfile import save  # noqa: E402
from nodeapi import Server  # noqa: E402
from sojourn_api import arbiter, names  # noqa: E402
from sojourn_api.arbiter_page import Page  # noqa: E402
from sojourn_api.arbiter_watch import Watch  # noqa: E402
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2 as pb  # noqa: E402
from sojourn_deviceplugin._proto import deviceplugin_v1beta1_pb2_grpc as rpc  # noqa: E402
from sojourn_runtime.hooks import Arbiter  # noqa: E402
from where import commit, machine  # noqa: E402

CALLS = 2000
GPUS = 8
REST = 0.01
H200_141 = 145_200
"""MiB of memory that make 141 slices of 1 GiB."""


@contextlib.contextmanager
def node(gpus: int, mib: int, *, publish: bool = False) -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="dp", dir="/tmp") as folder:
        library = fake.build(Path(folder))
        with running(Kubelet(Path(folder))) as kubelet:
            process = Process(Path(folder), library, kubelet)
            if publish:
                process.publish(Server())
            process.machine.gpus = [fake.gpu(n, name=fake.H200, mib=mib) for n in range(gpus)]
            process.machine.write()
            process.settings["nvmlPatienceSeconds"] = (
                600  # here every call hangs, one after another
            )
            process.start()
            try:
                yield process
            finally:
                process.machine.delays = {}
                process.machine.write()
                process.kill()


def all_known(process: Process, slices: int) -> Callable[[], bool]:
    return lambda: all(
        process.kubelet.allocatable(names.gpu_resource(n)) == slices
        for n in range(len(process.machine.gpus))
    )


def percentiles(samples: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(samples, n=100)
    return {"p50Ms": round(cuts[49] * 1e3, 3), "p99Ms": round(cuts[98] * 1e3, 3)}


def calls(process: Process, *, rest: float) -> dict[str, Any]:
    """Allocate and an empty call in turn, on the same connection, GPU after GPU.

    `rest` is the pause after each pair: a kubelet starts pods, it does not storm; 0 is a storm.
    """
    empty, allocate = [], []
    dice = random.Random(1)
    with contextlib.ExitStack() as stack:
        stubs = []
        for n in range(GPUS):
            (socket,) = process.kubelet.folder.glob(f"sojourn-gpu-{n}.*sock")
            channel = stack.enter_context(grpc.insecure_channel(f"unix:{socket}"))
            stubs.append(rpc.DevicePluginStub(channel))
        for call in range(CALLS):
            stub, uuid8 = stubs[call % GPUS], fake.uuid(call % GPUS).removeprefix("GPU-")[:8]
            ids = [f"{uuid8}-{n}" for n in dice.sample(range(141), 12)]
            wish = pb.ContainerAllocateRequest(devices_ids=ids)
            request = pb.AllocateRequest(container_requests=[wish])
            begin = time.perf_counter()
            stub.GetDevicePluginOptions(pb.Empty())
            middle = time.perf_counter()
            stub.Allocate(request)
            end = time.perf_counter()
            empty.append(middle - begin)
            allocate.append(end - middle)
            time.sleep(rest)
    nothing, given = percentiles(empty), percentiles(allocate)
    ratio = {key: round(given[key] / nothing[key], 2) for key in nothing}
    return {"calls": CALLS, "empty": nothing, "allocate": given, "ratio": ratio}


def latency() -> dict[str, Any]:
    with node(GPUS, H200_141) as process:
        until(all_known(process, 141))
        calls(process, rest=0)  # warm up
        found = {"storm": calls(process, rest=0), "quiet": calls(process, rest=REST)}
        process.machine.delays = {"*": 5000}
        process.machine.write()
        found["nvmlHangs5s"] = calls(process, rest=REST)
        return {"gpus": GPUS, "slices": 141, "restMs": REST * 1e3} | found


def lists() -> dict[str, Any]:
    """16 GPUs of 288 slices: how long until the kubelet has counted all, and how long the list."""
    with node(16, 288 * 1024 + 1024) as process:
        until(all_known(process, 288), seconds=30)
        took = time.monotonic() - process.started
        size = pb.ListAndWatchResponse(
            devices=[
                pb.Device(ID=device, health="Healthy")
                for device in process.kubelet.devices(names.gpu_resource(0))
            ]
        ).ByteSize()
        return {"startToCounted": round(took, 2), "bytesPerList": size}


def registrations(rounds: int = 100) -> dict[str, Any]:
    with node(GPUS, H200_141) as process:
        until(all_known(process, 141))
        times = []
        for _ in range(rounds):
            process.kubelet.restart()
            times.append(until(all_known(process, 141)))
        within = sum(took <= 1 for took in times)
        return {
            "restarts": rounds,
            "withinOneSecond": within,
            "medianSeconds": round(statistics.median(times), 3),
            "slowestSeconds": round(max(times), 3),
        }


def memory(allocations: int, *, publish: bool) -> dict[str, Any]:
    """At the start, when the start is over, and after every tenth of the allocations."""
    with node(GPUS, H200_141, publish=publish) as process:
        until(all_known(process, 141))
        sizes = [process.resident_mib()]
        until(lambda: "released" in process.log())
        sizes.append(process.resident_mib())
        for n in range(allocations):
            pod = process.kubelet.admit(f"s-{n}", {names.gpu_resource(n % GPUS): 12})
            process.kubelet.finish(pod)
            if (n + 1) % (allocations // 10) == 0:
                sizes.append(process.resident_mib())
        return {"allocations": allocations, "residentMiB": [round(size, 1) for size in sizes]}


def pages(folder: Path, *tiers: arbiter.Tier) -> None:
    index = arbiter.create_index(folder)
    for number, tier in enumerate(tiers, start=1):
        arbiter.create_grant(folder, str(number), tier)
    arbiter.bump(index)


def check_cost(grants: int, looks: int = 2_000) -> float:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        pages(folder, *[arbiter.Tier(priority=2500)] * grants)
        watch = Watch(folder)
        watch.higher_raised(0)
        best = min(_looks(watch, looks) for _ in range(300))  # what else runs here only adds
        watch.close()
        return round(best / looks * 1e6, 3)


def token_cost(grants: int, tokens: int = 100) -> float:
    """All that a step of a runtime pays for the others, while they are there and idle.

    Steps of 15 ms, so that it has to look whose turn it is every fourth step; half of the others
    are its equals, half of a higher tier.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder, root = Path(name) / "grants", Path(name) / "pod"
        others = [arbiter.Tier(priority=(1000, 2500)[n % 2], share=1000) for n in range(grants)]
        pages(folder, arbiter.Tier(priority=1000, share=1000), *others)
        owners = [Page(folder / str(n + 2) / arbiter.POD) for n in range(grants)]
        (root / "gpu-0").mkdir(parents=True)
        (root / "gpu-0" / "all").symlink_to(folder)
        (root / "gpu-0" / "own").symlink_to(folder / "1" / arbiter.POD)
        own = Arbiter(root, priority=1000)
        own.raise_flag()
        best = min(_tokens(own, tokens) for _ in range(1000))  # what else runs here only adds
        own.close()
        for page in owners:
            page.close()
        return round(best / tokens * 1e6, 3)


def _tokens(own: Arbiter, tokens: int) -> float:
    begin = time.perf_counter()
    for _ in range(tokens):
        own.wait(unless=lambda: False)
        own.step()
        own.step_done(0.015)
    return time.perf_counter() - begin


def _looks(watch: Watch, looks: int) -> float:
    begin = time.perf_counter()
    for _ in range(looks):
        watch.higher_raised(0)
    return time.perf_counter() - begin


def player(role: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, arbiterplayers.__file__, role, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def order() -> dict[str, Any]:
    """Silver's steps of 200 us under Gold's 10,000 requests of 100 us, in two processes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        pages(folder, arbiter.Tier(priority=2500), arbiter.Tier(priority=1000))
        with (
            player("silver", folder, 2, 5, 200) as silver,
            player("gold", folder, 1, 10_000) as gold,
        ):
            said(silver), said(gold)
            up, steps = said(gold), said(silver)
    late, stops = 0, []
    for look, seen, end in zip(steps["looks"], steps["seen"], steps["ends"], strict=True):
        before = bisect_right(up["rises"], look) - 1
        late += before >= 0 and look > up["rises"][before] and seen < up["falls"][before]
        during = bisect_right(up["rises"], end) - 1
        if during >= 0 and look < up["rises"][during] < end:
            stops.append((end - up["rises"][during]) / 1e3)
    return {
        "requests": 10_000,
        "stepsBegunUnderAFlag": int(late),
        "flagToStepsEndUs": {
            "p50": round(statistics.median(stops), 1),
            "p99": round(statistics.quantiles(stops, n=100)[98], 1),
        },
        "stepUs": 200,
    }


def fairness(seconds: int = 5) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        slice_ns = 20_000_000
        shares = (1000, 2000)
        pages(folder, *[arbiter.Tier(1000, share=s, time_slice_ns=slice_ns) for s in shares])
        one, two = (player("equal", folder, slot, seconds, 5000) for slot in (1, 2))
        with one, two:
            said(one), said(two)
            for process in (one, two):
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            first, second = said(one)["computed"], said(two)["computed"]
        return {"shares": shares, "ratio": round(second / first, 3)}


def riot(rounds: int = 1000) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        with player("riot", name, rounds, 11) as process:
            result = said(process)
        return {"blows": rounds} | result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the JSON here, too")
    options = parser.parse_args()
    report = {
        "commit": commit(),
        "machine": machine(),
        "allocate": latency(),
        "lists": lists(),
        "registration": registrations(),
        "memory": {
            "plugin": memory(10_000, publish=False),
            "withPublisher": memory(10_000, publish=True),
        },
        "arbiter": {
            "lookUs": {"1": check_cost(1), "16": check_cost(16)},
            "tokenUs": {"1": token_cost(1), "15": token_cost(15)},
            "order": order(),
            "riot": riot(),
            "fairness": fairness(),
        },
    }
    print(json.dumps(report, indent=1))
    save(report, options.out)


if __name__ == "__main__":
    main()
