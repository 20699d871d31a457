"""Rounds of agreement: what one rank tells, what it learns, and when it takes part.

A round is one all-reduce (sum) of int32 words: first one per rank, the length of what that rank announces; then one
per key of the table, 1 where the rank's next push is ready. A key that all ranks counted is ready everywhere. Counts
rather than bits, because every transport and wire format adds integers, and because they tell how many ranks are
missing.

When to take part: a round ends only when all ranks take part, and who is in it can tell nothing new until then. After
each round every rank knows which keys are *open*: counted by some ranks and not by all. A rank takes part

* at once, if it has something new to tell;
* at once, if it counted all that is open: only news of others can help it, and some other rank lacks an open key and
  takes no part without news. So such a round waits, asleep, and is not repeated in vain;
* after a pause that doubles, if it lacks an open key and others lack one that it counted: such ranks would wait for
  each other's news for ever;
* not at all if nothing is ready here, since then no key can be ready everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy

from fanin.ps.keys import Announcement, KeyTable, read_announcements, take_announcements

_PAUSE_S_MIN: Final = 0.0005
_PAUSE_S_MAX: Final = 0.02
#: Keys that an error names.
_NAMES_MAX: Final = 5


class Rounds:
    """One rank's side of the agreement. Knows of no clock, thread or session."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._said = b""
        self._counted: set[int] = set()
        self._open: dict[int, int] = {}
        self._pause_s = _PAUSE_S_MIN

    def pause(self, ready: set[int], has_announcements: bool) -> float | None:
        """Seconds after the last round until this rank takes part in the next; None: not before something changes."""
        if has_announcements or ready - self._counted:
            return 0.0
        if not ready:
            return None
        return 0.0 if ready >= self._open.keys() else self._pause_s

    def tell(self, ready: set[int], announcements: list[Announcement], key_count: int) -> Any:
        """This rank's words for a round over a table of `key_count` keys; takes what it announces from the list."""
        self._said = take_announcements(announcements)
        self._counted = set(ready)
        words = numpy.zeros(self._world_size + key_count, "int32")
        words[self._rank] = len(self._said) // 4
        words[[self._world_size + index for index in ready]] = 1
        return words

    def learn(self, words: Any) -> list[int]:
        """Takes the sum of all ranks' words; returns the keys that are ready everywhere, in that order."""
        counts = words[self._world_size :]
        agreed = [int(index) for index in numpy.flatnonzero(counts == self._world_size)]
        partly = numpy.flatnonzero((counts > 0) & (counts < self._world_size))
        before, self._open = self._open, {int(index): int(counts[index]) for index in partly}
        self._counted.difference_update(agreed)
        is_new = agreed or self._open != before
        self._pause_s = _PAUSE_S_MIN if is_new else min(2 * self._pause_s, _PAUSE_S_MAX)
        return agreed

    def announcement(self, words: Any) -> Any | None:
        """This rank's words for a second all-reduce, in which every rank fills in what it announces; None if there is
        none.
        """
        starts = self._starts(words)
        if starts[-1] == 0:
            return None
        news = numpy.zeros(starts[-1], "int32")
        news[starts[self._rank] : starts[self._rank + 1]] = numpy.frombuffer(self._said, "int32")
        return news

    def read(self, words: Any, news: Any) -> Iterable[list[Announcement]]:
        """What each rank announces, rank 0 first, out of the sum of the second all-reduce."""
        return [read_announcements(news[start:end].tobytes()) for start, end in pairwise(self._starts(words))]

    def describe(self, table: KeyTable) -> str:
        """Which keys some ranks have pushed and others not, for an error."""
        if not self._open:
            return "No key is pushed by some ranks only"
        shown = [
            f"{table.entries[index].key!r} by {count} of {self._world_size} ranks"
            for index, count in list(self._open.items())[:_NAMES_MAX]
        ]
        return f"Pushed so far: {', '.join(shown)}{' and others' if len(self._open) > _NAMES_MAX else ''}"

    def _starts(self, words: Any) -> list[int]:
        return list(accumulate((int(length) for length in words[: self._world_size]), initial=0))
