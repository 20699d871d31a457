"""One rank of a job that pushes and pulls: its queues, and the two threads that serve them.

The *agreeing* thread tells the other ranks what is ready here, learns what is ready everywhere (``rounds``), and
starts those sums (``schedule``). All collectives of the session are its own, so ranks may push keys in any order and
from any thread, and the session still sees one order. The *finishing* thread waits for the sums in the order in which
they were started, lets waiters go, and runs callbacks.

While some sums are carried out, the next round is under way already, so that what becomes ready meanwhile is compared
by priority with what is left.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from typing import Any, Final, Protocol

from fanin._fanin import FaninError, FaninTimeout
from fanin.ps.handle import Callback, Handle, Key, Place, place
from fanin.ps.keys import Announcement, Entry, KeyTable, Signature, Slot, check_key, slot
from fanin.ps.rounds import Rounds
from fanin.ps.schedule import Push, Schedule, Slice, Sum
from fanin.ps.state import KeyState, Pull
from fanin.session import CARRY_S, Session

#: Groups of slices that are started and not complete; more would only delay what comes with a higher priority.
_IN_FLIGHT_MAX: Final = 2


class Worker:
    """A rank's parameters; a context manager. ``fanin.ps.init`` makes one for the functions of ``fanin.ps``.

    Every method may be called by every thread. Tensors are C-contiguous numpy arrays or CPU tensors of torch, of the
    types that ``fanin.Session`` sums. They must stay unchanged (outputs: untouched) until the handle is done.
    """

    def __init__(self, session: Session, *, owns_session: bool = True) -> None:
        """Serves pushes and pulls with `session`, which nobody else may use from now on.

        The session's timeout ends every wait for the other ranks. With `owns_session`, ``close`` closes the session
        too.
        """
        self._session, self._owns_session = session, owns_session
        self._changed = threading.Condition()
        self._table = KeyTable()
        self._rounds = Rounds(session.rank, session.world_size)
        self._round_ended = 0.0
        self._schedule = Schedule()
        self._keys: dict[Slot, KeyState] = {}
        #: Those of them that have pushes.
        self._pushed: dict[Slot, KeyState] = {}
        self._announcements: list[Announcement] = []
        self._open: set[Handle] = set()
        self._error: Exception | None = None
        self._is_closing = False
        self._process_id = os.getpid()
        self._started: queue.SimpleQueue[tuple[Any, Slice] | Handle | None] = queue.SimpleQueue()
        self._agreeing = threading.Thread(target=self._agree, name="fanin-ps-agree", daemon=True)
        self._finishing = threading.Thread(target=self._finish, name="fanin-ps-finish", daemon=True)
        self._agreeing.start()
        self._finishing.start()
        close_at_exit(self)

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._session.rank

    @property
    def world_size(self) -> int:
        """How many ranks push to each sum."""
        return self._session.world_size

    def declare(self, key: Key, tensor: Any, *, average: bool = True, priority: int = 0) -> None:
        """Puts a key in its place among keys of one priority before it is pushed; announced with this rank's next push.

        `tensor` is one like those that will be pushed. Ranks need not declare keys; if they do, with equal arguments.
        """
        found = place(tensor, writable=False)
        with self._changed:
            self._check_alive()
            self._state(key, Signature(found.data_type, found.shape, average), priority)
            self._changed.notify_all()

    def push(
        self, key: Key, tensor: Any, *, average: bool = False, priority: int = 0, callback: Callback | None = None
    ) -> Handle:
        """Contributes `tensor` to the key's next sum, which ``pull`` fetches; done when that is complete here.

        Sums of the highest `priority` come first; it stays the key's until a push names another. `callback` gets the
        handle on a thread of ``fanin.ps`` and must not wait for other handles. Raises ``TypeError`` or ``ValueError``
        for what cannot be summed or differs from the key's earlier tensors, and the worker's ``FaninError`` after a
        failure.
        """
        return self._push(Handle("push", key, callback, self), place(tensor, writable=False), None, average, priority)

    def push_pull(
        self,
        key: Key,
        tensor: Any,
        out: Any = None,
        *,
        average: bool = True,
        priority: int = 0,
        callback: Callback | None = None,
    ) -> Handle:
        """Contributes `tensor` to the key's next sum and writes that to `out` (default: in place), in one collective.

        The handle's result is `out`. No copy is kept: ``pull`` cannot fetch a sum that this rank took in this way.
        Otherwise as ``push``.
        """
        source = place(tensor, writable=out is None)
        target = source if out is None else place(out, writable=True)
        if (target.data_type, target.shape) != (source.data_type, source.shape):
            raise ValueError(
                f"out is {target.data_type} of shape {target.shape}, tensor {source.data_type} of shape {source.shape}"
            )
        return self._push(Handle("push_pull", key, callback, self), source, target, average, priority)

    def pull(
        self, key: Key, out: Any = None, *, version: int | None = None, callback: Callback | None = None
    ) -> Handle:
        """Fetches the latest sum of the key into `out` (default: a new numpy array), which is the handle's result.

        Versions count the key's sums from 1. Waits until that of `version` is complete (default: the one after the
        last that was pulled here; 0: any); the handle's ``version`` tells which one came. Raises ``KeyError`` for a
        key that neither this rank nor all others know.
        """
        target = None if out is None else place(out, writable=True)
        handle = Handle("pull", key, callback, self)
        with self._changed:
            self._check_alive()
            state = self._known(key)
            wanted = state.pull_next if version is None else version
            state.pull_next = max(state.pull_next, wanted + 1)
            state.pulls.append(Pull(handle, wanted, target))
            self._open.add(handle)
            self._end_conflict(state, self._table.find(key))
            self._serve(state)
        return handle

    def close(self) -> None:
        """Leaves. What is not complete fails here, and where it was pushed on the other ranks too. Harmless twice."""
        if os.getpid() != self._process_id:
            return
        if self.is_calling_back():
            raise RuntimeError("a callback of fanin.ps must not close it: close waits for the callback")
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            has_pushes = any(handle.kind != "pull" for handle in self._open)
            self._changed.notify_all()
        forget(self)
        if has_pushes:
            self._session.abort(f"rank {self.rank} closed fanin.ps before its pushes were complete")
        self._agreeing.join()
        self._finishing.join()
        if self._owns_session:
            self._session.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None:
            self._session.abort(f"rank {self.rank} left with {kind.__name__}: {error}")
        self.close()

    # For handles

    @property
    def patience_s(self) -> float:
        """How long a wait without a timeout of its own lasts, seconds."""
        # The session's own errors come after its timeout and say more; they should win.
        return self._session.timeout + 5.0

    def is_calling_back(self) -> bool:
        """Whether the caller is a callback."""
        return threading.current_thread() is self._finishing

    # What callers do; all but the first with the lock held.

    def _push(self, handle: Handle, source: Place, target: Place | None, average: bool, priority: int) -> Handle:
        if not source.byte_count:
            raise ValueError(f"the tensor of key {handle.key!r} has no elements")
        with self._changed:
            self._check_alive()
            state = self._state(handle.key, Signature(source.data_type, source.shape, average), priority)
            state.pushes.append(Push(handle, source, target, time.monotonic()))
            self._pushed[slot(handle.key)] = state
            self._open.add(handle)
            self._end_conflict(state, self._table.find(handle.key))
            self._changed.notify_all()
        return handle

    def _check_alive(self) -> None:
        if os.getpid() != self._process_id:
            raise FaninError(
                "this fanin.ps belongs to another process and does not survive fork(); make one in the child"
            )
        if self._is_closing:
            raise FaninError("fanin.ps is closed")
        if self._error is not None:
            raise self._error

    def _state(self, key: Key, signature: Signature, priority: int) -> KeyState:
        """The key's state, for a push like this."""
        check_key(key)
        if signature.average and signature.data_type.startswith("int"):
            raise ValueError(f"key {key!r}: integers have no average; pass average=False for their sum")
        state = self._keys.get(slot(key))
        if state is None:
            state = self._keys[slot(key)] = KeyState(signature, priority)
            self._announcements.append(Announcement(key, signature, priority))
        if state.signature != signature:
            raise ValueError(
                f"key {key!r} is {state.signature} on this rank and cannot become {signature}: use another key"
            )
        if state.priority != priority:
            state.priority = priority
            self._announcements.append(Announcement(key, signature, priority, is_change=True))
        return state

    def _known(self, key: Key) -> KeyState:
        """The key's state, for a pull."""
        check_key(key)
        state, entry = self._keys.get(slot(key)), self._table.find(key)
        if state is None and entry is None:
            raise KeyError(f"key {key!r} was not pushed or declared yet: push it here, or declare it first")
        if state is None and entry is not None:
            state = self._keys[slot(key)] = KeyState(entry.signature, entry.priority)
        assert state is not None
        return state

    def _end_conflict(self, state: KeyState, entry: Entry | None) -> None:
        """Ends all that waits for a key about which the ranks do not agree."""
        if entry is not None and entry.conflict is not None:
            self._pushed.pop(slot(entry.key), None)
            for waiting in state.take_waiting():
                self._end(waiting.handle, error=FaninError(entry.conflict))

    def _serve(self, state: KeyState) -> None:
        for pull in state.take_pulls():
            try:
                version, result = state.fetch(pull)
            except (FaninError, ValueError) as error:
                self._end(pull.handle, error=error)
            else:
                self._end(pull.handle, version=version, result=result)

    def _end(self, handle: Handle, **outcome: Any) -> None:
        self._open.discard(handle)
        handle.end(**outcome)
        # For its callback.
        self._started.put(handle)

    # The agreeing thread

    def _agree(self) -> None:
        in_flight: deque[list[Any]] = deque()
        try:
            while self._wait_for_round():
                with self._changed:
                    words = self._rounds.tell(self._ready(), self._announcements, len(self._table.entries))
                # With sums to start the round is only begun; else it is all there is to do.
                ticket = self._exchange(words, 0.0 if self._schedule else CARRY_S)
                in_flight.append([self._start(part) for part in self._schedule.take()])
                ticket.wait()
                self._conclude(words)
                while len(in_flight) > _IN_FLIGHT_MAX:
                    for one in in_flight.popleft():
                        one.wait()
        except Exception as error:
            self._fail(error)
        self._started.put(None)

    def _wait_for_round(self) -> bool:
        """Sleeps until this rank takes part in a round; false at the end."""
        with self._changed:
            while self._error is None:
                if self._schedule:
                    # All ranks have the same sums left to carry out, and take part.
                    return True
                if self._is_closing:
                    return False
                self._announcements[:] = [said for said in self._announcements if not self._table.has(said)]
                # A key that is only declared can wait for a push: until then the others need not take part in a round.
                has_news = bool(self._announcements) and bool(self._pushed)
                pause_s = self._rounds.pause(self._ready(), has_news)
                left_s = None if pause_s is None else self._round_ended + pause_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return True
                self._check_patience()
                self._changed.wait(left_s)
            return False

    def _ready(self) -> set[int]:
        """Keys of which this rank has pushed the next sum."""
        entries = (self._table.find(key) for _, key in self._pushed)
        return {entry.index for entry in entries if entry is not None and entry.conflict is None}

    def _check_patience(self) -> None:
        """Two ranks that push different keys for ever take part in round after round, none of which takes long."""
        pushes = [state.pushes[0] for state in self._pushed.values()]
        oldest = min(pushes, key=lambda push: push.pushed_at, default=None)
        if oldest is not None and time.monotonic() - oldest.pushed_at > self._session.timeout:
            raise FaninTimeout(
                f"key {oldest.handle.key!r} was pushed by rank {self.rank}, but not by all ranks within "
                f"{self._session.timeout:g} s. {self._rounds.describe(self._table)}"
            )

    def _exchange(self, words: Any, carry_s: float) -> Any:
        found = place(words, writable=True)
        label = "agreement of fanin.ps on what is ready"
        return self._session.start_sum(
            found.address, found.address, "int32", words.size, words, label=label, carry_s=carry_s
        )

    def _conclude(self, words: Any) -> None:
        """Takes what a round came to: sums that every rank is ready for, and what the ranks announce."""
        news = self._rounds.announcement(words)
        if news is not None:
            self._exchange(news, CARRY_S).wait()
        with self._changed:
            for index in self._rounds.learn(words):
                entry = self._table.entries[index]
                entry.version += 1
                pushes = self._keys[slot(entry.key)].pushes
                self._schedule.add(Sum(entry, entry.version, pushes.popleft()))
                if not pushes:
                    del self._pushed[slot(entry.key)]
            if news is not None:
                for entry in self._table.apply(self._rounds.read(words, news)):
                    if state := self._keys.get(slot(entry.key)):
                        self._end_conflict(state, entry)
            self._round_ended = time.monotonic()

    def _start(self, part: Slice) -> Any:
        found, source = part.sum, part.sum.push.source
        entry = found.entry
        if found.target is None:
            with self._changed:
                found.target = found.push.target or self._keys[slot(entry.key)].take_buffer(source)
        ticket = self._session.start_sum(
            source.address + part.offset_bytes,
            found.target.address + part.offset_bytes,
            source.data_type,
            part.byte_count // source.element_bytes,
            (source.owner, found.target.owner),
            average=entry.signature.average,
            label=f"key {entry.key!r}",
        )
        self._started.put((ticket, part))
        return ticket

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self._error is None:
                self._error = self._explain(error)
            self._changed.notify_all()
        # The others wait for sums that this rank will not join any more.
        self._session.abort(f"fanin.ps failed on rank {self.rank}: {error}")

    def _explain(self, error: Exception) -> Exception:
        if self._is_closing:
            return FaninError("fanin.ps was closed before this was complete")
        waiting = [repr(key) for _, key in self._pushed]
        if not waiting or not isinstance(error, FaninError):
            return error
        names = ", ".join(waiting[:5]) + (" and others" if len(waiting) > 5 else "")
        return type(error)(f"rank {self.rank} waited for all ranks to push {names}: {error}")

    # The finishing thread

    def _finish(self) -> None:
        while (item := self._started.get()) is not None:
            if isinstance(item, Handle):
                _call_back(item)
                continue
            ticket, part = item
            try:
                ticket.wait()
            except Exception as error:
                self._fail(error)
            else:
                if part.is_last:
                    self._complete(part.sum)
        self._end_all()

    def _complete(self, found: Sum) -> None:
        with self._changed:
            state = self._keys[slot(found.entry.key)]
            state.complete(found)
            result = None if found.push.target is None else found.push.target.owner
            self._end(found.push.handle, version=found.version, result=result)
            self._serve(state)

    def _end_all(self) -> None:
        """Ends what is left, now that no tensor is touched any more."""
        with self._changed:
            error = self._error or FaninError("fanin.ps was closed before this was complete")
            # Later pushes and pulls must find the end as well.
            self._error = error
            ended, self._open = self._open, set()
            for state in self._keys.values():
                state.take_waiting()
            self._pushed.clear()
        for handle in ended:
            handle.end(error=error)
        while not self._started.empty():
            item = self._started.get()
            if isinstance(item, Handle):
                _call_back(item)
        for handle in ended:
            _call_back(handle)


def _call_back(handle: Handle) -> None:
    try:
        handle.call_back()
    except Exception:
        # The thread serves all keys, and must outlive one caller's mistake.
        traceback.print_exc()


class Closable(Protocol):
    """A worker of either mode."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Leaves the job, which an exception makes others not wait for."""


#: Workers that were made and not yet closed; exit closes them.
_live: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(worker: Closable) -> None:
    """The end of the program closes `worker`, unless it has been forgotten before."""
    # What was registered last is called first: the workers end before a private switch that one of them uses.
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    _live.add(worker)


def forget(worker: Closable) -> None:
    """The worker is closed."""
    _live.discard(worker)


def _close_all() -> None:
    # The exception that ends the program, if one does. An interactive program outlives those that it shows.
    is_interactive = hasattr(sys, "ps1")
    kind = None if is_interactive else getattr(sys, "last_type", None)
    error = None if is_interactive else getattr(sys, "last_value", None)
    for worker in list(_live):
        worker.__exit__(kind, error, None)
