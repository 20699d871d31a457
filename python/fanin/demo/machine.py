"""What the run ran on, for the report."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> list[tuple[str, str]]:
    """Name and value of what a reader needs to judge the times."""
    return [
        ("processor", _processor()),
        ("cores that may be used", str(len(os.sched_getaffinity(0)))),
        ("memory", _memory()),
        ("load when the demonstration began", f"{os.getloadavg()[0]:.1f}"),
        ("system", f"{platform.system()} {platform.release()}"),
        ("Python", platform.python_version()),
    ]


def busy() -> str | None:
    """A warning where other work already fills the cores, so that nobody trusts the times too much; else None."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load < 0.7 * cores:
        return None
    return f"the load is {load:.1f} on {cores} cores before the start, so the times are long and uneven."


def _processor() -> str:
    return _field(Path("/proc/cpuinfo"), "model name") or platform.machine()


def _memory() -> str:
    kibibytes = (_field(Path("/proc/meminfo"), "MemTotal") or "").split()
    return f"{int(kibibytes[0]) / 2**20:.0f} GiB" if kibibytes else "unknown"


def _field(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
