"""The frames between a rank and the store of an asynchronous job: a few bytes of kind and lengths, a JSON object, a
tensor.

Tensors travel as they lie in memory, little-endian. Both ends are of one release, and of one job: who does not begin
with the job's secret is not listened to.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from math import prod
from socket import socket
from typing import Any, Final, NamedTuple

from fanin._fanin import FaninError

#: Bytes of the secret that rank 0 gives to the ranks through the switch.
SECRET_BYTES: Final = 16
#: What a rank says first: the secret and its rank.
HELLO: Final = struct.Struct(f"<{SECRET_BYTES}sI")
#: What the store answers to a hello that it believes.
WELCOME: Final = b"fanin-ps"
#: Bytes of one tensor.
TENSOR_BYTES_MAX: Final = 1 << 32
_HEAD: Final = struct.Struct("<4sBIQ")
_MAGIC: Final = b"FNPS"
_OBJECT_BYTES_MAX: Final = 1 << 16
ELEMENT_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}


class Kind(IntEnum):
    """What a frame is."""

    CREATE = 1
    """The key's first value, if it has none."""
    PUSH = 2
    PULL = 3
    PUSH_PULL = 4
    DONE = 5
    """The answer to any of these."""
    REFUSED = 6
    """The same, with the reason."""


class Frame(NamedTuple):
    """The beginning of a frame; `payload_bytes` of a tensor follow."""

    kind: Kind
    said: dict[str, Any]
    payload_bytes: int


def head(kind: Kind, said: dict[str, Any], payload_bytes: int) -> bytes:
    """A frame up to its tensor."""
    text = json.dumps(said).encode()
    return _HEAD.pack(_MAGIC, kind, len(text), payload_bytes) + text


def receive_frame(connection: socket) -> Frame | None:
    """The next frame up to its tensor; None where the other side has ended between two frames.

    Raises ``ConnectionError`` for what is no frame.
    """
    found = _receive(connection, _HEAD.size, may_end=True)
    if not found:
        return None
    magic, kind, object_bytes, payload_bytes = _HEAD.unpack(found)
    is_frame = magic == _MAGIC and kind in Kind.__members__.values()
    if not is_frame or object_bytes > _OBJECT_BYTES_MAX or payload_bytes > TENSOR_BYTES_MAX:
        raise ConnectionError("what came is no frame of fanin.ps: install the same release of fanin on all ranks")
    try:
        said = json.loads(_receive(connection, object_bytes))
    except ValueError as error:
        raise ConnectionError(f"a frame of fanin.ps holds no JSON: {error}") from error
    if not isinstance(said, dict):
        raise ConnectionError("a frame of fanin.ps holds no JSON object")
    return Frame(Kind(kind), said, payload_bytes)


def receive_into(connection: socket, memory: memoryview) -> None:
    """Fills `memory`, of bytes. Raises ``ConnectionError`` if the other side ends before."""
    while memory:
        count = connection.recv_into(memory)
        if count == 0:
            raise ConnectionError("the connection ended in the middle of a frame")
        memory = memory[count:]


def kind_of_tensor(said: dict[str, Any]) -> tuple[str, tuple[int, ...], int]:
    """Type, shape and bytes of the tensor that a frame speaks of. Raises ``FaninError`` if that is no tensor."""
    data_type, shape = said.get("data_type"), said.get("shape")
    is_shape = isinstance(shape, list) and all(isinstance(extent, int) and extent >= 0 for extent in shape)
    if data_type not in ELEMENT_BYTES or not is_shape:
        raise FaninError(f"no tensor is {data_type!r} of shape {shape!r}")
    assert isinstance(shape, list) and isinstance(data_type, str)
    return data_type, tuple(shape), prod(shape) * ELEMENT_BYTES[data_type]


def _receive(connection: socket, byte_count: int, *, may_end: bool = False) -> bytes:
    found = bytearray(byte_count)
    first = connection.recv_into(found) if byte_count else 0
    if first == 0 and may_end:
        return b""
    if first < byte_count:
        receive_into(connection, memoryview(found)[first:])
    return bytes(found)
