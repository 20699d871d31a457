"""A recorded step says when buckets were ready, changes no gradient, and is what ``fanin advise`` reads."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fanin
import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

#: How long the backward pass of the last layer takes, so that the others' gradients come later.
PAUSE_SECONDS = 0.05


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(_context: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(PAUSE_SECONDS)
        return gradient


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(300, 300)
        self.last = torch.nn.Linear(300, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(_Pause.apply(self.first(x)))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> DistributedDataParallel:
    torch.manual_seed(1)
    # A bucket per layer.
    return DistributedDataParallel(Model(), bucket_cap_mb=0.2)


def train(network: DistributedDataParallel, steps: int) -> list[torch.Tensor]:
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            network(torch.randn(8, 300))
    return [parameter.detach().clone() for parameter in network.parameters()]


def test_buckets_and_their_times(group: None, tmp_path: Path) -> None:
    expected = train(model(), 9)
    network, file = model(), tmp_path / "made" / "step.json"
    with fanin.record_step(network, file, steps=4, label="two layers") as recorder:
        found = train(network, 9)
        assert recorder.is_complete
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    step = json.loads(file.read_text())
    assert (step["content"], step["model"], step["steps"], step["world_size"]) == ("fanin step 1", "two layers", 4, 1)
    # DDP reduces what is ready first first: the last layer, and the first one after the pause.
    assert sum(bucket["bytes"] for bucket in step["buckets"]) == 4 * (301 * 300 + 301 * 200)
    times = [bucket["ready_seconds"] for bucket in step["buckets"]]
    assert times == sorted(times) and times[-1] - times[0] >= 0.9 * PAUSE_SECONDS
    assert 0 <= step["communication_seconds"] < step["step_seconds"]
    assert times[-1] + step["tail_seconds"] <= step["step_seconds"]


def test_accumulated_gradients_are_one_step(group: None, tmp_path: Path) -> None:
    network, file = model(), tmp_path / "step.json"
    with fanin.record_step(network, file, steps=2):
        for _ in range(7):
            with network.no_sync():
                network(torch.randn(8, 300)).square().mean().backward()
            network(torch.randn(8, 300)).square().mean().backward()
    step = json.loads(file.read_text())
    assert (step["steps"], step["element_bytes"]) == (2, 4)
    # Two backward passes, with a pause in each.
    assert step["buckets"][-1]["ready_seconds"] >= 1.8 * PAUSE_SECONDS


def test_fanin_advise_reads_it(group: None, tmp_path: Path) -> None:
    network, file = model(), tmp_path / "step.json"
    with fanin.record_step(network, file, steps=2):
        train(network, 7)
    flags = ["--step", str(file), "--workers", "8", "--rate", "1mbit", "--json"]
    command = [sys.executable, "-m", "fanin", "advise", *flags]
    [advice] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert advice["model"] == "Model" and advice["workers"] == 8
    # On so slow a link there is nothing but communication: 1.75 of a ring against 1 and larger headers.
    assert 1.6 < advice["cases"][0]["speedup"] < 1.75
    assert advice["cases"][0]["switch"]["bound"] in ("link", "last-buckets")


def test_too_few_steps_are_an_error(group: None, tmp_path: Path) -> None:
    network = model()
    with (
        pytest.raises(RuntimeError, match="train at least 5 steps"),
        fanin.record_step(network, tmp_path / "step.json"),
    ):
        train(network, 4)
    assert not (tmp_path / "step.json").exists()


def test_an_exception_in_training_comes_through(group: None, tmp_path: Path) -> None:
    network = model()
    with pytest.raises(ZeroDivisionError), fanin.record_step(network, tmp_path / "step.json"):
        raise ZeroDivisionError


def test_what_cannot_be_recorded(group: None, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        fanin.record_step(Model(), tmp_path / "step.json")
    network = model()
    with pytest.raises(ValueError, match="steps=0"):
        fanin.record_step(network, tmp_path / "step.json", steps=0)
    recorder = fanin.record_step(network, tmp_path / "step.json")
    with pytest.raises(RuntimeError):
        fanin.record_step(network, tmp_path / "step.json")
    train(network, 6)
    recorder.close()
    recorder.close()
