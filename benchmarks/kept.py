"""Results of benchmark runs kept in a file as they come, so that a long series can be broken off.

One line of JSON per run: its key and what was found. Knows nothing of what is run.
"""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

R = TypeVar("R")
Job = tuple[str | int | float, ...]


def key_of(job: Job) -> str:
    """A job's name in the file: all but the folder that the data lies in."""
    return "/".join(map(str, job[1:]))


def gather(
    jobs: Iterable[Job], run: Callable[[Job], R], results: Path, *, processes: int
) -> dict[str, R]:
    """Results by key, those of the file included; a job that is new is run and written down."""
    kept: dict[str, R] = {}
    if results.exists():
        kept = dict(json.loads(line) for line in results.read_text().splitlines())
    todo = [job for job in jobs if key_of(job) not in kept]
    with ProcessPoolExecutor(processes) as pool, results.open("a") as file:
        for job, value in zip(todo, pool.map(run, todo), strict=True):
            kept[key_of(job)] = value
            file.write(json.dumps([key_of(job), value]) + "\n")
            file.flush()
    return kept
