"""Starts the workers of one run and waits for them: under torchrun on this host, or one by one in namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fanin.demo import DemoError

_POLL_SECONDS = 0.1
_TAIL_LINES = 25
#: torchrun's workers are out of reach of a signal to its group, so it must get the time to end them itself.
_END_SECONDS = 20.0


@dataclass(frozen=True)
class Command:
    """One process to start; `environment` adds to this process's own."""

    name: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def training_arguments(backend: str, data: Path, results: Path, options: dict[str, str]) -> list[str]:
    """``-m fanin.demo.train ...`` for one backend."""
    found = ["-m", "fanin.demo.train", backend, "--data", str(data), "--results", str(results)]
    for name, value in options.items():
        found += [f"--{name}", value]
    return found


def torchrun(worker_count: int, arguments: Sequence[str]) -> Command:
    """All workers on this host, over loopback."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={worker_count}"]
    # Both backends name their interface, so that gloo does not choose by the host's name, which need not resolve.
    # By itself fanin would use shared memory here, and the switch is what the demonstration is about.
    network = {"GLOO_SOCKET_IFNAME": "lo", "FANIN_TRANSPORT": os.environ.get("FANIN_TRANSPORT", "udp")}
    return Command("torchrun", [*launcher, *arguments], network | quiet_environment())


def quiet_environment() -> dict[str, str]:
    """What every worker needs: one compute thread each, since several share the cores, and unbuffered lines."""
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def run(commands: Sequence[Command], folder: Path, timeout_s: float, on_line: Callable[[str], None]) -> float:
    """Runs all commands side by side until each has ended well; returns the seconds that took.

    Lines that the first one prints go to `on_line`. Raises ``DemoError`` with the end of the log once one fails or
    `timeout_s` is over; whatever happens, no process is left behind.
    """
    started = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    logs = [folder / f"{command.name}.log" for command in commands]
    first = folder / f"{commands[0].name}.out"
    try:
        for index, command in enumerate(commands):
            processes.append(start(command, logs[index], first if index == 0 else None))
        with first.open() as lines:
            _watch(processes, logs, lines, started + timeout_s, on_line)
    finally:
        for process in processes:
            end(process)
    return time.monotonic() - started


def start(command: Command, log: Path, output: Path | None) -> subprocess.Popen[bytes]:
    """Starts one process in a group of its own, so that its children can be ended with it."""
    with log.open("wb") as errors, (output or log).open("ab") as lines:
        return subprocess.Popen(
            command.arguments,
            env=os.environ | command.environment,
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=errors,
            start_new_session=True,
        )


def _watch(
    processes: Sequence[subprocess.Popen[bytes]],
    logs: Sequence[Path],
    lines: IO[str],
    deadline: float,
    on_line: Callable[[str], None],
) -> None:
    """Returns once all processes ended with status 0."""
    while True:
        codes = [process.poll() for process in processes]
        # The output is read after the status, so that the last lines before the end are not missed.
        for line in lines:
            on_line(line.rstrip("\n"))
        for code, log in zip(codes, logs, strict=True):
            if code:
                raise DemoError(f"{log.stem} ended with status {code}; the end of {log}:\n{tail(log)}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            stuck = [log for log, code in zip(logs, codes, strict=True) if code is None]
            raise DemoError(f"{stuck[0].stem} did not end in time; the end of {stuck[0]}:\n{tail(stuck[0])}")
        time.sleep(_POLL_SECONDS)


def tail(log: Path) -> str:
    """The last lines of a log, indented."""
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join(f"    {line}" for line in lines) or "    (empty)"


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its children; they get a moment to leave in order."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
            process.wait(_END_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
