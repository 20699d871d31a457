"""What went through the switch or shared memory, what did not, and why: the numbers behind ``fanin.explain()``."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanin._fanin import FaninError

if TYPE_CHECKING:
    from fanin._fanin import Outcome, Session

#: Counters that the worker runtime keeps for each kind of collective.
_RUNTIME_COUNTERS = ("failed", "timeouts", "chunks", "non_finite_blocks", "overflowed_elements", "seconds_in_flight")
#: Counters of a session's packets, which cannot be told apart by kind of collective.
_PACKET_COUNTERS = (
    "resends",
    "bytes_sent",
    "bytes_received",
    "datagrams_sent",
    "datagrams_received",
    "losses_injected",
)
#: What the switch's accumulator counts, in additions and read-outs of elements; see docs/guides/accumulators.md.
_CAUSES = ("overflow", "saturation", "overwrite", "left_shift", "flushed_to_zero", "lost_bits")
#: Tensors that a record keeps apart, over all its sessions; a switch keeps 32 of each job apart.
_TENSORS_KEPT = 256
#: As the switch calls those that it does not.
_OTHER_TENSORS = "other tensors"
#: Tensors that `explain()` prints; `groups[...]["tensors"]` has all of them.
_TENSORS_PRINTED = 8


@dataclass
class Tally:
    """Counts of one kind of collective on one rank of one group. Bytes are those of the caller's full buffer."""

    switch: int = 0
    switch_bytes: int = 0
    shared: int = 0
    shared_bytes: int = 0
    fallback: int = 0
    fallback_bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass
class Met:
    """What the switch's accumulator met, in additions and read-outs by cause."""

    causes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_CAUSES, 0))
    """In all sums of a group."""
    tensors: dict[str, dict[str, int]] = field(default_factory=dict)
    """By tensor, as "all_reduce float32 x 4096 sum", the worst of each session first; "other tensors" have no place."""

    def ask(self, session: Session) -> None:
        """Adds what the switch has counted for the job of `session`."""
        try:
            causes, tensors = session.accumulator_counts()
        except FaninError:
            # Whoever reads the record may do so because the switch does not answer.
            return
        self.add(causes, tensors)

    def add(self, causes: dict[str, int], tensors: dict[str, dict[str, int]]) -> None:
        """Adds another's counts. What no tensor's name is kept for any more goes to the others'."""
        _add_causes(self.causes, causes)
        for name, counts in tensors.items():
            has_place = name in self.tensors or len(self.tensors) < _TENSORS_KEPT
            row = self.tensors.setdefault(name if has_place else _OTHER_TENSORS, dict.fromkeys(_CAUSES, 0))
            _add_causes(row, counts)


def _add_causes(into: dict[str, int], counts: dict[str, int]) -> None:
    for cause in _CAUSES:
        into[cause] += counts.get(cause, 0)


@dataclass(frozen=True)
class Contributions:
    """Whose contributions a sum holds. All ranks', unless the job goes on without ranks that are lost or late."""

    least: int
    """Ranks in the chunk with the fewest."""
    most: int
    """Ranks in the chunk with the most."""
    missing: tuple[int, ...] | None
    """Ranks that are missing in some chunk; None where nobody can say, in jobs of more than 32 ranks."""

    @staticmethod
    def of(outcome: Outcome, world_size: int) -> Contributions:
        """What a finished collective of `world_size` ranks tells."""
        missing = outcome.missing_ranks
        return Contributions(
            world_size - outcome.missing_most,
            world_size - outcome.missing_least,
            None if missing is None else tuple(missing),
        )


_last: Contributions | None = None


def note_contributions(contributions: Contributions) -> None:
    """Keeps what `last_contributions` tells."""
    global _last
    _last = contributions


def last_contributions() -> Contributions | None:
    """Whose contributions are in the collective that this process waited for last; None before the first.

    >>> torch.distributed.all_reduce(gradient)
    >>> fanin.last_contributions()
    Contributions(least=3, most=4, missing=(2,))
    """
    return _last


