"""Small clusters, tiers and sessions for tests of the plan, in sentences."""

from collections.abc import Iterable
from typing import Any

from sojourn_api.gpus import speed_of
from sojourn_operator.plan import Gpu, Node, Phase, Place, Request, Session, State, Tier
from sojourn_operator.plan.state import GpuUse

GOLD = Tier("gold", priority=300)
SILVER = Tier("silver", priority=200, pausable_by=frozenset({"gold"}))
BRONZE = Tier("bronze", priority=100, pausable_by=frozenset({"gold", "silver"}))
TIERS = (GOLD, SILVER, BRONZE)


def gpu(ordinal: int, slices: int = 80, model: str = "A100-80GB", **more: Any) -> Gpu:
    uuid = more.pop("uuid", f"GPU-{ordinal}")
    return Gpu(ordinal, uuid, model, slices=slices, speed=speed_of(model), **more)


def node(name: str, gpus: int | tuple[Gpu, ...] = 1, **more: Any) -> Node:
    if isinstance(gpus, int):
        peers = tuple(range(gpus))
        gpus = tuple(gpu(i, links=tuple(p for p in peers if p != i)) for i in peers)
    return Node(name, cpu_milli=64_000, memory_bytes=512 << 30, gpus=gpus, **more)


def session(name: str, tier: str = "silver", slices: int = 40, **more: Any) -> Session:
    asked = {key: more.pop(key) for key in list(more) if key in Request.__dataclass_fields__}
    more = dict[str, Any](phase=Phase.WAITING, created=0.0, since=0.0) | more
    return Session(f"llm/{name}", tier, Request(slices=slices, **asked), **more)


def on(node_name: str, ordinal: int = 0, *, slices: int = 40, share: int = 0) -> Place:
    return Place(node_name, (GpuUse(ordinal, slices, share),))


def running(name: str, place: Place, tier: str = "silver", **more: Any) -> Session:
    slices = sum(use.slices for use in place.gpus)
    return session(name, tier, slices, phase=Phase.RUNNING, place=place, **more)


def state(nodes: Iterable[Node], sessions: Iterable[Session], *, now: float = 1000.0) -> State:
    return State(
        now=now,
        nodes={one.name: one for one in nodes},
        sessions={one.key: one for one in sessions},
        tiers={tier.name: tier for tier in TIERS},
    )
