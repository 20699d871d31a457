"""Push and pull, as users of BytePS and ps-lite know it, over the switch.

>>> import fanin.ps
>>> fanin.ps.init()
>>> handle = fanin.ps.push_pull("layer1.weight", gradient, priority=2)   # averages in place
>>> fanin.ps.wait(handle)

Keys are str or int. Ranks may push them in different orders and from several threads: ``fanin.ps`` agrees in the
background on what is ready on every rank, and sums the highest priority first, then the key that was declared first.
Every rank pushes each sum of a key; nothing is summed before all have.

With ``init(asynchronous=True)`` a push takes effect at once, without the other ranks' pushes, and a pull returns what
there is; a store in rank 0's process then holds the values, and nothing is summed in the network.
"""

from __future__ import annotations

import atexit
import sys
import threading
from datetime import timedelta
from typing import Any

from fanin._fanin import FaninError
from fanin.config import load
from fanin.ps.asynchronous import AsyncWorker
from fanin.ps.handle import Callback, Handle, Key
from fanin.ps.worker import Worker
from fanin.rendezvous import connect, stop_local_switch
from fanin.session import DEFAULT_TIMEOUT_S, Session

__all__ = [
    "AsyncWorker",
    "Handle",
    "Key",
    "Worker",
    "create",
    "declare",
    "init",
    "poll",
    "pull",
    "push",
    "push_pull",
    "rank",
    "shutdown",
    "size",
    "wait",
]


class _Default:
    """The worker of the functions of this module."""

    lock = threading.Lock()
    worker: Worker | AsyncWorker | None = None
    count = 0


def init(session: Session | None = None, *, asynchronous: bool = False, **settings: Any) -> Worker | AsyncWorker:
    """Makes the worker that the functions of this module use, and returns it; collective over the job's ranks.

    Without arguments in a program of ``torch.distributed``: all ranks of the default group, whatever its backend, on
    ``FANIN_SWITCH`` or a private switch of rank 0. Otherwise the arguments of ``fanin.Session``, or a `session` that
    nobody else uses from then on. With `asynchronous`, the same on all ranks, pushes take effect as they come. Raises
    ``FaninError`` if there is a worker already, and what ``fanin.Session`` raises.
    """
    with _Default.lock:
        if _Default.worker is not None:
            raise FaninError("fanin.ps is initialised already: call fanin.ps.shutdown() first")
        kind = AsyncWorker if asynchronous else Worker
        if session is not None:
            _Default.worker = kind(session, owns_session=False)
        else:
            group = None if settings else _torch_group()
            _Default.worker = kind(group or Session(**{"job": "ps", **settings}))
        return _Default.worker


def shutdown() -> None:
    """Leaves the job; what is not complete fails. Harmless without ``init``."""
    with _Default.lock:
        worker, _Default.worker = _Default.worker, None
    if worker is not None:
        worker.close()


def declare(key: Key, tensor: Any, *, average: bool = True, priority: int = 0) -> None:
    """See ``Worker.declare``. Raises ``FaninError`` in asynchronous mode, which has no order of keys."""
    worker = _worker()
    if isinstance(worker, AsyncWorker):
        raise FaninError("asynchronous mode has no order of keys to declare: fanin.ps.create gives a key its value")
    worker.declare(key, tensor, average=average, priority=priority)


def create(key: Key, tensor: Any, *, callback: Callback | None = None) -> Handle:
    """See ``AsyncWorker.create``. Raises ``FaninError`` in synchronous mode, which has no values of its own."""
    worker = _worker()
    if isinstance(worker, Worker):
        raise FaninError("only fanin.ps.init(asynchronous=True) has a store in which a key can have a first value")
    return worker.create(key, tensor, callback=callback)


def push(
    key: Key, tensor: Any, *, average: bool = False, priority: int = 0, callback: Callback | None = None
) -> Handle:
    """See ``Worker.push``."""
    return _worker().push(key, tensor, average=average, priority=priority, callback=callback)


def pull(key: Key, out: Any = None, *, version: int | None = None, callback: Callback | None = None) -> Handle:
    """See ``Worker.pull``."""
    return _worker().pull(key, out, version=version, callback=callback)


def push_pull(
    key: Key,
    tensor: Any,
    out: Any = None,
    *,
    average: bool | None = None,
    priority: int = 0,
    callback: Callback | None = None,
) -> Handle:
    """See ``Worker.push_pull``; by default an average, in asynchronous mode the value."""
    worker = _worker()
    is_average = isinstance(worker, Worker) if average is None else average
    return worker.push_pull(key, tensor, out, average=is_average, priority=priority, callback=callback)


def wait(handle: Handle, timeout: float | None = None) -> Any:
    """See ``Handle.wait``."""
    return handle.wait(timeout)


def poll(handle: Handle) -> bool:
    """Whether the push or pull has ended, well or not; never blocks."""
    return handle.is_done()


def rank() -> int:
    """This worker's rank."""
    return _worker().rank


def size() -> int:
    """How many ranks there are."""
    return _worker().world_size


def _worker() -> Worker | AsyncWorker:
    worker = _Default.worker
    if worker is None:
        raise FaninError("fanin.ps is not initialised: call fanin.ps.init() first")
    return worker


def _torch_group() -> Session | None:
    """A session of the ranks of torch's default group, if there is one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    config = load()
    timeout = timedelta(seconds=config.timeout or DEFAULT_TIMEOUT_S)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    # Every rank comes here as often as the others, and a store's keys are never used again.
    _Default.count += 1
    name = f"ps/{_Default.count}"
    store = distributed.PrefixStore(f"fanin/{name}/", distributed.distributed_c10d._get_default_store())
    # Runs after the worker has been closed, which is registered later; rank 0 may have the switch in its process.
    atexit.register(stop_local_switch)
    session = connect(store, rank=rank, world_size=world_size, timeout=timeout, group=name, config=config)
    return Session.adopt(session, rank=rank, world_size=world_size, job=name, timeout=timeout.total_seconds())
