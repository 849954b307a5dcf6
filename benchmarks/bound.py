"""How much of the GPUs any placement could fill: the cutting-stock bound of a trace.

A linear program over the loads of one GPU, by column generation. CPU, memory and model limits
are left out, so the truth is a little lower. `most` may refuse whom it likes; `fair` places an
equal part of all.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from openb import Pod
from sojourn_operator.plan.prices import GPU, best_load, prices


def demand_of(pods: list[Pod], capacity: int) -> dict[int, float]:
    """GPU loads by size, scaled so that they ask for the whole capacity once."""
    scale = capacity / sum(pod.demand for pod in pods)
    counts: Counter[int] = Counter()
    for pod in pods:
        if pod.gpus:
            counts[pod.milli] += pod.gpus
    return {size: scale * count for size, count in counts.items()}


def fair(pods: list[Pod], capacity: int) -> float:
    """Allocation (%) when every size is placed to the same part."""
    return 100 * min(capacity / GPU / prices(demand_of(pods, capacity)).gpus, 1.0)


def most(pods: list[Pod], capacity: int) -> float:
    """Allocation (%) when a scheduler may refuse, knowing the mix."""
    return 100 * _maximum(demand_of(pods, capacity), capacity / GPU) * GPU / capacity


def _maximum(demand: Mapping[int, float], gpus: float) -> float:
    """The most GPUs that loads within the demand fill: primal simplex from the empty plan."""
    sizes = sorted(demand)
    rows = len(sizes) + 1
    limit = np.array([*(demand[size] for size in sizes), gpus])
    inverse, level, gain = np.eye(rows), limit.copy(), np.zeros(rows)
    for _ in range(5000):
        duals = gain @ inverse
        if (worst := int(duals.argmin())) < rows and duals[worst] < -1e-9:
            column, value = np.eye(rows)[worst], 0.0
        else:
            worth = {s: s / GPU - d for s, d in zip(sizes, duals[:-1], strict=True)}
            best, counts = best_load(worth, sizes)
            if best <= duals[-1] + 1e-9:
                break
            column = np.array([*counts, 1.0])
            value = float(np.dot(counts, sizes)) / GPU
        change = inverse @ column
        ratios = np.where(change > 1e-9, level / np.where(change > 1e-9, change, 1.0), np.inf)
        leave = int(ratios.argmin())
        pivot = inverse[leave] / change[leave]
        step = ratios[leave]
        inverse = inverse - np.outer(change, pivot)
        inverse[leave] = pivot
        level = np.maximum(level - change * step, 0.0)
        level[leave] = step
        gain[leave] = value
    return float(gain @ level)
