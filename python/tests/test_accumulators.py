"""How the switch adds floats, from Python: `FANIN_ACCUMULATOR` and `FANIN_TOLERANCE`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import fanin
import numpy as np
import pytest

_runs = count()
ACCUMULATORS = ("block-fixed", "static-fixed", "fpisa", "fpisa-a", "log-table", "ieee", "exact")


@pytest.fixture(scope="module")
def switch() -> Iterator[fanin.LocalSwitch]:
    with fanin.LocalSwitch() as running:
        yield running


def in_parallel(switch: fanin.LocalSwitch, size: int, work: Callable[[fanin.Session], Any]) -> list[Any]:
    """Runs `work` as every worker of a job of `size`; returns the results in rank order."""
    run_id = f"accumulators-{next(_runs)}"

    def member(rank: int) -> Any:
        with fanin.Session(
            switch=switch.address, job="accumulators", run_id=run_id, rank=rank, world_size=size, timeout=60
        ) as session:
            return work(session)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


CASES = [("switchml", name) for name in ACCUMULATORS] + [
    ("atp", name) for name in ACCUMULATORS if name != "block-fixed"
]


@pytest.mark.parametrize(("algorithm", "accumulator"), CASES)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_sums(
    switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch, algorithm: str, accumulator: str, data_type: str
) -> None:
    monkeypatch.setenv("FANIN_ALGORITHM", algorithm)
    monkeypatch.setenv("FANIN_ACCUMULATOR", accumulator)
    inputs = np.random.default_rng(7).standard_normal((3, 5000)).astype(data_type)

    def work(session: fanin.Session) -> tuple[np.ndarray, str]:
        array = inputs[session.rank].copy()
        session.all_reduce(array)
        return array, str(fanin.explain())

    results = in_parallel(switch, 3, work)
    exact = inputs.astype("float64").sum(axis=0)
    # FPISA-A's overwrites and the tables' steps lose a share of single values.
    coarse = accumulator in ("fpisa-a", "log-table")
    tolerance = 1.0 if coarse else 6e-6 if data_type == "float32" else 0.01
    # Which ones FPISA-A replaces is the order's affair, and it may be all that came before.
    replaceable = np.abs(inputs.astype("float64")).sum(axis=0) if accumulator == "fpisa-a" else 0.0
    for array, text in results:
        assert array.tobytes() == results[0][0].tobytes()
        assert (np.abs(array - exact) <= tolerance + replaceable).all()
        assert np.abs(array - exact).mean() <= tolerance / 20
        assert f"accumulator: {accumulator}" in text
    if accumulator == "exact":
        np.testing.assert_array_equal(results[0][0], exact.astype(data_type))


def test_exact_sums_do_not_depend_on_who_holds_what(switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_ACCUMULATOR", "exact")
    values = np.array([1e30, 1.0, -1e30], dtype="float32")

    def work(session: fanin.Session) -> np.ndarray:
        # Each rank holds another value of each column.
        array = np.roll(values, session.rank)
        session.all_reduce(array)
        return array

    for array in in_parallel(switch, 3, work):
        assert array.tolist() == [1.0, 1.0, 1.0]


def test_overflow_is_repaired_and_told(switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_ACCUMULATOR", "static-fixed")

    def work(session: fanin.Session) -> tuple[np.ndarray, dict[str, Any], str]:
        array = np.ones(5000, dtype="float32")
        array[77] = 1e6
        session.all_reduce(array)
        stats = session.stats()
        return array, stats, str(fanin.explain())

    for array, stats, text in in_parallel(switch, 2, work):
        assert array[77] == 2e6 and np.delete(array, 77).tolist() == [2.0] * 4999
        assert stats["collectives"]["all_reduce"]["overflowed_elements"] == 1
        assert stats["sessions"][0]["blocks_overflowed"] == 1
        assert "1 elements left the accumulator's format" in text


@pytest.mark.parametrize("algorithm", ["switchml", "atp"])
def test_explain_tells_what_the_switch_has_met(
    switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setenv("FANIN_ACCUMULATOR", "fpisa-a")
    monkeypatch.setenv("FANIN_ALGORITHM", algorithm)

    def work(session: fanin.Session) -> tuple[dict[str, Any], str]:
        # 2^20 replaces 1, whichever comes first: as an overwrite, or because nothing of 1 is left beside it.
        replaced = np.full(100, 2.0**20 if session.rank else 2.0**-20, dtype="float32")
        harmless = np.ones(64, dtype="float32")
        session.all_reduce(harmless)
        session.all_reduce(replaced)
        # At once, as the last line of a short script, unless the switch's thread gets no turn on a busy machine.
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            explanation = fanin.explain()
            causes = explanation.groups[-1]["causes"]
            if causes["overwrite"] + causes["flushed_to_zero"] == 100:
                break
            time.sleep(0.05)
        session.barrier()
        return explanation.groups[-1], str(explanation)

    name = "all_reduce float32 x 100 sum"
    for group, text in in_parallel(switch, 2, work):
        causes = group["causes"]
        assert causes["overwrite"] + causes["flushed_to_zero"] == 100, causes
        assert causes["overflow"] == causes["saturation"] == 0
        # Of the two tensors, the one that lost something is named, and it alone.
        assert group["tensors"] == {name: causes}
        assert "met by the switch, in additions for all ranks: " in text
        line = next(line for line in text.splitlines() if line.startswith(f"      {name}: "))
        assert "overwrite 100" in line or "flushed to zero 100" in line
        assert "float32 x 64" not in text


def test_a_tolerance_chooses(switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(tolerance: str) -> str:
        monkeypatch.setenv("FANIN_TOLERANCE", tolerance)
        found = in_parallel(switch, 3, lambda session: session.stats()["sessions"][0]["accumulator"])
        assert len(set(found)) == 1
        return found[0]

    assert chosen("1e-5") == "ieee"
    assert chosen("1.8e-7") == "exact"
    with pytest.raises(fanin.FaninError, match="Ask for a tolerance of"):
        chosen("1e-12")
