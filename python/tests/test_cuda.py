"""CUDA tensors through pinned memory; needs a GPU, and says so when there is none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from worlds import run_world, scenario_names, verdict  # noqa: E402

MODULE = "scenarios_cuda"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: staging of CUDA tensors was NOT tested")


@pytest.mark.parametrize("backend", ["fanin", "cpu:gloo,cuda:fanin"])
def test_cuda(backend: str) -> None:
    scenarios = scenario_names(MODULE)
    ranks = run_world(MODULE, scenarios, 2, extra={"TEST_BACKEND": backend})
    problems = [problem for name in scenarios if (problem := verdict(ranks, name))]
    assert not problems, problems[0]
