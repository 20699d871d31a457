"""Starts several processes as one torch world and runs named scenarios in it, many per start: a start costs seconds.

As a script it is one rank: ``python worlds.py <module> <report> <scenario>...``. A scenario is a function of the module
that takes a ``World``. Ranks write one line of JSON per scenario; after the first failure a rank stops, since its peers
would only wait for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclasses.dataclass
class World:
    """What a scenario gets. `gloo` is a reference group over the same ranks."""

    rank: int
    size: int
    gloo: Any

    @contextlib.contextmanager
    def through_switch(self, *kinds: str) -> Iterator[None]:
        """Fails unless the number of collectives of each kind that went through the switch, or through shared memory
        where the world uses that, grew inside the block."""
        before = switch_counts()
        yield
        after = switch_counts()
        for kind in kinds:
            assert after.get(kind, 0) > before.get(kind, 0), f"no {kind} was left to fanin: {after}"

    @contextlib.contextmanager
    def fell_back(self, kind: str, words: str) -> Iterator[None]:
        """Fails unless a fall-back of `kind` with `words` in its reason was counted inside the block."""
        before = fallback_count(kind, words)
        yield
        assert fallback_count(kind, words) > before, f"no fall-back of {kind} because of {words!r} was counted"


def switch_counts() -> dict[str, int]:
    """Collectives that went through the switch or shared memory so far, by kind, over all groups of this rank."""
    import fanin

    counts: dict[str, int] = {}
    for group in fanin.stats()["groups"]:
        for kind, row in group["collectives"].items():
            counts[kind] = counts.get(kind, 0) + row["switch"] + row["shared"]
    return counts


def fallback_count(kind: str, words: str) -> int:
    """Fall-backs of `kind` whose reason contains `words`."""
    import fanin

    rows = [group["collectives"].get(kind) for group in fanin.stats()["groups"]]
    return sum(count for row in rows if row for reason, count in row["reasons"].items() if words in reason)


def has_python_backends() -> bool:
    """Whether this torch lets one device of a group be a backend written in Python."""
    import torch

    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, size: int, port: int, extra: dict[str, str]) -> dict[str, str]:
    """The variables torchrun would set, without whatever fanin settings the caller's shell has.

    In the values of `extra`, "{host}" stands for 0 or 1 in turn.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FANIN_")}
    return (
        clean
        | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "PYTHONFAULTHANDLER": "1",
            # All ranks are on one host here; what is tested is the switch, unless a test says otherwise.
            "FANIN_TRANSPORT": "udp",
        }
        | {name: value.replace("{host}", str(rank % 2)) for name, value in extra.items()}
    )


@dataclasses.dataclass
class Rank:
    """One finished (or killed) process."""

    code: int
    output: str
    report: dict[str, str]
    seconds: float


class Processes:
    """The processes of one world; leaving the context kills whatever still runs."""

    def __init__(self, commands: list[list[str]], size: int, extra: dict[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fanin-test-")
        folder = Path(self._folder.name)
        port = free_port()
        self.reports = [folder / f"report-{rank}" for rank in range(len(commands))]
        self._outputs = [folder / f"output-{rank}" for rank in range(len(commands))]
        self._start = time.monotonic()
        self.processes = []
        for rank, command in enumerate(commands):
            filled = [part.replace("{report}", str(self.reports[rank])) for part in command]
            with self._outputs[rank].open("w") as output:
                self.processes.append(
                    subprocess.Popen(
                        filled,
                        env=environment(rank, size, port, extra or {}),
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=HERE,
                        start_new_session=True,
                    )
                )

    def wait(self, timeout_s: float) -> list[Rank]:
        """Waits for all; a process still alive at the timeout is killed and has a negative code."""
        ranks = []
        for process, output, report in zip(self.processes, self._outputs, self.reports, strict=True):
            try:
                process.wait(max(0.1, self._start + timeout_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGABRT)
                process.wait()
            lines = report.read_text().splitlines() if report.exists() else []
            found = dict(json.loads(line) for line in lines)
            ranks.append(Rank(process.returncode, output.read_text(), found, time.monotonic() - self._start))
        return ranks

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._folder.cleanup()


def run_world(
    module: str, scenarios: list[str], size: int, *, timeout_s: float = 240, extra: dict[str, str] | None = None
) -> list[Rank]:
    """Runs the scenarios of `module` in order in one world of `size` processes."""
    command = [sys.executable, str(HERE / "worlds.py"), module, "{report}", *scenarios]
    with Processes([command] * size, size, extra) as processes:
        return processes.wait(timeout_s)


def scenario_names(module: str, prefix: str = "scenario_") -> list[str]:
    """The scenarios of a module in source order, found without importing it (it may need torch)."""
    text = (HERE / f"{module}.py").read_text()
    return [line[4:].split("(")[0] for line in text.splitlines() if line.startswith(f"def {prefix}")]


def verdict(ranks: list[Rank], scenario: str) -> str | None:
    """What went wrong in `scenario` at each rank that did not pass it, or None.

    All of them: the first is often one whose peer is gone, and only the peer knows why.
    """
    problems = []
    for index, rank in enumerate(ranks):
        result = rank.report.get(scenario, f"did not run; exit code {rank.code}\n{rank.output[-4000:]}")
        if result != "passed":
            problems.append(f"rank {index}: {result}")
    return "\n".join(problems) or None


def _main(module: str, report: str, names: list[str]) -> int:
    import fanin.torch
    import torch
    import torch.distributed as dist

    fanin.torch.register()
    torch.set_num_threads(1)
    scenarios = importlib.import_module(module)
    backend = os.environ.get("TEST_BACKEND", "fanin")
    dist.init_process_group(backend, timeout=timedelta(seconds=float(os.environ.get("TEST_TIMEOUT", "90"))))
    world = World(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo"))
    for name in names:
        torch.manual_seed(7)
        start = time.monotonic()
        try:
            getattr(scenarios, name)(world)
            result = "passed"
        except Exception:
            result = traceback.format_exc()
        with Path(report).open("a") as file:
            file.write(json.dumps([name, result]) + "\n")
        print(f"{name}: {result} in {time.monotonic() - start:.2f} s", flush=True)
        if result != "passed":
            return 1
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2], sys.argv[3:]))
