"""Runs of ``fanin sim sweep --ray`` as tasks of a Ray cluster.

``python -m fanin.sweep ADDRESS`` reads a plan from its standard input, as ``fanin sim sweep`` writes it, makes each
run on some machine of the cluster by the same build of ``fanin`` there, and puts what comes back into the sweep's
folder. A run that is there is whole, so a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

#: Tasks handed to Ray at a time, per processor of the cluster: enough that none is idle, few enough to stop soon.
TASKS_PER_PROCESSOR = 2


class RunFailed(Exception):
    """A run came to nothing; the message names it and has what fanin said."""


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        command: starts ``fanin`` on every machine of the cluster.
        scenario: text of the scenario's file.
        arguments: of ``fanin sim sweep``; with the scenario and the build they decide about the runs' names.
        runs: name and label of each run.
        folder: where ``NAME.json`` goes.
    """

    command: list[str]
    scenario: str
    arguments: list[str]
    runs: list[dict[str, str]]
    folder: str

    @staticmethod
    def read(stream: TextIO) -> Plan:
        """Reads a plan from JSON.

        Raises:
            ValueError: if it is none.
        """
        try:
            return Plan(**json.load(stream))
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"this is no plan of fanin sim sweep: {error}") from error


def make_run(command: list[str], scenario: str, arguments: list[str], name: str) -> str:
    """Makes one run on this machine.

    Returns:
        what ``fanin`` found, as JSON.

    Raises:
        RunFailed: with what it said, or if it is not here.
    """
    with tempfile.TemporaryDirectory(prefix="fanin-sweep-") as folder:
        file = Path(folder) / "scenario.toml"
        file.write_text(scenario)
        line = [*command, "sim", "sweep", str(file), *arguments, "--out", folder, "--run", name]
        try:
            done = subprocess.run(line, capture_output=True, text=True)
        except OSError as error:
            raise RunFailed(f"{os.uname().nodename} has no {command[0]}: {error}") from error
        if done.returncode != 0:
            raise RunFailed(f"on {os.uname().nodename}: {done.stderr.strip() or f'status {done.returncode}'}")
        return (Path(folder) / "runs" / f"{name}.json").read_text()


def keep(folder: Path, name: str, found: str) -> None:
    """Writes a run's file, whole or not at all."""
    beside = folder / f"{name}.part"
    beside.write_text(found)
    beside.rename(folder / f"{name}.json")


def said(error: Exception) -> str:
    """What a task's own error says: Ray wraps it in one with a stack of another machine."""
    cause = getattr(error, "cause", None)
    return str(cause if isinstance(cause, Exception) else error)


def sweep(plan: Plan, ray: Any, told: TextIO) -> None:
    """Makes all runs of a plan on a cluster that ``ray`` is connected to, and says on ``told`` how far it is.

    After a run that fails no other is started; those under way come to their end and are kept, so that a sweep that
    is started again is farther on.

    Raises:
        RunFailed: with the first run that failed, once none is under way.
    """
    folder, task = Path(plan.folder), ray.remote(max_retries=1)(make_run)
    waiting = list(reversed(plan.runs))
    at_once = TASKS_PER_PROCESSOR * max(1, int(ray.cluster_resources().get("CPU", 1)))
    under_way: dict[Any, dict[str, str]] = {}
    count, failure = 0, None
    try:
        while (waiting and failure is None) or under_way:
            while waiting and failure is None and len(under_way) < at_once:
                run = waiting.pop()
                under_way[task.remote(plan.command, plan.scenario, plan.arguments, run["name"])] = run
            for reference in ray.wait(list(under_way), num_returns=1)[0]:
                run = under_way.pop(reference)
                try:
                    found = ray.get(reference)
                except Exception as error:
                    failure = failure or RunFailed(f"{run['label']}: {said(error)}")
                    continue
                keep(folder, run["name"], found)
                count += 1
                print(f"{count} of {len(plan.runs)}: {run['label']}", file=told, flush=True)
    finally:
        # Some are left only if this was interrupted, or the cluster or the disk is gone.
        for reference in under_way:
            ray.cancel(reference)
    if failure is not None:
        raise failure


def connect(ray: Any, address: str) -> None:
    """Connects to a cluster.

    Raises:
        ConnectionError: whatever Ray raised: of its own, RuntimeError, ValueError or ConnectionError.
    """
    try:
        ray.init(address=address, log_to_driver=False)
    except Exception as error:
        raise ConnectionError(f"cannot use the Ray cluster at {address} (--ray): {error}") from error


def main(arguments: list[str]) -> int:
    """Connects to the cluster at the address, makes the runs on the standard input, and returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m fanin.sweep ADDRESS < PLAN; fanin sim sweep --ray does it", file=sys.stderr)
        return 2
    try:
        import ray
    except ImportError:
        print(f"{sys.executable} has no Ray: pip install ray, or leave --ray out", file=sys.stderr)
        return 1
    try:
        plan = Plan.read(sys.stdin)
        connect(ray, arguments[0])
        sweep(plan, ray, sys.stderr)
    except (RunFailed, ConnectionError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except ray.exceptions.RayError as error:
        print(f"the Ray cluster failed; what is done is kept: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
