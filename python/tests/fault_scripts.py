"""What each rank does in a fault: ``python fault_scripts.py <fault>``, run by ``test_faults``.

A rank that behaves as expected exits with 0; it prints the error text that the user would see.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import fanin.ps
import fanin.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from worlds import has_python_backends

RANK = int(os.environ["RANK"])
TIMEOUT_S = float(os.environ.get("TEST_TIMEOUT", "3"))


def start(**keywords: object) -> None:
    fanin.torch.register()
    torch.set_num_threads(1)
    dist.init_process_group("fanin", timeout=timedelta(seconds=TIMEOUT_S), **keywords)


def expect_error(action: object, *words: str) -> float:
    """Runs `action`, which must raise a RuntimeError that contains all words; returns how long it took, in seconds."""
    begin = time.monotonic()
    try:
        action()
    except RuntimeError as error:
        text = str(error)
        print(f"error after {time.monotonic() - begin:.2f} s: {type(error).__name__}: {text}", flush=True)
        missing = [word for word in words if word not in text]
        assert not missing, f"the error does not say {missing}"
        return time.monotonic() - begin
    raise AssertionError("no error was raised")


def linger(seconds: float) -> None:
    """Stays alive without taking part; leaves without a word, as a stuck process that is killed at last."""
    time.sleep(seconds)
    os._exit(0)


def rank_never_starts() -> None:
    # A file store, because TCPStore itself waits for all ranks before any backend is asked.
    begin = time.monotonic()
    expect_error(
        lambda: start(init_method="file://" + os.environ["TEST_STORE"], rank=RANK, world_size=3),
        os.environ["TEST_MISSING"],
    )
    assert time.monotonic() - begin < TIMEOUT_S + 4


def rank_dies() -> None:
    start()
    dist.all_reduce(torch.ones(1000))
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seconds = expect_error(lambda: dist.all_reduce(torch.ones(1_000_000)), "rank 0", "rank 1")
    # Told by the switch, long before the timeout.
    assert seconds < TIMEOUT_S - 1, seconds
    # Later calls fail at once instead of waiting again.
    assert expect_error(lambda: dist.all_reduce(torch.ones(10))) < 1


def rank_dies_and_others_go_on() -> None:
    start()
    model = DistributedDataParallel(torch.nn.Linear(8, 8, bias=False))
    model.register_comm_hook(fanin.ddp_hook_state(), fanin.ddp_hook)
    dist.all_reduce(torch.ones(1000))
    assert fanin.last_contributions() == fanin.Contributions(3, 3, ())
    if RANK == 2:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    lost = fanin.Contributions(2, 2, (2,))
    share = float(1 << RANK)
    while fanin.last_contributions() != lost:
        tensor = torch.full((1_000_000,), share)
        dist.all_reduce(tensor)
        # Blocks that were complete hold all three, later ones the two that are left.
        assert set(tensor.unique().tolist()) <= {7.0, 3.0}, tensor.unique()
    dist.all_reduce(tensor := torch.full((1000,), share), op=dist.ReduceOp.AVG)
    assert tensor.tolist() == [1.5] * 1000, tensor
    dist.all_reduce(whole := torch.tensor([3 * RANK]), op=dist.ReduceOp.AVG)
    assert whole.tolist() == [1], whole
    # A mean of gradients stays a mean.
    model(torch.full((1, 8), share)).sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None and gradient.unique().tolist() == [1.5], gradient
    expect_error(lambda: dist.broadcast(torch.ones(10), 2), "has no result")
    dist.all_reduce(torch.ones(10))
    assert all(session["lost_ranks"] == [2] for group in fanin.stats()["groups"] for session in group["sessions"])


def timeout_explains() -> None:
    start()
    dist.barrier()
    if RANK == 1:
        linger(TIMEOUT_S + 3)
    seconds = expect_error(
        lambda: dist.all_reduce(torch.ones(300_000)),
        "job",
        "torch/",
        "rank 0 of 2",
        "all_reduce",
        "float32",
        "chunk",
        "slot",
        "lacks the contribution of rank 1",
    )
    assert TIMEOUT_S - 0.5 < seconds < TIMEOUT_S + 3, seconds
    report = fanin.stats()["totals"]
    assert report["failed"] >= 1 and report["timeouts"] >= 1, report


def timeout_reaches_futures_and_backward() -> None:
    start()
    model = DistributedDataParallel(torch.nn.Linear(100, 100))
    if RANK == 1:
        linger(TIMEOUT_S + 3)
    expect_error(lambda: model(torch.ones(2, 100)).sum().backward(), "rank 1")
    expect_error(lambda: dist.all_reduce(torch.ones(10), async_op=True).get_future().wait())


def wait_with_a_timeout() -> None:
    start()
    dist.barrier()
    if RANK == 1:
        linger(3)
    work = dist.all_reduce(torch.ones(10), async_op=True)
    seconds = expect_error(lambda: work.wait(timedelta(seconds=0.5)), "all_reduce")
    assert 0.4 < seconds < 1.5, seconds
    os._exit(0)


def mismatch(call: object) -> None:
    start()
    dist.barrier()
    # The switch refuses whoever comes second; the other one learns that a peer is gone.
    seconds = expect_error(call, "rank")
    assert seconds < TIMEOUT_S, seconds


def mismatched_sizes() -> None:
    mismatch(lambda: dist.all_reduce(torch.ones(1000 + 100 * RANK)))


def mismatched_types() -> None:
    mismatch(lambda: dist.all_reduce(torch.ones(1000, dtype=torch.int32 if RANK else torch.float32)))


def mismatched_order() -> None:
    def call() -> None:
        works = [
            lambda: dist.all_reduce(torch.ones(500), async_op=True),
            lambda: dist.broadcast(torch.ones(500), 0, async_op=True),
        ]
        for work in [make() for make in (works if RANK else works[::-1])]:
            work.wait()

    mismatch(call)


def wrong_address() -> None:
    # Rank 0 may fail, and take the store along, before the other rank has asked the store for anything.
    seconds = expect_error(start, os.environ["FANIN_SWITCH"] if RANK == 0 else "")
    assert seconds < TIMEOUT_S + 4


def unknown_setting() -> None:
    try:
        start()
    except ValueError as error:
        assert "FANIN_LANES" in str(error), error
        return
    raise AssertionError("FANIN_LANE was accepted")


def exit_without_destroy() -> None:
    start()
    dist.all_reduce(torch.ones(1000))
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    work.get_future().then(lambda future: future.value())


def exit_with_pending_work() -> None:
    start()
    dist.barrier()
    if RANK == 0:
        # Never completes: the other rank leaves instead of joining in.
        dist.all_reduce(torch.ones(100_000), async_op=True).get_future()


def exit_with_pushes_pending() -> None:
    start()
    fanin.ps.init()
    assert float(fanin.ps.push_pull("both", torch.full((10,), float(RANK))).wait()[0]) == 0.5
    if RANK == 0:
        fanin.ps.push_pull("never the other", torch.ones(10))


def destroy_and_start_again() -> None:
    for _ in range(3):
        start()
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        assert torch.allclose(tensor, torch.full((1000,), 2.0))
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    assert fanin.stats()["totals"]["switch"] >= 3


def forked_child() -> None:
    start()
    dist.all_reduce(torch.ones(10))
    child = os.fork()
    if child == 0:
        expect_error(lambda: dist.all_reduce(torch.ones(10)), "fork")
        assert "all_reduce" in str(fanin.explain())
        if not has_python_backends():
            # That torch destroys gloo on the ordinary way out, which waits for threads that a child does not have.
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert float(tensor[0]) == 2
    dist.destroy_process_group()


def expect_interrupt(action: Callable[[], object]) -> None:
    # A shell that starts the tests in the background has them ignore Ctrl-C, and Python then leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sent: list[float] = []

    def press_ctrl_c() -> None:
        time.sleep(0.7)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press_ctrl_c).start()
    try:
        action()
    except KeyboardInterrupt:
        seconds = time.monotonic() - sent[0]
        assert seconds < 0.2, f"Ctrl-C took {seconds} s"
        print(f"interrupted after {seconds * 1000:.0f} ms")
        return
    raise AssertionError("not interrupted")


def interrupted() -> None:
    start()
    dist.barrier()
    if RANK == 1:
        linger(TIMEOUT_S)
    expect_interrupt(lambda: dist.all_reduce(torch.ones(10)))


def numpy_session() -> fanin.Session:
    """A session of the same ranks, on a switch of rank 0's."""
    start()
    if RANK == 0:
        _kept.append(fanin.LocalSwitch())
    addresses = [switch.address for switch in _kept] or [None]
    dist.broadcast_object_list(addresses, 0)
    return fanin.Session(switch=addresses[0], job="numpy", rank=RANK, world_size=2, timeout=TIMEOUT_S)


