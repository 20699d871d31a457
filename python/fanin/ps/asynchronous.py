"""One rank of an asynchronous job: pushes take effect as they come, and pulls return what there is.

The *sending* thread writes requests to the store (``store``), the highest priority first; the *receiving* thread takes
the answers, which come in the same order, lets waiters go and runs callbacks.
"""

from __future__ import annotations

import ctypes
import heapq
import ipaddress
import json
import os
import socket
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy

from fanin._fanin import FaninError
from fanin.ps.frames import (
    HELLO,
    TENSOR_BYTES_MAX,
    WELCOME,
    Frame,
    Kind,
    head,
    kind_of_tensor,
    receive_frame,
    receive_into,
)
from fanin.ps.handle import Callback, Handle, Key, Place, place
from fanin.ps.keys import Slot, check_key, slot
from fanin.ps.store import Store, prepare
from fanin.ps.worker import close_at_exit, forget
from fanin.rendezvous import local_address
from fanin.session import Session

#: Bytes of rank 0's word on where the store is.
_WORD_BYTES: Final = 256


@dataclass
class Request:
    """One call that the store has not answered."""

    handle: Handle
    kind: Kind
    source: Place | None
    """What is pushed."""
    out: Place | None
    """Where what is pulled goes; None: a new array, or nowhere."""