class Ledger:
    """The record of one process group; it outlives the group so that ``explain()`` works after the training loop."""

    def __init__(self, group: str, rank: int, world_size: int) -> None:
        self.group, self.rank, self.world_size = group, rank, world_size
        self.switch_address: str | None = None
        self._tallies: dict[str, Tally] = {}
        self._sessions: list[Session] = []
        self._stays_on_host = False
        self._past: dict[str, dict[str, float]] = {}
        self._past_packets: dict[str, int] = dict.fromkeys(_PACKET_COUNTERS, 0)
        self._past_met = Met()
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        with _registry_lock:
            _registry.append(self)
            # Programs that make groups in a loop must not grow without bound.
            del _registry[:-_LEDGERS_KEPT]

    def attach(self, session: Session) -> None:
        """Counts of `session` belong to this record until `detach`."""
        with self._lock:
            self._sessions.append(session)
            self._stays_on_host = session.transport == "shared memory"

    def detach(self, session: Session) -> None:
        """Takes the final counts of `session`, which is about to be closed."""
        totals, met = session.totals(), Met()
        # A switch that is gone would be waited for. Nobody else waits meanwhile.
        if not any(counts["failed"] for counts in totals.values()):
            met.ask(session)
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)
                self._past_met.add(met.causes, met.tensors)
                _add_totals(self._past, totals)
                _add_packets(self._past_packets, json.loads(session.stats()))

    def submitted(self, kind: str, byte_count: int) -> None:
        """One more collective of `kind` was handed to the session: to the switch, or to this host's shared memory."""
        with self._lock:
            tally = self._tallies.setdefault(kind, Tally())
            if self._stays_on_host:
                tally.shared += 1
                tally.shared_bytes += byte_count
            else:
                tally.switch += 1
                tally.switch_bytes += byte_count

    def fell_back(self, kind: str, reason: str, byte_count: int) -> None:
        """One more collective of `kind` was handed to the fall-back backend, because of `reason`."""
        with self._lock:
            tally = self._tallies.setdefault(kind, Tally())
            tally.fallback += 1
            tally.fallback_bytes += byte_count
            tally.reasons[reason] = tally.reasons.get(reason, 0) + 1

    def met(self) -> Met:
        """What the switch's accumulator met in the sums of all ranks of the group; asks the switch."""
        while True:
            found = Met()
            with self._lock:
                found.add(self._past_met.causes, self._past_met.tensors)
                sessions = list(self._sessions) if os.getpid() == self._process_id else []
            # The answer is waited for: whoever submits must not be.
            for session in sessions:
                found.ask(session)
            with self._lock:
                # The counts of a session that has ended meanwhile are now in the past's.
                if all(session in self._sessions for session in sessions):
                    return found

    def snapshot(self) -> dict[str, Any]:
        """All counts as plain dictionaries, ready for JSON."""
        with self._lock:
            runtime: dict[str, dict[str, float]] = {kind: dict(counts) for kind, counts in self._past.items()}
            # A forked child has the record of its parent's sessions, but not the sessions.
            usable = self._sessions if os.getpid() == self._process_id else []
            for session in usable:
                _add_totals(runtime, session.totals())
            sessions = [json.loads(session.stats()) for session in usable]
            packets = dict(self._past_packets)
            for entry in sessions:
                _add_packets(packets, entry)
            collectives = {kind: _row(tally, runtime.get(kind, {})) for kind, tally in sorted(self._tallies.items())}
        return {
            "group": self.group,
            "rank": self.rank,
            "world_size": self.world_size,
            "switch": self.switch_address,
            "collectives": collectives,
            "packets": packets,
            "sessions": sessions,
        }


_LEDGERS_KEPT = 256
_registry: list[Ledger] = []
_registry_lock = threading.Lock()


def _row(tally: Tally, runtime: dict[str, float]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "switch": tally.switch,
        "switch_bytes": tally.switch_bytes,
        "shared": tally.shared,
        "shared_bytes": tally.shared_bytes,
        "fallback": tally.fallback,
        "fallback_bytes": tally.fallback_bytes,
        "reasons": dict(tally.reasons),
    }
    return row | {name: runtime.get(name, 0) for name in _RUNTIME_COUNTERS}


def _add_totals(into: dict[str, dict[str, float]], totals: dict[str, dict[str, Any]]) -> None:
    for kind, counts in totals.items():
        sums = into.setdefault(kind, {})
        for name in _RUNTIME_COUNTERS:
            sums[name] = sums.get(name, 0) + counts.get(name, 0)


def _add_packets(into: dict[str, int], session: dict[str, Any]) -> None:
    for name in _PACKET_COUNTERS:
        into[name] += session.get(name, 0)


def _select(group: Any) -> list[Ledger]:
    with _registry_lock:
        ledgers = list(_registry)
    if group is None:
        return ledgers
    # A torch process group, or the name of one.
    name = group if isinstance(group, str) else getattr(group, "group_name", None)
    return [ledger for ledger in ledgers if ledger.group == name]


