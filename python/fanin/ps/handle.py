"""Handles of pushes and pulls, and where their tensors are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, Protocol

from fanin._fanin import FaninTimeout
from fanin.session import SUMMABLE, address_of

Key = str | int


class Place(NamedTuple):
    """Memory of one tensor; `owner` keeps it alive."""

    address: int
    byte_count: int
    data_type: str
    shape: tuple[int, ...]
    owner: Any

    @property
    def element_count(self) -> int:
        """Elements of the whole tensor."""
        return prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; the tensor has one."""
        return self.byte_count // self.element_count


def place(tensor: Any, *, writable: bool) -> Place:
    """Where a numpy array or a CPU tensor of torch lies. Raises ``TypeError`` or ``ValueError`` if it cannot be
    summed.
    """
    if hasattr(tensor, "data_ptr"):
        return _place_of_torch(tensor)
    address = address_of(tensor, writable=writable)
    name = str(tensor.dtype)
    if name not in SUMMABLE or not tensor.dtype.isnative:
        raise TypeError(f"the switch does not sum {tensor.dtype!r}; it sums {', '.join(SUMMABLE)} in native byte order")
    return Place(address, int(tensor.nbytes), name, tuple(tensor.shape), tensor)


def _place_of_torch(tensor: Any) -> Place:
    if tensor.device.type != "cpu":
        raise TypeError(f"fanin.ps takes CPU tensors, and this one is on {tensor.device}: copy it with .cpu() first")
    if str(tensor.layout) != "torch.strided" or not tensor.is_contiguous():
        raise ValueError("tensor is not contiguous; use .contiguous()")
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in SUMMABLE:
        raise TypeError(f"the switch does not sum {tensor.dtype}; it sums {', '.join(SUMMABLE)}")
    return Place(int(tensor.data_ptr()), int(tensor.nbytes), name, tuple(tensor.shape), tensor)


class Patient(Protocol):
    """What a handle asks its worker, of either mode."""

    @property
    def patience_s(self) -> float:
        """How long a wait without a timeout of its own lasts, seconds."""

    def is_calling_back(self) -> bool:
        """Whether the caller is a callback."""


class Handle:
    """One push, pull or push_pull. Made by ``fanin.ps``; every thread may wait for it."""

    def __init__(self, kind: str, key: Key, callback: Callback | None, worker: Patient) -> None:
        self.kind = kind
        """``"push"``, ``"pull"``, ``"push_pull"`` or ``"create"``."""
        self.key = key
        self.version: int | None = None
        """Of the sum that this was part of, or that was fetched; the first sum of a key is version 1. None before.
        In asynchronous mode: how many pushes are in the key's value.
        """
        self.result: Any = None
        """The tensor that holds the sum; None for a push, and before the end."""
        self.error: Exception | None = None
        """Why it failed; None before the end and if it did not."""
        self._callback = callback
        self._worker = worker
        self._ended = threading.Event()

    def is_done(self) -> bool:
        """Whether it has ended, well or not; never blocks."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the end and returns ``result``. Ctrl-C ends it.

        `timeout` in seconds; without one, a little more than the session's. Raises ``FaninTimeout`` when it is over,
        after which the push or pull goes on; otherwise ``FaninError`` with the reason of a failure.
        """
        if not self.is_done() and self._worker.is_calling_back():
            raise RuntimeError("a callback of fanin.ps must not wait for another handle: it would wait for itself")
        patience_s = self._worker.patience_s if timeout is None else timeout
        if not self._ended.wait(patience_s):
            raise FaninTimeout(f"{self.kind} of key {self.key!r} has not completed within {patience_s:g} s")
        if self.error is not None:
            raise self.error
        return self.result

    def end(self, *, version: int | None = None, result: Any = None, error: Exception | None = None) -> None:
        """Lets the waiters go; only the first call counts."""
        if not self._ended.is_set():
            self.version, self.result, self.error = version, result, error
            self._ended.set()

    def call_back(self) -> None:
        """Runs the callback, once, after the end."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)


Callback = Callable[[Handle], None]
