"""In which order agreed sums are carried out, slice by slice. Every rank does the same from the same table."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from fanin.ps.handle import Handle, Place
from fanin.ps.keys import Entry

#: Bytes that are started between two rounds of agreement; a larger tensor is carried out in several slices.
BUDGET_BYTES: Final = 4 << 20
#: Collectives that are started between two rounds.
BUDGET_COUNT: Final = 64
#: A tensor is not cut for less than this.
_SLICE_BYTES_MIN: Final = 64 << 10
#: Slices end between elements of every size.
_ELEMENT_BYTES_MAX: Final = 8


@dataclass
class Push:
    """This rank's part in one sum."""

    handle: Handle
    source: Place
    target: Place | None
    """None for a push without a pull: the sum goes to a buffer of the key's."""
    pushed_at: float
    """Of ``time.monotonic``."""


@dataclass
class Sum:
    """A sum for which all ranks are ready."""

    entry: Entry
    version: int
    push: Push
    target: Place | None = None
    """Known once its first slice is started."""
    started_bytes: int = 0


class Slice(NamedTuple):
    """A part of a sum that is carried out as one collective."""

    sum: Sum
    offset_bytes: int
    byte_count: int
    is_last: bool


class Schedule:
    """Agreed sums that are not wholly started: the highest priority first, then the key that was declared first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Sum]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, agreed: Sum) -> None:
        """Queues a sum under its key's present priority."""
        heapq.heappush(self._heap, (-agreed.entry.priority, agreed.entry.index, agreed.version, agreed))

    def take(self) -> Iterator[Slice]:
        """What is started before the next round; at least one slice if there is any."""
        left_bytes, left_count = BUDGET_BYTES, BUDGET_COUNT
        while self._heap and left_bytes > 0 and left_count > 0:
            found = self._heap[0][-1]
            missing = found.push.source.byte_count - found.started_bytes
            size = missing if missing <= left_bytes else left_bytes - left_bytes % _ELEMENT_BYTES_MAX
            if size < missing and size < _SLICE_BYTES_MIN:
                return
            start = found.started_bytes
            found.started_bytes += size
            if size == missing:
                heapq.heappop(self._heap)
            left_bytes, left_count = left_bytes - size, left_count - 1
            yield Slice(found, start, size, size == missing)
