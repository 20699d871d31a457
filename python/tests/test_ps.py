"""Push and pull: ranks that differ in order, timing and opinion, as threads of one process and as processes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import fanin
import fanin.ps
import numpy as np
import ps_ranks
import pytest
from fanin.ps.keys import KEY_COUNT_MAX, Announcement, KeyTable, Signature
from fanin.ps.rounds import Rounds
from fanin.ps.worker import Worker
from ps_ranks import new_run, ones

HERE = Path(__file__).parent


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


in_parallel = partial(ps_ranks.in_parallel, Worker)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_push_pull_averages_in_place(switch: fanin.LocalSwitch, size: int) -> None:
    def work(worker: Worker) -> None:
        gradient = ones(value=worker.rank)
        handle = worker.push_pull("w", gradient)
        assert handle.wait() is gradient and handle.is_done() and handle.version == 1
        np.testing.assert_allclose(gradient, sum(range(size)) / size, rtol=1e-6)

    in_parallel(switch, size, work)


@pytest.mark.parametrize(
    "settings",
    [{"FANIN_WIRE_FORMAT": "p4app"}, {"FANIN_ELEMENT_FORMAT": "int8"}, {"FANIN_LOSS": "0.02", "FANIN_LANES": "3"}],
)
def test_whatever_carries_the_sums(
    running: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    for name, value in ({"FANIN_TRANSPORT": "udp"} | settings).items():
        monkeypatch.setenv(name, value)

    def work(worker: Worker) -> None:
        for step in range(5):
            handles = [worker.push_pull(f"{key} of many", ones(1000, step + worker.rank)) for key in range(20)]
            for handle in handles:
                np.testing.assert_allclose(handle.wait(), step + 0.5, rtol=0.05)
        assert (worker.push_pull(5, np.arange(999, dtype="int32"), average=False).wait() == 2 * np.arange(999)).all()

    in_parallel(running, 2, work)


def test_out_and_sums_of_integers(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> None:
        values = np.arange(10, dtype="int64").reshape(2, 5)
        out = np.zeros_like(values)
        assert worker.push_pull(7, values, out, average=False).wait() is out
        assert (out == 3 * values).all() and (values == np.arange(10).reshape(2, 5)).all()

    in_parallel(switch, 3, work)


def test_different_orders_from_several_threads(switch: fanin.LocalSwitch) -> None:
    """Every rank pushes all keys five times, in an order of its own and from three threads."""
    lengths = {f"layer{i}": 1 + 700 * i for i in range(20)} | {i: 10 + i for i in range(10)}

    def work(worker: Worker) -> None:
        def push_some(part: int) -> None:
            order = random.Random(3 * worker.rank + part)
            for step in range(5):
                mine = list(lengths)[part::3]
                order.shuffle(mine)
                handles = []
                for key in mine:
                    time.sleep(order.choice((0, 0, 0.001)))
                    handles.append(worker.push_pull(key, ones(lengths[key], worker.rank + step), average=False))
                for handle in handles:
                    assert (handle.wait() == 3 + 3 * step).all() and handle.version == step + 1, handle.key

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(push_some, range(3)))

    in_parallel(switch, 3, work)


def test_push_then_pull(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> None:
        for step in range(1, 6):
            worker.push("w", ones(1000, step * (worker.rank + 1)))
            out = np.empty(1000, "float32")
            pull = worker.pull("w", out)
            assert pull.wait() is out and pull.version == step
            assert (out == 3 * step).all()
        # The latest is still there; a copy in a new array needs no new push.
        again = worker.pull("w", version=0)
        assert (again.wait() == 15).all() and again.version == 5
        assert (worker.pull("w", version=5).wait() == 15).all()

    in_parallel(switch, 2, work)


def test_several_pushes_of_one_key_are_summed_in_their_order(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> None:
        handles = [worker.push("w", ones(10, 10**step)) for step in range(4)]
        assert (worker.pull("w", version=4).wait() == 2000).all()
        assert [handle.version for handle in handles] == [1, 2, 3, 4]
        later = worker.pull("w")
        assert not later.is_done(), "the fifth was not pushed"
        worker.push("w", ones(10, 5))
        assert (later.wait() == 10).all()

    in_parallel(switch, 2, work)


def test_a_pull_waits_for_the_ranks_that_have_not_pushed(switch: fanin.LocalSwitch) -> None:
    is_pushed = threading.Event()

    def work(worker: Worker) -> None:
        if worker.rank == 1:
            assert is_pushed.wait(30)
            time.sleep(0.2)
        push = worker.push("w", ones())
        pull = worker.pull("w")
        if worker.rank == 0:
            assert not push.is_done() and not pull.is_done()
            with pytest.raises(fanin.FaninTimeout, match="'w' has not completed"):
                pull.wait(0.01)
            is_pushed.set()
        assert (pull.wait() == 2).all()

    in_parallel(switch, 2, work)


def test_priorities_are_honoured(switch: fanin.LocalSwitch) -> None:
    """All keys are ready on all ranks before the first large one is through; then the highest priority comes first."""
    names = {"low": -1, "first": 0, "second": 0, "high": 5}

    def work(worker: Worker) -> list[Any]:
        done: list[Any] = []
        for key in names:
            worker.declare(key, ones(10), priority=names[key])
        worker.declare("large", ones(8 << 20))
        worker.push_pull("settled", ones()).wait()
        large = worker.push_pull("large", ones(8 << 20), callback=lambda handle: done.append(handle.key))
        order = list(names)
        random.Random(worker.rank).shuffle(order)
        handles = [
            worker.push_pull(key, ones(10), priority=names[key], callback=lambda handle: done.append(handle.key))
            for key in order
        ]
        for handle in [large, *handles]:
            handle.wait()
        time.sleep(0.05)
        return done

    for done in in_parallel(switch, 3, work):
        assert done[-1] == "low" and sorted(done) == sorted([*names, "large"]), done
        # 32 MiB take eight rounds: whatever is more important overtakes it.
        assert done.index("high") < done.index("first") < done.index("second") < done.index("large"), done


def test_a_large_tensor_is_summed_in_slices(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> None:
        for key, data_type in (("a", "int32"), ("b", "float16"), ("c", "int64")):
            # No multiple of a slice, and every element tells where it belongs.
            values = (np.arange(2_500_003) % 1021).astype(data_type)
            small = worker.push_pull(f"{key} small", np.ones(3, data_type), average=False)
            out = np.empty_like(values)
            worker.push_pull(key, values, out, average=False).wait()
            assert (out == 2 * values).all() and (small.wait() == 2).all()
            worker.push(f"{key} pushed", values)
            assert (worker.pull(f"{key} pushed").wait() == 2 * values).all()

    in_parallel(switch, 2, work)


def test_the_priority_of_a_key_can_change(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> list[int]:
        for priority in (0, 3, 1):
            worker.push_pull("w", ones(), priority=priority).wait()
        worker.push_pull("w", ones(), priority=1).wait()
        return [entry.priority for entry in worker._table.entries]

    assert in_parallel(switch, 2, work) == [[1], [1]]


def test_callbacks(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> None:
        seen: list[Any] = []
        chained: list[Any] = []
        is_over = threading.Event()

        def second(handle: fanin.ps.Handle) -> None:
            seen.append(handle.wait())
            is_over.set()

        def first(handle: fanin.ps.Handle) -> None:
            pending = worker.push_pull("b", ones(), callback=second)
            chained.append(pending)
            with pytest.raises(RuntimeError, match="must not wait"):
                pending.wait()

        handle = worker.push_pull("a", ones(), callback=first)
        handle.wait()
        assert is_over.wait(30) and chained[0].is_done() and (seen[0] == 1).all()

    in_parallel(switch, 2, work)


def test_a_callback_that_raises_harms_nobody(switch: fanin.LocalSwitch, capfd: pytest.CaptureFixture[str]) -> None:
    def work(worker: Worker) -> None:
        worker.push_pull("a", ones(), callback=lambda handle: 1 / 0).wait()
        worker.push_pull("b", ones()).wait()

    in_parallel(switch, 2, work)
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda rank: (ones(10 + 2 * rank), True), ["(10,)", "(12,)"]),
        (lambda rank: (ones(10).astype("float32" if rank else "float16"), True), ["float16", "float32"]),
        (lambda rank: (ones(10), rank == 1), ["an average", "a sum"]),
    ],
)
def test_ranks_that_do_not_agree_about_a_key(switch: fanin.LocalSwitch, make: Any, words: list[str]) -> None:
    def work(worker: Worker) -> str:
        if worker.rank == 2:
            time.sleep(0.2)
        tensor, average = make(int(worker.rank == 2))
        handle = worker.push_pull("w", tensor, average=average)
        with pytest.raises(fanin.FaninError) as caught:
            handle.wait()
        with pytest.raises(fanin.FaninError):
            worker.push_pull("w", tensor, average=average).wait()
        # The other keys are as good as before.
        assert (worker.push_pull("x", ones()).wait() == 1).all()
        return str(caught.value)

    texts = in_parallel(switch, 3, work)
    assert len(set(texts)) == 1
    for word in [*words, "'w'", "rank 2"]:
        assert word in texts[0], texts[0]


def test_mistakes_of_one_rank_are_refused_at_once(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> None:
        worker.push("w", ones(10))
        for error, words, call in (
            (ValueError, "use another key", lambda: worker.push("w", ones(11))),
            (ValueError, "use another key", lambda: worker.push_pull("w", ones(10))),
            (ValueError, "no average", lambda: worker.push_pull("i", np.ones(3, "int32"))),
            (ValueError, "no elements", lambda: worker.push("e", ones(0))),
            (ValueError, "C-contiguous", lambda: worker.push("c", np.ones((4, 4), "float32")[:, ::2])),
            (ValueError, "out is float32", lambda: worker.push_pull("o", ones(3), ones(4))),
            (TypeError, "does not sum", lambda: worker.push("d", np.ones(3))),
            (TypeError, "a str or an int", lambda: worker.push(b"w", ones())),
            (TypeError, "a str or an int", lambda: worker.push(True, ones())),
            (TypeError, "expected a numpy array", lambda: worker.push("l", [1.0])),
            (KeyError, "not pushed or declared", lambda: worker.pull("nobody's")),
        ):
            with pytest.raises(error, match=words):
                call()
        with pytest.raises(ValueError, match="out is"):
            worker.pull("w", np.empty(3, "float32")).wait()

    in_parallel(switch, 2, work)


def test_what_push_pull_took_cannot_be_pulled(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> None:
        worker.push_pull("w", ones(), average=False).wait()
        with pytest.raises(fanin.FaninError, match="no copy is kept"):
            worker.pull("w", version=1).wait()
        worker.push("w", ones())
        assert (worker.pull("w").wait() == 2).all()

    in_parallel(switch, 2, work)


def test_close_with_work_pending(switch: fanin.LocalSwitch) -> None:
    is_closed = threading.Event()

    def work(worker: Worker) -> None:
        worker.push_pull("before", ones()).wait()
        if worker.rank == 1:
            assert is_closed.wait(30)
            with pytest.raises(fanin.FaninError):
                worker.push_pull("w", ones()).wait()
            return
        called = threading.Event()
        handles = [worker.push_pull("w", ones(), callback=lambda _: called.set()), worker.pull("w")]
        time.sleep(0.1)
        worker.close()
        for handle in handles:
            assert handle.is_done()
            with pytest.raises(fanin.FaninError, match="closed"):
                handle.wait()
        assert called.is_set()
        with pytest.raises(fanin.FaninError, match="closed"):
            worker.push("w", ones())
        worker.close()
        is_closed.set()

    in_parallel(switch, 2, work, timeout=20)


def test_ranks_that_push_different_keys_for_ever(switch: fanin.LocalSwitch) -> None:
    def work(worker: Worker) -> str:
        with pytest.raises(fanin.FaninError) as caught:
            worker.push_pull(f"of rank {worker.rank}", ones()).wait()
        return str(caught.value)

    texts = in_parallel(switch, 2, work, timeout=2)
    assert any("not by all ranks within 2 s" in text and "by 1 of 2 ranks" in text for text in texts), texts


def test_a_rank_that_pushes_nothing_is_named(running: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANIN_TRANSPORT", "udp")
    is_over = threading.Event()

    def work(worker: Worker) -> str:
        if worker.rank == 1:
            is_over.wait(60)
            return ""
        try:
            with pytest.raises(fanin.FaninTimeout) as caught:
                worker.push_pull("w", ones()).wait()
        finally:
            is_over.set()
        return str(caught.value)

    text, _ = in_parallel(running, 2, work, timeout=2)
    for word in ("rank 0 waited for all ranks to push 'w'", "lacks the contribution of rank 1"):
        assert word in text, text


def test_idle_ranks_use_no_processor_and_outlast_the_timeout(switch: fanin.LocalSwitch) -> None:
    """With nothing to do for longer than the session's timeout, nothing fails and nothing is sent around."""

    def work(worker: Worker) -> int:
        worker.push_pull("w", ones()).wait()
        worker.declare(f"of rank {worker.rank}", ones())
        time.sleep(0.2)
        before = worker._session.stats()["collectives"]
        time.sleep(2.5)
        assert worker._session.stats()["collectives"] == before
        worker.push_pull("w", ones()).wait()
        # One is ahead: it waits in a round, and begins no others.
        if worker.rank == 1:
            time.sleep(1)
        rounds = _all_reduces(worker)
        worker.push_pull("w", ones()).wait()
        return _all_reduces(worker) - rounds

    for rounds in in_parallel(switch, 2, work, timeout=2):
        assert rounds <= 5, rounds


