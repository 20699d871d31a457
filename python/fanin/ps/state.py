"""What one rank holds of one key."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy

from fanin._fanin import FaninError
from fanin.ps.handle import Handle, Place
from fanin.ps.keys import Signature
from fanin.ps.schedule import Push, Sum


@dataclass
class Pull:
    """A wait for a sum."""

    handle: Handle
    version: int
    """The lowest that will do."""
    out: Place | None
    """None: a new array."""


@dataclass
class KeyState:
    """Pushes and pulls of one key on this rank, and its latest sum. Whoever uses it holds the worker's lock."""

    signature: Signature
    priority: int
    pushes: deque[Push] = field(default_factory=deque)
    """Not yet agreed on, oldest first."""
    pulls: list[Pull] = field(default_factory=list)
    pull_next: int = 1
    """What a pull without a version waits for."""
    version: int = 0
    """Of the last sum that is complete here."""
    _stored: Place | None = None
    _stored_version: int = 0
    _spare: Place | None = None
    """Where the next sum is made, so that the stored one can be read meanwhile."""

    def take_buffer(self, like: Place) -> Place:
        """Memory for the next sum."""
        found, self._spare = self._spare, None
        return found or _new(like)

    def complete(self, found: Sum) -> None:
        """Takes in a sum that is complete."""
        self.version = found.version
        if found.push.target is None:
            self._spare, self._stored, self._stored_version = self._stored, found.target, found.version
        else:
            self.pull_next = max(self.pull_next, found.version + 1)

    def take_waiting(self) -> list[Push | Pull]:
        """Removes all that waits."""
        found = [*self.pushes, *self.pulls]
        self.pushes.clear()
        self.pulls.clear()
        return found

    def take_pulls(self) -> list[Pull]:
        """Removes the pulls whose sum is complete."""
        is_served = [self.version >= max(1, pull.version) for pull in self.pulls]
        found = [pull for pull, served in zip(self.pulls, is_served, strict=True) if served]
        self.pulls = [pull for pull, served in zip(self.pulls, is_served, strict=True) if not served]
        return found

    def fetch(self, pull: Pull) -> tuple[int, Any]:
        """Copies the stored sum; returns its version and the tensor. Raises if it is not what the pull can take."""
        stored, key = self._stored, pull.handle.key
        if stored is None or self._stored_version < pull.version:
            raise FaninError(
                f"sum {self.version} of key {key!r} went to the tensor of this rank's push_pull, and no copy is kept: "
                "pull what was pushed with push"
            )
        out = pull.out or _new(stored)
        if (out.data_type, out.byte_count) != (stored.data_type, stored.byte_count):
            raise ValueError(
                f"out is {out.data_type} of shape {out.shape}, key {key!r} {stored.data_type} of shape {stored.shape}"
            )
        ctypes.memmove(out.address, stored.address, stored.byte_count)
        self.pull_next = max(self.pull_next, self._stored_version + 1)
        return self._stored_version, out.owner


def _new(like: Place) -> Place:
    # numpy has no bfloat16: who pulls it without `out` gets the bits.
    array = numpy.empty(like.shape, "uint16" if like.data_type == "bfloat16" else like.data_type)
    return Place(int(array.ctypes.data), int(array.nbytes), like.data_type, like.shape, array)
