"""Runs behind slow links: every worker in its own network namespace, each link shaped to the same rate."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fanin.demo import DemoError
from fanin.demo.launch import Command, end, quiet_environment, start, tail

_FANIN = [sys.executable, "-m", "fanin"]
_STEP_SECONDS_MAX = 60
_RENDEZVOUS_PORT = 29_400


@dataclass(frozen=True)
class Worker:
    """Where one worker lives."""

    namespace: str
    address: str
    device: str


@dataclass(frozen=True)
class Network:
    """What ``fanin net up`` made."""

    identity: str
    switch_namespace: str
    switch_address: str
    workers: list[Worker]
    server: Worker | None = None
    """Where the parameter server of an ATP job lives, behind a link like the workers'."""


def check_rate(rate: str) -> float:
    """The rate in bits per second of what tc takes, such as ``500mbit``; raises ``DemoError`` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", rate.lower())
    if match is None or not float(match[1]):
        raise DemoError(f"--net {rate}: expected a rate such as 500mbit or 1gbit")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]


def require_root() -> None:
    """Raises ``DemoError`` unless namespaces can be made here."""
    if os.geteuid() != 0:
        raise DemoError("--net makes network namespaces, which needs root: run it with sudo, or leave --net out")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise DemoError(f"--net needs the program {program}: install iproute2")


def parse(text: str) -> Network:
    """Reads what ``fanin net up --json`` prints. Raises ``DemoError`` if it is something else."""
    try:
        found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        workers = [Worker(entry["ns"], entry["address"], entry["device"]) for entry in found["workers"]]
        switch = found["switch"]
        return Network(str(found["id"]), switch["ns"], switch["address"], workers)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DemoError(f"`fanin net up --json` printed something else than a network: {text!r}") from error


@contextmanager
def shaped(worker_count: int, rate: str, *, has_server: bool = False) -> Iterator[Network]:
    """A network of namespaces that lasts as long as the context; `has_server`: with a place for a parameter server."""
    links = str(worker_count + has_server)
    network = parse(_fanin("net", "up", "--workers", links, "--rate", rate, "--owner", str(os.getpid()), "--json"))
    if has_server:
        network = replace(network, workers=network.workers[:-1], server=network.workers[-1])
    try:
        yield network
    finally:
        _fanin("net", "down", network.identity)


def _fanin(*arguments: str) -> str:
    done = subprocess.run([*_FANIN, *arguments], capture_output=True, text=True, timeout=_STEP_SECONDS_MAX, check=False)
    if done.returncode != 0:
        raise DemoError(f"`fanin {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def inside(namespace: str, arguments: list[str]) -> list[str]:
    """The command, run in a namespace."""
    return ["ip", "netns", "exec", namespace, *arguments]


@contextmanager
def switch(network: Network, folder: Path) -> Iterator[str]:
    """A switch in its own namespace; gives its control address."""
    arguments = [*_FANIN, "switch", "--bind", network.switch_address, "--json"]
    with _daemon("switch", inside(network.switch_namespace, arguments), "control", folder) as address:
        yield address


@contextmanager
def server(network: Network, switch_address: str, folder: Path) -> Iterator[None]:
    """A parameter server at its place, if the network has one."""
    if network.server is None:
        yield
        return
    arguments = [*_FANIN, "server", "--switch", switch_address, "--json"]
    with _daemon("server", inside(network.server.namespace, arguments), "data", folder):
        yield


@contextmanager
def _daemon(name: str, arguments: list[str], key: str, folder: Path) -> Iterator[str]:
    """Runs a program until the end of the context; gives what it announces under `key` once it is up."""
    output, log = folder / f"{name}.out", folder / f"{name}.log"
    process = start(Command(name, arguments), log, output)
    try:
        yield _announced(name, process, output, log, key)
    finally:
        end(process)


def _announced(name: str, process: subprocess.Popen[bytes], output: Path, log: Path, key: str) -> str:
    deadline = time.monotonic() + _STEP_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        for line in output.read_text().splitlines():
            # Other lines may be of other kinds, and the last one may be half written.
            if line.startswith("{") and line.endswith("}") and key in (found := json.loads(line)):
                return str(found[key])
        time.sleep(0.05)
    raise DemoError(f"the {name} did not start; the end of {log}:\n{tail(log)}")


def commands(network: Network, arguments: list[str], switch_address: str | None) -> list[Command]:
    """One command per worker, with the variables that torchrun would set: it cannot span namespaces."""
    found = []
    for rank, worker in enumerate(network.workers):
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(len(network.workers)),
            "MASTER_ADDR": network.workers[0].address,
            "MASTER_PORT": str(_RENDEZVOUS_PORT),
            "GLOO_SOCKET_IFNAME": worker.device,
            "DEMO_DEVICE": worker.device,
        }
        if switch_address is not None:
            environment["FANIN_SWITCH"] = switch_address
        command = inside(worker.namespace, [sys.executable, *arguments])
        found.append(Command(f"worker-{rank}", command, environment | quiet_environment()))
    return found
