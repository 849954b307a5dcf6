"""The report of `scale` for docs/benchmarks.md."""

from collections.abc import Iterable
from typing import Any

Raw = dict[str, Any]


def table(found: Raw) -> Iterable[str]:
    """The report of `scale` as Markdown."""
    ours, again = found["ours"], found["restart"]
    yield "| what | figure | bound |"
    yield "| --- | --- | --- |"
    if "peer" in found:
        peer = found["peer"]
        yield f"| kube-scheduler, pods bound per second | {peer['perSecond']} | - |"
        half = ours["perSecond"] / peer["perSecond"]
        yield f"| sessions placed per second | {ours['perSecond']} ({half:.2f}) | >= 0.5 |"
        yield f"| CPU per pod bound | {peer['cpuMs']['all']} ms | - |"
    else:
        yield f"| sessions placed per second | {ours['perSecond']} | - |"
    yield f"| CPU per session that serves | {ours['cpuMs']['all']} ms | stated |"
    yield f"| writes per session until placed | {ours['writesPerSession']} | <= 5 |"
    yield f"| writes per session until it serves | {ours['writesUntilServing']} | stated |"
    yield f"| resident with all sessions | {ours['residentMiB']} MiB | <= 300 |"
    if "memory" in found:
        yield f"| resident per session | {found['memory']['slopeKiB']} KiB | stated |"
    if "ratio" in again:
        yield f"| restart against a bare listing | {again['ratio']} | <= 2 |"
    yield f"| writes of the restart | {sum(again['otherWrites'].values())} | 0 |"
    yield f"| sessions unplaced, pods twice | {ours['unplaced']}, {ours['duplicatePods']} | 0 |"
    yield from _cpu_table(found)
    yield ""
    yield "| write | per session |"
    yield "| --- | --- |"
    for kind, number in ours["writes"].items():
        yield f"| {kind} | {number / found['sessions']:.2f} |"


def _cpu_table(found: Raw) -> Iterable[str]:
    ours, peer = found["ours"]["cpuMs"], found.get("peer", {}).get("cpuMs", {})
    yield ""
    yield "| CPU of | ms per pod | ms per session |"
    yield "| --- | --- | --- |"
    for name in sorted(ours, key=lambda one: -ours[one]):
        yield f"| {name} | {peer.get(name, '-')} | {ours[name]} |"
