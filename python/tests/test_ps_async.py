"""The asynchronous mode of push and pull: what a store owes to ranks that do not wait for each other."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import fanin
import fanin.ps
import numpy as np
import ps_ranks
import pytest
from fanin.ps.asynchronous import AsyncWorker, Request, Requests, _own_address
from fanin.ps.frames import HELLO, WELCOME, Kind, head
from fanin.ps.handle import Handle
from fanin.ps.store import Store
from ps_ranks import new_run, ones


@pytest.fixture(scope="module")
def switch() -> Iterator[fanin.LocalSwitch]:
    with fanin.LocalSwitch() as running:
        yield running


in_parallel = partial(ps_ranks.in_parallel, AsyncWorker)


def test_nobody_waits_for_the_others(switch: fanin.LocalSwitch) -> None:
    is_done = threading.Event()

    def work(worker: AsyncWorker) -> None:
        if worker.rank == 0:
            for step in range(1, 4):
                worker.push("w", ones())
                out = np.empty(100, "float32")
                pull = worker.pull("w", out)
                assert pull.wait(10) is out and pull.version == step and (out == step).all()
            is_done.set()
        assert is_done.wait(20), "rank 0 waited for a rank that pushed nothing"
        assert (worker.pull("w").wait() == 3).all(), "what others pushed is there"

    in_parallel(switch, 2, work)


def test_every_push_counts_once_and_no_pull_sees_a_part_of_one(switch: fanin.LocalSwitch) -> None:
    """Three ranks, two threads each, and values that only whole pushes can make."""
    everybody = threading.Barrier(3)
    length, steps = 50_000, 20

    def work(worker: AsyncWorker) -> None:
        def push_some(part: int) -> None:
            seen = 0
            for _ in range(steps):
                worker.push("w", np.full(length, 1 << (10 * part), "int64"))
                value = worker.push_pull("w", np.ones(length, "int64")).wait()
                assert (value == value[0]).all(), "a torn value"
                assert value[0] >= seen + 1 + (1 << (10 * part)), "this rank's own pushes are in it"
                seen = int(value[0])

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(push_some, range(2)))
        everybody.wait()
        pull = worker.pull("w")
        assert (pull.wait() == 3 * steps * (1 + 1 + 1 + 1024)).all() and pull.version == 3 * 2 * 2 * steps

    in_parallel(switch, 3, work)


def test_the_first_to_create_a_key_gives_its_value(switch: fanin.LocalSwitch) -> None:
    def work(worker: AsyncWorker) -> float:
        worker.create("w", ones(value=worker.rank + 1)).wait()
        created = worker.pull("w").wait()
        assert (created == created[0]).all() and created[0] in (1, 2, 3)
        return float(created[0])

    assert len(set(in_parallel(switch, 3, work))) == 1


@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "int64"])
def test_types_of_numpy(switch: fanin.LocalSwitch, data_type: str) -> None:
    def work(worker: AsyncWorker) -> None:
        value = np.arange(12, dtype=data_type).reshape(3, 4)
        out = np.zeros_like(value)
        assert worker.push_pull(5, value, out).wait() is out and (out == value).all()
        assert worker.push_pull(5, value).wait() is value and (value == 2 * out).all()
        found = worker.pull(5).wait()
        assert found.dtype == value.dtype and found.shape == (3, 4) and (found == value).all()

    in_parallel(switch, 1, work)


def test_small_pushes_do_not_vanish_in_a_large_half(switch: fanin.LocalSwitch) -> None:
    torch = pytest.importorskip("torch")

    def work(worker: AsyncWorker) -> None:
        worker.create("w", torch.full((10,), 256.0, dtype=torch.bfloat16))
        worker.create("nan", torch.tensor([float("nan"), float("inf"), -1.5], dtype=torch.bfloat16))
        for _ in range(8):
            worker.push("w", torch.full((10,), 0.5, dtype=torch.bfloat16))
        out = torch.zeros(10, dtype=torch.bfloat16)
        assert (worker.pull("w", out).wait() == 260).all(), "256 + 0.5 is 256 in bfloat16"
        odd = worker.pull("nan", torch.zeros(3, dtype=torch.bfloat16)).wait()
        assert torch.isnan(odd[0]) and odd[1] == float("inf") and odd[2] == -1.5

    in_parallel(switch, 1, work)


def test_mistakes_are_told_and_the_rest_goes_on(switch: fanin.LocalSwitch) -> None:
    def work(worker: AsyncWorker) -> None:
        with pytest.raises(fanin.FaninError, match="'w' yet: create it"):
            worker.pull("w").wait()
        worker.push("w", ones(10)).wait()
        with pytest.raises(fanin.FaninError, match=r"'w' is float32 of shape \(10,\), and this rank pushed"):
            worker.push("w", ones(11)).wait()
        with pytest.raises(fanin.FaninError, match="use one key for one tensor"):
            worker.create("w", np.ones(10, "int32")).wait()
        with pytest.raises(ValueError, match="knows no average"):
            worker.push_pull("w", ones(10), average=True)
        with pytest.raises(ValueError, match="no version"):
            worker.pull("w", version=3)
        with pytest.raises(ValueError, match="no elements"):
            worker.push("empty", ones(0))
        wrong = np.full(10, 7, "int32")
        with pytest.raises(ValueError, match=r"out is int32 of shape \(10,\), the value float32"):
            worker.pull("w", wrong).wait()
        assert (wrong == 7).all(), "a tensor of the wrong kind is left alone"
        assert (worker.pull("w").wait() == 1).all()

    in_parallel(switch, 1, work)


def test_callbacks_may_push_and_must_not_wait(switch: fanin.LocalSwitch) -> None:
    def work(worker: AsyncWorker) -> None:
        later: list[Any] = []
        is_called = threading.Event()

        def call_back(handle: Handle) -> None:
            later.append(worker.push("w", ones()))
            with pytest.raises(RuntimeError, match="must not wait"):
                later[0].wait()
            is_called.set()

        worker.push("w", ones(), callback=call_back).wait()
        assert is_called.wait(10)
        later[0].wait()
        assert (worker.pull("w").wait() == 2).all()

    in_parallel(switch, 1, work)


def test_strangers_are_not_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    push = head(Kind.PUSH, {"key": "w", "data_type": "float32", "shape": [1]}, 4) + b"\0\0\x80\x3f"
    store = Store("127.0.0.1", 1)
    with caplog.at_level(logging.WARNING, "fanin.ps"):
        for hello in (HELLO.pack(b"\0" * 16, 0), b"GET / HTTP/1.1\r\n\r\n\r\n\r\n", b""):
            # The store may have hung up before all is said.
            with socket.create_connection(store.address, 10) as stranger, contextlib.suppress(OSError):
                stranger.sendall(hello + push)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(100) == b""
    assert "does not know the job's secret" in caplog.text and not store._values
    store.close(0.0)


def greeted(store: Store, rank: int) -> socket.socket:
    connection = socket.create_connection(store.address, 10)
    connection.sendall(HELLO.pack(store.secret, rank))
    assert connection.recv(100) == WELCOME
    return connection


def test_a_store_outlives_failures_to_accept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    accept, failures = socket.socket.accept, [OSError(24, "Too many open files")]

    def failing(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with caplog.at_level(logging.WARNING, "fanin.ps"):
        store = Store("127.0.0.1", 1)
        with greeted(store, 0):
            pass
        assert store.close(10) == []
    assert "cannot take a connection, and tries again: [Errno 24]" in caplog.text


def test_only_so_many_strangers_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.ps.store._STRANGERS_MAX", 1)
    monkeypatch.setattr("fanin.ps.store._HELLO_S", 1.0)
    store = Store("127.0.0.1", 2)
    silent = [socket.create_connection(store.address, 10) for _ in range(4)]
    assert silent[3].recv(1) == b"", "one more than two ranks and one stranger"
    began = time.monotonic()
    with pytest.raises(OSError):
        while True:
            silent[0].sendall(b"x")
            time.sleep(0.2)
            assert time.monotonic() < began + 10
    silent.append(socket.create_connection(store.address, 10))
    monkeypatch.setattr("fanin.ps.store._HELLO_S", 60.0)
    began = time.monotonic()
    silent.append(socket.create_connection(store.address, 10))
    time.sleep(0.2)
    assert store.close(0.0) == [] and silent[-1].recv(1) == b"" and time.monotonic() < began + 10
    for one in silent:
        one.close()


def test_nobody_is_let_in_after_all_ranks() -> None:
    try:
        store = Store("::1", 2)
    except OSError:
        store = Store("127.0.0.1", 2)
    with greeted(store, 0), greeted(store, 1):
        store._thread.join(10)
        with pytest.raises(OSError):
            socket.create_connection(store.address, 10)
        assert store.close(0.0) == [0, 1]


@pytest.mark.parametrize("where", ["_take", "_next"])
def test_whatever_ends_a_thread_ends_the_waits(
    switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: Any) -> None:
        raise SystemExit("a mistake")

    def work(worker: AsyncWorker) -> None:
        worker.push("w", ones()).wait()
        monkeypatch.setattr(worker, where, fail)
        with pytest.raises(fanin.FaninError, match=r"failed on rank 0 \(SystemExit\('a mistake'\)\)"):
            while True:
                worker.push("w", ones()).wait(20)

    in_parallel(switch, 1, work)


def test_a_tensor_has_a_limit(switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.ps.asynchronous.TENSOR_BYTES_MAX", 400)

    def work(worker: AsyncWorker) -> None:
        worker.push("w", ones(100)).wait()
        with pytest.raises(ValueError, match="has 404 bytes, more than the 400"):
            worker.push("v", ones(101))

    in_parallel(switch, 1, work)


def test_the_store_is_not_at_loopback_if_the_master_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert _own_address("127.0.0.1:5000") == "127.0.0.1"
    monkeypatch.setattr("fanin.ps.asynchronous.local_address", lambda: "192.0.2.7")
    assert _own_address("127.0.0.1:5000") == "192.0.2.7"


def test_a_rank_that_sends_nonsense_is_cut_off_alone(switch: fanin.LocalSwitch) -> None:
    everybody = threading.Barrier(2)

    def work(worker: AsyncWorker) -> None:
        worker.push("w", ones()).wait()
        everybody.wait()
        if worker.rank == 1:
            worker._connection.sendall(b"nonsense" * 10)
            deadline = time.monotonic() + 20
            while worker._error is None and time.monotonic() < deadline:
                time.sleep(0.01)
            with pytest.raises(fanin.FaninError, match="rank 1 lost the store"):
                worker.push("w", ones())
        everybody.wait()
        if worker.rank == 0:
            assert (worker.push_pull("w", ones()).wait() == 3).all()

    in_parallel(switch, 2, work)


def test_the_end_of_rank_0_ends_all_waits(switch: fanin.LocalSwitch) -> None:
    is_waiting = threading.Event()

    def work(worker: AsyncWorker) -> None:
        worker.push("w", ones()).wait()
        if worker.rank == 0:
            assert is_waiting.wait(20)
            raise RuntimeError("this rank fails")
        is_waiting.set()
        with pytest.raises(fanin.FaninError, match="lost the store of fanin.ps, which rank 0 has at 127.0.0.1"):
            while True:
                worker.push("w", ones()).wait(20)

    with pytest.raises(RuntimeError, match="this rank fails"):
        in_parallel(switch, 2, work)


DYING = """
import os, signal, sys, fanin.ps, numpy
worker = fanin.ps.init(asynchronous=True, switch=sys.argv[1], run_id=sys.argv[2], rank=int(sys.argv[3]), world_size=2)
fanin.ps.push("w", numpy.ones(10, "float32")).wait()
if sys.argv[3] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
while fanin.ps.pull("w").wait()[0] < 2:
    pass
