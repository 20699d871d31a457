"""Handles of collectives in flight: ``Work`` for c10d, and the thread that completes futures."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.futures import Future

from fanin._fanin import FaninError, FaninTimeout
from fanin.telemetry import Contributions, note_contributions

#: What c10d passes for "no timeout given".
NO_TIMEOUT = timedelta(0)


class Part(Protocol):
    """One thing a collective waits for."""

    #: Whose contributions a finished request holds; None for others.
    contributions: Contributions | None

    def wait_until(self, deadline: float | None) -> None: ...
    def is_done(self) -> bool: ...


class NothingPart:
    """What a request without elements waits for."""

    contributions: Contributions | None = None

    def wait_until(self, deadline: float | None) -> None:
        """Returns at once."""

    def is_done(self) -> bool:
        """Always."""
        return True


class TicketPart:
    """A request inside the worker runtime."""

    __slots__ = ("_ticket", "_world_size", "contributions")

    def __init__(self, ticket: Any, world_size: int) -> None:
        self._ticket, self._world_size = ticket, world_size
        self.contributions: Contributions | None = None

    def wait_until(self, deadline: float | None) -> None:
        outcome = self._ticket.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.contributions = Contributions.of(outcome, self._world_size)
        note_contributions(self.contributions)

    def is_done(self) -> bool:
        return bool(self._ticket.is_done())


class WorkPart:
    """A collective of the fall-back backend that needs something done afterwards."""

    __slots__ = ("_work", "contributions")

    def __init__(self, work: Any) -> None:
        self._work = work
        self.contributions: Contributions | None = None

    def wait_until(self, deadline: float | None) -> None:
        if deadline is None:
            self._work.wait()
        else:
            # Zero would mean "no timeout" to c10d.
            self._work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))

    def is_done(self) -> bool:
        return bool(self._work.is_completed())


class FaninWork(Work):
    """One c10d call in flight: some parts, then finish steps (copy back, divide), then the result.

    c10d's holder forwards only ``wait`` and ``get_future``; the other methods serve callers that hold this object.
    """

    def __init__(
        self,
        completer: Completer,
        parts: Sequence[Part],
        tensors: list[Any],
        *,
        finishes: Sequence[Callable[[], None]] = (),
        deadline: float | None = None,
    ) -> None:
        super().__init__()
        self._completer = completer
        self._parts = parts
        self._tensors = tensors
        self._finishes = finishes
        self._deadline = deadline
        self._lock = threading.Lock()
        self._settled = False
        self._finished: list[tuple[torch.device, torch.cuda.Event]] = []
        self._error: Exception | None = None
        self._raw: Future[Any] | None = None
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until the result is in place. Raises ``DistBackendError`` with the reason otherwise."""
        deadline = self._deadline
        if timeout is not None and timeout > NO_TIMEOUT:
            own = time.monotonic() + timeout.total_seconds()
            deadline = own if deadline is None else min(own, deadline)
        self._complete(deadline)
        return True

    def get_future(self) -> Future[Any]:
        """A future of the list of tensors; made on first use so that plain calls never need the extra thread."""
        with self._lock:
            if self._future is not None:
                return self._future
            raw: Future[Any] = Future(devices=self._devices())
            # DDP crashes on Future.set_exception; a value that raises in `then` reaches the user as an error.
            self._raw, self._future = raw, raw.then(_value_or_raise)
        if self._completer.is_current() or self.is_completed():
            # A user callback that waits for a second collective would otherwise wait for its own thread.
            self.settle()
        else:
            self._completer.add(self)
        return self._future

    def settle(self) -> None:
        """Completes the work and its future, if there is one. Never raises: failures go into the future."""
        try:
            self._complete(self._deadline)
            value: Any = self._tensors
        except Exception as error:
            value = error
        with self._lock:
            raw, self._raw = self._raw, None
        if raw is not None:
            raw.set_result(value)

    def is_completed(self) -> bool:
        """Whether ``wait`` would return at once, failed or not."""
        return self._settled or all(part.is_done() for part in self._parts)

    def is_done(self) -> bool:
        """Whether the finish steps have run as well; with ``wait_until``, what makes this a ``Part``."""
        return self._settled

    def wait_until(self, deadline: float | None) -> None:
        """As ``wait``, with a point of ``time.monotonic`` instead of a span."""
        self._complete(deadline)

    def is_success(self) -> bool:
        """Whether the result is in place."""
        if not self.is_completed():
            return False
        return self.exception() is None

    def exception(self) -> Exception | None:
        """The failure of a completed collective, or None."""
        if self.is_completed():
            try:
                self._complete(self._deadline)
            except Exception as error:
                return error
        return None

    def result(self) -> list[Any]:
        """The tensors of a completed collective."""
        self.wait()
        return self._tensors

    @property
    def contributions(self) -> Contributions | None:
        """Whose contributions the parts of a finished collective hold, all together."""
        found = [part.contributions for part in self._parts if part.contributions is not None]
        if not found:
            return None
        named = [set(held.missing) for held in found if held.missing is not None]
        return Contributions(
            min(held.least for held in found),
            max(held.most for held in found),
            tuple(sorted(set().union(*named))) if len(named) == len(found) else None,
        )

    def synchronize(self) -> None:
        """Same as ``wait``."""
        self.wait()

    def _devices(self) -> list[torch.device]:
        return list({tensor.device for tensor in self._tensors if tensor.is_cuda})

    def _complete(self, deadline: float | None) -> None:
        # Also when settled: for CUDA, waiting is what orders the caller's own stream behind the result.
        for part in self._parts:
            self._wait_for(part, deadline)
        self._finish_once()
        if self._error is not None:
            raise self._error
        for device, event in self._finished:
            torch.cuda.current_stream(device).wait_event(event)

    def _wait_for(self, part: Part, deadline: float | None) -> None:
        try:
            part.wait_until(deadline)
        except FaninTimeout as error:
            # The caller's patience ended, not necessarily the collective: it may still complete later.
            raise backend_error(error) from error
        except FaninError as error:
            self._error = backend_error(error)
            raise self._error from error

    def _finish_once(self) -> None:
        # The caller's thread and the completer may both arrive here; the steps run once and before either leaves.
        with self._lock:
            if self._settled:
                return
            try:
                for finish in self._finishes:
                    finish()
            except Exception as error:
                self._error = error
            if self._finishes:
                self._finished = [
                    (device, torch.cuda.current_stream(device).record_event()) for device in self._devices()
                ]
            # The steps hold buffers that nobody needs any more.
            self._finishes = ()
            self._settled = True


class Completer:
    """The thread of one group that completes futures, in the order in which they were asked for.

    It is never the runtime's I/O thread: callbacks attached with ``then`` may block, or start further collectives.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[FaninWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, work: FaninWork) -> None:
        """Completes `work` as soon as everything added before it is complete."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"fanin-futures-{self._name}", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def is_current(self) -> bool:
        """Whether the caller runs on this thread, that is inside a user's callback."""
        return self._thread is threading.current_thread()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Lets the thread end after what is queued; the session must have been closed or drained first."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.settle()


def backend_error(error: Exception) -> Exception:
    """torch's own exception type for a failing backend, so that existing handlers catch it."""
    return dist.DistBackendError(str(error))


def _value_or_raise(future: Future[Any]) -> Any:
    value = future.value()
    if isinstance(value, Exception):
        raise value
    return value
