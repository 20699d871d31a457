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
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = (host, int(self._listener.getsockname()[1]))
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._world_size = world_size
        self._values: dict[Slot, _Value] = {}
        self._changed = threading.Condition()
        self._connections: dict[int, socket.socket] = {}
        self._thread = threading.Thread(target=self._accept, name="fanin-ps-store", daemon=True)
        self._thread.start()

    def close(self, patience_s: float) -> list[int]:
        """Ends the store when all ranks have left, or after so many seconds; returns the ranks that it left behind."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while self._connections and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            behind = dict(self._connections)
        # Wakes the thread that accepts.
        for one in [self._listener, *behind.values()]:
            _shut(one)
        self._listener.close()
        self._thread.join()
        return sorted(behind)

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            serve = threading.Thread(target=self._serve, args=(connection, peer), daemon=True)
            serve.name = f"fanin-ps-store-{peer[1]}"
            serve.start()

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
            with self._changed:
                if rank is not None and self._connections.get(rank) is connection:
                    del self._connections[rank]
                self._changed.notify_all()
            connection.close()

    def _greet(self, connection: socket.socket) -> int:
        connection.settimeout(_HELLO_S)
        said = bytearray(HELLO.size)
        receive_into(connection, memoryview(said))
        secret, rank = HELLO.unpack(said)
        if not hmac.compare_digest(secret, self.secret) or rank >= self._world_size:
            raise ConnectionError("it does not know the job's secret")
        with self._changed:
            if rank in self._connections:
                raise ConnectionError(f"rank {rank} is connected already")
            self._connections[rank] = connection
        prepare(connection)
        connection.sendall(WELCOME)
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
