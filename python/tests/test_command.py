"""The ``fanin`` command as Python installs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import fanin
import numpy as np

COMMAND = [sys.executable, "-m", "fanin"]


def test_version_is_that_of_the_package() -> None:
    found = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and fanin.__version__ in found.stdout, found


def test_unknown_command_has_status_two() -> None:
    found = subprocess.run([*COMMAND, "swich"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and "swich" in found.stderr, found


def test_switch_serves_sessions_and_ends_on_interrupt() -> None:
    flags = ["--bind", "127.0.0.1", "--control-port", "0", "--data-port", "0", "--http-port", "0", "--json"]
    with subprocess.Popen([*COMMAND, "switch", *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            addresses = json.loads(process.stdout.readline())
            control = next(value for name, value in addresses.items() if "control" in name)
            with fanin.Session(switch=control, rank=0, world_size=1, run_id="command", timeout=20) as session:
                assert session.all_reduce(np.ones(10, dtype="int32")).tolist() == [1] * 10
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
