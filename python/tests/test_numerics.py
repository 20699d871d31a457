"""Accumulators from Python, and training whose gradients they sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fanin import numerics, recording


def tensors(workers: int, dtype: str = "float32") -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [generator.normal(size=(7, 100)).astype(dtype) for _ in range(workers)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", numerics.ACCUMULATORS)
def test_every_accumulator_is_near_the_exact_sum(name: str, dtype: str) -> None:
    given = tensors(4, dtype)
    total = numerics.sum(given, accumulator=name, dtype=dtype)
    exact = np.sum([tensor.astype(np.float64) for tensor in given], axis=0)
    assert total.dtype == dtype and total.shape == (7, 100)
    if name == "exact":
        np.testing.assert_array_equal(total, exact.astype(dtype))
    # An overwrite of FPISA-A may lose all that came before it; what overflowed is NaN.
    magnitudes = np.sum(np.abs(given), axis=0, dtype=np.float64)
    allowed = magnitudes if name.startswith("fpisa-a") else 0.05 * magnitudes + 0.1
    near = np.isnan(total) | (np.abs(total - exact) < allowed)
    assert near.all() and np.isnan(total).mean() < 0.05


def test_fpisa_a_counts_what_it_meets_and_the_safe_one_never_overflows() -> None:
    given = [np.full(3, 1.999, "f4") * 2.0**-7] + [np.full(3, 1.999, "f4")] * 3
    paper = numerics.Accumulator("fpisa-a", workers=4)
    assert np.isnan(paper.sum(given)).all()
    assert paper.counts["overflow"] == 3 and paper.counts["left_shift"] == 3
    safe = numerics.Accumulator("fpisa-a-safe", workers=4)
    np.testing.assert_allclose(safe.sum(given), 3 * 1.999)
    assert safe.counts["overflow"] == 0 and safe.counts["overwrite"] == 3


def test_mistakes_are_answered_with_what_to_give() -> None:
    with pytest.raises(ValueError, match="use one of exact, ieee"):
        numerics.Accumulator("kahan", workers=2)
    with pytest.raises(ValueError, match="use float32, float16 or bfloat16"):
        numerics.Accumulator("exact", workers=2, dtype="float64")
    with pytest.raises(ValueError, match="1 tensors for 2 workers"):
        numerics.Accumulator("exact", workers=2).sum(tensors(1))
    with pytest.raises(ValueError, match="give equal ones"):
        numerics.sum([np.zeros(3, "f4"), np.zeros(4, "f4")])
    with pytest.raises(ValueError, match="no float sum"):
        numerics.sum([np.zeros(3, "i4")])
    with pytest.raises(ValueError, match="no workers"):
        numerics.sum([])


def test_tensors_of_torch_keep_their_kind() -> None:
    torch = pytest.importorskip("torch")
    given = [torch.tensor([1.5, 2.0], dtype=torch.bfloat16)] * 3
    total = numerics.sum(given, accumulator="exact", dtype="bfloat16")
    assert total.dtype == torch.bfloat16 and total.tolist() == [4.5, 6.0]


def request(**other: object) -> dict[str, object]:
    base = {"model": "cnn", "format": "float32", "accumulator": "ieee", "workers": 3, "batch": 4, "rate": 0.02}
    return {**base, "steps": 4, "points": 2, "seed": 7, **other}


def test_runs_of_a_seed_differ_in_their_sums_only(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from fanin.numerics import curves

    exact, again, coarse = (
        curves.train(request(accumulator=name, record=str(tmp_path / str(at)), record_steps=[0, 3]))
        for at, name in enumerate(("exact", "exact", "byte-wire"))
    )
    assert exact == again and [point[0] for point in exact["points"]] == [2, 4]
    losses = [run["points"][0][1] for run in (exact, coarse)]
    assert coarse["points"] != exact["points"] and losses[0] == pytest.approx(losses[1], rel=0.01)
    files = [recording.read(tmp_path / str(at) / "rank-1.safetensors")[0] for at in (0, 2)]
    assert {name.split("/")[0] for name in files[0]} == {"step-0", "step-3"}
    first = "step-0/rank-1/0.weight"
    np.testing.assert_array_equal(files[0][first], files[1][first], "the first gradients know nothing of sums")
    later = "step-3/rank-1/0.weight"
    assert (files[0][later] != files[1][later]).any()


def test_float16_trains_with_scaled_gradients_of_that_type(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from fanin.numerics import curves

    options = {"format": "float16", "steps": 30, "points": 1, "record": str(tmp_path), "record_steps": [0]}
    reply = curves.train(request(**options))
    assert reply["points"][0][1] < 2.35 and reply["lost_elements"] == 0
    arrays, _ = recording.read(tmp_path / "rank-0.safetensors")
    for array in arrays.values():
        np.testing.assert_array_equal(array, array.astype(np.float16).astype(np.float32))


def test_the_command_trains_and_shows_both_accuracies() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "fanin", "reproduce", "switchml", "fig2", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "cnn, float32: accuracy with block-fixed against ieee" in done.stdout
    assert "cnn, float32, ieee, seed 1:" in done.stderr