class Requests:
    """What waits to be sent: the highest priority first, and of one key the oldest."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int, Slot]] = []
        self._by_key: dict[Slot, deque[Request]] = {}
        self._count = count()

    def __len__(self) -> int:
        return len(self._order)

    def put(self, request: Request, priority: int) -> None:
        """Adds one; its priority is that of its key's oldest, so that a key's requests keep their order."""
        key = slot(request.handle.key)
        self._by_key.setdefault(key, deque()).append(request)
        heapq.heappush(self._order, (-priority, next(self._count), key))

    def take(self) -> Request:
        """Removes the next one; there must be one."""
        _, _, key = heapq.heappop(self._order)
        waiting = self._by_key[key]
        found = waiting.popleft()
        if not waiting:
            del self._by_key[key]
        return found


class AsyncWorker:
    """A rank's parameters in a store that adds pushes as they come; a context manager.

    ``fanin.ps.init(asynchronous=True)`` makes one for the functions of ``fanin.ps``. Tensors and handles are as for
    ``Worker``. The store is in rank 0's process and is reached by TCP: nothing is summed in the network.
    """

    def __init__(self, session: Session, *, owns_session: bool = True) -> None:
        """Meets the other ranks through `session`; collective. With `owns_session` it is closed before this returns.

        The session's timeout limits every wait. Raises what the session raises, and ``FaninError`` if rank 0's store
        cannot be reached.
        """
        self.rank, self.world_size = session.rank, session.world_size
        self._timeout_s = session.timeout
        self._process_id = os.getpid()
        try:
            self._store, self._connection, self._where = _meet(session)
        finally:
            if owns_session:
                session.close()
        self._changed = threading.Condition()
        self._requests = Requests()
        self._sent: deque[Request] = deque()
        self._priorities: dict[Slot, int] = {}
        self._is_closing = False
        self._error: Exception | None = None
        #: What ended the sending thread, other than the connection's end.
        self._mistake: BaseException | None = None
        self._sending = threading.Thread(target=self._send, name="fanin-ps-send", daemon=True)
        self._receiving = threading.Thread(target=self._receive, name="fanin-ps-receive", daemon=True)
        self._sending.start()
        self._receiving.start()
        close_at_exit(self)

    def create(self, key: Key, tensor: Any, *, callback: Callback | None = None) -> Handle:
        """Gives a key its first value, if no rank has created or pushed it before; otherwise checks type and shape."""
        return self._ask(Handle("create", key, callback, self), Kind.CREATE, place(tensor, writable=False), None, None)

    def push(
        self, key: Key, tensor: Any, *, average: bool = False, priority: int = 0, callback: Callback | None = None
    ) -> Handle:
        """Adds `tensor` to the key's value; done when that has been done. A new key begins at zero.

        Of requests that have not been sent those of the highest `priority` go first; it stays the key's until a push
        names another. Raises ``TypeError`` or ``ValueError`` for what cannot be added.
        """
        _no_average(average)
        handle = Handle("push", key, callback, self)
        return self._ask(handle, Kind.PUSH, place(tensor, writable=False), None, priority)

    def push_pull(
        self,
        key: Key,
        tensor: Any,
        out: Any = None,
        *,
        average: bool = False,
        priority: int = 0,
        callback: Callback | None = None,
    ) -> Handle:
        """Adds `tensor` to the key's value and writes what it is then to `out` (default: in place), in one step."""
        _no_average(average)
        source = place(tensor, writable=out is None)
        target = source if out is None else place(out, writable=True)
        _check_like(target, source.data_type, source.shape)
        return self._ask(Handle("push_pull", key, callback, self), Kind.PUSH_PULL, source, target, priority)

    def pull(
        self, key: Key, out: Any = None, *, version: int | None = None, callback: Callback | None = None
    ) -> Handle:
        """Fetches the key's present value into `out` (default: a new numpy array), which is the handle's result.

        The handle's ``version`` is the number of pushes in it, of all ranks. This rank's earlier pushes of the key are
        among them.
        """
        if version:
            raise ValueError("asynchronous pulls return what there is: no version can be waited for")
        target = None if out is None else place(out, writable=True)
        return self._ask(Handle("pull", key, callback, self), Kind.PULL, None, target, None)

    def close(self) -> None:
        """Sends what waits, takes the answers and leaves; at rank 0 only when all other ranks have left, or after the
        timeout. Harmless twice.
        """
        self._close(self._timeout_s)

    def __enter__(self) -> AsyncWorker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # The others must not wait for a store whose program has failed.
        self._close(self._timeout_s if kind is None else 0.0)

    # For handles

    @property
    def patience_s(self) -> float:
        """How long a wait without a timeout of its own lasts, seconds."""
        return self._timeout_s

    def is_calling_back(self) -> bool:
        """Whether the caller is a callback."""
        return threading.current_thread() is self._receiving

    # What callers do

    def _ask(self, handle: Handle, kind: Kind, source: Place | None, out: Place | None, priority: int | None) -> Handle:
        check_key(handle.key)
        if source is not None and not source.byte_count:
            raise ValueError(f"the tensor of key {handle.key!r} has no elements")
        if source is not None and source.byte_count > TENSOR_BYTES_MAX:
            raise ValueError(
                f"the tensor of key {handle.key!r} has {source.byte_count} bytes, more than the {TENSOR_BYTES_MAX} "
                "that an asynchronous store takes: push its parts, each with a key of its own"
            )
        if os.getpid() != self._process_id:
            raise FaninError(
                "this fanin.ps belongs to another process and does not survive fork(); make one in the child"
            )
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._is_closing:
                raise FaninError("fanin.ps is closed")
            key = slot(handle.key)
            if priority is not None:
                self._priorities[key] = priority
            self._requests.put(Request(handle, kind, source, out), self._priorities.get(key, 0))
            self._changed.notify_all()
        return handle

    def _close(self, patience_s: float) -> None:
        if os.getpid() != self._process_id:
            return
        if self.is_calling_back():
            raise RuntimeError("a callback of fanin.ps must not close it: close waits for the callback")
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify_all()
        forget(self)
        self._receiving.join(patience_s)
        _shut(self._connection, socket.SHUT_RDWR)
        self._sending.join()
        self._receiving.join()
        self._connection.close()
        if self._store is not None:
            behind = self._store.close(patience_s)
            if behind and patience_s:
                raise FaninError(
                    f"fanin.ps: ranks {behind} had not left {patience_s:g} s after rank 0 was done, and lost their "
                    "store: call fanin.ps.shutdown() on every rank"
                )

    # The sending thread

    def _send(self) -> None:
        try:
            while (request := self._next()) is not None:
                source = request.source
                said: dict[str, Any] = {"key": request.handle.key}
                if source is not None:
                    said |= {"data_type": source.data_type, "shape": source.shape}
                self._connection.sendall(head(request.kind, said, 0 if source is None else source.byte_count))
                if source is not None:
                    self._connection.sendall(_memory(source))
            # The store answers what it has, and then sees the end.
            _shut(self._connection, socket.SHUT_WR)
        except OSError:
            # The receiving thread finds the same, and tells everybody.
            _shut(self._connection, socket.SHUT_RDWR)
        except BaseException as broken:
            # The receiving thread sees the end of the connection, and ends what waits.
            self._mistake = broken
            _shut(self._connection, socket.SHUT_RDWR)

    def _next(self) -> Request | None:
        with self._changed:
            while not self._requests:
                if self._is_closing or self._error is not None:
                    return None
                self._changed.wait()
            request = self._requests.take()
            self._sent.append(request)
            return request

    # The receiving thread

    def _receive(self) -> None:
        error: Exception = FaninError("fanin.ps was closed before this was complete")
        try:
            while (frame := receive_frame(self._connection)) is not None:
                self._take(frame)
            if not self._is_closing:
                error = self._lost("it has ended")
        except (OSError, FaninError) as broken:
            error = self._lost(str(broken))
        except BaseException as broken:
            # Whatever it is, those who wait must hear of it.
            error = self._failed(broken)
        if self._mistake is not None:
            error = self._failed(self._mistake)
        with self._changed:
            self._error = error
            left = [*self._sent] + [self._requests.take() for _ in range(len(self._requests))]
            self._sent.clear()
            self._changed.notify_all()
        # Its thread may be in the middle of a tensor, which is the caller's again after the end.
        _shut(self._connection, socket.SHUT_RDWR)
        self._sending.join()
        for request in left:
            self._end(request, error=error)

    def _take(self, frame: Frame) -> None:
        with self._changed:
            if not self._sent:
                raise ConnectionError("it answered what nobody asked")
            request = self._sent[0]
        outcome: dict[str, Any] = {}
        if frame.kind == Kind.REFUSED:
            outcome["error"] = FaninError(str(frame.said.get("why")))
        else:
            outcome["version"] = frame.said.get("version")
        if frame.payload_bytes:
            outcome |= self._read(request, frame)
        with self._changed:
            self._sent.popleft()
        self._end(request, **outcome)

    def _read(self, request: Request, frame: Frame) -> dict[str, Any]:
        """Takes a tensor from the connection, to where the request wants it if it fits there."""
        data_type, shape, byte_count = kind_of_tensor(frame.said)
        if byte_count != frame.payload_bytes:
            raise FaninError(f"{frame.payload_bytes} bytes came for {data_type} of shape {shape}")
        out, error = request.out, None
        if out is not None:
            try:
                _check_like(out, data_type, shape)
            except ValueError as wrong:
                out, error = None, wrong
        target = out or new_place(data_type, shape)
        receive_into(self._connection, _memory(target))
        return {"error": error} if error is not None else {"result": target.owner}

    def _end(self, request: Request, **outcome: Any) -> None:
        request.handle.end(**outcome)
        try:
            request.handle.call_back()
        except BaseException:
            # sys.exit() as well: the thread serves all keys, and must outlive one caller's mistake.
            traceback.print_exc()

    def _failed(self, why: BaseException) -> FaninError:
        error = FaninError(f"fanin.ps failed on rank {self.rank} ({why!r}): make a new worker on all ranks")
        error.__cause__ = why
        return error

    def _lost(self, why: str) -> FaninError:
        host, port = self._where
        return FaninError(
            f"rank {self.rank} lost the store of fanin.ps, which rank 0 has at {host}:{port} ({why}): "
            "look at rank 0's own error first"
        )


