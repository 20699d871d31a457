"""A process that is killed, and another one in its place, from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import fanin
import pytest

SCRIPT = Path(__file__).with_name("replaced_ranks.py")
SETTINGS = {"FANIN_ALGORITHM": "atp", "FANIN_ON_PEER_LOSS": "continue"}


def start(switch: str, rank: int, role: str, **settings: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **SETTINGS, "FANIN_SWITCH": switch, **settings}
    command = [sys.executable, str(SCRIPT), str(rank), role]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_new_process_takes_a_killed_ranks_place() -> None:
    pytest.importorskip("numpy")
    with fanin.LocalSwitch() as switch:
        ranks = [start(switch.address, rank, "survivor") for rank in range(2)]
        victim = start(switch.address, 2, "victim")
        assert victim.wait(60) == -signal.SIGKILL
        ranks.append(start(switch.address, 2, "replacement"))
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0, 0], "\n".join(outputs)
        assert all(output.splitlines()[-1] == "well" for output in outputs)


def test_a_job_that_ends_with_a_lost_rank_has_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    with fanin.LocalSwitch() as switch:
        with pytest.raises(fanin.FaninError, match="on_peer_loss"):
            fanin.Session(switch=switch.address, rank=0, world_size=1, run_id="1", timeout=5, replace=True)
        with fanin.Session(switch=switch.address, rank=0, world_size=1, run_id="1", timeout=5) as session:
            with pytest.raises(fanin.FaninError, match="on_peer_loss"):
                session.admit()
        for name, value in SETTINGS.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(fanin.FaninError, match="nobody to replace"):
            fanin.Session(switch=switch.address, rank=0, world_size=1, run_id="2", timeout=5, replace=True)
