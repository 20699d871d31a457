"""The store of an asynchronous job: one value per key, to which pushes are added as they come.

It runs in rank 0's process, with a thread for each rank. A push takes effect when the store has added all of it, under
the key's lock: pulls see whole pushes only.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import threading
import time
from typing import Any, Final

import numpy

from fanin._fanin import FaninError
from fanin.ps.frames import HELLO, SECRET_BYTES, WELCOME, Frame, Kind, head, kind_of_tensor, receive_frame, receive_into
from fanin.ps.keys import KEY_COUNT_MAX, Slot, check_key, slot

_log = logging.getLogger("fanin.ps")
#: How long a caller may take to say who it is, seconds.
_HELLO_S: Final = 5.0
#: How many callers may be about to say so, beyond the ranks themselves.
_STRANGERS_MAX: Final = 64
#: Between a failure to take a connection, as for want of descriptors, and the next attempt, seconds.
_RETRY_S: Final = 0.5
#: Halves are added in float32: small pushes would vanish in a large value of their own type.
_SUM_TYPES: Final = {"float32": "<f4", "float16": "<f4", "bfloat16": "<f4", "int32": "<i4", "int64": "<i8"}


class _Value:
    """What the store holds of one key."""

    def __init__(self, data_type: str, shape: tuple[int, ...]) -> None:
        self.lock = threading.Lock()
        self.data_type, self.shape = data_type, shape
        #: Flat.
        self.sum = numpy.zeros(int(numpy.prod(shape, dtype=numpy.int64)), _SUM_TYPES[data_type])
        #: Pushes that were added.
        self.version = 0


class Store:
    """Values by key, for the ranks of one job; rank 0 has it."""

    def __init__(self, host: str, world_size: int) -> None:
        """Listens on a free port of this address. Raises ``OSError``."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.address: tuple[str, int] = (host, int(self._listener.getsockname()[1]))
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._world_size = world_size
        self._values: dict[Slot, _Value] = {}
        self._changed = threading.Condition()
        self._connections: dict[int, socket.socket] = {}
        #: Ranks that were ever connected; none comes a second time.
        self._seen: set[int] = set()
        #: Callers that have not said who they are.
        self._strangers: set[socket.socket] = set()
        #: Whether nobody else is let in: all ranks are, or the store ends.
        self._is_shut = False
        self._thread = threading.Thread(target=self._accept, name="fanin-ps-store", daemon=True)
        self._thread.start()

    def close(self, patience_s: float) -> list[int]:
        """Ends the store when all ranks have left, or after so many seconds; returns the ranks that it left behind."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while self._connections and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            behind = dict(self._connections)
            self._is_shut = True
            strangers = list(self._strangers)
            # Wakes the thread that accepts, and those that serve. With the lock, none of them closes its own meanwhile.
            for one in [self._listener, *strangers, *behind.values()]:
                _shut(one)
        self._thread.join()
        return sorted(behind)

    def _accept(self) -> None:
        with self._listener:
            while not self._is_shut:
                try:
                    self._let_in(*self._listener.accept())
                except (OSError, RuntimeError) as error:
                    # No descriptor or no thread is left, perhaps for a moment. Or the store was shut.
                    if not self._is_shut:
                        _log.warning("the store of fanin.ps cannot take a connection, and tries again: %s", error)
                        time.sleep(_RETRY_S)

    def _let_in(self, connection: socket.socket, peer: Any) -> None:
        with self._changed:
            is_welcome = not self._is_shut and len(self._strangers) < self._world_size + _STRANGERS_MAX
            if is_welcome:
                self._strangers.add(connection)
        if not is_welcome:
            connection.close()
            return
        try:
            name = f"fanin-ps-store-{peer[1]}"
            threading.Thread(target=self._serve, args=(connection, peer), name=name, daemon=True).start()
        except RuntimeError:
            self._forget(connection, None)
            raise

    def _serve(self, connection: socket.socket, peer: Any) -> None:
        rank: int | None = None
        try:
            rank = self._greet(connection)
            while (frame := receive_frame(connection)) is not None:
                self._answer(connection, frame)
        except (ConnectionError, OSError) as error:
            who = f"rank {rank}" if rank is not None else f"somebody at {peer[0]}:{peer[1]}"
            _log.warning("the store of fanin.ps lost %s: %s", who, error)
        finally:
            self._forget(connection, rank)

    def _forget(self, connection: socket.socket, rank: int | None) -> None:
        with self._changed:
            self._strangers.discard(connection)
            if rank is not None and self._connections.get(rank) is connection:
                del self._connections[rank]
            self._changed.notify_all()
            connection.close()

    def _greet(self, connection: socket.socket) -> int:
        said = _hello(connection, time.monotonic() + _HELLO_S)
        secret, rank = HELLO.unpack(said)
        if not hmac.compare_digest(secret, self.secret) or rank >= self._world_size:
            raise ConnectionError("it does not know the job's secret")
        prepare(connection)
        with self._changed:
            if rank in self._seen:
                raise ConnectionError(f"rank {rank} was connected already")
            if self._is_shut:
                raise ConnectionError("the store has ended")
            self._strangers.discard(connection)
            self._seen.add(rank)
            self._connections[rank] = connection
            if len(self._seen) == self._world_size:
                # Wakes the thread that accepts, which has nothing left to do.
                self._is_shut = True
                _shut(self._listener)
        try:
            connection.sendall(WELCOME)
        except OSError:
            self._forget(connection, rank)
            raise
        return int(rank)

    def _answer(self, connection: socket.socket, frame: Frame) -> None:
        if frame.kind in (Kind.DONE, Kind.REFUSED):
            raise ConnectionError("an answer came in place of a request")
        payload = bytearray(frame.payload_bytes)
        receive_into(connection, memoryview(payload))
        try:
            said, tensor = self._apply(frame, payload)
        except (FaninError, TypeError, ValueError) as error:
            connection.sendall(head(Kind.REFUSED, {"why": str(error)}, 0))
        else:
            connection.sendall(head(Kind.DONE, said, len(tensor)))
            connection.sendall(tensor)

    def _apply(self, frame: Frame, payload: bytearray) -> tuple[dict[str, Any], bytes]:
        key = frame.said.get("key")
        check_key(key)
        assert isinstance(key, (str, int))
        value = self._find(key, frame, payload)
        tensor = b""
        with value.lock:
            if frame.kind in (Kind.PUSH, Kind.PUSH_PULL):
                value.sum += _decoded(value.data_type, payload)
                value.version += 1
            if frame.kind in (Kind.PULL, Kind.PUSH_PULL):
                tensor = _encoded(value.data_type, value.sum)
            version = value.version
        return {"version": version, "data_type": value.data_type, "shape": value.shape}, tensor

    def _find(self, key: str | int, frame: Frame, payload: bytearray) -> _Value:
        with self._changed:
            value = self._values.get(slot(key))
            if frame.kind == Kind.PULL:
                if value is None:
                    raise FaninError(f"no rank has created or pushed key {key!r} yet: create it, or push it first")
                return value
            data_type, shape, byte_count = kind_of_tensor(frame.said)
            if byte_count != len(payload):
                raise FaninError(f"{len(payload)} bytes came for {data_type} of shape {shape}")
            if value is None:
                if len(self._values) >= KEY_COUNT_MAX:
                    raise FaninError(f"key {key!r} is one more than the {KEY_COUNT_MAX} that a job can have")
                value = self._values[slot(key)] = _Value(data_type, shape)
                if frame.kind == Kind.CREATE:
                    value.sum[:] = _decoded(data_type, payload)
            if (data_type, shape) != (value.data_type, value.shape):
                raise FaninError(
                    f"key {key!r} is {value.data_type} of shape {value.shape}, and this rank pushed {data_type} of "
                    f"shape {shape}: use one key for one tensor"
                )
            return value


def prepare(connection: socket.socket) -> None:
    """Small frames at once, no time limit, and an end within a minute where the other host is gone without a word."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 6)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)


def _hello(connection: socket.socket, deadline: float) -> bytes:
    """What a caller says first. All of it counts against one deadline, so that a byte now and then gains no time."""
    said = bytearray(HELLO.size)
    rest = memoryview(said)
    while rest:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it did not say who it is in time")
        connection.settimeout(left_s)
        count = connection.recv_into(rest)
        if count == 0:
            raise ConnectionError("it ended before it said who it is")
        rest = rest[count:]
    return bytes(said)


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has ended already.
        pass


def _decoded(data_type: str, payload: bytearray) -> Any:
    if data_type == "bfloat16":
        return (numpy.frombuffer(payload, "<u2").astype("<u4") << 16).view("<f4")
    return numpy.frombuffer(payload, "<f2" if data_type == "float16" else _SUM_TYPES[data_type])


def _encoded(data_type: str, values: Any) -> bytes:
    if data_type == "bfloat16":
        bits = values.view("<u4")
        nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return bytes(numpy.where(numpy.isnan(values), 0x7FC0, nearest).astype("<u2").tobytes())
    with numpy.errstate(over="ignore"):
        return bytes(values.astype("<f2" if data_type == "float16" else values.dtype).tobytes())
