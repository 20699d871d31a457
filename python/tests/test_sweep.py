"""Sweeps on a Ray cluster: the driver, and the command, with a Ray that runs tasks in this process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fanin.sweep import Plan, RunFailed, sweep

COMMAND = [sys.executable, "-m", "fanin"]

SCENARIO = """
duration_ms = 0.2
[topology]
shape = "star"
hosts = 4
[[traffic]]
kind = "incast"
senders = 3
bytes = 20000
"""

#: A Ray that runs each task in this process, when it is asked for it.
FAKE_RAY = """
class exceptions:
    class RayError(Exception):
        pass

def init(address, log_to_driver):
    if address != "auto":
        raise RuntimeError(f"no cluster at {address}")

def cluster_resources():
    return {"CPU": 1.0}

class Task:
    def __init__(self, function):
        self.function = function
    def remote(self, *arguments):
        return lambda: self.function(*arguments)

def remote(max_retries):
    return Task

def wait(references, num_returns):
    return references[-num_returns:], references[:-num_returns]

def get(reference):
    return reference()

def cancel(reference):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a scenario and a Ray."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    (tmp_path / "ray.py").write_text(FAKE_RAY)
    return tmp_path


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = [*COMMAND, "sim", "sweep", "scenario.toml", "--set", "links.queue_kib=64,128", "--seeds", "2", *flags]
    environment = os.environ | {"PYTHONPATH": path, "FANIN_PYTHON": sys.executable}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_a_cluster_makes_the_same_table_and_goes_on_where_it_was(folder: Path) -> None:
    here = run(folder, "--out", "here")
    assert here.returncode == 0, here.stderr
    there = run(folder, "--out", "there", "--ray", "auto")
    assert there.returncode == 0, there.stderr
    assert "4 of 4" in there.stderr
    table = (folder / "there" / "sweep.csv").read_text()
    assert table == (folder / "here" / "sweep.csv").read_text() and len(table.splitlines()) == 5
    next((folder / "there" / "runs").glob("*.json")).unlink()
    again = run(folder, "--out", "there", "--ray", "auto")
    assert again.returncode == 0 and "1 of 1" in again.stderr
    assert "4 runs, of which 1 are still to be made" in again.stderr
    assert (folder / "there" / "sweep.csv").read_text() == table


def test_what_is_missing_is_said(folder: Path) -> None:
    found = run(folder, "--out", "out", "--ray", "10.0.0.1:6379")
    assert found.returncode != 0 and "no cluster at 10.0.0.1:6379" in found.stderr, found.stderr
    assert "cannot use the Ray cluster at 10.0.0.1:6379 (--ray)" in found.stderr and "Traceback" not in found.stderr
    found = run(folder, "--out", "out", "--run", "0123456789abcdef")
    assert found.returncode != 0 and "same build" in found.stderr, found.stderr


class TaskError(Exception):
    """As Ray wraps what a task raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a stack of another machine")
        self.cause = cause


def test_a_run_that_fails_is_named_and_those_under_way_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "fanin"
    script.write_text(
        '#!/bin/sh\nfor last; do :; done\ncase $last in bad*) echo "too hot: $last" >&2; exit 3; esac\n'
        'while [ "$1" != --out ]; do shift; done\nmkdir -p "$2/runs"; echo "{}" > "$2/runs/$last.json"\n'
    )
    script.chmod(0o755)
    fake: dict[str, Any] = {}
    exec(FAKE_RAY, fake)
    cancelled = []

    def get(reference: Any) -> Any:
        try:
            return reference()
        except RunFailed as error:
            raise TaskError(error) from error

    fake |= {"cancel": cancelled.append, "get": get, "cluster_resources": lambda: {"CPU": 2.0}}
    fake["wait"] = lambda references, num_returns: (references[:1], references[1:])
    names = ["good", "bad", "beside", "bad-too", "last", "never"]
    runs = [{"name": name, "label": f"run {name}"} for name in names]
    plan = {"command": [str(script)], "scenario": SCENARIO, "arguments": [], "runs": runs, "folder": str(tmp_path)}
    ray = type("Ray", (), {name: staticmethod(fake[name]) for name in fake if callable(fake[name])})
    with pytest.raises(RunFailed, match="^run bad: .*too hot: bad$"):
        sweep(Plan.read(io.StringIO(json.dumps(plan))), ray, io.StringIO())
    assert sorted(file.stem for file in tmp_path.glob("*.json")) == ["beside", "good", "last"]
    assert not list(tmp_path.glob("*.part")) and not cancelled
    with pytest.raises(ValueError, match="no plan"):
        Plan.read(io.StringIO("{}"))
