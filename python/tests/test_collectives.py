"""Every c10d collective through both adapters, at 2 and 4 ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from worlds import Rank, has_python_backends, run_world, scenario_names, verdict  # noqa: E402

MODULE = "scenarios_collectives"
SCENARIOS = scenario_names(MODULE)
#: name → ranks, extra variables: through the switch, in shared memory, or both with two hosts of two ranks each.
#: The mixed form makes c10d use the Backend adapter; DETAIL wraps that in its checker.
WORLDS = {
    "group-2": (2, {}),
    "group-4": (4, {}),
    "shared-4": (4, {"FANIN_TRANSPORT": "auto"}),
    "hosts-4": (4, {"FANIN_TRANSPORT": "auto", "FANIN_HOST_KEY": "{host}"}),
    "atp-4": (4, {"FANIN_ALGORITHM": "atp"}),
    "atp-hosts-4": (4, {"FANIN_ALGORITHM": "atp", "FANIN_TRANSPORT": "auto", "FANIN_HOST_KEY": "{host}"}),
    "backend-2": (2, {"TEST_BACKEND": "cpu:fanin,cuda:gloo"}),
    "detail-2": (2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
}


@pytest.fixture(scope="module", params=WORLDS)
def ranks(request: pytest.FixtureRequest) -> list[Rank]:
    size, extra = WORLDS[request.param]
    if "TEST_BACKEND" in extra and not has_python_backends():
        pytest.skip("before torch 2.14 a backend of ours is always the whole group")
    return run_world(MODULE, SCENARIOS, size, extra=extra)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_collective(ranks: list[Rank], scenario: str) -> None:
    if problem := verdict(ranks, scenario):
        pytest.fail(problem, pytrace=False)


def test_ranks_end_quietly(ranks: list[Rank]) -> None:
    assert [rank.code for rank in ranks] == [0] * len(ranks), ranks[0].output[-3000:]
    for rank in ranks:
        assert "Traceback" not in rank.output and "panicked" not in rank.output, rank.output[-3000:]
