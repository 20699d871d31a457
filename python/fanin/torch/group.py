"""One process group: its sessions, its gloo fall-back, and how tensors of a c10d call become requests.

Switch and fall-back are two independent channels. Each keeps the order of the calls made on it, and ``policy`` sends a
call down the same channel on every rank, so the two can never wait for each other in a circle.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo

from fanin import _fanin
from fanin.config import Config, load
from fanin.rendezvous import connect, stop_local_switch
from fanin.session import CARRY_S
from fanin.telemetry import Ledger
from fanin.torch.cuda import CudaStager
from fanin.torch.policy import P4APP_REASON, Plan, plan_all_reduce_p4app, plan_group, plan_move, plan_reduction
from fanin.torch.work import Completer, FaninWork, NothingPart, Part, TicketPart, WorkPart, backend_error

Finish = Callable[[], None]


class Group:
    """What both adapters (``backend`` and ``process_group``) share."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        self.rank, self.size, self.timeout, self.name = rank, size, timeout, name
        self.wait_timeout: timedelta | None = None
        self.ledger = Ledger(name, rank, size)
        self.completer = Completer(name)
        self.config: Config = load()
        self._store = store
        self._lock = threading.Lock()
        self._stager: CudaStager | None = None
        self._closed: str | None = None
        self._recent: deque[Part] = deque()
        self._recent_lock = threading.Lock()
        self._process_id = os.getpid()
        self._is_p4app = self.config.wire_format == "p4app"
        self.refusal = plan_group(size)
        # Joined before gloo connects: gloo would wait for an absent rank as well, but cannot say which one.
        self._session = None if self.refusal else self._connect("host")
        gloo_timeout = timedelta(seconds=self.config.timeout) if self.config.timeout else timeout
        _live.add(self)
        try:
            self.gloo = ProcessGroupGloo(PrefixStore("gloo/", store), rank, size, timeout=gloo_timeout)
        except BaseException:
            self.close()
            raise

    def session(self, device: torch.device) -> Any:
        """The session that serves tensors on `device`; joining the one for CUDA happens on first use."""
        if self._closed is not None:
            raise backend_error(RuntimeError(f"process group {self.name!r} {self._closed}"))
        if device.type == "cpu":
            return self._session
        with self._lock:
            # A second job: staged requests are issued by a thread, so they cannot share an order with the caller's.
            if self._stager is None:
                self._stager = CudaStager(self._connect("cuda"), device, self.size)
        if device != self._stager.device:
            raise ValueError(
                f"process group {self.name!r} serves {self._stager.device} on this rank, not {device} as well"
            )
        return self._stager

    def plan_reduction(self, kind: str, tensor: Tensor, operator: object) -> Plan:
        """Where a reduction of tensors like this one goes."""
        if general := self._general_refusal(tensor):
            return general
        if not self._is_p4app:
            return plan_reduction(tensor.dtype, tensor.layout, operator)
        if kind != "all_reduce":
            return Plan("", "", P4APP_REASON)
        return plan_all_reduce_p4app(tensor.dtype, tensor.layout, operator)

    def plan_move(self, tensor: Tensor) -> Plan:
        """Where a broadcast or gather of tensors like this one goes."""
        if general := self._general_refusal(tensor):
            return general
        return Plan("", "", P4APP_REASON) if self._is_p4app else plan_move(tensor.layout)

    def barrier_refusal(self) -> str | None:
        """Why a barrier cannot use the switch, or None."""
        return self.refusal or (P4APP_REASON if self._is_p4app else None)

    def remember(self, part: Part) -> Part:
        """Notes something in flight that a later barrier must wait for."""
        with self._recent_lock:
            while self._recent and self._recent[0].is_done():
                self._recent.popleft()
            self._recent.append(part)
        return part

    def unfinished(self) -> list[Part]:
        """What was issued so far and is still in flight."""
        with self._recent_lock:
            return [part for part in self._recent if not part.is_done()]

    def set_timeout(self, timeout: timedelta) -> None:
        """Shortens later waits that have no timeout of their own; the one given at creation stays the upper limit."""
        self.timeout = self.wait_timeout = timeout

    def abort(self, reason: str) -> None:
        """Fails everything in flight on both channels."""
        self._closed = self._closed or f"was aborted: {reason}"
        for session in self._sessions():
            session.abort(reason)
        if hasattr(self.gloo, "abort"):
            self.gloo.abort()

    def close(self) -> None:
        """Leaves the job. Safe to call twice, and in a forked child (where it does nothing)."""
        if os.getpid() != self._process_id:
            return
        with self._lock:
            if self not in _live:
                return
            _live.discard(self)
        self._closed = self._closed or "was destroyed"
        for session in self._sessions():
            self.ledger.detach(session)
            session.close()
        if self._stager is not None:
            self._stager.stop()
        self.completer.stop()

    def _sessions(self) -> list[_fanin.Session]:
        found = [self._session, self._stager.session if self._stager else None]
        return [session for session in found if session is not None]

    def _connect(self, part: str) -> _fanin.Session:
        # c10d gives each group its own store prefix, so equal keys of two groups never meet.
        store = PrefixStore(f"fanin/{part}/", self._store)
        name = self.name if part == "host" else f"{self.name}/{part}"
        try:
            session = connect(
                store, rank=self.rank, world_size=self.size, timeout=self.timeout, group=name, config=self.config
            )
        except _fanin.FaninError as error:
            raise backend_error(error) from error
        self.ledger.switch_address = session.controller
        self.ledger.attach(session)
        return session

    def _general_refusal(self, tensor: Tensor) -> Plan | None:
        if self.refusal is not None:
            return Plan("", "", self.refusal)
        if tensor.device.type not in ("cpu", "cuda"):
            return Plan("", "", f"device {tensor.device.type} is neither cpu nor cuda")
        return None