def _all_reduces(worker: Worker) -> int:
    row = worker._session.stats()["collectives"]["all_reduce"]
    return int(row["switch"] + row["shared"])


def test_functions_of_the_module(switch: fanin.LocalSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(fanin.FaninError, match="init"):
        fanin.ps.push("w", ones())
    fanin.ps.init(switch=switch.address, run_id=new_run(), rank=0, world_size=1, timeout=20)
    try:
        with pytest.raises(fanin.FaninError, match="initialised already"):
            fanin.ps.init()
        assert (fanin.ps.rank(), fanin.ps.size()) == (0, 1)
        fanin.ps.declare("w", ones(), average=False)
        handle = fanin.ps.push("w", ones())
        fanin.ps.wait(handle)
        assert fanin.ps.poll(handle) and (fanin.ps.wait(fanin.ps.pull("w")) == 1).all()
        assert (fanin.ps.wait(fanin.ps.push_pull("v", ones())) == 1).all()
    finally:
        fanin.ps.shutdown()
    fanin.ps.shutdown()


def test_a_rank_that_dies_ends_all_waits(switch: fanin.LocalSwitch) -> None:
    run_id = new_run()
    commands = [
        [sys.executable, str(HERE / "ps_script.py"), switch.address, run_id, str(rank), "3"] for rank in range(3)
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        outputs = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert processes[2].returncode == -signal.SIGKILL
    for rank in range(2):
        assert processes[rank].returncode == 0 and "rank 2 was lost" in outputs[rank], (rank, outputs)


class Ranks:
    """The rounds of several ranks, without threads; `ready` and `announced` are by rank."""

    def __init__(self, size: int) -> None:
        self.rounds = [Rounds(rank, size) for rank in range(size)]
        self.table = KeyTable()

    def pauses(self, *ready: set[int]) -> list[float | None]:
        return [one.pause(mine, False) for one, mine in zip(self.rounds, ready, strict=True)]

    def run(self, *ready: set[int], announced: list[list[Announcement]] | None = None) -> list[int]:
        announced = announced or [[] for _ in self.rounds]
        count = len(self.table.entries)
        words = sum(one.tell(r, a, count) for one, r, a in zip(self.rounds, ready, announced, strict=True))
        found = [one.learn(words) for one in self.rounds]
        news = [one.announcement(words) for one in self.rounds]
        if news[0] is not None:
            read = [list(one.read(words, sum(news))) for one in self.rounds]
            assert all(other == read[0] for other in read)
            self.table.apply(read[0])
        assert all(other == found[0] for other in found)
        return found[0]


SIGNATURE = Signature("float32", (2, 3), True)


def announce(*keys: Any, signature: Signature = SIGNATURE, priority: int = 0) -> list[Announcement]:
    return [Announcement(key, signature, priority) for key in keys]


def test_rounds_agree_on_what_all_ranks_have() -> None:
    ranks = Ranks(3)
    assert ranks.run(set(), set(), set(), announced=[announce("b"), announce("a", "b"), announce(1, "1")]) == []
    assert [entry.key for entry in ranks.table.entries] == ["b", "a", 1, "1"]
    assert ranks.run({0, 1}, {1, 3}, {1, 0}) == [1]
    assert "'b' by 2 of 3 ranks" in ranks.rounds[0].describe(ranks.table)
    assert ranks.run({0}, {0, 3}, {0}) == [0]


def test_who_takes_part_in_a_round() -> None:
    ranks = Ranks(2)
    ranks.run(set(), set(), announced=[announce("a", "b"), []])
    assert ranks.pauses(set(), set()) == [None, None], "idle"
    assert ranks.pauses({0}, set()) == [0, None], "news"
    ranks.run({0}, {0, 1})
    # Rank 1 has all that is open: it waits in a round, which rank 0 enters with news only.
    assert ranks.pauses(set(), {1}) == [None, 0]
    assert ranks.pauses({1}, {1}) == [0, 0]
    ranks.run({1}, {1})
    assert ranks.run({0}, {1}) == []
    pauses = [ranks.pauses({0}, {1})]
    for _ in range(20):
        ranks.run({0}, {1})
        pauses.append(ranks.pauses({0}, {1}))
    # Each lacks what the other has: they try again, ever more seldom.
    assert all(0 < mine == other for mine, other in pauses)
    assert pauses[0][0] < pauses[1][0] < pauses[-1][0] == pauses[-2][0] < 0.1
    assert ranks.pauses({0, 1}, {1}) == [0, pauses[-1][1]], "news"


def test_long_announcements_take_several_rounds() -> None:
    ranks = Ranks(2)
    waiting = [announce(*(f"{rank}{i:0600}" for i in range(300))) for rank in range(2)]
    rounds = 0
    while any(waiting):
        ranks.run(set(), set(), announced=waiting)
        rounds += 1
    assert rounds > 2 and len(ranks.table.entries) == 600


def test_priorities_and_conflicts_of_one_round() -> None:
    table = KeyTable()
    table.apply([announce("a", priority=1), announce("a", "b", priority=4)])
    assert [entry.priority for entry in table.entries] == [4, 4]
    assert table.has(announce("a", priority=9)[0]) and not table.has(announce("c")[0])
    assert not table.has(Announcement("a", SIGNATURE, 9, is_change=True))
    other = Signature("float32", (3, 2), True)
    assert not table.has(announce("b", signature=other)[0])
    (conflict,) = table.apply([[], announce("b", signature=other)])
    assert conflict.key == "b" and "rank 1 wants" in conflict.conflict and "(2, 3)" in conflict.conflict
    assert table.apply([announce("b", signature=other), []]) == [], "told once"


def test_keys_have_a_bound() -> None:
    table = KeyTable()
    assert table.apply([announce(*range(KEY_COUNT_MAX))]) == []
    (refused,) = table.apply([announce("one more")])
    assert str(KEY_COUNT_MAX) in refused.conflict
