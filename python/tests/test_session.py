"""The numpy interface, with all workers as threads of one process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import fanin
import numpy as np
import pytest
from fanin import telemetry

_runs = count()


@pytest.fixture(scope="module")
def running() -> Iterator[fanin.LocalSwitch]:
    with fanin.LocalSwitch() as switch:
        yield switch


@pytest.fixture(params=["udp", "auto"])
def switch(
    running: fanin.LocalSwitch, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> fanin.LocalSwitch:
    """Every test goes through the switch, and then through shared memory."""
    monkeypatch.setenv("FANIN_TRANSPORT", request.param)
    return running


def in_parallel(
    switch: fanin.LocalSwitch, size: int, work: Callable[[fanin.Session], Any], timeout: float = 60
) -> list[Any]:
    """Runs `work` as every worker of a job of `size`; returns the results in rank order."""
    run_id = f"test-{next(_runs)}"

    def member(rank: int) -> Any:
        with fanin.Session(
            switch=switch.address, job="numpy-test", run_id=run_id, rank=rank, world_size=size, timeout=timeout
        ) as session:
            return work(session)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("data_type", ["int32", "int64", "float32", "float16"])
def test_all_reduce(switch: fanin.LocalSwitch, size: int, data_type: str) -> None:
    def work(session: fanin.Session) -> np.ndarray:
        array = (np.arange(3000) % 100 + session.rank).astype(data_type)
        assert session.all_reduce(array) is array
        return array

    expected = ((np.arange(3000) % 100) * size + sum(range(size))).astype(data_type)
    for result in in_parallel(switch, size, work):
        np.testing.assert_allclose(result, expected, rtol=1e-3 if data_type == "float16" else 1e-6)


def test_every_rank_gets_the_same_bytes(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> bytes:
        array = np.random.default_rng(session.rank).standard_normal(10_000).astype("float32")
        return session.all_reduce(array).tobytes()

    results = in_parallel(switch, 4, work)
    assert len(set(results)) == 1


@pytest.mark.parametrize(("op", "expected"), [("average", 1.0), ("max", 2.0), ("min", 0.0), ("sum", 3.0)])
def test_operators_of_floats(switch: fanin.LocalSwitch, op: str, expected: float) -> None:
    results = in_parallel(switch, 3, lambda s: s.all_reduce(np.full(100, float(s.rank), dtype="float32"), op=op))
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(("op", "expected"), [("band", 0), ("bor", 7), ("bxor", 7)])
def test_operators_of_bits(switch: fanin.LocalSwitch, op: str, expected: int) -> None:
    for result in in_parallel(switch, 3, lambda s: s.all_reduce(np.full(10, 1 << s.rank, dtype="int64"), op=op)):
        assert (result == expected).all()


def test_reduce_keeps_other_ranks(switch: fanin.LocalSwitch) -> None:
    results = in_parallel(switch, 3, lambda s: s.reduce(np.full(5, 2, dtype="int32"), root=1))
    assert [int(result[0]) for result in results] == [2, 6, 2]


def test_reduce_scatter_and_all_gather_are_an_all_reduce(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> np.ndarray:
        full = np.arange(12, dtype="int64").reshape(3, 4) * (session.rank + 1)
        shard = session.reduce_scatter(full, np.empty(4, dtype="int64"))
        return session.all_gather(shard, np.empty((3, 4), dtype="int64"))

    for result in in_parallel(switch, 3, work):
        assert (result == np.arange(12).reshape(3, 4) * 6).all()


def test_broadcast_any_type(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> np.ndarray:
        return session.broadcast(np.full(7, session.rank + 0.5, dtype="float64"), root=2)

    for result in in_parallel(switch, 3, work):
        assert (result == 2.5).all()


def test_several_in_flight_and_barrier(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> list[float]:
        pending = [session.all_reduce(np.full(2000, float(i), dtype="float32"), wait=False) for i in range(20)]
        session.barrier()
        return [float(one.wait(30)[0]) for one in pending]

    assert in_parallel(switch, 2, work) == [[2.0 * i for i in range(20)]] * 2


def test_out_and_read_only_input(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> np.ndarray:
        array = np.ones(50, dtype="float32")
        array.flags.writeable = False
        return session.all_reduce(array, out=np.zeros(50, dtype="float32"))

    for result in in_parallel(switch, 2, work):
        np.testing.assert_allclose(result, 2.0)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: np.ones((4, 4), dtype="float32")[:, ::2], ValueError, "C-contiguous"),
        (lambda: np.ones(4), TypeError, "does not sum"),
        (lambda: np.ones(4, dtype=">i4"), TypeError, "native"),
        (lambda: [1.0, 2.0], TypeError, "expected a numpy array, got list"),
        (lambda: np.frombuffer(b"abcd", dtype="int32"), ValueError, "read-only"),
    ],
)
def test_unusable_arrays_are_refused(
    switch: fanin.LocalSwitch, make: Callable[[], Any], error: Any, words: str
) -> None:
    def work(session: fanin.Session) -> None:
        with pytest.raises(error, match=words):
            session.all_reduce(make())

    in_parallel(switch, 1, work)


def test_wrong_sizes_roots_and_operators_are_refused(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> None:
        array = np.ones(4, dtype="float32")
        for call in (
            lambda: session.all_reduce(array, out=np.ones(3, dtype="float32")),
            lambda: session.all_reduce(array, out=np.ones(4, dtype="int32")),
            lambda: session.all_reduce(array, op="product"),
            lambda: session.reduce_scatter(array, np.ones(3, dtype="float32")),
            lambda: session.all_gather(array, np.ones(9, dtype="float32")),
            lambda: session.broadcast(array, root=2),
            lambda: session.reduce(array, root=-1),
        ):
            with pytest.raises(ValueError):
                call()

    in_parallel(switch, 2, work)


def test_arrays_that_are_summed_where_they_lie(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> np.ndarray:
        for shape in (7, (100, 3001)):
            array = session.empty(shape)
            assert array.shape == (shape if isinstance(shape, tuple) else (shape,)) and not array.any()
            array += session.rank + 1
            session.all_reduce(array)
            assert (array == 6).all()
        halves = session.empty(300_000, "float16")
        halves += np.float16(0.5)
        session.all_reduce(halves, op="average")
        assert (halves == 0.5).all()
        # Memory outlives its session.
        return array

    assert all((array == 6).all() for array in in_parallel(switch, 3, work))


def test_statistics(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> dict[str, Any]:
        session.all_reduce(np.ones(5000, dtype="float32"))
        return session.stats()

    for found in in_parallel(switch, 2, work):
        row = found["collectives"]["all_reduce"]
        through_switch = found["sessions"][0]["transport"] == "udp"
        path = "switch" if through_switch else "shared"
        assert row[path] == 1 and row[f"{path}_bytes"] == 20_000 and row["failed"] == 0
        assert (found["packets"]["datagrams_sent"] > 0) == through_switch


def test_non_finite_values_are_counted(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> int:
        array = np.ones(100, dtype="float32")
        if session.rank == 0:
            array[3] = np.inf
        session.all_reduce(array)
        assert not np.isfinite(array[3])
        # Shared memory adds floats as they are: there is no block that one of them could spoil.
        on_host = session.stats()["sessions"][0]["transport"] == "shared memory"
        assert np.isfinite(array[4]) == on_host
        return on_host or session.stats()["collectives"]["all_reduce"]["non_finite_blocks"]

    assert min(in_parallel(switch, 2, work)) > 0


def test_leaving_with_an_error_fails_the_others_soon(switch: fanin.LocalSwitch) -> None:
    def work(session: fanin.Session) -> str:
        if session.rank == 1:
            try:
                with session:
                    raise ZeroDivisionError("on purpose")
            except ZeroDivisionError:
                return ""
        with pytest.raises(fanin.FaninError) as caught:
            session.all_reduce(np.ones(10, dtype="float32"))
        return str(caught.value)

    text, _ = in_parallel(switch, 2, work, timeout=20)
    assert "rank 1" in text, text


def test_missing_worker_is_named(switch: fanin.LocalSwitch) -> None:
    with pytest.raises(fanin.FaninError, match="1"):
        fanin.Session(switch=switch.address, job="lonely", run_id="lonely", rank=0, world_size=2, timeout=1.5)


def test_no_switch_and_no_rank_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FANIN_SWITCH", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(fanin.ConfigError, match="FANIN_SWITCH"):
        fanin.Session(rank=0, world_size=1)
    with pytest.raises(fanin.ConfigError, match="RANK"):
        fanin.Session(switch="127.0.0.1:1")


def test_import_does_not_import_torch() -> None:
    code = "import sys, fanin; assert 'torch' not in sys.modules; print(fanin.explain())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "no process group" in found.stdout


class AskedSession:
    """A session whose switch counts one overwrite, and during whose answer something happens."""

    transport = "UDP"

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.meanwhile: Callable[[], None] | None = meanwhile
        self.closed = False

    def accumulator_counts(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if self.closed:
            raise fanin.FaninError("the session is closed")
        return {"overwrite": 1}, {"a": {"overwrite": 1}}

    def totals(self) -> dict[str, dict[str, float]]:
        return {}

    def stats(self) -> str:
        return "{}"


def test_nobody_waits_while_the_switch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_registry", [])
    ledger = telemetry.Ledger("group", 0, 2)
    waits = []

    def submit() -> None:
        other = threading.Thread(target=ledger.submitted, args=("all_reduce", 4), daemon=True)
        other.start()
        other.join(timeout=5)
        waits.append(other.is_alive())

    ledger.attach(AskedSession(submit))
    assert ledger.met().causes["overwrite"] == 1
    assert waits == [False], "a collective was not submitted while the switch was asked"


def test_what_a_session_met_that_ends_while_it_is_asked_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_registry", [])
    ledger = telemetry.Ledger("group", 0, 2)

    def end() -> None:
        ledger.detach(session)
        session.closed = True

    session = AskedSession(end)
    ledger.attach(session)
    met = ledger.met()
    assert (met.causes["overwrite"], met.tensors["a"]["overwrite"]) == (1, 1)
