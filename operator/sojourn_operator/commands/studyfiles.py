"""Nodes and sessions from CSV or YAML files, and recorded states from JSON, for `study`."""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from sojourn_api import gpus
from sojourn_api.names import SILVER
from sojourn_api.shipped import SHIPPED_TIERS

from sojourn_operator import plan
from sojourn_operator.commands.rows import Row, StudyError, rows_of
from sojourn_operator.plan.record import from_data
from sojourn_operator.plan.simulate import Job
from sojourn_operator.tiers import planned

TIERS: Final = tuple(planned(tier) for tier in SHIPPED_TIERS)
"""For sessions from files: the tiers of a fresh installation."""
MOST_SLICES: Final = 65536
MOST_SHARE: Final = 1_000_000
MOST_GPUS: Final = 256


def nodes_from(path: Path) -> list[plan.Node]:
    """Nodes with GPUs of one model each; slices default to the model's GiB."""
    nodes: dict[str, plan.Node] = {}
    for row in rows_of(path, [("name", "sn"), ("model",)]):
        node = _node(row)
        if node.name in nodes:
            raise row.fault(f"name {node.name} is there twice; rename one")
        nodes[node.name] = node
    return list(nodes.values())


def _node(row: Row) -> plan.Node:
    name, model = row.text("name", "sn"), row.text("model")
    if not name:
        raise row.fault("no name; each node needs one")
    peers = range(row.whole("gpu", row.whole("gpus", 1, high=MOST_GPUS), high=MOST_GPUS))
    known = gpus.find(model)
    slices = row.whole("slices", known.memory_gib if known else 0, high=MOST_SLICES)
    if peers and not slices:
        raise row.fault(_no_slices(name, model))
    return plan.Node(
        name=name,
        cpu_milli=row.whole("cpu_milli", 1_000_000),
        memory_bytes=row.whole("memory_mib", 1 << 24) << 20,
        gpus=tuple(
            plan.Gpu(
                ordinal=index,
                uuid=f"{name}-{index}",
                model=model,
                slices=slices,
                speed=gpus.speed_of(model),
                links=tuple(peer for peer in peers if peer != index),
            )
            for index in peers
        ),
    )


def _no_slices(name: str, model: str) -> str:
    if gpus.find(model) is not None:
        return f"node {name}: slices 0; write 1 or more, or leave it out"
    known = [one.short for one in gpus.table()]
    near = get_close_matches(model.upper(), known, n=4, cutoff=0.5)
    names = f"near it: {', '.join(near)}" if near else f"known are {', '.join(known)}"
    return f"node {name}: GPU model {model!r} is unknown ({names}); use one of these or add slices"


def jobs_from(
    path: Path, tiers: Iterable[plan.Tier] = TIERS, tenants: Iterable[plan.Tenant] = ()
) -> list[Job]:
    """Sessions with their time of arrival and how long they run.

    One without a share asks for its tenant's guarantee, else its tier's, as in a cluster.
    """
    kinds = {tier.name: tier for tier in tiers}
    owners = {tenant.name: tenant for tenant in tenants}
    jobs: dict[str, Job] = {}
    for row in rows_of(path, [("name",), ("slices",)]):
        job = _job(row, kinds, owners)
        if job.session.key in jobs:
            raise row.fault(f"name {job.session.key} is there twice; rename one")
        jobs[job.session.key] = job
    return list(jobs.values())


def _job(row: Row, tiers: dict[str, plan.Tier], tenants: dict[str, plan.Tenant]) -> Job:
    name, tier, tenant = row.text("name"), row.text("tier") or SILVER, row.text("tenant")
    if not name:
        raise row.fault("no name; each session needs one")
    if not row.text("slices"):
        raise row.fault(f"session {name} has no slices; write how many it needs")
    if tier not in tiers:
        raise row.fault(f"session {name}: tier {tier!r} is unknown; use {', '.join(tiers)}")
    share = tiers[tier].guaranteed_share
    if tenant in tenants:
        share = tenants[tenant].guarantees.get(tier, share)
    session = plan.Session(
        key=name if "/" in name else f"default/{name}",
        tier=tier,
        request=plan.Request(
            slices=row.whole("slices", 0, low=1, high=MOST_SLICES),
            share=row.whole("share", share, high=MOST_SHARE),
            max_shards=row.whole("max_shards", 1, low=1, high=MOST_GPUS),
            gpu_models=row.words("gpu_models"),
            cpu_milli=row.whole("cpu_milli", 0),
            memory_bytes=row.whole("memory_mib", 0) << 20,
        ),
        phase=plan.Phase.WAITING,
        created=0.0,
        since=0.0,
        tenant=tenant,
        save_bytes=row.whole("save_mib", 0) << 20,
    )
    arrival = row.seconds("arrival", 0.0)
    if arrival == float("inf"):
        raise row.fault("arrival 'inf': write when it comes, or remove the row")
    return Job(session, arrival, row.seconds("duration", float("inf")))


def recorded(path: Path) -> plan.State:
    """A state that `explain --record` wrote."""
    remedy = "write one with `sojourn-operator explain --record`"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and data.get("kind") == plan.State.__name__:
            return from_data(plan.State, data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StudyError(f"{path}: not a recorded state ({error}); {remedy}") from error
    raise StudyError(f"{path}: not a recorded state; {remedy}")