class Call:
    """Builds the ``Work`` of one c10d call out of one request per tensor."""

    def __init__(self, group: Group, kind: str, options: Any, request_count: int = 1) -> None:
        self._group, self._kind = group, kind
        timeout = getattr(options, "timeout", None)
        # c10d marks "not given" with -1 ms.
        timeout = timeout if timeout is not None and timeout > timedelta(0) else group.wait_timeout
        timeout_s = None if timeout is None else timeout.total_seconds()
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._is_async = bool(getattr(options, "asyncOp", True))
        # c10d waits at once for what is not asynchronous. Several requests are better all started first.
        self._carry_s = 0.0 if self._is_async or request_count > 1 else min(CARRY_S, timeout_s or CARRY_S)
        self._parts: list[Part] = []
        self._finishes: list[Finish] = []

    def submit(self, plan: Plan, root: int, source: Tensor, target: Tensor, element_count: int) -> None:
        """Hands one request to the runtime; `element_count` is that of the full (larger) buffer."""
        group = self._group
        group.ledger.submitted(self._kind, max(source.nbytes, target.nbytes))
        if element_count == 0:
            return
        session = group.session(target.device)
        if isinstance(session, CudaStager):
            part = session.submit(self._kind, plan, root, source, target, element_count)
            self._parts.append(group.remember(part))
            return
        try:
            ticket = session.submit(
                self._kind,
                plan.data_type,
                plan.operator,
                root,
                source.data_ptr(),
                target.data_ptr(),
                element_count,
                plan.label,
                (source, target),
                self._carry_s,
            )
        except _fanin.FaninError as error:
            raise backend_error(error) from error
        self._parts.append(group.remember(TicketPart(ticket, group.size)))

    def last_part(self) -> Part:
        """The part that the last `submit` has added; one without data, where there was nothing to submit."""
        return self._parts[-1] if self._parts else NothingPart()

    def barrier(self) -> None:
        """A request without data, and everything this rank issued before it."""
        group = self._group
        earlier = group.unfinished()
        group.ledger.submitted(self._kind, 0)
        try:
            session = group.session(torch.device("cpu"))
            ticket = session.submit("barrier", "bytes", "sum", 0, 0, 0, 0, "", carry_s=self._carry_s)
        except _fanin.FaninError as error:
            raise backend_error(error) from error
        self._parts += [TicketPart(ticket, group.size), *earlier]

    def fall_back(self, reason: str, byte_count: int, start: Callable[[], Any]) -> None:
        """Runs the call on gloo instead, as one part of this work."""
        self._group.ledger.fell_back(self._kind, reason, byte_count)
        self._parts.append(self._group.remember(WorkPart(start())))

    def afterwards(self, finish: Finish) -> None:
        """Runs `finish` once all parts are complete and before anybody sees the call as done."""
        self._finishes.append(finish)

    def work(self, tensors: list[Any]) -> FaninWork:
        """The handle; `tensors` is the value of its future."""
        work = FaninWork(
            self._group.completer,
            self._parts,
            tensors,
            finishes=self._finishes,
            deadline=self._deadline,
        )
        if self._is_async and self._finishes:
            # The caller may drop the handle, so somebody else has to run the finish steps.
            self._group.remember(work)
            self._group.completer.add(work)
        return work


#: Groups that were made and not yet closed; also what exit has to close.
_live: set[Group] = set()


def live_groups() -> list[Group]:
    """Groups that were made and not yet closed."""
    return list(_live)


@atexit.register
def close_all() -> None:
    """Leaves every job, so that exit without ``destroy_process_group`` neither hangs nor prints."""
    for group in live_groups():
        group.close()
    stop_local_switch()


def contiguous(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """A dense buffer with the tensor's values, and the step that brings results back if it is a copy."""
    if tensor.is_contiguous():
        return tensor, None
    buffer = tensor.detach().contiguous()
    return buffer, lambda: _copy_back(tensor, buffer)


def output_buffer(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """As ``contiguous`` for a tensor that is only written."""
    if tensor.is_contiguous():
        return tensor, None
    buffer = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return buffer, lambda: _copy_back(tensor, buffer)


def _copy_back(tensor: Tensor, buffer: Tensor) -> None:
    tensor.detach().copy_(buffer)
