"""Recordings of gradients: what is in the file, and that it is bounded. ``scenarios_training`` records under DDP."""

from __future__ import annotations

import json
from pathlib import Path

import fanin
import numpy as np
import pytest
from fanin import recording

torch = pytest.importorskip("torch")


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def step(network: torch.nn.Module) -> dict[str, np.ndarray]:
    network.zero_grad()
    network(torch.randn(5, 6)).square().sum().backward()
    return {name: parameter.grad.numpy().copy() for name, parameter in network.named_parameters()}


def test_every_third_step_of_some_layers(tmp_path: Path) -> None:
    network = model()
    with fanin.record(network, tmp_path / "made", every=3, only="weight$") as recorder:
        seen = [step(network) for _ in range(8)]
        assert recorder.steps == [0, 3, 6]
    arrays, metadata = recording.read(tmp_path / "made" / "rank-0.safetensors")
    assert metadata == {"content": recording.CONTENT, "rank": "0", "world_size": "1", "every": "3"}
    assert list(arrays) == [f"step-{at}/rank-0/{name}.weight" for at in (0, 3, 6) for name in (0, 2)]
    for name, array in arrays.items():
        at, parameter = int(name.split("/")[0][5:]), name.split("/")[2]
        np.testing.assert_array_equal(array, seen[at][parameter])
    step(network)
    assert recorder.steps == [0, 3, 6], "a closed recording takes no more"


def test_a_recording_is_bounded_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = model()
    step_bytes = 4 * (6 * 4 + 4 + 4 * 3 + 3)
    with fanin.record(network, tmp_path, bytes_max=2 * step_bytes + 1) as recorder:
        for _ in range(2):
            step(network)
        assert not recorder.is_full
        step(network)
        assert recorder.is_full and recorder.steps == [0, 1]
    assert "is full with 2 steps; raise bytes_max" in capsys.readouterr().err
    assert (tmp_path / "rank-0.safetensors").stat().st_size < 2 * step_bytes + 2000


def test_a_parameter_that_a_step_does_not_use_stops_no_count(tmp_path: Path) -> None:
    network = model()
    with fanin.record(network, tmp_path) as recorder:
        step(network)
        network.zero_grad()
        network[0](torch.randn(5, 6)).sum().backward()
        step(network)
        assert recorder.steps == [0, 1, 2]
    arrays, _ = recording.read(recorder.file)
    assert len(arrays) == 12, "readers want the same parameters at all steps"
    assert [name for name, array in arrays.items() if not array.any()] == [
        "step-1/rank-0/2.weight",
        "step-1/rank-0/2.bias",
    ]
    assert arrays["step-1/rank-0/2.weight"].shape == (3, 4)


def test_halves_are_recorded_as_float32(tmp_path: Path) -> None:
    network = torch.nn.Linear(4, 2).bfloat16()
    with fanin.record(network, tmp_path) as recorder:
        network(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    arrays, _ = recording.read(recorder.file)
    assert all(array.dtype == np.float32 and (array == 1).all() for array in arrays.values())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"only": "no such layer"}, "matches none of 0.weight"),
        ({"every": 0}, "give 1 or more"),
        ({"bytes_max": 100}, "does not hold one step, which has 172 bytes"),
    ],
)
def test_settings_that_record_nothing(tmp_path: Path, settings: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fanin.record(model(), tmp_path, **settings)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    file.write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="ends inside its header"):
        recording.read(file)
    text = json.dumps({"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match="no file of recorded gradients"):
        recording.read(file)
