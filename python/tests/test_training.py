"""Training over fanin equals training over gloo."""

from __future__ import annotations

import os
import sys

import pytest

pytest.importorskip("torch")
from worlds import HERE, Processes, Rank, has_python_backends, run_world, scenario_names, verdict  # noqa: E402

MODULE = "scenarios_training"
SCENARIOS = scenario_names(MODULE)
WORLDS = {
    "2": (2, {}),
    "4": (4, {}),
    "shared-4": (4, {"FANIN_TRANSPORT": "auto"}),
    "hosts-4": (4, {"FANIN_TRANSPORT": "auto", "FANIN_HOST_KEY": "{host}"}),
    "atp-4": (4, {"FANIN_ALGORITHM": "atp"}),
    # Gradients as they lie in memory, added in registers.
    "fpisa-2": (2, {"FANIN_ACCUMULATOR": "fpisa"}),
    "backend-2": (2, {"TEST_BACKEND": "cpu:fanin,cuda:gloo"}),
}


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request: pytest.FixtureRequest) -> list[Rank]:
    size, extra = WORLDS[request.param]
    if "TEST_BACKEND" in extra and not has_python_backends():
        pytest.skip("before torch 2.14 a backend of ours is always the whole group")
    return run_world(MODULE, SCENARIOS, size, extra=extra)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_training(ranks: list[Rank], scenario: str) -> None:
    if problem := verdict(ranks, scenario):
        pytest.fail(problem, pytrace=False)


def test_torchrun_finds_the_backend_without_an_import() -> None:
    if not has_python_backends():
        pytest.skip("torch before 2.14 does not look for backends by itself")
    script = str(HERE / "stock_script.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    # One outer process: torchrun sets its children's variables itself.
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    with Processes([command], 1) as processes:
        (result,) = processes.wait(200)
    assert result.code == 0, result.output
    assert result.output.count("equal weights") == 2, result.output