def stats(group: Any = None) -> dict[str, Any]:
    """Counts of this rank: ``{"groups": [...], "totals": {...}}``, per kind of collective and summed.

    `group` limits the answer to one process group (the object or its name); ``None`` means every group so far.
    """
    groups = [ledger.snapshot() for ledger in _select(group)]
    counted = ("switch", "switch_bytes", "shared", "shared_bytes", "fallback", "fallback_bytes", *_RUNTIME_COUNTERS)
    totals: dict[str, Any] = dict.fromkeys(counted, 0)
    for entry in groups:
        for row in entry["collectives"].values():
            for name in totals:
                totals[name] += row[name]
    packets: dict[str, int] = dict.fromkeys(_PACKET_COUNTERS, 0)
    for entry in groups:
        _add_packets(packets, entry["packets"])
    totals |= packets
    return {"groups": groups, "totals": totals}


@dataclass(frozen=True)
class Explanation:
    """The answer of ``explain()``: printable, and the same facts as data."""

    groups: list[dict[str, Any]]
    totals: dict[str, Any]

    @property
    def switch_share(self) -> float:
        """Share of collectives that went through the switch, 0 to 1; 0 when there were none."""
        count = self.totals["switch"] + self.totals["shared"] + self.totals["fallback"]
        return self.totals["switch"] / count if count else 0.0

    def reasons(self) -> dict[str, int]:
        """Every reason for a fall-back with its count, over all groups and kinds."""
        found: dict[str, int] = {}
        for group in self.groups:
            for row in group["collectives"].values():
                for reason, count in row["reasons"].items():
                    found[reason] = found.get(reason, 0) + count
        return found

    def __str__(self) -> str:
        if not self.groups:
            return "fanin: no process group and no session has been made in this process"
        return "\n".join(line for group in self.groups for line in _group_lines(group))


def _group_lines(group: dict[str, Any]) -> list[str]:
    switch = group["switch"] or "none"
    paths = sorted({session["transport"] for session in group["sessions"]})
    by = f", by {' and '.join(paths)}" if paths else ""
    lines = [f"fanin group {group['group']!r}: rank {group['rank']} of {group['world_size']}, switch {switch}{by}"]
    if not group["collectives"]:
        return [*lines, "  no collective so far"]
    lines.append(
        f"  {'collective':<16}{'switch':>8}{'shared':>8}{'fell back':>11}{'switch MB':>12}{'shared MB':>12}"
        f"{'non-finite':>12}{'failed':>8}{'timeouts':>10}"
    )
    for kind, row in group["collectives"].items():
        lines.append(
            f"  {kind:<16}{row['switch']:>8}{row['shared']:>8}{row['fallback']:>11}"
            f"{row['switch_bytes'] / 1e6:>12.3f}{row['shared_bytes'] / 1e6:>12.3f}"
            f"{row['non_finite_blocks']:>12}{row['failed']:>8}{row['timeouts']:>10}"
        )
        if row["overflowed_elements"]:
            count = row["overflowed_elements"]
            lines.append(f"      {count} elements left the accumulator's format; their blocks were sent again")
        lines += [f"      {count} fell back: {reason}" for reason, count in row["reasons"].items()]
    packets = group["packets"]
    accumulators = sorted({session["accumulator"] for session in group["sessions"]})
    if accumulators:
        lines.append(f"  accumulator: {', '.join(accumulators)}")
    if met := _words(group.get("causes", {})):
        lines.append(f"  met by the switch, in additions for all ranks: {met}")
        lines += _tensor_lines(group.get("tensors", {}))
    lines.append(
        f"  packets: {packets['datagrams_sent']} sent ({packets['bytes_sent'] / 1e6:.3f} MB), "
        f"{packets['datagrams_received']} received, {packets['resends']} contributions resent"
    )
    return lines


def _words(causes: dict[str, int]) -> str:
    return ", ".join(f"{cause.replace('_', ' ')} {count}" for cause, count in causes.items() if count)


def _tensor_lines(tensors: dict[str, dict[str, int]]) -> list[str]:
    lines = [f"      {name}: {_words(causes)}" for name, causes in tensors.items()]
    more = len(lines) - _TENSORS_PRINTED
    return [*lines[:_TENSORS_PRINTED], f"      and {more} more"] if more > 0 else lines


def explain(group: Any = None) -> Explanation:
    """Says which collectives went through the switch, which fell back and why, on this rank.

    Where the switch adds floats by an accumulator other than block-fixed, it is asked what that has met, which takes up
    to ten seconds if it does not answer: ``groups[...]["causes"]``, for all ranks of the job, and
    ``groups[...]["tensors"]``, the same by tensor. One tensor is what collectives have in common that have one kind,
    type, number of elements and operator (and, in ``fanin.ps`` and DDP's hook, one key or bucket).

    >>> print(fanin.explain())
    """
    found = stats(group)
    for entry, ledger in zip(found["groups"], _select(group), strict=False):
        met = ledger.met()
        entry["causes"], entry["tensors"] = met.causes, met.tensors
    return Explanation(groups=found["groups"], totals=found["totals"])
