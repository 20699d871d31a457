"""Measures a training run, in the same way whatever the backend: nothing here asks for its name.

No ``from __future__ import annotations`` here: DDP compares the hook's annotations as objects.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Meter:
    """What one worker did: the spans of its gradient all-reduces, its losses, its bytes on the wire."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self.gradient_bytes = 0
        self.collective_count = 0
        self.losses: list[float] = []
        self.epochs: list[dict[str, float]] = []
        self.train_seconds = 0.0
        self._lock = threading.Lock()
        self._before: dict[str, Any] = {}
        self._started = 0.0

    def begin_epoch(self) -> None:
        """Starts the clock; bytes on the wire count from the first call."""
        if not self._before:
            self._before = _wire_counters()
        self._started = time.perf_counter()

    def end_epoch(self, image_count: int) -> float:
        """Stops the clock and returns images per second, over all workers."""
        seconds = time.perf_counter() - self._started
        self.train_seconds += seconds
        return image_count / seconds

    def finished(self, started: float, byte_count: int) -> None:
        """One gradient bucket was ready at `started` and is summed now."""
        with self._lock:
            self.spans.append((started, time.perf_counter()))
            self.gradient_bytes += byte_count
            self.collective_count += 1

    def save(self, folder: Path) -> None:
        """Writes ``result-<rank>.json`` for the program that started the workers."""
        after = _wire_counters()
        result = {
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "losses": self.losses,
            "epochs": self.epochs,
            "train_seconds": self.train_seconds,
            "communication_seconds": union_seconds(self.spans),
            "gradient_bytes": self.gradient_bytes,
            "collective_count": self.collective_count,
            "wire": {name: after[name] - self._before.get(name, 0) for name in after},
            "fanin": _fanin_stats(),
        }
        (folder / f"result-{dist.get_rank()}.json").write_text(json.dumps(result))


def timed_all_reduce(meter: Meter, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's own all-reduce of a bucket (divide, then sum over the default group), with its span noted."""
    started = time.perf_counter()
    gradients = bucket.buffer().div_(dist.get_world_size())
    byte_count = gradients.numel() * gradients.element_size()

    def note(future: torch.futures.Future[Any]) -> torch.Tensor:
        values = future.value()
        meter.finished(started, byte_count)
        summed: torch.Tensor = values[0]
        return summed

    return dist.all_reduce(gradients, async_op=True).get_future().then(note)


def union_seconds(spans: list[tuple[float, float]]) -> float:
    """Time covered by at least one span: buckets overlap, and adding their lengths would count that time twice."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _wire_counters() -> dict[str, int]:
    """Counters of this worker's network device, where it has one of its own, and those of fanin."""
    counters = {"fanin_sent": int(_fanin_stats()["totals"].get("bytes_sent", 0))}
    if device := os.environ.get("DEMO_DEVICE"):
        for name in ("tx_bytes", "rx_bytes"):
            counters[name] = int(Path(f"/sys/class/net/{device}/statistics/{name}").read_text())
    return counters


def _fanin_stats() -> dict[str, Any]:
    # Empty for every other backend, so nobody has to ask which one it is.
    fanin = sys.modules.get("fanin")
    return fanin.stats() if fanin is not None else {"groups": [], "totals": {}}