assert (fanin.ps.push_pull("w", numpy.ones(10, "float32")).wait() == 3).all()
fanin.ps.shutdown()
"""


def test_a_rank_that_dies_leaves_what_it_pushed_and_the_others_go_on(switch: fanin.LocalSwitch) -> None:
    run_id = new_run()
    ranks = [
        subprocess.Popen([sys.executable, "-c", DYING, switch.address, run_id, str(rank)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    said = ranks[0].communicate(timeout=60)[1].decode()
    assert ranks[0].returncode == 0, said
    assert ranks[1].wait(10) == -9


CRASHING = """
import sys, time, fanin.ps
worker = fanin.ps.init(asynchronous=True, switch=sys.argv[1], run_id=sys.argv[2], rank=int(sys.argv[3]), world_size=2)
if sys.argv[3] == "0":
    raise RuntimeError("this rank fails")
time.sleep(60)
"""


def test_rank_0_does_not_wait_after_an_uncaught_exception(switch: fanin.LocalSwitch) -> None:
    run_id = new_run()
    ranks = [
        subprocess.Popen([sys.executable, "-c", CRASHING, switch.address, run_id, str(rank)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        said = ranks[0].communicate(timeout=20)[1].decode()
        assert ranks[0].returncode == 1 and "this rank fails" in said, said
    finally:
        ranks[1].kill()
        ranks[1].communicate()


def test_rank_0_waits_for_the_others_before_it_leaves(switch: fanin.LocalSwitch) -> None:
    has_left = threading.Event()
    run_id = new_run()

    def member(rank: int) -> None:
        session = fanin.Session(switch=switch.address, job="ps-async", run_id=run_id, rank=rank, world_size=2)
        worker = AsyncWorker(session)
        if rank == 0:
            worker.close()
            has_left.set()
            return
        assert not has_left.wait(0.3)
        assert (worker.push_pull("w", ones()).wait() == 1).all()
        worker.push("w", ones())
        worker.close()
        assert has_left.wait(20)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(member, range(2)))


def test_who_stays_too_long_is_named(switch: fanin.LocalSwitch) -> None:
    is_over = threading.Event()
    run_id = new_run()

    def member(rank: int) -> None:
        session = fanin.Session(
            switch=switch.address, job="ps-async", run_id=run_id, rank=rank, world_size=2, timeout=2
        )
        worker = AsyncWorker(session)
        if rank == 0:
            with pytest.raises(fanin.FaninError, match=r"ranks \[1\] had not left"):
                worker.close()
            is_over.set()
        assert is_over.wait(20)
        worker.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(member, range(2)))


def test_priorities_reorder_keys_but_not_the_requests_of_one() -> None:
    requests = Requests()

    def put(key: str, number: int, priority: int) -> None:
        handle = Handle(str(number), key, None, None)  # type: ignore[arg-type]
        requests.put(Request(handle, Kind.PUSH, None, None), priority)

    for key, number, priority in [("a", 0, 0), ("b", 1, 5), ("a", 2, 9), ("c", 3, 5), ("b", 4, -1)]:
        put(key, number, priority)
    taken = [requests.take().handle for _ in range(len(requests))]
    assert [(handle.key, handle.kind) for handle in taken] == [
        ("a", "0"),
        ("b", "1"),
        ("c", "3"),
        ("a", "2"),
        ("b", "4"),
    ]


def test_ranks_of_different_speed_find_the_solution_together(switch: fanin.LocalSwitch) -> None:
    """Least squares by asynchronous steps: each rank has rows of its own, and one is ten times as slow."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(3, 40, 8)).astype("float32")
    solution = random.normal(size=8).astype("float32")
    everybody = threading.Barrier(3)

    def work(worker: AsyncWorker) -> np.ndarray:
        mine = rows[worker.rank]
        weights = np.zeros(8, "float32")
        for _ in range(20 if worker.rank == 2 else 200):
            gradient = mine.T @ (mine @ weights - mine @ solution) / len(mine)
            weights = worker.push_pull("w", (-0.05 * gradient).astype("float32")).wait()
        everybody.wait()
        return worker.pull("w").wait()

    for weights in in_parallel(switch, 3, work):
        np.testing.assert_allclose(weights, solution, atol=0.05)


def test_the_functions_of_the_module(switch: fanin.LocalSwitch) -> None:
    fanin.ps.init(asynchronous=True, switch=switch.address, run_id="functions", rank=0, world_size=1)
    try:
        assert fanin.ps.rank() == 0 and fanin.ps.size() == 1
        fanin.ps.create("w", ones(value=2))
        handle = fanin.ps.push_pull("w", ones())
        assert (fanin.ps.wait(handle) == 3).all() and fanin.ps.poll(handle)
        assert (fanin.ps.pull("w").wait() == 3).all()
        with pytest.raises(fanin.FaninError, match="no order of keys"):
            fanin.ps.declare("w", ones())
    finally:
        fanin.ps.shutdown()
    fanin.ps.init(switch=switch.address, run_id="synchronous", rank=0, world_size=1)
    try:
        with pytest.raises(fanin.FaninError, match="asynchronous=True"):
            fanin.ps.create("w", ones())
    finally:
        fanin.ps.shutdown()
