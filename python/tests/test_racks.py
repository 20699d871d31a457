"""DDP over racks: workers beside different switches, each of them a process of its own, train as over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
from worlds import run_world, verdict  # noqa: E402

SCENARIOS = ["scenario_ddp_with_several_buckets", "scenario_ddp_leaves_equal_weights"]
SWITCHES = ["spine", "rack0", "rack1"]


def _address(number: int) -> str:
    """One of this test process alone, on loopback."""
    pid = os.getpid()
    return f"127.{32 | (pid >> 8) & 31}.{pid & 255}.{number}"


def _topology(folder: Path) -> Path:
    entries = []
    for number, name in enumerate(SWITCHES, 1):
        parent = "" if name == "spine" else "parent = 'spine'\n"
        places = f"control = '{_address(number)}:50099'\ndata = '{_address(number)}:48864'\n"
        entries.append(f"[[switch]]\nname = '{name}'\n{places}{parent}")
    file = folder / "racks.toml"
    file.write_text("".join(entries))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """The control address of a spine with two racks below it."""
    file = _topology(tmp_path)
    daemons = []
    try:
        for name in SWITCHES:
            command = [sys.executable, "-m", "fanin", "switch", "--topology", str(file), "--name", name]
            daemon = subprocess.Popen(
                [*command, "--http-bind", _address(1 + SWITCHES.index(name)), "--json"],
                stdout=subprocess.PIPE,
                text=True,
            )
            daemons.append(daemon)
            assert daemon.stdout is not None
            # It announces itself once its ports are open.
            assert "control" in json.loads(daemon.stdout.readline()), name
        yield f"{_address(1)}:50099"
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)


def test_ddp_over_two_racks(root: str) -> None:
    extra = {"FANIN_SWITCH": root, "FANIN_SWITCH_NAME": "rack{host}"}
    ranks = run_world("scenarios_training", SCENARIOS, 4, extra=extra)
    for scenario in SCENARIOS:
        if problem := verdict(ranks, scenario):
            pytest.fail(problem, pytrace=False)