#: Switches that must live until the process ends.
_kept: list[fanin.LocalSwitch] = []


def interrupted_in_a_numpy_session() -> None:
    session = numpy_session()
    session.barrier()
    if RANK == 1:
        linger(TIMEOUT_S)
    expect_interrupt(session.barrier)


def handles_signals_while_it_waits() -> None:
    start()
    dist.barrier()
    if RANK == 1:
        time.sleep(1.5)
        dist.all_reduce(torch.ones(10))
        dist.destroy_process_group()
        return
    handled: list[float] = []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(time.monotonic()))
    sent = time.monotonic() + 0.5
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    # A handler that raises nothing runs soon, and changes nothing for the collective.
    assert len(handled) == 1 and handled[0] - sent < 0.5 and float(tensor[0]) == 2, (handled, sent, tensor)
    dist.destroy_process_group()


def closed_while_another_thread_waits() -> None:
    session = numpy_session()
    session.barrier()
    if RANK == 1:
        linger(4)
    threading.Timer(0.02, session.close).start()
    begin = time.monotonic()
    seconds = expect_error(session.barrier, "closed")
    assert seconds < TIMEOUT_S / 2 and time.monotonic() - begin < TIMEOUT_S / 2, seconds
    expect_error(session.barrier, "closed")


def aborted() -> None:
    start()
    dist.barrier()
    if RANK == 1:
        linger(TIMEOUT_S)
    threading.Timer(0.5, lambda: dist.distributed_c10d._abort_process_group()).start()
    seconds = expect_error(lambda: dist.all_reduce(torch.ones(10)), "abort")
    assert seconds < 2, seconds


