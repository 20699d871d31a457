"""Ranks of ``fanin.ps`` as threads of one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import fanin
import numpy as np

_runs = count()


def new_run() -> str:
    """A run id of its own."""
    return f"test-{next(_runs)}"


def in_parallel(
    kind: Callable[[fanin.Session], Any],
    switch: fanin.LocalSwitch,
    size: int,
    work: Callable[[Any], Any],
    timeout: float = 60,
) -> list[Any]:
    """Runs `work` with a worker of a kind as every rank of a job of `size`; returns the results in rank order."""
    run_id = new_run()

    def member(rank: int) -> Any:
        session = fanin.Session(
            switch=switch.address, job="ps-test", run_id=run_id, rank=rank, world_size=size, timeout=timeout
        )
        with kind(session) as worker:
            return work(worker)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


def ones(length: int = 100, value: float = 1.0) -> np.ndarray:
    """A tensor of one value."""
    return np.full(length, value, "float32")
