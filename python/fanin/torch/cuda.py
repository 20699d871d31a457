"""CUDA tensors: staged through pinned host memory by two threads and one side stream.

Down: the side stream waits for the caller's stream, copies the tensor to a pinned buffer, and once that copy is
complete the request goes to the runtime. Up: when the request is done, the side stream copies the result back and
records an event; ``Work.wait`` makes the caller's stream wait for that event and blocks the CPU only until it has been
recorded.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch
from torch import Tensor

from fanin import _fanin
from fanin.telemetry import Contributions, note_contributions
from fanin.torch.policy import Plan


class StagedPart:
    """One request of a CUDA tensor; a ``Part`` whose ``wait_until`` orders the caller's stream behind the result."""

    def __init__(self, kind: str, plan: Plan, root: int, source: Tensor, target: Tensor, element_count: int) -> None:
        self.kind, self.plan, self.root, self.element_count = kind, plan, root, element_count
        self.source: Tensor | None = source
        self.target: Tensor | None = target
        self.device = target.device
        self.ready = torch.cuda.current_stream(self.device).record_event()
        self.pinned_in: Tensor | None = None
        self.pinned_out: Tensor | None = None
        self.ticket: _fanin.Ticket | None = None
        self.final: torch.cuda.Event | None = None
        self.error: Exception | None = None
        self.contributions: Contributions | None = None
        self._enqueued = threading.Event()

    def is_done(self) -> bool:
        """Whether the result's copy is on the device's queue, or the request failed."""
        return self._enqueued.is_set()

    def wait_until(self, deadline: float | None) -> None:
        """Returns once the copy back is enqueued, with the current stream ordered behind it."""
        # Short slices, because Ctrl-C is only noticed between them.
        while not self._enqueued.wait(0.05):
            if deadline is not None and time.monotonic() > deadline:
                raise _fanin.FaninTimeout(f"{self.kind} of a CUDA tensor is not complete at the wait's timeout")
        if self.error is not None:
            raise self.error
        assert self.final is not None and self.contributions is not None
        note_contributions(self.contributions)
        torch.cuda.current_stream(self.device).wait_event(self.final)

    def finish(self, error: Exception | None = None) -> None:
        """Releases the waiters; the tensors are no longer needed here."""
        self.error = error
        # The caching allocator must not hand the memory out before the side stream is past its copies.
        self.source = self.target = None
        self._enqueued.set()


class _PinnedPool:
    """Pinned buffers by size class, reused because pinning costs milliseconds."""

    def __init__(self) -> None:
        self._free: dict[int, list[Tensor]] = {}
        self._lock = threading.Lock()

    def take(self, byte_count: int) -> Tensor:
        """A pinned byte tensor of at least `byte_count` (the next power of two)."""
        size = 1 << max(12, (byte_count - 1).bit_length())
        with self._lock:
            free = self._free.setdefault(size, [])
            if free:
                return free.pop()
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def give_back(self, buffer: Tensor | None) -> None:
        """Offers the buffer to the next request."""
        if buffer is not None:
            with self._lock:
                self._free[buffer.numel()].append(buffer)


class CudaStager:
    """The staging of one group on one device, in order of submission."""

    def __init__(self, session: _fanin.Session, device: torch.device, world_size: int) -> None:
        self.session, self.device, self._world_size = session, device, world_size
        self._stream = torch.cuda.Stream(device=device)
        self._pool = _PinnedPool()
        self._down: queue.SimpleQueue[StagedPart | None] = queue.SimpleQueue()
        self._up: queue.SimpleQueue[StagedPart | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_down, name="fanin-cuda-down", daemon=True),
            threading.Thread(target=self._run_up, name="fanin-cuda-up", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, kind: str, plan: Plan, root: int, source: Tensor, target: Tensor, element_count: int
    ) -> StagedPart:
        """Queues one request; returns at once."""
        part = StagedPart(kind, plan, root, source, target, element_count)
        self._down.put(part)
        return part

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ends the threads; the session must have been closed, which fails what is in flight."""
        self._down.put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def _run_down(self) -> None:
        while (part := self._down.get()) is not None:
            try:
                self._copy_down(part)
            except Exception as error:
                part.finish(error)
            else:
                self._up.put(part)
        self._up.put(None)

    def _copy_down(self, part: StagedPart) -> None:
        source, target = part.source, part.target
        assert source is not None and target is not None
        part.pinned_in = self._pool.take(source.nbytes)
        part.pinned_out = part.pinned_in if target is source else self._pool.take(target.nbytes)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(part.ready)
            part.pinned_in[: source.nbytes].copy_(_bytes(source), non_blocking=True)
            source.record_stream(self._stream)
            self._stream.record_event().synchronize()
        part.ticket = self.session.submit(
            part.kind,
            part.plan.data_type,
            part.plan.operator,
            part.root,
            part.pinned_in.data_ptr(),
            part.pinned_out.data_ptr(),
            part.element_count,
            part.plan.label,
            (part.pinned_in, part.pinned_out),
        )

    def _run_up(self) -> None:
        while (part := self._up.get()) is not None:
            try:
                self._copy_up(part)
            except Exception as error:
                part.finish(error)
            else:
                part.finish()

    def _copy_up(self, part: StagedPart) -> None:
        assert part.ticket is not None and part.pinned_out is not None and part.target is not None
        part.contributions = Contributions.of(part.ticket.wait(), self._world_size)
        with torch.cuda.stream(self._stream):
            _bytes(part.target).copy_(part.pinned_out[: part.target.nbytes], non_blocking=True)
            part.target.record_stream(self._stream)
            part.final = self._stream.record_event()
        # The pinned buffer is read until the event: a reuse before it would overwrite what is still being copied.
        part.final.synchronize()
        self._pool.give_back(part.pinned_in)
        if part.pinned_out is not part.pinned_in:
            self._pool.give_back(part.pinned_out)


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().view(-1).view(torch.uint8)