def resends_after_loss() -> None:
    start()
    for size in (1000, 300_000):
        tensor = torch.full((size,), float(RANK + 1))
        dist.all_reduce(tensor)
        assert torch.allclose(tensor, torch.full((size,), 3.0))
    dist.barrier()
    packets = fanin.stats()["totals"]
    assert packets["losses_injected"] > 0 and packets["resends"] > 0, packets
    dist.destroy_process_group()


def settings_reach_the_session() -> None:
    start()
    tensor = torch.randn(5000, generator=torch.Generator().manual_seed(RANK))
    dist.all_reduce(tensor)
    others = [torch.randn(5000, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    # 11 significant bits per contribution.
    assert float((tensor - sum(others)).abs().max()) < 0.02
    (session,) = fanin.stats()["groups"][0]["sessions"]
    assert (session["lane_count"], session["slots_per_lane"], session["element_count_max"]) == (2, 16, 64), session
    dist.destroy_process_group()


def p4app_layout() -> None:
    start()
    tensor = torch.full((3000,), float(RANK + 1))
    dist.all_reduce(tensor)
    assert torch.allclose(tensor, torch.full((3000,), 3.0))
    moved = torch.full((10,), float(RANK))
    dist.broadcast(moved, 1)
    assert float(moved[0]) == 1
    dist.barrier()
    report = fanin.explain()
    assert report.totals["switch"] >= 1 and any("p4app" in reason for reason in report.reasons()), str(report)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