def new_place(data_type: str, shape: tuple[int, ...]) -> Place:
    """Memory for a tensor like this."""
    # numpy has no bfloat16: who pulls it without `out` gets the bits.
    array = numpy.empty(shape, "uint16" if data_type == "bfloat16" else data_type)
    return Place(int(array.ctypes.data), int(array.nbytes), data_type, shape, array)


def _meet(session: Session) -> tuple[Store | None, socket.socket, tuple[str, int]]:
    """Rank 0 opens the store and tells the others where it is; returns when all ranks are connected."""
    store = None
    word = numpy.zeros(_WORD_BYTES, "uint8")
    try:
        if session.rank == 0:
            store = Store(_own_address(session.switch_address), session.world_size)
            text = json.dumps([*store.address, store.secret.hex()]).encode()
            word[: len(text)] = numpy.frombuffer(text, "uint8")
        session.broadcast(word)
        host, port, secret = json.loads(word.tobytes().rstrip(b"\0"))
        connection = _connect((host, port), HELLO.pack(bytes.fromhex(secret), session.rank), session.timeout)
        session.barrier()
    except BaseException as error:
        session.abort(f"rank {session.rank} could not begin with fanin.ps: {error}")
        if store is not None:
            store.close(0.0)
        raise
    return store, connection, (host, port)


def _connect(where: tuple[str, int], hello: bytes, timeout_s: float) -> socket.socket:
    try:
        connection = socket.create_connection(where, timeout_s)
        connection.sendall(hello)
        welcome = bytearray(len(WELCOME))
        receive_into(connection, memoryview(welcome))
        if welcome != WELCOME:
            raise ConnectionError("something else answers there")
    except OSError as error:
        advice = "ranks must be able to open TCP connections to rank 0's host"
        if ipaddress.ip_address(where[0]).is_loopback:
            advice = (
                "only rank 0's own host reaches that: set MASTER_ADDR on rank 0 to its host's address for the others"
            )
        raise FaninError(
            f"cannot reach the store of fanin.ps at {where[0]}:{where[1]} in rank 0's process ({error}): {advice}"
        ) from error
    prepare(connection)
    return connection


def _own_address(switch: str) -> str:
    """This host's address towards the switch, which the other ranks reach as well; with a switch on this host, which
    may be one of several, that towards ``MASTER_ADDR``.
    """
    host, _, port = switch.rpartition(":")
    family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family[0], socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only asks the kernel for a route.
        probe.connect(family[4])
        address = str(probe.getsockname()[0])
    if not ipaddress.ip_address(address).is_loopback:
        return address
    towards_master = local_address()
    return address if ipaddress.ip_address(towards_master).is_loopback else towards_master


def _no_average(average: bool) -> None:
    if average:
        raise ValueError(
            "an asynchronous store adds pushes as they come and knows no average: push the tensor divided by size()"
        )


def _check_like(out: Place, data_type: str, shape: tuple[int, ...]) -> None:
    if (out.data_type, out.shape) != (data_type, tuple(shape)):
        raise ValueError(f"out is {out.data_type} of shape {out.shape}, the value {data_type} of shape {tuple(shape)}")


def _memory(found: Place) -> memoryview:
    return memoryview((ctypes.c_char * found.byte_count).from_address(found.address)).cast("B")


def _shut(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        # It has ended already.
        pass
