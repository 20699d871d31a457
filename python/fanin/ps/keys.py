"""The table of keys that all ranks share: what each key's tensors are like, and its place in the order.

Nothing here knows of threads or sessions. Every rank applies the same announcements in the same order, and so has the
same table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fanin.ps.handle import Key

#: Keys of one job. Each takes four bytes in every round of agreement.
KEY_COUNT_MAX: Final = 65536
#: UTF-8 bytes of a key.
KEY_BYTES_MAX: Final = 1024
#: Bytes that one rank announces in one round; what is left follows in the next.
ANNOUNCEMENT_BYTES_MAX: Final = 1 << 16


#: A key in a dictionary: ``1`` and ``"1"`` are different keys.
Slot = tuple[bool, Key]


def slot(key: Key) -> Slot:
    """Where the key is in a dictionary, however its class is derived from str or int."""
    return isinstance(key, str), key


class Signature(NamedTuple):
    """What must be the same on all ranks for one key."""

    data_type: str
    shape: tuple[int, ...]
    average: bool

    def __str__(self) -> str:
        return f"{'an average' if self.average else 'a sum'} of {self.data_type} of shape {self.shape}"


class Announcement(NamedTuple):
    """What one rank says about one key."""

    key: Key
    signature: Signature
    priority: int
    is_change: bool = False
    """Whether only the priority is new; of no interest to the others."""


@dataclass
class Entry:
    """A key that all ranks know."""

    index: int
    """Position in the order of declaration."""
    key: Key
    signature: Signature
    priority: int
    declared_by: int
    """The rank whose announcement counted."""
    version: int = 0
    """Sums that were agreed on so far."""
    conflict: str | None = None
    """Why the key can be used no more."""


class KeyTable:
    """The keys in the order in which they were declared."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._by_slot: dict[Slot, Entry] = {}

    def find(self, key: Key) -> Entry | None:
        """The key's entry."""
        return self._by_slot.get(slot(key))

    def has(self, announcement: Announcement) -> bool:
        """Whether all ranks know as much already. The first priority that is announced for a key is as good as
        another.
        """
        entry = self.find(announcement.key)
        if entry is None or entry.signature != announcement.signature:
            return False
        return not announcement.is_change or entry.priority == announcement.priority

    def apply(self, announcements: Iterable[list[Announcement]]) -> list[Entry]:
        """Takes in what the ranks announce in one round, rank 0 first; returns the entries that came into conflict.

        A known key takes the highest priority that is announced for it in this round.
        """
        conflicts: list[Entry] = []
        priorities: dict[int, int] = {}
        for rank, said in enumerate(announcements):
            for announcement in said:
                entry = self.find(announcement.key)
                if entry is None:
                    entry = self._declare(announcement, rank)
                    if entry.conflict is not None:
                        conflicts.append(entry)
                if announcement.signature == entry.signature:
                    known = priorities.get(entry.index, announcement.priority)
                    priorities[entry.index] = max(known, announcement.priority)
                elif entry.conflict is None:
                    entry.conflict = _conflict(entry, announcement, rank)
                    conflicts.append(entry)
        for index, priority in priorities.items():
            self.entries[index].priority = priority
        return conflicts

    def _declare(self, announcement: Announcement, rank: int) -> Entry:
        entry = Entry(len(self.entries), announcement.key, announcement.signature, announcement.priority, rank)
        if entry.index >= KEY_COUNT_MAX:
            entry.conflict = f"key {entry.key!r} is one more than the {KEY_COUNT_MAX} that a job can have"
        self.entries.append(entry)
        self._by_slot[slot(entry.key)] = entry
        return entry


def _conflict(entry: Entry, other: Announcement, rank: int) -> str:
    return (
        f"the ranks do not agree about key {entry.key!r}: rank {entry.declared_by} wants {entry.signature}, "
        f"rank {rank} {other.signature}. Use one key for one tensor, with the same arguments on all ranks"
    )


def check_key(key: Any) -> None:
    """Raises ``TypeError`` or ``ValueError`` for what is no key."""
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"a key is a str or an int, not {type(key).__name__}")
    if len(json.dumps(key)) > KEY_BYTES_MAX:
        raise ValueError(f"a key has at most {KEY_BYTES_MAX} bytes as JSON")


def take_announcements(waiting: list[Announcement]) -> bytes:
    """Removes from `waiting` what fits into one round, and returns it as bytes, a multiple of four; none if it is
    empty.
    """
    taken: list[str] = []
    size = 2
    for announcement in waiting:
        data_type, shape, average = announcement.signature
        text = json.dumps([announcement.key, data_type, shape, average, announcement.priority])
        size += len(text) + 1
        if taken and size > ANNOUNCEMENT_BYTES_MAX:
            break
        taken.append(text)
    del waiting[: len(taken)]
    found = f"[{','.join(taken)}]".encode() if taken else b""
    return found + b" " * (-len(found) % 4)


def read_announcements(found: bytes) -> list[Announcement]:
    """The reverse of ``take_announcements``."""
    return list(_read(found)) if found else []


def _read(found: bytes) -> Iterator[Announcement]:
    for key, data_type, shape, average, priority in json.loads(found):
        yield Announcement(key, Signature(data_type, tuple(shape), average), priority)
